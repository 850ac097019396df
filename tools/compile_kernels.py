#!/usr/bin/env python3
"""Compile kernel variants with NVRTC, no GPU needed, and list their resources.

  compile_kernels.py [--arch sm_80,...] [--only TEXT] [--out DIR] [--csv FILE]   all shipped variants
  compile_kernels.py --file sm80/fwd_sm80.cuh --define D=512 ... --out DIR --name NAME   one variant

Exit status 1 when a variant does not compile, has a stack frame, spills, or draws a C75xx warning.
libnvrtc comes from the pip package nvidia-cuda-nvrtc or from $FFPA_NVRTC (a path to libnvrtc.so)."""
import argparse
import ctypes
import glob
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kernels"
ARCHES = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
SHARED = {"sm_80": 163, "sm_89": 99, "sm_90a": 227, "sm_100a": 227, "sm_120a": 99}  # KiB a block may have
F32, F16, BF16, BOOL = 1, 2, 3, 5


# ---- configs ------------------------------------------------------------------------------------

def ceil_div(a, b):
    return -(-a // b)


def forward_bytes(dtype, d, bm, bn, wn, ring):
    """fwd_shared_bytes of kernels/common/shapes.h."""
    size = 4 if dtype == F32 else 2
    return bm * 128 * max(1, ceil_div(d * size, 128)) + bm * bn * size + bn * 128 * ring + bm * wn * 8 + bn * 4


def forward_config(dtype, d, dv, rows, shared_kib):
    """Tiles of the forward kernel: the first row that the registers and the shared memory hold.
    `rows` = query rows that share keys in one tile: at most 16 means decode."""
    size, wide = (4 if dtype == F32 else 2), max(d, dv)
    tiles = [(128, 64, 4, 2, 256), (64, 128, 2, 4, 512), (64, 64, 2, 4, 512), (32, 128, 1, 8, 1024),
             (16, 128, 1, 8, 1024), (16, 64, 1, 4, 1024)]  # BM BN WM WN, widest Dv whose O fits the registers
    for bm, bn, wm, wn, widest in tiles:
        if dv > widest or (bm > 16 and rows <= 16) or (size == 4 and bm > 32):
            continue
        free = shared_kib * 1024 // (2 if bm == 16 and wide <= 512 and shared_kib > 160 else 1)
        stages = min(8, (free - forward_bytes(dtype, d, bm, bn, wn, 0)) // (bn * 128))
        if stages >= 3 or (bm, bn) == tiles[-1][:2]:
            return dict(BM=bm, BN=bn, WM=wm, WN=wn, PANELS=1, STAGES=stages)
    raise ValueError("no tile fits")


def pds_bytes(stages):
    return stages * 2 * 128 * 128


def pds_stages(shared_kib):
    return min(6, shared_kib * 1024 // pds_bytes(1))


def gemm_bytes(dtype, bn, stages):
    return stages * (128 * 128 + 128 * bn) + (32 if dtype == F32 else 64) * 4


def gemm_config(dtype, cols, shared_kib):
    """Columns of a tile: the fewest tiles of at most 320 (99 KiB: 256) columns that hold `cols`, made equal."""
    widest = 320 if shared_kib > 160 else 256
    tiles = ceil_div(cols, widest)
    bn = ceil_div(ceil_div(cols, tiles), 64) * 64
    return dict(BN=bn, STAGES=min(4, (shared_kib * 1024 - 512) // (16384 + 128 * bn)))


# ---- NVRTC --------------------------------------------------------------------------------------

def find_nvrtc():
    if os.environ.get("FFPA_NVRTC"):
        return os.environ["FFPA_NVRTC"]
    places = [p for base in sys.path for p in glob.glob(f"{base}/nvidia/*/lib/libnvrtc.so.*")]
    places = [p for p in places if "builtins" not in p and ".alt." not in p]
    if not places:
        sys.exit("compile_kernels: libnvrtc not found: pip install nvidia-cuda-nvrtc, or set FFPA_NVRTC")
    return sorted(places)[-1]


class Nvrtc:
    def __init__(self):
        path = pathlib.Path(find_nvrtc())
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):  # NVRTC opens them by bare name
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(str(path))
        self.headers = {f"{p.relative_to(ROOT)}": p.read_text() for p in sorted(ROOT.rglob("*"))
                        if p.suffix in (".h", ".cuh")}

    def _text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, data)
        return data.raw

    def compile(self, file, config, arch):
        """(cubin or None, log)"""
        headers = dict(self.headers, **{"config.cuh": config})
        names, texts = list(headers), list(headers.values())
        array = ctypes.c_char_p * len(names)
        program = ctypes.c_void_p()
        self.lib.nvrtcCreateProgram(ctypes.byref(program), self.headers[file].encode(), file.encode(),
                                    len(names), array(*[t.encode() for t in texts]),
                                    array(*[n.encode() for n in names]))
        options = [b"--std=c++17", b"--gpu-architecture=" + arch.encode(), b"-default-device",
                   b"--ptxas-options=-v"]
        status = self.lib.nvrtcCompileProgram(program, len(options),
                                              (ctypes.c_char_p * len(options))(*options))
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode()
        cubin = self._text(program, "CUBIN") if status == 0 else None
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin, log


def config_text(defines):
    return "".join(f"#define FFPA_{k} {v}\n" for k, v in defines.items())


def resources(cubin, log):
    def number(pattern):
        return max([int(x) for x in re.findall(pattern, log)], default=0)
    return dict(registers=number(r"Used (\d+) registers"), stack=number(r"(\d+) bytes stack frame"),
                spill=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                warnings=len(re.findall(r"C75\d\d", log)), cubin_bytes=len(cubin))


# ---- variants -----------------------------------------------------------------------------------

def forward_variant(dtype, d, dv, arch, rows=128, **options):
    config = dict(DTYPE=dtype, D=d, DV=dv, **forward_config(dtype, d, dv, rows, SHARED[arch]))
    name = f"fwd_{['', 'f32', 'f16', 'bf16'][dtype]}_d{d}v{dv}_m{config['BM']}"
    return "sm80/fwd_sm80.cuh", dict(config, ALIGNED=1) | options, name


def named(variant, suffix):
    file, config, name = variant
    return file, config, f"{name}_{suffix}" if suffix else name


def forward_variants(arch):
    every = dict(RANGE=1, SOFTCAP=1, ALIBI=1, SINK=1, DROPOUT=1)
    for dtype in (BF16, F16, F32):
        for d in (64, 72, 128, 256, 320, 512, 576, 768, 1024):
            yield forward_variant(dtype, d, d, arch)
    for d in (64, 320, 512, 1024):
        yield named(forward_variant(BF16, d, d, arch, RANGE=1), "causal")
        yield named(forward_variant(BF16, d, d, arch, rows=16, PACK=1, SPLIT=1, CACHE=1), "decode")
        yield named(forward_variant(BF16, d, d, arch, ALIGNED=0), "any")
        for mask in (BOOL, F32, BF16):
            yield named(forward_variant(BF16, d, d, arch, MASK=mask), f"mask{mask}")
        yield named(forward_variant(BF16, d, d, arch, MASK=F32, **every), "every")
        yield named(forward_variant(F32, d, d, arch, MASK=F32, ALIGNED=0, **every), "every")
    yield named(forward_variant(BF16, 576, 512, arch), "mla")
    yield named(forward_variant(BF16, 512, 512, arch, RANGE=1, VARLEN=1), "varlen")
    yield named(forward_variant(BF16, 512, 512, arch, rows=16, PACK=1, SPLIT=1, CACHE=2), "paged")


def shipped(arch):
    yield from forward_variants(arch)


# ---- command ------------------------------------------------------------------------------------

def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", default=",".join(ARCHES))
    p.add_argument("--only", default="", help="variants whose name contains this")
    p.add_argument("--out", type=pathlib.Path, help="write cubins here")
    p.add_argument("--csv", type=pathlib.Path, help="write the table here too")
    p.add_argument("--file", help="compile this one file instead, with --define")
    p.add_argument("--define", nargs="*", default=[], metavar="NAME=VALUE")
    p.add_argument("--name", default="kernel")
    return p.parse_args()


def main():
    args, nvrtc, bad = parse(), Nvrtc(), 0
    lines = ["variant,arch,registers,stack,spill,warnings,shared,cubin_bytes"]
    print(lines[0])
    for arch in args.arch.split(","):
        variants = list(shipped(arch))
        if args.file:
            variants = [(args.file, dict(x.split("=") for x in args.define), args.name)]
        for file, config, name in variants:
            if args.only not in name:
                continue
            start = time.monotonic()
            cubin, log = nvrtc.compile(file, config_text(config), arch)
            if cubin is None:
                print(f"{name},{arch}: does not compile\n{log}")
                bad += 1
                continue
            r = resources(cubin, log)
            shared = 0
            if "fwd" in file:
                shared = forward_bytes(int(config["DTYPE"]), int(config["D"]), int(config["BM"]), int(config["BN"]),
                                       int(config["WN"]), int(config["STAGES"]) * int(config["PANELS"]))
            lines.append(f"{name},{arch},{r['registers']},{r['stack']},{r['spill']},{r['warnings']},{shared},"
                         f"{r['cubin_bytes']}")
            wrong = r["stack"] or r["spill"] or r["warnings"]
            bad += bool(wrong)
            print(lines[-1], f" {time.monotonic() - start:.1f}s", "  WRONG" if wrong else "", flush=True)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / f"{name}.{arch}.cubin").write_bytes(cubin)
    if args.csv:
        args.csv.write_text("\n".join(lines) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
