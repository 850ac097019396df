#!/usr/bin/env python3
"""libffpa on the CPU beside PyTorch's scaled_dot_product_attention, in one process.

Each case alternates the two, a pause before each, and keeps the median of each; the roofs (GEMM, copy)
are measured in the same process before and after. Both compute with the same number of threads on the same data.
"""
import argparse
import ctypes
import datetime
import importlib.util
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as functional

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def load_mirror():
    """The ctypes mirror, generated from the header of this tree."""
    text = subprocess.run([sys.executable, ROOT / "tools/gen_ctypes.py", ROOT / "include/ffpa/ffpa.h"],
                          check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ffpa_mirror.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("ffpa_mirror", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


class Ffpa:
    """The few calls this bench needs."""

    def __init__(self, library, threads):
        self.abi = load_mirror()
        self.lib = self.abi.declare(ctypes.CDLL(str(library)))
        options = self.abi.ffpa_context_options()
        options.struct_size = ctypes.sizeof(options)
        options.threads = threads
        self.context = ctypes.c_void_p()
        self.call("ffpa_context_create", options, ctypes.byref(self.context))

    def call(self, name, *args):
        args = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in args]
        if getattr(self.lib, name)(*args):
            raise RuntimeError(self.lib.ffpa_last_error().decode())

    def tensor(self, t):
        codes = {torch.float32: self.abi.FFPA_F32, torch.float16: self.abi.FFPA_F16,
                 torch.bfloat16: self.abi.FFPA_BF16}
        view = self.abi.ffpa_tensor(data=t.data_ptr(), dtype=codes[t.dtype])
        view.shape[:] = t.shape
        view.stride[:] = t.stride()
        return view

    def describe(self):
        return self.lib.ffpa_context_describe(self.context).decode()

    def forward_params(self, q, k, v, o, lse, causal):
        p = self.abi.ffpa_forward_params()
        p.struct_size = ctypes.sizeof(p)
        p.causal = self.abi.FFPA_BOTTOM_RIGHT if causal else self.abi.FFPA_CAUSAL_NONE
        p.q, p.k, p.v, p.o, p.lse = (self.tensor(t) for t in (q, k, v, o, lse))
        return self.with_workspace(p, "ffpa_forward_workspace")

    def backward_params(self, forward, dout, dq, dk, dv):
        p = self.abi.ffpa_backward_params()
        p.struct_size = ctypes.sizeof(p)
        p.forward = ctypes.addressof(forward)
        p.dout, p.dq, p.dk, p.dv = (self.tensor(t) for t in (dout, dq, dk, dv))
        return self.with_workspace(p, "ffpa_backward_workspace")

    def with_workspace(self, params, query):
        need = ctypes.c_size_t()
        self.call(query, self.context, params, ctypes.byref(need))
        params.memory = torch.empty(need.value + 64, dtype=torch.uint8)  # lives as long as params
        params.workspace = (params.memory.data_ptr() + 63) // 64 * 64
        params.workspace_bytes = need.value
        return params


PAUSE = 0.02  # seconds. PyTorch's threads wait busily for more work, for milliseconds: what runs next would lose to them


def seconds(run):
    time.sleep(PAUSE)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def alternate(budget, *runs):
    """Median seconds of each, alternating, after one uncounted round; 3 to 15 rounds, or a single one of
    what takes longer than the budget by itself."""
    warm = sum(seconds(run) for run in runs)
    rounds = max(3, min(15, int(budget / warm))) if warm < budget else 1
    return [statistics.median(column) for column in zip(*([seconds(run) for run in runs] for _ in range(rounds)))]


def gemm_gflops(dtype, n=2048):
    a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
    first = seconds(lambda: torch.mm(a, b))
    runs = 5 if first < 2 else 1  # without bf16 arithmetic in the processor one product takes a minute
    return 2 * n**3 / statistics.median(seconds(lambda: torch.mm(a, b)) if runs > 1 else first
                                        for _ in range(runs)) / 1e9


COPIED = 256 << 20


def copier():
    a, b = torch.ones(COPIED, dtype=torch.uint8), torch.zeros(COPIED, dtype=torch.uint8)
    return lambda: b.copy_(a)


def copy_gbytes():
    run = copier()
    run()
    return 2 * COPIED / statistics.median(seconds(run) for _ in range(7)) / 1e9


def prefill(ffpa, case, budget):
    """Times of forward or backward over square attention, the FLOP, and how far the two differ."""
    op, dtype, heads, n, d, causal = case
    torch.manual_seed(1)
    q, k, v, dout = (torch.randn(1, heads, n, d).to(DTYPES[dtype]) for _ in range(4))
    o, lse = torch.empty_like(q), torch.empty(1, heads, n, 1)
    forward = ffpa.forward_params(q, k, v, o, lse, causal)
    pairs = n * (n + 1) / 2 if causal else n * n
    flop = heads * pairs * 4 * d
    if op == "fwd":
        sdpa = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        times = alternate(budget, lambda: ffpa.call("ffpa_forward", ffpa.context, forward), sdpa)
        return times, flop, (o.float() - sdpa().float()).abs().max().item()
    ffpa.call("ffpa_forward", ffpa.context, forward)
    grads = [torch.empty_like(t) for t in (q, k, v)]
    backward = ffpa.backward_params(forward, dout, *grads)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    theirs = lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)
    times = alternate(budget, lambda: ffpa.call("ffpa_backward", ffpa.context, backward), theirs)
    return times, 2.5 * flop, max((a.float() - b.float()).abs().max().item() for a, b in zip(grads, theirs()))


def decode(ffpa, dtype, budget, nk=32768, d=512, hq=8, hk=1):
    """One query row against a long cache: times, and that of a copy (after the others: what it leaves in the
    caches must be written before anything else is read), bytes of K and V, difference."""
    torch.manual_seed(1)
    q = torch.randn(1, hq, 1, d).to(DTYPES[dtype])
    k, v = (torch.randn(1, hk, nk, d).to(DTYPES[dtype]) for _ in range(2))
    o, lse = torch.empty_like(q), torch.empty(1, hq, 1, 1)
    params = ffpa.forward_params(q, k, v, o, lse, False)
    sdpa = lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    times = alternate(budget, lambda: ffpa.call("ffpa_forward", ffpa.context, params), sdpa)
    times += alternate(budget, copier())
    return times, 2 * k.numel() * k.element_size(), (o.float() - sdpa().float()).abs().max().item()


def cases(quick):
    """What PyTorch takes minutes for is left out: backward in 16 bits, at N = 4096 and most of it in f16."""
    for op in ("fwd", "bwd"):
        for dtype in ("f32", "bf16") if quick else ("f32", "bf16", "f16"):
            slow = op == "bwd" and dtype != "f32"
            dims = [512] if quick or (slow and dtype == "f16") else [64, 128, 256, 512, 1024]
            for heads, n, some in ((8, 1024, dims),) if quick or slow else ((8, 1024, dims), (4, 4096, [256, 512])):
                for d in some:
                    for causal in (False, True):
                        yield op, dtype, heads, n, d, causal


def commit():
    run = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def processor():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith(("model name", "Model")):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=ROOT / "build/libffpa.so")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timed runs a case")
    parser.add_argument("--quick", action="store_true", help="D = 512 at N = 1024 only")
    parser.add_argument("--only", default="", help="regular expression on the problem string")
    parser.add_argument("--csv", help="also write the rows to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ffpa = Ffpa(args.library, args.threads)
    head = ["# %s; %d threads; torch %s; %s; commit %s; %s" % (
        processor(), args.threads, torch.__version__, re.sub(r" cache=\S+", "", ffpa.describe()), commit(),
        datetime.date.today())]
    rows = ["case,unit,ffpa,torch,ratio,share_of_copy,max_abs_difference"]
    roof = lambda: "# roof: GEMM 2048^3 f32 %.0f GFLOP/s; copy %.1f GB/s (read + write)" % (
        gemm_gflops(torch.float32), copy_gbytes())
    head.append(roof() + "; GEMM bf16 %.1f GFLOP/s" % gemm_gflops(torch.bfloat16, 512))
    print("\n".join(head))
    print("%-44s %-8s %9s %9s %7s %7s %9s" % ("case", "unit", "ffpa", "torch", "ratio", "of copy", "max diff"),
          flush=True)

    def save():  # after each row: what was measured is kept, whatever happens next
        if args.csv:
            pathlib.Path(args.csv).write_text("\n".join(head + rows) + "\n", encoding="utf-8")

    def show(name, unit, work, times, difference):
        rate = [work / t / 1e9 for t in times[:2]]
        ratio = times[1] / times[0]
        share = "%.3f" % (rate[0] / (2 * COPIED / times[2] / 1e9)) if len(times) > 2 else ""
        print("%-44s %-8s %9.2f %9.2f %7.2f %7s %9.1e" % (name, unit, *rate, ratio, share, difference), flush=True)
        rows.append('"%s",%s,%.3f,%.3f,%.3f,%s,%.2e' % (name, unit, *rate, ratio, share, difference))
        save()

    for dtype in ("f32", "bf16", "f16"):
        name = "fwd,%s,b1h8k1,q1k32768,d512" % dtype
        if re.search(args.only, name):
            times, size, difference = decode(ffpa, dtype, args.budget)
            show(name, "GB/s", size, times, difference)
    for case in cases(args.quick):
        op, dtype, heads, n, d, causal = case
        name = "%s,%s,b1h%d,q%dk%d,d%d%s" % (op, dtype, heads, n, n, d, ",causal" if causal else "")
        if re.search(args.only, name):
            times, flop, difference = prefill(ffpa, case, args.budget)
            show(name, "GFLOP/s", flop, times, difference)
    head.append(roof())
    print(head[-1])
    save()


if __name__ == "__main__":
    main()
