#!/usr/bin/env python3
"""What bounds decode on a CPU: its rate with K and V in a cache, from memory, and the processor's roofs.

Rates are by the processor time of all threads, so that other work on the machine counts as little as may be. GFLOP/s
are per thread. With H query heads a key head, an element of K or V costs 2 H FLOP: reads of B bytes an element at
G GFLOP/s a thread take place at G * threads * B / (2 H) GB/s at most, however fast memory is.
"""
import argparse
import statistics
import time

import torch

import cpu


def rates(run, work, count):
    """Work a second of processor time: median and best."""
    run()
    spent = []
    for _ in range(count):
        start = time.process_time()
        run()
        spent.append(time.process_time() - start)
    return work / statistics.median(spent), work / min(spent)


def decode(ffpa, dtype, heads, keys, d, repeats):
    """A closure that runs decode `repeats` times, and the bytes of K and V that this reads."""
    torch.manual_seed(1)
    q = torch.randn(1, heads, 1, d).to(cpu.DTYPES[dtype])
    k, v = (torch.randn(1, 1, keys, d).to(cpu.DTYPES[dtype]) for _ in range(2))
    o, lse = torch.empty_like(q), torch.empty(1, heads, 1, 1)
    params = ffpa.forward_params(q, k, v, o, lse, False)
    params.kept = o, lse, q, k, v

    def run():
        for _ in range(repeats):
            ffpa.call("ffpa_forward", ffpa.context, params)
    return run, 2 * k.numel() * k.element_size() * repeats


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=cpu.ROOT / "build/libffpa.so")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a second one would spin and be counted
    print("# %s; commit %s; %s" % (cpu.processor(), cpu.commit(), time.strftime("%Y-%m-%d")))
    n = 1024
    a, b = torch.randn(n, n), torch.randn(n, n)
    roof = "# GEMM f32 of one thread: median %.0f, best %.0f GFLOP/s"
    print(roof % tuple(r / 1e9 for r in rates(lambda: torch.mm(a, b), 2 * n**3, args.rounds)))
    print("%-8s %-6s %-8s %14s %14s %18s" % ("threads", "dtype", "keys", "GB/s", "best", "GFLOP/s a thread"))
    for threads in (1, 2):
        ffpa = cpu.Ffpa(args.library, threads)
        for dtype in ("f32", "bf16", "f16"):
            for keys in (2048, 32768):
                run, size = decode(ffpa, dtype, args.heads, keys, args.d, max(1, 16384 // keys))
                median, best = (threads * rate / 1e9 for rate in rates(run, size, args.rounds))
                flop = 2 * args.heads / cpu.DTYPES[dtype].itemsize / threads
                print("%-8d %-6s %-8d %14.1f %14.1f %18.0f" % (threads, dtype, keys, median, best, best * flop),
                      flush=True)
    print(roof % tuple(r / 1e9 for r in rates(lambda: torch.mm(a, b), 2 * n**3, args.rounds)))
    torch.set_num_threads(2)
    x = torch.ones(cpu.COPIED // 4)
    read = statistics.median(cpu.seconds(x.sum) for _ in range(args.rounds))
    print("# two threads, by the clock: copy %.1f GB/s (read + write), sum %.1f GB/s, GEMM f32 %.0f GFLOP/s" % (
        cpu.copy_gbytes(), cpu.COPIED / read / 1e9, cpu.gemm_gflops(torch.float32)))


if __name__ == "__main__":
    main()
