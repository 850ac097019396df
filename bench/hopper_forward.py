#!/usr/bin/env python3
"""Forward of wide heads on a Hopper GPU, sustained: every case takes its turn, each turn about 60 ms of the case
uncounted (the card settles at its power), then about 60 ms counted; the median of the turns. The roof is the GEMM
bf16 8192^3, a case like the others. PyTorch's fastest backend is a case too, where asked for.

  hopper_forward.py LIBRARY [-k TEXT] [--turns N] [--torch] [--csv FILE]
"""
import argparse
import ctypes
import datetime
import os
import pathlib
import statistics
import sys
import time

import torch
from torch.nn.attention import sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu  # noqa: E402

FLOAT = {"bf16": torch.bfloat16, "f16": torch.float16}


class Case:
    """fwd,bf16,b1h32k32,q8192k8192,d512v512 with B, H .. of the name; `turns` fill in `ms`."""

    def __init__(self, d, dv=None, n=8192, nq=None, b=1, h=32, hk=None, causal=False, dtype="bf16", bnhd=False):
        self.d, self.dv, self.nk, self.nq, self.b, self.h, self.hk = d, dv or d, n, nq or n, b, h, hk or h
        self.causal, self.dtype, self.bnhd, self.ms, self.path = causal, dtype, bnhd, [], ""

    def name(self):
        return (f"fwd,{self.dtype},b{self.b}h{self.h}k{self.hk},q{self.nq}k{self.nk},d{self.d}v{self.dv}" +
                (",causal" if self.causal else "") + (",bnhd" if self.bnhd else ""))

    def flop(self):
        pairs = self.nq * (self.nq + 1) / 2 if self.causal else self.nq * self.nk
        return 2.0 * self.b * self.h * pairs * (self.d + self.dv)

    def tensor(self, heads, n, columns):
        shape = (self.b, n, heads, columns) if self.bnhd else (self.b, heads, n, columns)
        t = torch.randn(*shape, device="cuda", dtype=FLOAT[self.dtype])
        return t.transpose(1, 2) if self.bnhd else t

    def prepare(self, ffpa):
        q, k, v = self.tensor(self.h, self.nq, self.d), self.tensor(self.hk, self.nk, self.d), self.tensor(self.hk, self.nk, self.dv)
        o, lse = self.tensor(self.h, self.nq, self.dv), torch.empty(self.b, self.h, self.nq, 1, device="cuda")
        ffpa.memory = None  # a workspace of its own
        params = ffpa.forward_params(q, k, v, o, lse, self.causal)
        self.keep = (q, k, v, o, lse, ffpa.memory)
        argument = ctypes.byref(params)
        ffpa.call("ffpa_forward", ffpa.context, params)
        self.path = ffpa.path()
        self.run = lambda: ffpa.lib.ffpa_forward(ffpa.context, argument)


class Gemm:
    ms, path = None, "cuBLAS"

    def __init__(self):
        self.ms = []
        a, b, c = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        self.run = lambda: torch.mm(a, b, out=c)

    def name(self):
        return "gemm,bf16,8192x8192x8192"

    def flop(self):
        return 2.0 * 8192**3


class Torch:
    """PyTorch's fastest backend on the tensors of a case."""

    def __init__(self, case):
        q, k, v = case.keep[:3]
        same = gpu.Case("fwd", case.d, case.hk, case.nq, case.nk, case.causal, case.b, case.h)
        self.case, self.ms = case, []
        name, _ = gpu.best_of_torch(same, (q, k, v, None))
        self.path = f"PyTorch {torch.__version__} {name}"
        backend, forward = next(((b, f) for n, b, f in same.torch_calls(q, k, v, None) if n == name), (None, None))

        def run():
            with sdpa_kernel(backend), torch.no_grad():
                forward()
        self.run = run if backend else None

    def name(self):
        return self.case.name()

    def flop(self):
        return self.case.flop()


def cases():
    for d, dv in ((320, 320), (384, 384), (448, 448), (512, 512), (576, 576), (576, 512), (640, 640), (768, 768), (896, 896),
                  (1024, 1024)):
        yield Case(d, dv)
        yield Case(d, dv, causal=True)
    for more in (dict(n=16384), dict(n=16384, causal=True), dict(hk=8), dict(nq=1024), dict(n=8191), dict(bnhd=True), dict(dtype="f16"),
                 dict(n=16384, h=1), dict(n=4096, h=1)):
        yield Case(512, **more)
    for n in (512, 1024, 2048, 4096):
        yield Case(512, n=n, b=4)


def take_turns(items, turns):
    times = [max(1, round(60 / max(gpu.elapsed(x.run, 2), 1e-3))) for x in items]
    start = time.perf_counter()
    while time.perf_counter() - start < 1.5:
        for x in items:
            x.run()
        torch.cuda.synchronize()
    for _ in range(turns):
        for x, n in zip(items, times):
            for _ in range(n):
                x.run()
            x.ms.append(gpu.elapsed(x.run, n))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("-k", dest="only", default="", help="cases whose name contains this")
    p.add_argument("--turns", type=int, default=4)
    p.add_argument("--torch", action="store_true", help="PyTorch beside each case")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here")
    args = p.parse_args()
    ffpa, gemm, items = gpu.Ffpa(args.library.resolve(), "cuda"), Gemm(), []
    for case in (c for c in cases() if args.only in c.name()):
        case.prepare(ffpa)
        items.append(case)
        peer = Torch(case) if args.torch else None
        items += [peer] if peer and peer.run else []
    take_turns([gemm, *items], args.turns)
    roof = gemm.flop() / statistics.median(gemm.ms) / 1e9
    lines = [f"# {torch.cuda.get_device_name()}, {datetime.date.today()}, commit {os.environ.get('COMMIT', 'unknown')}, sustained, "
             f"median of {args.turns} turns", "case,path,ms,tflops,lowest,highest,of_gemm"]
    for x in (gemm, *items):
        rates = [x.flop() / ms / 1e9 for ms in x.ms]
        middle = x.flop() / statistics.median(x.ms) / 1e9
        lines.append(f'"{x.name()}",{x.path},{statistics.median(x.ms):.3f},{middle:.1f},{min(rates):.1f},{max(rates):.1f},{middle / roof:.3f}')
    print("\n".join(lines), flush=True)
    if args.csv:
        with args.csv.open("a") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
