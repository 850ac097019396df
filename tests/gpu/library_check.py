#!/usr/bin/env python3
"""The cases of kernel_check.py through the library: ffpa_forward and ffpa_backward on CUDA tensors, the host
path, the run-time compiler and the kernels together. Then graph capture, refusals and host time.

usage: library_check.py LIBRARY [-k TEXT] [--every N]
"""
import ctypes
import pathlib
import subprocess
import sys
import time
import traceback

import torch

import kernel_check
import kernel_forward

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load(path):
    text = subprocess.run([sys.executable, ROOT / "tools/gen_ctypes.py", ROOT / "include/ffpa/ffpa.h"],
                          check=True, capture_output=True, text=True).stdout
    abi = {}
    exec(compile(text, "ffpa_mirror", "exec"), abi)  # the mirror of this tree's header
    return abi, abi["declare"](ctypes.CDLL(str(path)))


class Library:
    def __init__(self, path):
        self.abi, self.lib = load(path)
        options = self.struct("ffpa_context_options")
        options.backend = b"cuda"
        self.context = ctypes.c_void_p()
        self.call("ffpa_context_create", ctypes.byref(options), ctypes.byref(self.context))

    def struct(self, name, **fields):
        value = self.abi[name](**fields)
        if hasattr(value, "struct_size"):
            value.struct_size = ctypes.sizeof(value)
        return value

    def call(self, name, *args):
        if getattr(self.lib, name)(*args):
            raise RuntimeError(self.lib.ffpa_last_error().decode())

    def tensor(self, t):
        if t is None:
            return self.abi["ffpa_tensor"]()
        names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"}
        view = self.abi["ffpa_tensor"](data=t.data_ptr(), dtype=self.abi["FFPA_" + names[t.dtype]],
                                       device=1 + t.device.index)
        view.shape[:], view.stride[:] = t.shape, t.stride()
        return view

    def workspace(self, params, query):
        need = ctypes.c_size_t()
        self.call(query, self.context, ctypes.byref(params), ctypes.byref(need))
        memory = torch.full((need.value,), 255, dtype=torch.uint8, device="cuda")  # every float a NaN
        params.workspace, params.workspace_bytes = memory.data_ptr(), need.value
        params.stream = torch.cuda.current_stream().cuda_stream
        return memory


class Call(kernel_forward.Call):
    """A kernel case, run by the library."""

    library = None

    def variants(self):
        return []

    def sides(self, p):
        """Side structs; they live as long as the result."""
        ours, keep = self.library, []
        index = next((t for t in (self.cu_q, self.cu_k, self.lengths) if t is not None), None)
        code = 0 if index is None else ours.abi["FFPA_I64" if index.dtype == torch.int64 else "FFPA_I32"]
        pointer = kernel_forward.ptr
        if self.p is not None:
            keep.append(ours.struct("ffpa_dropout", p=self.p, seed=self.seed, offset=self.offset))
            p.dropout = ctypes.addressof(keep[-1])
        if self.cu_q is not None or self.cu_k is not None:
            keep.append(ours.struct("ffpa_varlen", batch=self.batch, cu_q=pointer(self.cu_q), cu_k=pointer(self.cu_k),
                                    index_dtype=code))
            p.varlen = ctypes.addressof(keep[-1])
        if self.lengths is not None:
            cache = ours.struct("ffpa_kv_cache", lengths=pointer(self.lengths), batch_index=pointer(self.batch_index),
                                block_table=pointer(self.table), index_dtype=code)
            if self.table is not None:
                cache.table_stride, cache.table_width = self.table.stride(0), self.table.shape[1]
            keep.append(cache)
            p.kv_cache = ctypes.addressof(cache)
        return keep

    def params(self, o, lse):
        ours, abi = self.library, self.library.abi
        p = ours.struct("ffpa_forward_params", softcap=self.softcap)
        if self.scale is not None:
            p.flags, p.scale = abi["FFPA_SCALE"], self.scale
        assert not self.top_left or self.right == 0, "a top-left window without causal has no public form"
        p.causal = abi["FFPA_TOP_LEFT"] if self.top_left else abi["FFPA_BOTTOM_RIGHT"] if self.right == 0 else 0
        if self.left >= 0 or self.right > 0:
            p.flags |= abi["FFPA_WINDOW"]
            p.window_left, p.window_right = self.left, self.right
        sink = None if self.sink is None else self.sink.view(1, -1, 1, 1)
        for name, t in dict(q=self.q, k=self.k, v=self.v, o=o, lse=lse, mask=self.mask, alibi=self.alibi, sink=sink).items():
            setattr(p, name, ours.tensor(t))
        return p, self.sides(p)

    def forward(self, cache, o, lse):
        params, sides = self.params(o, lse)
        memory = self.library.workspace(params, "ffpa_forward_workspace")
        self.library.call("ffpa_forward", self.library.context, ctypes.byref(params))
        del sides, memory
        return o, lse


class Gradients:
    def __init__(self, call, dout, dlse=None, dmask=None, limit=0):
        self.call, self.dout, self.dlse, self.dmask, self.limit = call, dout, dlse, dmask, limit

    def variants(self):
        return []

    def run(self, cache, o, lse, dq, dk, dv, dsink=None):
        ours = self.call.library
        forward, sides = self.call.params(o, lse)
        g = ours.struct("ffpa_backward_params", forward=ctypes.addressof(forward), workspace_limit_bytes=self.limit)
        dsink = None if dsink is None else dsink.view(1, -1, 1, 1)
        for name, t in dict(dout=self.dout, dlse=self.dlse, dq=dq, dk=dk, dv=dv, dmask=self.dmask, dsink=dsink).items():
            setattr(g, name, ours.tensor(t))
        memory = ours.workspace(g, "ffpa_backward_workspace")
        ours.call("ffpa_backward", ours.context, ctypes.byref(g))
        del sides, memory


def check_capture(library):
    """Forward and backward captured once, replayed on changed inputs, equal to eager runs bit for bit."""
    q, k, v, dout = (kernel_check.randn(1, 4, 300, 512) for _ in range(4))
    call = Call(q, k, v, right=0)
    o, lse = call.outputs()
    grads = [torch.empty_like(t) for t in (q, k, v)]
    forward, _ = call.params(o, lse)
    f_memory = library.workspace(forward, "ffpa_forward_workspace")
    g = library.struct("ffpa_backward_params", forward=ctypes.addressof(forward))
    for name, t in dict(dout=dout, dq=grads[0], dk=grads[1], dv=grads[2]).items():
        setattr(g, name, library.tensor(t))
    g_memory = library.workspace(g, "ffpa_backward_workspace")

    def run():
        forward.stream = g.stream = torch.cuda.current_stream().cuda_stream
        library.call("ffpa_forward", library.context, ctypes.byref(forward))
        library.call("ffpa_backward", library.context, ctypes.byref(g))

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    same = True
    for _ in range(3):
        q.copy_(kernel_check.randn(*q.shape))
        graph.replay()
        torch.cuda.synchronize()
        replayed = [t.clone() for t in (o, *grads)]
        run()
        torch.cuda.synchronize()
        same &= all(torch.equal(a, b) for a, b in zip(replayed, (o, *grads)))
    del f_memory, g_memory
    return same


def host_time(library, n=2000):
    """Microseconds of host time per warm forward call, launches included."""
    q, k, v = (kernel_check.randn(1, 1, 64, 64) for _ in range(3))
    call = Call(q, k, v)
    o, lse = call.outputs()
    params, _ = call.params(o, lse)
    memory = library.workspace(params, "ffpa_forward_workspace")
    argument, times = ctypes.byref(params), []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n // 20):
            library.lib.ffpa_forward(library.context, argument)
        times.append((time.perf_counter() - start) / (n // 20) * 1e6)
    del memory
    return sorted(times)[len(times) // 2]


def verdict(ok, text):
    print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)
    return not ok


def attempt(name, check):
    try:
        worst, relative, same = check()
        worst = max(worst.values()) if isinstance(worst, dict) else worst
        return verdict(worst <= 1 and same, f"{name}: {worst:.2f} of the bound{'' if same else ', NOT REPEATABLE'}")
    except Exception:  # noqa: BLE001 - one broken case must not hide the others
        return verdict(False, f"{name}: {traceback.format_exc(limit=-1).strip().splitlines()[-1]}")


def main():
    arguments = sys.argv[1:]
    only = arguments[arguments.index("-k") + 1] if "-k" in arguments else ""
    every = int(arguments[arguments.index("--every") + 1]) if "--every" in arguments else 1
    kernel_check.Call, kernel_check.Gradients = Call, Gradients
    start = time.perf_counter()
    library = Call.library = Library(pathlib.Path(arguments[0]).resolve())
    print(library.lib.ffpa_context_describe(library.context).decode())
    bad = total = 0
    for case in [c for c in kernel_check.forward_cases() if only in c.name][::every]:
        total += 1
        bad += attempt(case.name, lambda: kernel_check.check_forward(None, case))
    for case, opts in [c for c in kernel_check.backward_cases() if only in c[0].name][::every]:
        total += 1
        bad += attempt("backward " + case.name, lambda: kernel_check.check_backward(None, case, opts))
    bad += verdict(check_capture(library), "graph capture and replay of forward and backward")
    print(f"host time per warm forward call: {host_time(library):.1f} us")
    print(f"{total + 1 - bad} passed, {bad} failed, {time.perf_counter() - start:.0f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
