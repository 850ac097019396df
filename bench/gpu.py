#!/usr/bin/env python3
"""libffpa on an NVIDIA GPU beside PyTorch's scaled_dot_product_attention, in one process.

Every case runs with the library, with the fastest of PyTorch's backends that takes it, and with the library again;
the roofs (GEMM, copy) are measured in the same process before and after. Medians by CUDA events, after four calls that
do not count; long calls are repeated less often. FLOP = 2 B Hq pairs (D + Dv), backward 2.5 times that.

  gpu.py LIBRARY [--backend cuda|cuda/FAMILY] [--part forward,backward,decode,first] [-k TEXT] [--csv FILE]
"""
import argparse
import ctypes
import datetime
import os
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cpu  # noqa: E402

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Ffpa(cpu.Ffpa):
    """On the current device, in PyTorch's stream."""

    def __init__(self, library, backend, cache=None):
        self.abi = cpu.load_mirror()
        self.lib = self.abi.declare(ctypes.CDLL(str(library)))
        options = self.abi.ffpa_context_options(backend=backend.encode())
        options.struct_size = ctypes.sizeof(options)
        if cache:
            options.cache_dir = cache.encode()
        self.context, self.memory = ctypes.c_void_p(), None
        self.call("ffpa_context_create", options, ctypes.byref(self.context))

    def tensor(self, t):
        view = super().tensor(t)
        view.device = 1 + t.device.index
        return view

    def with_workspace(self, params, query):
        need = ctypes.c_size_t()
        self.call(query, self.context, params, ctypes.byref(need))
        if self.memory is None or self.memory.numel() < need.value:
            self.memory = torch.empty(need.value, dtype=torch.uint8, device="cuda")
        params.workspace, params.workspace_bytes = self.memory.data_ptr(), self.memory.numel()
        params.stream = torch.cuda.current_stream().cuda_stream
        return params

    def path(self):
        return self.lib.ffpa_last_path().decode()


def elapsed(run, calls):
    """Milliseconds of a call, from so many one after the other."""
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def median_ms(run, budget_ms=600):
    """Of up to 20 calls, fewer (at least 3) when they would take longer than the budget."""
    for _ in range(2):
        run()
    repeat = max(3, min(20, int(budget_ms / max(elapsed(run, 2), 1e-3))))
    pairs = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(repeat)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs)


class Case:
    def __init__(self, op, d, hk=32, nq=8192, nk=8192, causal=False, b=1, hq=32):
        self.op, self.d, self.hk, self.nq, self.nk, self.causal, self.b, self.hq = op, d, hk, nq, nk, causal, b, hq

    def name(self):
        heads = f"h{self.hq}" + (f"k{self.hk}" if self.hk != self.hq else "")
        return (f"{self.op},bf16,b{self.b}{heads},q{self.nq}k{self.nk},d{self.d}" + (",causal" if self.causal else ""))

    def flop(self):
        pairs = self.nq * (self.nq + 1) / 2 if self.causal else self.nq * self.nk
        return 4.0 * self.b * self.hq * self.d * pairs * (2.5 if self.op == "bwd" else 1)

    def tensors(self):
        torch.manual_seed(1)
        q, dout = (torch.randn(self.b, self.hq, self.nq, self.d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        k, v = (torch.randn(self.b, self.hk, self.nk, self.d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return q, k, v, dout

    def torch_calls(self, q, k, v, dout):
        """(backend, callable) of every PyTorch backend, not yet known to work."""
        grouped = dict(enable_gqa=True) if self.hk != self.hq else {}
        if self.op == "bwd":
            q, k, v = (t.detach().requires_grad_() for t in (q, k, v))

        def forward():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **grouped)

        for name, backend in BACKENDS.items():
            if self.op == "fwd":
                yield name, backend, forward
            else:
                try:
                    with sdpa_kernel(backend):
                        o = forward()
                except (RuntimeError, torch.OutOfMemoryError):
                    continue
                yield name, backend, lambda o=o: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True)


def best_of_torch(case, tensors):
    """(backend, ms, output) of the fastest that runs."""
    best = ("none", float("nan"))
    for name, backend, run in case.torch_calls(*tensors):
        try:
            with sdpa_kernel(backend):
                a, b = torch.cuda.Event(True), torch.cuda.Event(True)
                run()
                a.record()
                run()
                b.record()
                b.synchronize()
                if best[0] != "none" and a.elapsed_time(b) > 1.5 * best[1]:
                    continue
                ms = median_ms(run)
        except (RuntimeError, torch.OutOfMemoryError):
            continue
        if best[0] == "none" or ms < best[1]:
            best = (name, ms)
        torch.cuda.empty_cache()
    return best


def run_case(ffpa, case):
    q, k, v, dout = case.tensors()
    o = torch.empty(*q.shape[:3], v.shape[3], device="cuda", dtype=q.dtype)
    lse = torch.empty(*q.shape[:3], 1, device="cuda")
    forward = ffpa.forward_params(q, k, v, o, lse, case.causal)
    ffpa.call("ffpa_forward", ffpa.context, forward)
    run = lambda: ffpa.call("ffpa_forward", ffpa.context, forward)  # noqa: E731
    if case.op == "bwd":
        grads = [torch.empty_like(t) for t in (q, k, v)]
        backward = ffpa.backward_params(forward, dout, *grads)
        run = lambda: ffpa.call("ffpa_backward", ffpa.context, backward)  # noqa: E731
    ours = median_ms(run)
    path = ffpa.path()
    backend, theirs = best_of_torch(case, (q, k, v, dout))
    ours = statistics.mean((ours, median_ms(run)))
    return path, ours, backend, theirs


def gemm_roof(seconds=0.3):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / median_ms(lambda: a @ b, seconds * 1e3) / 1e9


def copy_roof():
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / median_ms(lambda: y.copy_(x)) / 1e9


def cases():
    for op in ("fwd", "bwd"):
        for d in (320, 512, 1024):
            yield Case(op, d)
            yield Case(op, d, causal=True)
        for d in (320, 512, 1024):
            yield Case(op, d, hk=8)
            yield Case(op, d, nq=1024)
    yield Case("fwd", 512, b=8, hq=32, hk=4, nq=1, nk=32768)


def parts_of(case):
    return "decode" if case.nq == 1 else "forward" if case.op == "fwd" else "backward"


def first_calls(library, backend):
    """Seconds of the first plan of a variant: compiled, then from the disk, then planned already."""
    with tempfile.TemporaryDirectory() as folder:
        q = torch.empty(1, 32, 8192, 512, device="cuda", dtype=torch.bfloat16)
        lse = torch.empty(1, 32, 8192, 1, device="cuda")
        for what in ("compiled", "from the disk"):
            ffpa = Ffpa(library, backend, folder)
            small = torch.empty(1, 1, 64, 64, device="cuda", dtype=torch.bfloat16)
            if what == "from the disk":  # opening driver and device is no part of it
                ffpa.forward_params(small, small, small, small, lse[:, :1, :64], True)
            for again in (what, "again"):
                start = time.perf_counter()
                ffpa.forward_params(q, q, q, torch.empty_like(q), lse, True)
                print(f"first plan of fwd d512 causal, {again}: {(time.perf_counter() - start) * 1e3:.2f} ms", flush=True)
            if what == "compiled":
                ffpa.forward_params(small, small, small, small, lse[:, :1, :64], True)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("--backend", default="cuda")
    p.add_argument("--part", default="forward,backward,decode,first")
    p.add_argument("-k", dest="only", default="", help="cases whose problem string contains this")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here")
    return p.parse_args()


def report(case, result, copy):
    path, ours, backend, theirs = result
    if case.nq == 1:
        moved = 2.0 * 2 * case.b * case.hk * case.nk * case.d
        unit, rate, other = "TB/s", moved / ours / 1e9, moved / theirs / 1e9
        print(f"{'':4}{rate / copy:.2f} of the copy bandwidth")
    else:
        unit, rate, other = "TFLOP/s", case.flop() / ours / 1e9, case.flop() / theirs / 1e9
    return f'"{case.name()}",{path},{unit},{ours:.3f},{rate:.1f},{backend},{theirs:.3f},{other:.1f},{theirs / ours:.2f}'


def main():
    args = parse()
    warnings.filterwarnings("ignore")  # PyTorch says of each backend why it was not used
    parts = args.part.split(",")
    library = args.library.resolve()
    head = (f"# {torch.cuda.get_device_name()}; torch {torch.__version__}; {datetime.date.today()}; "
            f"commit {os.environ.get('COMMIT', 'unknown')}")
    lines = [head, "case,path,unit,ffpa_ms,ffpa,torch_backend,torch_ms,torch,ratio"]
    if "first" in parts:
        first_calls(library, args.backend)
    ffpa = Ffpa(library, args.backend)
    copy, gemm = copy_roof(), gemm_roof()
    print("\n".join(lines), flush=True)
    for case in cases():
        if parts_of(case) not in parts or args.only not in case.name():
            continue
        lines.append(report(case, run_case(ffpa, case), copy))
        print(lines[-1], flush=True)
        torch.cuda.empty_cache()
    lines.append(f"# roofs: GEMM 8192^3 bf16 {gemm:.0f} before, {gemm_roof():.0f} TFLOP/s after; copy {copy:.2f} TB/s")
    print(lines[-1])
    if args.csv:
        with open(args.csv, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
