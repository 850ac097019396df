#!/usr/bin/env python3
"""Write a ctypes mirror of include/ffpa/ffpa.h: structs, enum values, flags and function signatures.

usage: gen_ctypes.py HEADER > mirror.py        the header stays the one truth; nothing is retyped
"""
import re
import sys

SCALARS = {
    "int32_t": "ctypes.c_int32", "uint32_t": "ctypes.c_uint32", "int64_t": "ctypes.c_int64",
    "uint64_t": "ctypes.c_uint64", "size_t": "ctypes.c_size_t", "float": "ctypes.c_float",
    "double": "ctypes.c_double", "char": "ctypes.c_char", "void": "None",
}


def strip_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def ctype(words, stars, structs, enums):
    """The ctypes name of a C type; pointers to anything but char are void pointers."""
    base = [w for w in words.split() if w not in ("const", "struct", "enum")][0]
    if stars:
        return "ctypes.c_char_p" if base == "char" and "const" in words else "ctypes.c_void_p"
    if base in enums:
        return "ctypes.c_int32"
    if base in structs:
        return base
    return SCALARS.get(base, "ctypes.c_void_p")  # what is left are function pointer types


def argument_type(text, structs, enums):
    match = re.match(r"\s*([\w\s]+?)\s*(\**)\s*\w+\s*$", text)
    return ctype(match[1], match[2], structs, enums)


def fields(body, structs, enums, sizes):
    for line in body.split(";"):
        match = re.match(r"\s*([\w\s]+?)\s*(\**)\s*(\w+(?:\s*\[\w+\])?(?:\s*,\s*\w+)*)\s*$", line)
        if not match:
            continue
        for name in match[3].split(","):
            array = re.match(r"\s*(\w+)\s*(?:\[(\w+)\])?", name)
            kind = ctype(match[1], match[2], structs, enums)
            if array[2]:
                kind += " * %s" % sizes.get(array[2], array[2])
            yield array[1], kind


def mirror(header):
    text = strip_comments(header)
    sizes = dict(re.findall(r"#define\s+(FFPA_\w+)\s+(\d+)\s*$", text, flags=re.M))
    out = ['"""ctypes mirror of ffpa.h, made by tools/gen_ctypes.py."""', "import ctypes", ""]
    for name, value in re.findall(r"#define\s+(FFPA_\w+)\s+(0x[0-9a-fA-F]+|\d+)u?\s*$", text, flags=re.M):
        out.append("%s = %s" % (name, value))
    for name, value in re.findall(r"X\((\w+),\s*(\d+),", text):
        out.append("FFPA_%s = %s" % (name, value))
    enums = {"ffpa_status"}
    for body, name in re.findall(r"typedef enum \w+ \{([^}#]*)\} (\w+);", text):
        enums.add(name)
        out += ["%s = %s" % pair for pair in re.findall(r"(FFPA_\w+)\s*=\s*(-?\d+)", body)]
    structs = []
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S):
        out += ["", "", "class %s(ctypes.Structure):" % name, "    _fields_ = ["]
        out += ['        ("%s", %s),' % f for f in fields(body, structs, enums, sizes)]
        out.append("    ]")
        structs.append(name)
    out += ["", "", "def declare(lib):", '    """Set result and argument types of every function of the library."""']
    for result, stars, name, arguments in re.findall(r"FFPA_API\s+([\w\s]+?)\s*(\**)\s*(ffpa_\w+)\(([^)]*)\)", text):
        kinds = [argument_type(a, structs, enums) for a in arguments.split(",") if a.strip() != "void"]
        out.append("    lib.%s.restype = %s" % (name, ctype(result, stars, structs, enums)))
        out.append("    lib.%s.argtypes = [%s]" % (name, ", ".join(kinds)))
    out.append("    return lib")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(mirror(file.read()))
