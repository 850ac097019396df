#!/usr/bin/env python3
"""Print what a compiled program relies on: exported symbols, enum values, flag values, and the offset
and size of every field of every public struct. Everything is read from the header, so nothing can be
forgotten here. With --golden FILE compare instead, and with --write FILE refresh.

    abi_dump.py LIBFFPA.SO [--golden FILE | --write FILE]"""
import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/ffpa/ffpa.h"


def exported(library):
    names = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True,
                           capture_output=True, text=True).stdout
    return sorted(line.split()[0] for line in names.splitlines())


def declared(header):
    return sorted(re.findall(r"^FFPA_API [^;(]*?(\w+)\(", header, re.M))


def fields(body):
    for declaration in body.split(";"):
        for part in declaration.split(","):
            name = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", part.strip())
            if name:
                yield name[1]


def probe_source(header):
    """A C program that prints the values the compiler sees."""
    out = ['#include "ffpa/ffpa.h"', "#include <stdio.h>", "int main(void) {"]
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", header, re.S):
        for value in re.findall(r"\b(FFPA_\w+) = ", body):
            out.append(f'printf("enum {name} {value} = %d\\n", (int){value});')
    for value in re.findall(r"^    X\((\w+),", header, re.M):
        out.append(f'printf("enum ffpa_status FFPA_{value} = %d\\n", (int)FFPA_{value});')
    for name in re.findall(r"^#define (FFPA_[A-Z_]+)\s+(?:0x)?\d", header, re.M):
        if "VERSION" not in name:
            out.append(f'printf("macro {name} = %#llx\\n", (unsigned long long){name});')
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", header, re.S):
        out.append(f'printf("struct {name} size %zu\\n", sizeof({name}));')
        for f in fields(body):
            out.append(f'printf("  {name}.%s at %zu size %zu\\n", "{f}", '
                       f'offsetof({name}, {f}), sizeof((({name} *)0)->{f}));')
    return "\n".join(out + ["return 0; }", ""])


def dump(library):
    header = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    symbols = exported(library)
    odd = set(symbols) ^ set(declared(header))
    if odd:
        sys.exit(f"declared but not exported, or exported but not declared: {', '.join(sorted(odd))}")
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "probe.c"), pathlib.Path(folder, "probe")
        source.write_text(probe_source(header))
        subprocess.run(["cc", "-std=c11", f"-I{ROOT / 'include'}", source, "-o", program], check=True)
        values = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return "".join(f"symbol {s}\n" for s in symbols) + values


def main():
    text = dump(sys.argv[1])
    if len(sys.argv) < 4:
        print(text, end="")
    elif sys.argv[2] == "--write":
        pathlib.Path(sys.argv[3]).write_text(text)
    else:
        golden = pathlib.Path(sys.argv[3]).read_text()
        diff = list(difflib.unified_diff(golden.splitlines(), text.splitlines(), "golden", "now", "", "", 1))
        print("\n".join(diff) if diff else f"abi: {len(text.splitlines())} facts unchanged")
        return bool(diff)
    return 0


if __name__ == "__main__":
    sys.exit(main())
