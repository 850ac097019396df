#!/usr/bin/env python3
"""Forward of small heads on Hopper under sustained load, beside a GEMM and the fastest PyTorch backend, in one process.

The card is limited by power, so a reading depends on what ran before. Contestants take turns, in an order that
changes with every round: each runs SETTLE ms uncounted, then as long counted by one pair of events; the median of
the rounds is shown with its spread. The GEMM is bf16 8192^3. FLOP = 2 B Hq pairs (D + Dv).

  hopper_small.py LIBRARY [--backend cuda|cuda/FAMILY] [--table small|short] [--seconds S] [--csv FILE] [PROBLEM...]
"""
import argparse
import datetime
import os
import pathlib
import random
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu  # noqa: E402

HEADS = "b1h32,q8192k8192"
TABLES = {
    "small": [f"fwd,bf16,{HEADS},{d}{c}" for d in ("d64", "d96", "d128", "d160", "d192", "d192v128", "d256")
              for c in ("", ",causal")] + [f"fwd,bf16,b1h32k8,q8192k8192,{d},causal" for d in ("d64", "d128", "d256")]
             + [f"fwd,f16,{HEADS},d128", f"fwd,bf16,{HEADS},d128,bnhd", "fwd,bf16,b1h32,q8191k8191,d128"],
    "short": [f"fwd,bf16,b4h32,q{n}k{n},d{d}{c}" for n in (512, 1024, 2048, 4096) for d in (64, 128, 256)
              for c in ("", ",causal")],
}


class Problem:
    def __init__(self, text):
        m = re.fullmatch(r"fwd,(bf16|f16),b(\d+)h(\d+)(?:k(\d+))?,q(\d+)k(\d+),d(\d+)(?:v(\d+))?(,causal)?(,bnhd)?", text)
        if not m:
            sys.exit(f"hopper_small: cannot read the problem {text}")
        self.text, self.dtype = text, dict(bf16=torch.bfloat16, f16=torch.float16)[m[1]]
        self.b, self.hq, self.nq, self.nk, self.d = (int(m[i]) for i in (2, 3, 5, 6, 7))
        self.hk, self.dv = int(m[4] or self.hq), int(m[8] or self.d)
        self.causal, self.bnhd = bool(m[9]), bool(m[10])

    def flop(self):
        rows = range(self.nk - self.nq, self.nk)
        pairs = sum(max(0, i + 1) for i in rows) if self.causal else self.nq * self.nk
        return 2.0 * self.b * self.hq * pairs * (self.d + self.dv)

    def tensor(self, h, n, d):
        if self.bnhd:
            return torch.randn(self.b, n, h, d, device="cuda", dtype=self.dtype).transpose(1, 2)
        return torch.randn(self.b, h, n, d, device="cuda", dtype=self.dtype)

    def tensors(self):
        torch.manual_seed(1)
        return self.tensor(self.hq, self.nq, self.d), self.tensor(self.hk, self.nk, self.d), self.tensor(self.hk, self.nk, self.dv)


def fastest_of_torch(p, q, k, v):
    """(backend, callable) of the fastest that runs."""
    grouped = dict(enable_gqa=True) if p.hk != p.hq else {}
    best = None
    for name, backend in gpu.BACKENDS.items():
        if name == "math":  # writes the scores out; here only to be slower
            continue

        def run(backend=backend):
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=p.causal, **grouped)
        try:
            ms = gpu.median_ms(run, 30)
        except RuntimeError:
            continue
        if best is None or ms < best[0]:
            best = (ms, name, run)
    return best[1:] if best else ("none", None)


def turns(contestants, rounds, settle_ms):
    """{name: [FLOP/s of each round]}"""
    rates, repeat = {name: [] for name in contestants}, {}
    for name, (run, _) in contestants.items():
        repeat[name] = max(1, int(settle_ms / gpu.median_ms(run, 20)))
    for _ in range(rounds):
        for name in random.sample(list(contestants), len(contestants)):
            run, flop = contestants[name]
            for _ in range(repeat[name]):
                run()
            rates[name].append(flop / gpu.elapsed(run, repeat[name]) * 1e3)
    return rates


def measure(ffpa, p, gemm, args):
    q, k, v = p.tensors()
    o, lse = p.tensor(p.hq, p.nq, p.dv), torch.empty(p.b, p.hq, p.nq, 1, device="cuda")
    params = ffpa.forward_params(q, k, v, o, lse, p.causal)
    ours = lambda: ffpa.call("ffpa_forward", ffpa.context, params)  # noqa: E731
    ours()
    path = ffpa.path()
    backend, theirs = fastest_of_torch(p, q, k, v)
    who = {"ours": (ours, p.flop()), "gemm": (gemm, 2.0 * 8192**3)}
    if theirs:
        who["torch"] = (theirs, p.flop())
    rates = turns(who, args.rounds, args.settle)
    mid = {name: statistics.median(r) / 1e12 for name, r in rates.items()}
    torch_rate = mid.get("torch", float("nan"))
    spread = f"{min(rates['ours']) / 1e12:.0f}..{max(rates['ours']) / 1e12:.0f}"
    return (f'"{p.text}",{path},{mid["ours"]:.0f},{spread},{mid["gemm"]:.0f},{mid["ours"] / mid["gemm"]:.3f},'
            f'{backend},{torch_rate:.0f},{mid["ours"] / torch_rate:.2f}')


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("problems", nargs="*")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--table", choices=TABLES, action="append", default=[])
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--settle", type=float, default=60, help="ms")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no problem after so long")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here")
    args = p.parse_args()
    start, ffpa = time.time(), gpu.Ffpa(args.library.resolve(), args.backend)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    gemm = lambda: torch.mm(a, b, out=c)  # noqa: E731
    lines = [f"# {torch.cuda.get_device_name()}; torch {torch.__version__}; {datetime.date.today()}; "
             f"commit {os.environ.get('COMMIT', 'unknown')}; {args.rounds} rounds, {args.settle:.0f} ms settled and counted",
             "problem,path,ffpa_tflops,spread,gemm_tflops,of_gemm,torch_backend,torch_tflops,of_torch"]
    print("\n".join(lines), flush=True)
    while time.time() - start < 1.5:  # from cold, the first readings would be too high
        gemm()
        torch.cuda.synchronize()
    for text in args.problems + [x for t in args.table for x in TABLES[t]]:
        if time.time() - start > args.seconds:
            break
        lines.append(measure(ffpa, Problem(text), gemm, args))
        print(lines[-1], flush=True)
        torch.cuda.empty_cache()
    if args.csv:
        with open(args.csv, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
