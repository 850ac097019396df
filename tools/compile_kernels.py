#!/usr/bin/env python3
"""Compile kernel variants with NVRTC, no GPU needed, and list their resources.

  compile_kernels.py --shipped PROGRAM --family sm80 [--arch sm_80,...] [--only TEXT] [--csv FILE] [--out DIR]
      what the planner chooses for the list shipped_FAMILY.txt in kernels/; PROGRAM is the built shipped_variants
  compile_kernels.py --file sm80/fwd_sm80.cuh --define D=512 ... --arch sm_90a [--out DIR] [--name NAME]
      one variant

Exit status 1 when a variant does not compile, has a stack frame, spills, or draws a C75xx warning.
libnvrtc comes from the pip package nvidia-cuda-nvrtc or from $FFPA_NVRTC (a path to libnvrtc.so)."""
import argparse
import ctypes
import glob
import hashlib
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kernels"
ARCHES = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
HEADER = "variant,arch,registers,stack,spill,warnings,shared,cubin_bytes"


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


def resources(cubin, log):
    """registers, stack, spill, warnings, shared (static) of the kernel, and the size of its code."""
    def number(pattern):
        return max([int(x) for x in re.findall(pattern, log)], default=0)
    return dict(registers=number(r"Used (\d+) registers"), stack=number(r"(\d+) bytes stack frame"),
                spill=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                warnings=len(re.findall(r"C75\d\d", log)), cubin_bytes=len(cubin))


# ---- variants -----------------------------------------------------------------------------------

class Variant:
    def __init__(self, file, name, shared, config, arch):
        self.file, self.name, self.shared, self.config, self.arch = file, name, shared, config, arch

    def key(self):
        """A name is for people and leaves details out; six digits of the config's hash tell the rest."""
        return f"{self.name}#{hashlib.sha256(f'{self.file} {self.config}'.encode()).hexdigest()[:6]},{self.arch}"


def shipped(program, family, arch):
    """What the planner chooses for the family's list, each once."""
    listing = next(ROOT.glob(f"*/shipped_{family}.txt")).read_text()
    text = subprocess.run([program.resolve(), family, arch], input=listing, check=True, capture_output=True, text=True).stdout
    seen = {}
    for block in text.split("\n\n"):
        if block.strip():
            head, config = block.strip("\n").split("\n", 1)
            file, name, shared = head.split()
            v = Variant(file, name, int(shared), config + "\n", arch)
            seen.setdefault(v.key(), v)
    return list(seen.values())


def one_variant(args, arch):
    config = "".join(f"#define FFPA_{d.replace('=', ' ', 1)}\n" for d in args.define)
    return Variant(args.file, args.name, 0, config, arch)


# ---- command ------------------------------------------------------------------------------------

def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shipped", type=pathlib.Path, metavar="PROGRAM")
    p.add_argument("--family")
    p.add_argument("--arch", default=",".join(ARCHES))
    p.add_argument("--only", default="", help="variants whose name contains this")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--out", type=pathlib.Path, help="write cubins here")
    p.add_argument("--csv", type=pathlib.Path, help="write the table here too")
    p.add_argument("--file", help="compile this one file, with --define")
    p.add_argument("--define", nargs="*", default=[], metavar="NAME=VALUE")
    p.add_argument("--name", default="kernel")
    args = p.parse_args()
    if not args.file and not (args.shipped and args.family):
        p.error("give --shipped and --family, or --file")
    return args


def compile_job(v):
    return v, *Nvrtc().compile(v.file, v.config, v.arch)


def jobs_of(args):
    for arch in args.arch.split(","):
        for v in [one_variant(args, arch)] if args.file else shipped(args.shipped, args.family, arch):
            if args.only in v.name:
                yield v


def main():
    args, bad = parse(), 0
    find_nvrtc()
    lines = []
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        for v, cubin, log in pool.map(compile_job, jobs_of(args)):
            if cubin is None:
                print(f"{v.key()}: does not compile\n{log}")
                bad += 1
                continue
            r = resources(cubin, log)
            lines.append(f"{v.key()},{r['registers']},{r['stack']},{r['spill']},{r['warnings']},{v.shared},"
                         f"{r['cubin_bytes']}")
            wrong = not r["registers"] or r["stack"] or r["spill"] or r["warnings"]
            bad += bool(wrong)
            print(lines[-1], "  WRONG" if wrong else "", flush=True)
            if args.out:
                (args.out / f"{v.name}.{v.arch}.cubin").write_bytes(cubin)
    if args.csv:
        args.csv.write_text("\n".join([HEADER, *lines]) + "\n")
    print(f"{len(lines)} variants compiled, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
