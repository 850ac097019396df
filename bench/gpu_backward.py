#!/usr/bin/env python3
"""Backward of libffpa on an NVIDIA GPU, sustained: cases take turns in one process, each running about 60 ms uncounted and 60 ms
counted a turn, so that the card settles at the case's own power; the GEMM 8192^3 takes turns with them and is the roof.
PyTorch's fastest backend runs once beside each case that it takes. FLOP = 5 products over valid pairs.

  gpu_backward.py LIBRARY [--turns N] [--group N] [--csv FILE] [--torch] CASE...

A case is D, or D/Dv, then options with colons: causal, bnhd, b2, h8, k8 (key heads), n16384, m4096 (keys): 512:causal:k8"""
import argparse
import datetime
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu  # noqa: E402

TURN_MS = 60


class Ffpa(gpu.Ffpa):
    """With a workspace for every call, because several are alive."""

    def with_workspace(self, params, query):
        self.memory = None
        super().with_workspace(params, query)
        params.memory = self.memory
        return params


class Case:
    def __init__(self, text):
        self.text = text
        dims, *options = text.split(":")
        self.d, self.dv = (int(x) for x in (dims.split("/") * 2)[:2])
        self.causal, self.bnhd = "causal" in options, "bnhd" in options
        n = {o[0]: int(o[1:]) for o in options if o[1:].isdigit()}
        self.b, self.h, self.n = n.get("b", 1), n.get("h", 32), n.get("n", 8192)
        self.hk, self.nk = n.get("k", self.h), n.get("m", self.n)

    def flop(self):
        pairs = self.n * (self.n + 1) / 2 if self.causal else self.n * self.nk
        return 2.0 * self.b * self.h * pairs * (3 * self.d + 2 * self.dv)

    def random(self, heads, rows, columns):
        shape = (self.b, rows, heads, columns) if self.bnhd else (self.b, heads, rows, columns)
        t = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        return t.transpose(1, 2) if self.bnhd else t

    def tensors(self):
        return (self.random(self.h, self.n, self.d), self.random(self.hk, self.nk, self.d),
                self.random(self.hk, self.nk, self.dv), self.random(self.h, self.n, self.dv))

    def ours(self, ffpa):
        """A call of the library's backward, after its forward."""
        q, k, v, dout = self.tensors()
        o, lse = torch.empty_like(dout), torch.empty(self.b, self.h, self.n, 1, device="cuda")
        forward = ffpa.forward_params(q, k, v, o, lse, self.causal)
        ffpa.call("ffpa_forward", ffpa.context, forward)
        backward = ffpa.backward_params(forward, dout, *(torch.empty_like(t) for t in (q, k, v)))

        def run(keep=(q, k, v, dout, o, lse, forward)):
            ffpa.call("ffpa_backward", ffpa.context, backward)
        run()
        return run, ffpa.path()

    def of_torch(self):
        """(backend, milliseconds) of PyTorch's fastest backward."""
        q, k, v, dout = self.tensors()
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        grouped = dict(enable_gqa=True) if self.hk != self.h else {}
        best = ("none", float("nan"))
        for name, backend in gpu.BACKENDS.items():
            if name == "math" and best[0] != "none":
                continue
            try:
                with sdpa_kernel(backend):
                    o = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **grouped)
                    ms = few_calls(lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True))
            except (RuntimeError, torch.OutOfMemoryError):
                continue
            if not best[1] <= ms:
                best = (name, ms)
        return best


def few_calls(run):
    """Milliseconds, after as long uncounted as counted."""
    calls = max(1, round(TURN_MS / max(gpu.elapsed(run, 1), 1e-2)))
    gpu.elapsed(run, calls)
    return gpu.elapsed(run, calls)


def turns(runs, rounds):
    """Median milliseconds of each, by turns, after 1.5 s of all."""
    calls = [max(1, round(TURN_MS / max(gpu.elapsed(run, 2), 1e-2))) for run in runs]
    start, ms = time.time(), [[] for _ in runs]
    while time.time() - start < 1.5:
        for run, n in zip(runs, calls):
            gpu.elapsed(run, n)
    for _ in range(rounds):
        for i, (run, n) in enumerate(zip(runs, calls)):
            gpu.elapsed(run, n)
            ms[i].append(gpu.elapsed(run, n))
    return [statistics.median(x) for x in ms]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("case", nargs="+", type=Case)
    p.add_argument("--turns", type=int, default=4, help="0: only run each once, so that its kernels are in the cache")
    p.add_argument("--group", type=int, default=6, help="cases that take turns with each other")
    p.add_argument("--torch", action="store_true")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here")
    return p.parse_args()


def main():
    args = parse()
    ffpa = Ffpa(args.library.resolve(), "cuda", os.environ.get("FFPA_CACHE_DIR"))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = open(args.csv, "a", encoding="utf-8") if args.csv else None

    def tell(line):
        print(line, flush=True)
        if out:
            print(line, file=out, flush=True)

    tell(f"# {torch.cuda.get_device_name()}; torch {torch.__version__}; {datetime.date.today()}; commit "
         f"{os.environ.get('COMMIT', 'unknown')}; gpu_backward.py --turns {args.turns} --group {args.group}")
    tell("case,path,ms,tflops,gemm_tflops,ratio,torch_backend,torch_ms,torch_tflops,speedup")
    for at in range(0, len(args.case), args.group):
        cases = args.case[at:at + args.group]
        ours = [case.ours(ffpa) for case in cases]
        paths = [path for _, path in ours]
        if args.turns == 0:
            print(*(f"{case.text}: {path}" for case, path in zip(cases, paths)), sep="\n", flush=True)
            continue
        gemm, *ms = turns([lambda: a @ b] + [run for run, _ in ours], args.turns)
        roof = 2.0 * 8192**3 / gemm / 1e9
        del ours
        for case, path, t in zip(cases, paths, ms):
            backend, other = case.of_torch() if args.torch else ("none", float("nan"))
            rate = case.flop() / t / 1e9
            tell(f"{case.text},{path},{t:.3f},{rate:.1f},{roof:.1f},{rate / roof:.3f},{backend},{other:.3f},"
                 f"{case.flop() / other / 1e9:.1f},{other / t:.2f}")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
