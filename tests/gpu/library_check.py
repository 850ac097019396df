#!/usr/bin/env python3
"""Problems of several tiles through the library on CUDA tensors, against float64 on the same GPU; NaN in keys that some
rows do not see; graph capture; two devices where there are two.

  library_check.py LIBRARY [--backend cuda|cuda/FAMILY] [-k TEXT] [--shard 2/5] [--ratios FILE]

--ratios appends to FILE, as CSV, for each problem and tensor the kernels' family, the largest error as a share of the
bound, and the relative L2 error.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import time
import traceback

import torch

import gpu_cases
from gpu_cases import Problem

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load(path):
    text = subprocess.run([sys.executable, ROOT / "tools/gen_ctypes.py", ROOT / "include/ffpa/ffpa.h"],
                          check=True, capture_output=True, text=True).stdout
    abi = {}
    exec(compile(text, "ffpa_mirror", "exec"), abi)  # the mirror of this tree's header
    return abi, abi["declare"](ctypes.CDLL(str(path)))


def address(t):
    return None if t is None else t.data_ptr()


class Library:
    def __init__(self, path, backend):
        self.abi, self.lib = load(path)
        options = self.struct("ffpa_context_options")
        options.backend = backend.encode()
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

    def workspace(self, params, query, device):
        need = ctypes.c_size_t()
        self.call(query, self.context, ctypes.byref(params), ctypes.byref(need))
        memory = torch.full((need.value,), 255, dtype=torch.uint8, device=device)  # every float a NaN
        params.workspace, params.workspace_bytes = memory.data_ptr(), need.value
        params.stream = torch.cuda.current_stream(device).cuda_stream
        return memory

    def sides(self, problem, p):
        """Side structs; they live as long as the result."""
        keep, index = [], next((t for t in (problem.cu_q, problem.cu_k, problem.lengths) if t is not None), None)
        code = 0 if index is None else self.abi["FFPA_I64" if index.dtype == torch.int64 else "FFPA_I32"]
        if problem.p is not None:
            keep.append(self.struct("ffpa_dropout", p=problem.p, seed=problem.seed, offset=problem.offset))
            p.dropout = ctypes.addressof(keep[-1])
        if problem.cu_q is not None or problem.cu_k is not None:
            keep.append(self.struct("ffpa_varlen", batch=problem.batch, cu_q=address(problem.cu_q),
                                    cu_k=address(problem.cu_k), index_dtype=code))
            p.varlen = ctypes.addressof(keep[-1])
        if problem.lengths is not None:
            cache = self.struct("ffpa_kv_cache", lengths=address(problem.lengths),
                                batch_index=address(problem.batch_index), block_table=address(problem.table),
                                index_dtype=code)
            if problem.table is not None:
                cache.table_stride, cache.table_width = problem.table.stride(0), problem.table.shape[1]
            keep.append(cache)
            p.kv_cache = ctypes.addressof(cache)
        return keep

    def params(self, problem, o, lse):
        p = self.struct("ffpa_forward_params", softcap=problem.softcap)
        if problem.scale is not None:
            p.flags, p.scale = self.abi["FFPA_SCALE"], problem.scale
        assert not problem.top_left or problem.right == 0, "a top-left window without causal has no public form"
        p.causal = self.abi["FFPA_TOP_LEFT"] if problem.top_left else \
            self.abi["FFPA_BOTTOM_RIGHT"] if problem.right == 0 else 0
        if problem.left >= 0 or problem.right > 0:
            p.flags |= self.abi["FFPA_WINDOW"]
            p.window_left, p.window_right = problem.left, problem.right
        sink = None if problem.sink is None else problem.sink.view(1, -1, 1, 1)
        for name, t in dict(q=problem.q, k=problem.k, v=problem.v, o=o, lse=lse, mask=problem.mask, alibi=problem.alibi,
                            sink=sink).items():
            setattr(p, name, self.tensor(t))
        return p, self.sides(problem, p)

    def forward(self, problem, o, lse):
        params, sides = self.params(problem, o, lse)
        memory = self.workspace(params, "ffpa_forward_workspace", problem.q.device)
        self.call("ffpa_forward", self.context, ctypes.byref(params))
        del sides, memory
        return o

    def backward(self, problem, g, o, lse, dq, dk, dv, dsink=None):
        """`g`: dout, and dlse, dmask, limit where wanted."""
        forward, sides = self.params(problem, o, lse)
        b = self.struct("ffpa_backward_params", forward=ctypes.addressof(forward), workspace_limit_bytes=g.get("limit", 0))
        dsink = None if dsink is None else dsink.view(1, -1, 1, 1)
        for name, t in dict(dout=g["dout"], dlse=g.get("dlse"), dq=dq, dk=dk, dv=dv, dmask=g.get("dmask"),
                            dsink=dsink).items():
            setattr(b, name, self.tensor(t))
        memory = self.workspace(b, "ffpa_backward_workspace", problem.q.device)
        self.call("ffpa_backward", self.context, ctypes.byref(b))
        del sides, memory


def check_capture(library):
    """Forward and backward captured once, replayed on changed inputs, equal to eager runs bit for bit."""
    q, k, v, dout = (gpu_cases.randn(1, 4, 300, 512) for _ in range(4))
    call = Problem(q, k, v, right=0)
    o, lse = call.outputs()
    grads = [torch.empty_like(t) for t in (q, k, v)]
    forward, _ = library.params(call, o, lse)
    f_memory = library.workspace(forward, "ffpa_forward_workspace", q.device)
    g = library.struct("ffpa_backward_params", forward=ctypes.addressof(forward))
    for name, t in dict(dout=dout, dq=grads[0], dk=grads[1], dv=grads[2]).items():
        setattr(g, name, library.tensor(t))
    g_memory = library.workspace(g, "ffpa_backward_workspace", q.device)

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
        q.copy_(gpu_cases.randn(*q.shape))
        graph.replay()
        torch.cuda.synchronize()
        replayed = [t.clone() for t in (o, *grads)]
        run()
        torch.cuda.synchronize()
        same &= all(torch.equal(a, b) for a, b in zip(replayed, (o, *grads)))
    del f_memory, g_memory
    return same


def check_two_devices(library):
    """The tensors' device is used, whatever device is current, which stays current: forward and backward, with and without
    workspace, on both devices before either is waited for."""
    if torch.cuda.device_count() < 2:
        return True
    same = True
    for shape in ((1, 2, 200, 64), (1, 40, 500, 512), (1, 40, 300, 640)):
        results, first = [], [gpu_cases.randn(*shape) for _ in range(4)]
        for device in ("cuda:0", "cuda:1"):
            q, k, v, dout = (t.to(device) for t in first)
            problem = Problem(q, k, v, right=0)
            o, lse = (torch.full_like(t, float("nan"), device=device) for t in problem.outputs())
            grads = [torch.full_like(t, float("nan")) for t in (q, k, v)]
            library.forward(problem, o, lse)
            library.backward(problem, dict(dout=dout), o, lse, *grads)
            results.append((o, lse, *grads))
        torch.cuda.synchronize(1)
        same &= all(torch.equal(a, b.to("cuda:0")) for a, b in zip(*results)) and torch.cuda.current_device() == 0
    return same


def verdict(ok, text):
    print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)
    return not ok


def attempt(name, check, rows, library):
    try:
        by_tensor, relative, same = check()
        path, worst = library.lib.ffpa_last_path().decode(), max(by_tensor.values())
        rows += [f'"{name}",{path},{tensor},{by_tensor[tensor]:.3f},{relative[tensor]:.2e}' for tensor in by_tensor]
        return verdict(worst <= 1 and same, f"{name}: {worst:.2f} of the bound{'' if same else ', NOT REPEATABLE'}")
    except Exception:  # noqa: BLE001 - one broken case must not hide the others
        return verdict(False, f"{name}: {traceback.format_exc(limit=-1).strip().splitlines()[-1]}")


def holds(check, library):
    try:
        return check(library)
    except Exception:  # noqa: BLE001
        traceback.print_exc(limit=-1)
        return False


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("--backend", default="cuda")
    p.add_argument("-k", dest="only", default="", help="problems whose name contains this")
    p.add_argument("--shard", default="1/1", help="2/5: every fifth problem from the second on")
    p.add_argument("--ratios", type=pathlib.Path)
    return p.parse_args()


def main():
    args, rows, bad = parse(), [], 0
    start = time.perf_counter()
    library = Library(args.library.resolve(), args.backend)
    print(library.lib.ffpa_context_describe(library.context).decode())
    mine, all_shards = (int(x) for x in args.shard.split("/"))
    todo = [(case.name, lambda case=case: gpu_cases.check_forward(library, case)) for case in gpu_cases.forward_cases()]
    todo += [("backward " + case.name, lambda case=case, opts=opts: gpu_cases.check_backward(library, case, opts))
             for case, opts in gpu_cases.backward_cases()]
    todo = [x for x in todo if args.only in x[0]][mine - 1::all_shards]
    for name, check in todo:
        bad += attempt(name, check, rows, library)
    others = {"graph capture and replay of forward and backward": check_capture, "NaN in unseen keys": gpu_cases.check_poison,
              "NaN in backward": gpu_cases.check_backward_poison, "two devices": check_two_devices}
    for name, check in list(others.items())[mine - 1::all_shards]:
        if args.only in name:
            bad += verdict(holds(check, library), name)
    if args.ratios:
        with open(args.ratios, "a", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")
    print(f"{bad} failed, {time.perf_counter() - start:.0f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
