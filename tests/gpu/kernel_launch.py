"""Compile kernel variants with NVRTC, load and launch them on torch tensors through the driver API.
For checks and timings of kernels alone, without the library; the structs repeat kernels/common/args.h."""
import ctypes as c
import os
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import compile_kernels as ck  # noqa: E402

I64, I32, PTR, F32, U64 = c.c_longlong, c.c_int, c.c_void_p, c.c_float, c.c_ulonglong


def struct(name, **fields):
    return type(name, (c.Structure,), {"_fields_": list(fields.items())})


Tensor = struct("Tensor", data=PTR, sb=I64, sh=I64, sn=I64, sd=I64)
Sequences = struct("Sequences", cu_q=PTR, cu_k=PTR, lengths=PTR, batch_index=PTR, block_table=PTR, table_stride=I64,
                   entries=I64, total_q=I64, total_k=I64, batch=I32, nq=I32, nk=I32, new_keys=I32, page_size=I32,
                   table_width=I32, index64=I32, reserved=I32)
Scores = struct("Scores", mask=Tensor, alibi=PTR, alibi_sb=I64, alibi_sh=I64, sink=PTR, sink_sh=I64, scale=F32,
                softcap=F32, left=I32, right=I32, top_left=I32, reserved=I32)
Dropout = struct("Dropout", seed_ptr=PTR, offset_ptr=PTR, seed=U64, offset=U64, threshold=U64, keep_scale=F32,
                 reserved=I32)
Chunk = struct("Chunk", ld=I64, h0=I32, nh=I32, t0=I32, nt=I32)
Fwd = struct("Fwd", q=Tensor, k=Tensor, v=Tensor, o=Tensor, lse=Tensor, o_part=PTR, lse_part=PTR, seq=Sequences,
             scores=Scores, dropout=Dropout, hq=I32, hk=I32, group=I32, tiles=I32, splits=I32, reserved=I32)
Combine = struct("Combine", o_part=PTR, lse_part=PTR, o=Tensor, lse=Tensor, seq=Sequences, hq=I32, splits=I32, dv=I32,
                 reserved=I32)
Merge = struct("Merge", o_a=Tensor, lse_a=Tensor, o_b=Tensor, lse_b=Tensor, o=Tensor, lse=Tensor, b=I32, h=I32, n=I32,
               dv=I32)
Append = struct("Append", k_new=Tensor, v_new=Tensor, k=Tensor, v=Tensor, seq=Sequences, hk=I32, d=I32, dv=I32,
                reserved=I32)
Delta = struct("Delta", o=Tensor, dout=Tensor, dlse=Tensor, delta=PTR, seq=Sequences, hq=I32, dv=I32)
Pds = struct("Pds", q=Tensor, k=Tensor, v=Tensor, dout=Tensor, lse=Tensor, delta=PTR, p=PTR, ds=PTR, dbias=PTR,
             seq=Sequences, scores=Scores, dropout=Dropout, chunk=Chunk, hq=I32, hk=I32, group=I32, key_tiles=I32)
Gemm = struct("Gemm", a=PTR, b=Tensor, out=Tensor, partial=PTR, seq=Sequences, chunk=Chunk, alpha=F32, hq=I32, hk=I32,
              group=I32, cols=I32, left=I32, right=I32, top_left=I32, first=I32, last=I32, key_tiles=I32, reserved=I32)
Dmask = struct("Dmask", dbias=PTR, dmask=Tensor, partial=PTR, seq=Sequences, chunk=Chunk, hq=I32, mb=I32, mh=I32,
               mq=I32, mk=I32, left=I32, right=I32, top_left=I32, first=I32, last=I32)
Dsink = struct("Dsink", lse=Tensor, delta=PTR, sink=PTR, dsink=PTR, sink_sh=I64, dsink_sh=I64, seq=Sequences, hq=I32,
               reserved=I32)

DTYPES = {torch.float32: ck.F32, torch.float16: ck.F16, torch.bfloat16: ck.BF16, torch.bool: ck.BOOL}


def tensor(t):
    """A 4-D torch tensor [B, H, N, D]; axes of size 1 broadcast."""
    if t is None:
        return Tensor()
    return Tensor(t.data_ptr(), *[0 if n == 1 else s for n, s in zip(t.shape, t.stride())])


class Cache:
    """Variants by (file, config): declared first, compiled together, loaded when launched."""

    def __init__(self, arch):
        self.arch, self.cubins, self.functions, self.driver = arch, {}, {}, None

    def compile(self, variants):
        todo = list(dict.fromkeys(v for v in variants if v not in self.cubins))
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for v, (cubin, log) in zip(todo, pool.map(compile_one, todo, [self.arch] * len(todo))):
                if cubin is None:
                    print(f"does not compile: {v}\n{log}")
                self.cubins[v] = cubin

    def check(self, status, what):
        if status:
            text = c.c_char_p()
            self.driver.cuGetErrorName(status, c.byref(text))
            raise RuntimeError(f"{what}: {text.value}")

    def launch(self, variant, args, grid, shared, threads=256):
        if self.driver is None:
            self.driver = c.CDLL("libcuda.so.1")
        if variant not in self.functions:
            module, function = PTR(), PTR()
            if variant not in self.cubins:
                self.compile([variant])
            if self.cubins[variant] is None:
                raise RuntimeError("the variant does not compile")
            self.check(self.driver.cuModuleLoadData(c.byref(module), self.cubins[variant]), f"load {variant}")
            self.check(self.driver.cuModuleGetFunction(c.byref(function), module, b"ffpa_kernel"), "function")
            self.check(self.driver.cuFuncSetAttribute(function, 8, c.c_int(shared)), f"{shared} bytes shared")
            self.functions[variant] = function
        if grid == 0:
            return
        params = (PTR * 1)(c.addressof(args))
        self.check(self.driver.cuLaunchKernel(self.functions[variant], grid, 1, 1, threads, 1, 1, shared,
                                              PTR(torch.cuda.current_stream().cuda_stream), params, None),
                   f"launch {variant}")


def compile_one(variant, arch):
    file, config = variant
    return ck.Nvrtc().compile(file, ck.config_text(dict(config)), arch)


def variant(file, **config):
    return file, tuple(config.items())
