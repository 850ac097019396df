#!/usr/bin/env python3
"""libffpa on an NVIDIA GPU beside PyTorch's scaled_dot_product_attention, in one process: forward, backward, key heads
for groups (GQA), few queries of many keys, decode, and what the first call of a variant costs.

Every case runs with the library, with the fastest of PyTorch's backends that takes it, and with the library again;
the roofs (GEMM, copy) are measured in the same process before and after. Medians by CUDA events, after a few calls that
do not count; long calls are repeated less often. FLOP = 2 B Hq pairs (D + Dv), backward 2.5 times that. Of decode, the
bytes of K and V; of_roof is the share of the GEMM's rate, or of the copy's (bytes read and written).

  gpu.py LIBRARY [--backend cuda|cuda/FAMILY] [--part first,forward,backward,decode] [-k TEXT] [--seconds S] [--csv FILE]
"""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import torch

import gpu_case
from gpu_case import Ffpa, Gemm, median_ms

N = "q8192k8192"
COLUMNS = "case,path,unit,ffpa_ms,ffpa,of_roof,torch_backend,torch_ms,torch,ratio"

# The most telling first.
PARTS = {
    "forward": [f"fwd,bf16,b1h32,{N},d{d}{c}" for d in (512, 320, 1024) for c in ("", ",causal")]
               + [f"fwd,bf16,b1h32k8,{N},d512", "fwd,bf16,b1h32,q1024k8192,d512", f"fwd,bf16,b1h32k8,{N},d320",
                  f"fwd,bf16,b1h32k8,{N},d1024", "fwd,bf16,b1h32,q1024k8192,d320", "fwd,bf16,b1h32,q1024k8192,d1024"],
    "decode": [f"fwd,bf16,b8h32k4,q1k{n},d512" for n in (32768, 8192, 2048, 512)],
}
PARTS["backward"] = [text.replace("fwd", "bwd") for text in PARTS["forward"]]


def cases(parts):
    """Forward and backward of a problem, then decode, then the next."""
    decode = list(PARTS["decode"])
    for both in zip(PARTS["forward"], PARTS["backward"]):
        yield from (text for part, text in zip(("forward", "backward"), both) if part in parts)
        if decode and "decode" in parts:
            yield decode.pop(0)


def copy_tbytes():
    x = torch.empty(2**30, dtype=torch.uint8, device=gpu_case.DEVICE)
    y = torch.empty_like(x)
    return 2 * x.numel() / median_ms(lambda: y.copy_(x)) / 1e9


def measure(ffpa, case, gemm, copy):
    """A row of the table."""
    run, path = case.ours(ffpa)
    first = median_ms(run)
    backend, peer = case.fastest_of_torch()
    theirs = median_ms(peer) if peer else float("nan")
    ours = statistics.mean((first, median_ms(run)))
    work, unit, roof = (case.kv_bytes(), "TB/s", copy) if case.nq == 1 else (case.flop(), "TFLOP/s", gemm)
    rate = work / ours / 1e9
    return (f'"{case.text}",{path},{unit},{ours:.3f},{rate:.1f},{rate / roof:.3f},{backend},{theirs:.3f},{work / theirs / 1e9:.1f},'
            f'{theirs / ours:.2f}')


def first_calls(library, backend, table):
    """Milliseconds of the first plan of a variant: compiled, from the disk, planned already."""
    with tempfile.TemporaryDirectory() as folder:
        for what in ("compiled", "from the disk"):
            ffpa = Ffpa(library, backend, folder)
            small, large = (torch.empty(1, heads, rows, d, device=gpu_case.DEVICE, dtype=torch.bfloat16)
                            for heads, rows, d in ((1, 64, 64), (32, 8192, 512)))
            for t, name in ((small, None), (large, what), (large, "again")):  # opening driver and device is no part of it
                lse = torch.empty(*t.shape[:3], 1, device=gpu_case.DEVICE)
                start = time.perf_counter()
                ffpa.forward_params(t, t, t, torch.empty_like(t), lse, True)
                if name:
                    table.tell(f"# first plan of fwd d512 causal, {name}: {(time.perf_counter() - start) * 1e3:.2f} ms")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("--backend", default="cuda")
    p.add_argument("--part", default="first,forward,backward,decode")
    p.add_argument("-k", dest="only", default="", help="cases whose problem string contains this")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no case later")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here, as they come")
    return p.parse_args()


def main():
    args = parse()
    parts, library, table = args.part.split(","), args.library.resolve(), gpu_case.Table(args.csv, args.seconds)
    table.tell(gpu_case.heading("short: up to 20 calls"))
    if "first" in parts:
        first_calls(library, args.backend, table)
    problems = [text for text in cases(parts) if args.only in text]
    gpu_case.compile_all(library, args.backend, problems)
    ffpa, product = Ffpa(library, args.backend), Gemm()
    copy, gemm = copy_tbytes(), Gemm.FLOP / median_ms(product.run) / 1e9
    table.tell(COLUMNS)
    for text in problems:
        table.row(text, lambda case: measure(ffpa, case, gemm, copy))
    again = Gemm.FLOP / median_ms(product.run) / 1e9
    table.tell(f"# roofs: GEMM 8192^3 bf16 {gemm:.0f} before, {again:.0f} TFLOP/s after; copy {copy:.2f} TB/s")
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
