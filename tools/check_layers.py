#!/usr/bin/env python3
"""Fail when the tree breaks a rule of shape: an #include against the arrows of docs/architecture.md, or of a kernel
file that is not there, a file name used twice, a file, function or parameter list that is too long."""
import collections
import pathlib
import re
import subprocess
import sys

ALLOWED = {  # folder -> folders it may include from (its own is implied)
    "include": set(),
    "src/base": {"include"},
    "src/core": {"include", "src/base"},
    "src/quant": {"include", "src/base", "src/core"},
    "src/tune": {"include", "src/base", "src/core"},
    "src/cpu": {"include", "src/base", "src/core", "src/quant"},
    "src/cuda": {"include", "src/base", "src/core", "src/quant", "kernels"},
    "src/api": {"include", "src/base", "src/core", "src/tune", "src/cpu", "src/cuda"},
    "kernels": set(),
    "cli": {"include"},
    "examples": {"include"},
    "bench": {"include"},
    "tests": {"include", "src/base", "src/core", "src/quant", "src/tune", "src/cpu", "src/cuda",
              "src/api", "kernels", "cli"},
}
CODE = {".c", ".h", ".cuh", ".cc"}
NAMED_ONCE = CODE | {".py", ".sh"}
GENERATED = {"config.cuh"}  # written per kernel variant, in no folder

MAX_FILE = 600
MAX_FUNCTION = {".cuh": 80}  # else 60
MAX_PARAMETERS = {".cuh": 8}  # else 6; a device function has no struct to hide its registers in
LONGER = {  # file, or file:function -> its own limit, and why
    "ffpa.h": (700, "the whole public API in one file, most of it documentation"),
}
WIDER = {  # file:function -> its own limit of parameters, and why
    "checks.c:expect": (7, "one line of a table: tensor, shape, two dtypes, and the three every check has"),
    "fake_cuda.c:fake_cuTensorMapEncodeTiled": (12, "the driver's signature"),
    "tile.c:tile_block": (7, "the inner product's operands and strides, in registers"),
}


def tracked(root):
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=root, check=True, capture_output=True, text=True).stdout
    return [pathlib.Path(line) for line in listing.splitlines() if (root / line).is_file()]


def home(path):
    folders = (f for f in sorted(ALLOWED, key=len, reverse=True) if f"{path}".startswith(f + "/"))
    return next(folders, None)


def repeated_names(files):
    where = collections.defaultdict(list)
    for p in files:
        if p.suffix in NAMED_ONCE and p.name != "__init__.py":
            where[p.name].append(f"{p}")
    return [f"{name}: file names are unique across the tree, found {', '.join(paths)}"
            for name, paths in where.items() if len(paths) > 1]


def wrong_arrows(path, lines, by_name):
    me, bad = home(path), []
    for n, line in enumerate(lines, 1):
        m = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not me or not m or m[1] in GENERATED:
            continue
        target = by_name.get(pathlib.Path(m[1]).name)
        there = home(target) if target and f"{target}".endswith(m[1]) else None
        if there and there != me and there not in ALLOWED[me]:
            bad.append(f"{path}:{n}: {me} must not include {there} ({m[1]})")
        if me == "kernels" and f"{target}" != f"kernels/{m[1]}":  # no compiler of this build reads them
            bad.append(f"{path}:{n}: kernels/{m[1]} is not there")
    return bad


def parameters(signature):
    """Count the commas of the outermost parentheses of a function's head."""
    inside, depth, commas = signature[signature.find("("):], 0, 0
    for c in inside:
        depth += (c == "(") - (c == ")")
        commas += c == "," and depth == 1
        if depth == 0:
            break
    return commas + 1


def too_long(path, lines):
    limit = LONGER.get(path.name, (MAX_FILE,))[0]
    if len(lines) > limit:
        yield f"{path}: {len(lines)} lines, at most {limit}"
    start = None
    for n, line in enumerate(lines, 1):  # .clang-format puts the braces of a function in column 1
        if line == "{":
            start = n
        elif line.startswith("}") and start:
            head = start - 1
            while head > 0 and not re.match(r"$|[#}]|.*[;/]$", lines[head - 1]):
                head -= 1
            signature = " ".join(lines[head:start - 1])
            name = re.search(r"(\w+)\s*\(", signature)
            name = name[1] if name else "?"
            limit = LONGER.get(f"{path.name}:{name}", (MAX_FUNCTION.get(path.suffix, 60),))[0]
            if n - start - 1 > limit:
                yield f"{path}:{start}: {name} has {n - start - 1} lines, at most {limit}"
            limit = WIDER.get(f"{path.name}:{name}", (MAX_PARAMETERS.get(path.suffix, 6),))[0]
            if parameters(signature) > limit:
                yield f"{path}:{start}: {name} has {parameters(signature)} parameters, at most {limit}"
            start = None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = tracked(root)
    by_name = {p.name: p for p in files if p.suffix in CODE}
    bad = repeated_names(files)
    for p in files:
        if p.suffix in CODE:
            lines = (root / p).read_text().splitlines()
            bad += wrong_arrows(p, lines, by_name)
            bad += too_long(p, lines)
    print("\n".join(bad) if bad else f"layers: {len(files)} files follow the rules")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
