#!/usr/bin/env python3
"""Builds of the library against each other: cpu_builds.py OLD.so NEW.so... [--case fwd,f32,8,1024,512,full ...]

They alternate in one process, PyTorch's scaled_dot_product_attention among them; a cell is GFLOP/s (of decode GB/s of
K and V, beside a copy instead of PyTorch) as a median and,
in brackets, the median of the ratios to the first build, round by round: that holds where the machine's own
speed changes from second to second.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as functional

import cpu

DEFAULT = [f"fwd,f32,8,1024,{d},{kind}" for d in (64, 128, 256, 512, 1024) for kind in ("full", "causal")]


def rounds(runs, count):
    for run in runs:
        run()
    return [[cpu.seconds(run) for run in runs] for _ in range(count)]


def forward_runs(builds, dtype, heads, n, d, causal):
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, heads, n, d).to(cpu.DTYPES[dtype]) for _ in range(3))
    runs = []
    for build in builds:
        o, lse = torch.empty_like(q), torch.empty(1, heads, n, 1)
        params = build.forward_params(q, k, v, o, lse, causal)
        params.kept = o, lse, q, k, v
        runs.append(lambda build=build, params=params: build.call("ffpa_forward", build.context, params))
    runs.append(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal))
    return runs


def decode_runs(builds, dtype, heads, keys, d):
    """One row of `heads` query heads against one key head. After the copy comes a read that is not looked at: what the
    copy leaves in the caches must be written before anything else is read."""
    torch.manual_seed(1)
    q = torch.randn(1, heads, 1, d).to(cpu.DTYPES[dtype])
    k, v = (torch.randn(1, 1, keys, d).to(cpu.DTYPES[dtype]) for _ in range(2))
    runs = []
    for build in builds:
        o, lse = torch.empty_like(q), torch.empty(1, heads, 1, 1)
        params = build.forward_params(q, k, v, o, lse, False)
        params.kept = o, lse, q, k, v
        runs.append(lambda build=build, params=params: build.call("ffpa_forward", build.context, params))
    return runs + [cpu.copier(), runs[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--case", action="append", help="fwd,DTYPE,HEADS,N,D,full|causal or decode,DTYPE,HEADS,KEYS,D")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    builds = [cpu.Ffpa(library, arguments.threads) for library in arguments.libraries]
    print(f"# {cpu.processor()}; {arguments.threads} threads; {time.strftime('%Y-%m-%d')}; "
          f"{arguments.rounds} rounds: {', '.join(arguments.libraries)}, PyTorch (of decode: a copy)")
    for case in arguments.case or DEFAULT:
        op, dtype, *sizes = case.split(",")
        heads, n, d = map(int, sizes[:3])
        if op == "decode":
            runs = decode_runs(builds, dtype, heads, n, d)
            work = [2 * n * d * cpu.DTYPES[dtype].itemsize] * len(builds) + [2 * cpu.COPIED]
        else:
            causal = sizes[3] == "causal"
            runs = forward_runs(builds, dtype, heads, n, d, causal)
            work = [heads * (n * (n + 1) / 2 if causal else n * n) * 4 * d] * (len(builds) + 1)
        times = rounds(runs, arguments.rounds)
        cells = []
        for i in range(len(builds) + 1):
            rate = work[i] / statistics.median(row[i] for row in times) / 1e9
            cells.append(f"{rate:7.1f} [{statistics.median(row[0] / row[i] for row in times):.2f}]")
        print(f"{case:28}" + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
