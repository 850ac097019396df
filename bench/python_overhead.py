#!/usr/bin/env python3
"""What Python adds to a call of the library, in microseconds of host time, beside PyTorch's own attention: small
problems whose work is done before the next call is made.

    python_overhead.py [--device cuda] [--commit HASH]"""
import argparse
import datetime
import statistics
import time

import torch

import ffpa
from ffpa import _run, _torch_memory as memory
from ffpa._library import lib
from ffpa._problem import Options, Tensors
from ffpa._torch_autograd import SDPA

SHAPES = ((1, 1, 64, 64), (1, 8, 1, 512))


def microseconds(call, finish, calls=200, rounds=15):
    """Median over rounds of the mean of many calls, none of which is waited for."""
    for _ in range(calls):
        call()
    finish()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
        finish()
    return statistics.median(times)


def c_call(tensors, options):
    """The library's own forward with everything in place: what any language pays."""
    problem = _run.problem_of(memory, tensors, options, False)
    slot = problem.take()
    slot.bind(tensors, memory.pointer)
    o = problem.new_o()
    slot.o.data = o.data_ptr()
    work = problem.new_work and problem.new_work(slot.params)
    return lambda keep=(o, work): lib.ffpa_forward(problem.context, slot.ref)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--commit", default="unknown")
    asked = parser.parse_args()
    finish = torch.cuda.synchronize if asked.device == "cuda" else lambda: None
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    print("# %s; torch %s; %s; commit %s; %s" % (device, torch.__version__, ffpa.info()["context"], asked.commit,
                                                 datetime.date.today()))
    print("# microseconds of host time per call, bf16, causal; 'over C': what Python adds to the library's call")
    print("%-16s %8s %8s %8s %8s | %12s %8s %8s | %16s %8s" % (
        "shape", "C call", "forward", "over C", "PyTorch", "with autograd", "over C", "PyTorch", "forward+backward", "PyTorch"))
    for shape in SHAPES:
        q, k, v, dout = (torch.randn(shape, device=asked.device).bfloat16() for _ in range(4))
        leaf = q.clone().requires_grad_()
        both = lambda f: lambda: torch.autograd.grad(f(leaf, k, v, is_causal=True), leaf, dout)
        runs = [c_call(Tensors(q, k, v), Options(causal=1))]
        for query in (q, leaf):
            for f in (ffpa.ffpa_attn_func, SDPA):
                runs.append(lambda f=f, query=query: f(query, k, v, is_causal=True))
        runs += [both(ffpa.ffpa_attn_func), both(SDPA)]
        c, plain, theirs, graded, graded_theirs, two, two_theirs = (microseconds(run, finish) for run in runs)
        print("%-16s %8.1f %8.1f %8.1f %8.1f | %12.1f %8.1f %8.1f | %16.1f %8.1f" % (
            "x".join(map(str, shape)), c, plain, plain - c, theirs, graded, graded - c, graded_theirs, two, two_theirs),
            flush=True)


if __name__ == "__main__":
    main()
