"""The ctypes mirror is what the header says, and what the C compiler made of it."""
import ctypes
import pathlib
import re
import subprocess
import sys

import pytest

from ffpa import _abi

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_mirror_is_generated_from_this_header():
    made = subprocess.run([sys.executable, ROOT / "tools/gen_ctypes.py", ROOT / "include/ffpa/ffpa.h"], check=True,
                          capture_output=True, text=True).stdout
    assert (ROOT / "bindings/python/ffpa/_abi.py").read_text() == made, \
        "run tools/gen_ctypes.py include/ffpa/ffpa.h > bindings/python/ffpa/_abi.py"
    assert pathlib.Path(_abi.__file__).read_text() == made, "the installed package is of another commit"


def golden():
    return (ROOT / "tests/golden/abi_lp64.txt").read_text()


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the golden file is of 64-bit machines")
def test_offsets_are_those_of_the_compiler():
    fields = re.findall(r"^  (\w+)\.(\w+) at (\d+) size (\d+)$", golden(), re.M)
    assert len(fields) > 100
    for struct, field, offset, size in fields:
        mirrored = getattr(getattr(_abi, struct), field)
        assert (mirrored.offset, mirrored.size) == (int(offset), int(size)), "%s.%s" % (struct, field)
    for struct, size in re.findall(r"^struct (\w+) size (\d+)$", golden(), re.M):
        assert ctypes.sizeof(getattr(_abi, struct)) == int(size), struct


def test_values_are_those_of_the_compiler():
    values = re.findall(r"^enum \w+ (FFPA_\w+) = (-?\d+)$", golden(), re.M)
    assert len(values) > 10
    for name, value in values:
        assert getattr(_abi, name) == int(value), name


def test_every_function_is_declared():
    from ffpa._library import lib
    for name in re.findall(r"^symbol (ffpa_\w+)$", golden(), re.M):
        assert getattr(lib, name).argtypes is not None, name
