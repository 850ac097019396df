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
from concurrent.futures import ProcessPoolExecutor

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
    return bm * 128 * max(1, ceil_div(d * size, 128)) + bm * bn * size + bn * 128 * ring + bm * wn * 8 + 192


def heavy(options):
    """Do these options keep much state beside the accumulators: a bias, distances, random bits, any stride?"""
    return bool(options.get("MASK", 0) not in (0, BOOL) or options.get("ALIBI") or options.get("DROPOUT") or
                options.get("SOFTCAP") or not options.get("ALIGNED", 1))


def forward_config(dtype, d, dv, rows, shared_kib, options=None):
    """Tiles of the forward kernel. The first row whose O fits the registers (dv <= widest) and that leaves room for
    two slots: as wide as they can be, then three of them. `rows` of at most 16 share their keys: decode, where many
    small slots keep the memory busy and two CTAs share a multiprocessor."""
    size = 4 if dtype == F32 else 2
    panels = max(1, ceil_div(d * size, 128))
    options = options or {}
    wide = [(128, 128, 4, 2, 128), (128, 64, 4, 2, 256 if options.get("RANGE") or options.get("MASK") else 320),
            (64, 128, 2, 4, 576), (64, 64, 2, 4, 640), (32, 256, 1, 8, 1024)]  # BM BN WM WN, widest Dv
    slim = [(128, 64, 4, 2, 256), (64, 64, 2, 4, 512)]
    tiles = (slim if heavy(options) else wide) + [(64, 64, 2, 4, 512), (32, 128, 1, 8, 1024 if size == 2 else 640),
                                                  (16, 128, 1, 8, 1024), (16, 64, 1, 4, 1024)]
    for bm, bn, wm, wn, widest in tiles:
        decode = bm == 16
        if dv > widest or (not decode and rows <= 16) or (size == 4 and (bm > 32 or bn > 128)):
            continue
        two = decode and rows <= 16 and forward_bytes(dtype, d, bm, bn, wn, 3) <= shared_kib * 512
        free = shared_kib * (512 if two else 1024) - forward_bytes(dtype, d, bm, bn, wn, 0)
        width = 1 if decode else max(1, min(panels, 5, free // (2 * bn * 128)))
        stages = min(8 if decode else 3, free // (bn * 128 * width))
        if stages >= 2:
            return dict(BM=bm, BN=bn, WM=wm, WN=wn, PANELS=width, STAGES=stages)
    raise ValueError("no tile fits")


def pair_bytes(d, dv, vrows, stages):
    """pair_shared_bytes of kernels/common/shapes.h."""
    half = (ceil_div(dv, 64) + 1) // 2
    slot = max(8192, (half - 1 if half > 4 else half) * vrows * 128)
    return 2 * (ceil_div(d, 64) * 8192 + 2 * 8192 + 1024) + stages * slot + 1024


def pds_bytes(stages):
    return stages * 2 * 128 * 128


def pds_stages(shared_kib):
    return min(6, shared_kib * 1024 // pds_bytes(1))


def gemm_bytes(bn, stages):
    return stages * (128 * 128 + 128 * bn)


def gemm_config(dtype, cols, shared_kib, options=None, row_tiles=10**6, processors=132):
    """Columns of a tile: the fewest equal tiles of at most 320 columns (99 KiB, masks, any stride: 256; f32: 128), but
    narrower ones, down to 128, while they do not fill the processors."""
    options = options or {}
    slim = shared_kib < 160 or heavy(options) or (options.get("RANGE") and options.get("KEYS"))
    for widest in (128,) if dtype == F32 else (256, 192, 128) if slim else (320, 256, 192, 128):
        tiles = ceil_div(cols, widest)
        bn = ceil_div(ceil_div(cols, tiles), 64) * 64
        if row_tiles * tiles * 10 >= processors * 9:
            break
    return dict(BN=bn, STAGES=min(4, shared_kib * 1024 // (16384 + 128 * bn)))


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
                   b"--ptxas-options=-v", b"--no-cache"]  # a cached answer has no resources in its log
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
    config = dict(DTYPE=dtype, D=d, DV=dv, **forward_config(dtype, d, dv, rows, SHARED[arch], options))
    name = f"fwd_{['', 'f32', 'f16', 'bf16'][dtype]}_d{d}v{dv}_m{config['BM']}"
    return "sm80/fwd_sm80.cuh", dict(config, ALIGNED=1) | options, name


def named(variant, suffix):
    file, config, name = variant
    return file, config, f"{name}_{suffix}" if suffix else name


def forward_variants(arch):
    every = dict(RANGE=1, SOFTCAP=1, ALIBI=1, SINK=1, DROPOUT=1)
    for dtype in (BF16, F16, F32):
        for d in (64, 72, 128, 256, 320, 384, 448, 512, 576, 640, 768, 896, 1024):
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


def pair_config(d, dv):
    """Steps of the pairs' kernel: choose_steps of src/cuda/fwd_pair_sm90.c."""
    chunks, columns = ceil_div(d, 64), ceil_div(dv, 64)

    def stages(vrows):
        slot = pair_bytes(d, dv, vrows, 1) - pair_bytes(d, dv, vrows, 0)
        return (SHARED["sm_90a"] * 1024 - pair_bytes(d, dv, vrows, 0)) // slot
    vrows = 32 if columns <= 6 and stages(32) >= 7 else 16
    return dict(VROWS=vrows, STAGES=stages(vrows), FLIGHT=4 if vrows == 16 and stages(vrows) >= 8 else 2,
                KLAG=2 if vrows == 32 or chunks == 8 else 1, SWAP_AT=(2, 4, 4, 5, 5)[chunks - 5],
                REGS=232 if columns <= 7 else 240)


def hopper_variants(arch):
    if arch != "sm_90a":
        return
    every = dict(RANGE=1, MASK=F32, SOFTCAP=1, ALIBI=1, SINK=1, DROPOUT=1)
    for d, dv in ((320, 320), (384, 384), (448, 448), (512, 512), (576, 576), (576, 512)):
        more = [("", {}), ("causal", dict(RANGE=1)), ("varlen", dict(RANGE=1, SINK=1, VARLEN=1))]
        more += [("every", every), ("mask", dict(MASK=BOOL)), ("softcap", dict(SOFTCAP=1))] if d == 320 else []
        for suffix, options in more:
            config = dict(DTYPE=BF16, D=d, DV=dv, **pair_config(d, dv))
            yield named(("sm90/fwd_pair_sm90.cuh", config | options, f"fwd_pair_bf16_d{d}v{dv}"), suffix)
    for d, dv in ((264, 328), (512, 512)):
        yield "sm90/fwd_pair_sm90.cuh", dict(DTYPE=F16, D=d, DV=dv, RANGE=1, **pair_config(d, dv)), f"fwd_pair_f16_d{d}v{dv}_causal"
    for d in (640, 768, 896, 1024):
        for suffix, options in (("", {}), ("causal", dict(RANGE=1, SINK=1))):
            for part in ("p", "pv"):
                yield named((f"sm90/fwd_spill_{part}_sm90.cuh", dict(DTYPE=BF16, D=d, DV=d, **options), f"fwd_spill_{part}_bf16_d{d}"), suffix)


def backward_variants(arch):
    every = dict(RANGE=1, SOFTCAP=1, ALIBI=1, DROPOUT=1, MASK=F32, DMASK=1)
    stages = pds_stages(SHARED[arch])
    for dtype in (BF16, F16, F32):
        letters = ["", "f32", "f16", "bf16"][dtype]
        for d in (64, 320, 512, 1024):
            base = dict(DTYPE=dtype, D=d, DV=d, STAGES=stages, ALIGNED=1)
            for suffix, more in (("", {}), ("_causal", dict(RANGE=1)), ("_every", every), ("_any", dict(every, ALIGNED=0))):
                yield "sm80/bwd_pds_sm80.cuh", base | more, f"pds_{letters}_d{d}{suffix}"
        for cols in (64, 128, 192, 256, 320) if dtype != F32 else (64, 128):
            for keys in (0, 1):
                for suffix, more in (("", {}), ("_causal", dict(RANGE=1)), ("_any", dict(RANGE=1, MASK=F32, VARLEN=1, ALIGNED=0))):
                    base = dict(DTYPE=dtype, KEYS=keys, ALIGNED=1, **gemm_config(dtype, cols, SHARED[arch], dict(more, KEYS=keys)))
                    yield "sm80/bwd_gemm_sm80.cuh", base | more, f"gemm_{letters}_{'qk'[keys]}_n{base['BN']}{suffix}"


def small_variants(arch):
    del arch  # the same everywhere
    for name, more in (("bwd_delta", {}), ("bwd_sink", {}), ("bwd_mask", dict(RANGE=1)), ("merge", {}),
                       ("append", dict(CACHE=2)), ("split_combine", dict(VARLEN=1))):
        yield f"any/{name}.cuh", dict(DTYPE=BF16, **more), name


def shipped(arch):
    """Each variant once: a narrow part's configs may coincide."""
    seen = set()
    for v in (*forward_variants(arch), *hopper_variants(arch), *backward_variants(arch), *small_variants(arch)):
        if v[2] not in seen:
            seen.add(v[2])
            yield v


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


def shared_bytes(file, config):
    c = {k: int(v) for k, v in config.items()}
    if "spill" in file:
        return (3 * 7 if "pv" in file else 4 * 5) * 8192 + 6 * 8192 + 1024
    if "fwd_pair" in file:
        return pair_bytes(c["D"], c["DV"], c["VROWS"], c["STAGES"])
    if "fwd" in file:
        return forward_bytes(c["DTYPE"], c["D"], c["BM"], c["BN"], c["WN"], c["STAGES"] * c["PANELS"])
    if "pds" in file:
        return pds_bytes(c["STAGES"])
    return gemm_bytes(c["BN"], c["STAGES"]) if "gemm" in file else 0


def compile_job(job):
    (file, config, name), arch = job
    cubin, log = Nvrtc().compile(file, config_text(config), arch)
    return name, arch, shared_bytes(file, config), cubin, log


def jobs_of(args):
    for arch in args.arch.split(","):
        one = [(args.file, dict(x.split("=") for x in args.define), args.name)] if args.file else shipped(arch)
        yield from ((v, arch) for v in one if args.only in v[2])


def main():
    args, bad = parse(), 0
    find_nvrtc()
    lines = ["variant,arch,registers,stack,spill,warnings,shared,cubin_bytes"]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, arch, shared, cubin, log in pool.map(compile_job, jobs_of(args)):
            if cubin is None:
                print(f"{name},{arch}: does not compile\n{log}")
                bad += 1
                continue
            r = resources(cubin, log)
            lines.append(f"{name},{arch},{r['registers']},{r['stack']},{r['spill']},{r['warnings']},{shared},"
                         f"{r['cubin_bytes']}")
            wrong = not r["registers"] or r["stack"] or r["spill"] or r["warnings"]
            bad += bool(wrong)
            print(lines[-1], "  WRONG" if wrong else "", flush=True)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / f"{name}.{arch}.cubin").write_bytes(cubin)
    if args.csv:
        args.csv.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} variants compiled, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
