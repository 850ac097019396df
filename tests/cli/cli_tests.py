#!/usr/bin/env python3
"""The program from outside: cli_tests.py [--write] PROGRAM [GROUP...]. Golden files hold what it
prints, with what varies masked; --write refreshes them."""
import itertools
import json
import math
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/cli"
DATA = ROOT / "examples/data"
PROGRAM, WRITE = "ffpa", False
DONE, CHECK_FAILED, BAD_USAGE, BAD_FILE, LIB_FAILED = range(5)

SMALL = "fwd,bf16,b1h4k2,q20k30,d40,causal"
SMALL_BWD = "bwd,f32,b2h2k1,q12k9,d24v16,causal_tl,mask=f32:hqk,sink"


def ffpa(*args, **options):
    env = dict(os.environ, NO_COLOR="1")
    for name in list(env):
        if name.startswith("FFPA_"):
            del env[name]
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, env=env,
                          timeout=120, **options)


# ---- golden files ----

MASKS = [
    (r"\d\.\d\de[+-]\d\d", "#"),                        # errors
    (r"\b\d+\.\d+ (us|ms|s)\b", "# s"),                 # times
    (r"\d+\.\d+ (GFLOP/s|TFLOP/s|GB/s)", "# rate"),
    (r"(?<=#)( +)\d+\.\d\d(?= +#)", r"\1#"),            # ratios
    (r"\b(cpu|reference)/[\w/]+", "PATH"),
    (r"isa=\w+", "isa=ISA"),
    (r"threads=\d+", "threads=N"),
    (r"cache=\S+", "cache=FOLDER"),
    (r"(threads +)\d+", r"\1N"),
    (r"(tiles +|workspace +|splits +).*", r"\1..."),
    (r"(processor +).*", r"\1..."),
    (r"(cuda|avx512_bf16|avx512|avx2) +(yes|no:.*)", r"\1 ..."),
]


def masked(text):
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    # columns of masked numbers may be of any width
    return "\n".join(re.sub(r"  +", "  ", line) if "#" in line else line for line in text.split("\n"))


GOLDENS = {
    "help": (DONE, ["help"]),
    "help_run": (DONE, ["help", "run"]),
    "help_check": (DONE, ["check", "--help"]),
    "help_bench": (DONE, ["help", "bench"]),
    "help_explain": (DONE, ["help", "explain"]),
    "help_info": (DONE, ["help", "info"]),
    "help_prebuild": (DONE, ["help", "prebuild"]),
    "help_doctor": (DONE, ["help", "doctor"]),
    "help_problem": (DONE, ["help", "problem"]),
    "version": (DONE, ["--version"]),
    "info": (DONE, ["info"]),
    "no_command": (BAD_USAGE, []),
    "unknown_command": (BAD_USAGE, ["frobnicate"]),
    "unknown_help": (BAD_USAGE, ["help", "frobnicate"]),
    "unknown_option": (BAD_USAGE, ["check", "--frobnicate", SMALL]),
    "missing_value": (BAD_USAGE, ["check", SMALL, "--threads"]),
    "bad_threads": (BAD_USAGE, ["check", SMALL, "--threads", "many"]),
    "bad_backend": (LIB_FAILED, ["check", SMALL, "--backend", "abacus"]),
    "prebuild_no_arch": (BAD_USAGE, ["prebuild", SMALL, "--out", "pack"]),
    "prebuild_no_folder": (BAD_USAGE, ["prebuild", SMALL, "--arch", "sm_90a"]),
    "prebuild_bad_arch": (LIB_FAILED, ["prebuild", SMALL, "--arch", "sm_75", "--out", "pack"]),
    "doctor_argument": (BAD_USAGE, ["doctor", "please"]),
    "cluster": (BAD_USAGE, ["run", "-xyz"]),
    "option_twice": (BAD_USAGE, ["run", "x.safetensors", "-o", "a.npy", "-o", "b.npy"]),
    "seed_alone": (BAD_USAGE, ["run", "x.safetensors", "--seed", "3"]),
    "dout_alone": (BAD_USAGE, ["run", "x.safetensors", "--dout", "g.npy"]),
    "dlse_alone": (BAD_USAGE, ["check", SMALL, "--dlse"]),
    "tolerance_alone": (BAD_USAGE, ["run", "x.safetensors", "--tolerance", "0"]),
    "too_many_threads": (LIB_FAILED, ["check", SMALL, "--threads", "9999"]),
    "check_f64": (LIB_FAILED, ["check", "fwd,f64,b1h1,q3k3,d4", "--backend", "reference"]),
    "naive_f64": (LIB_FAILED, ["explain", "fwd,f64,b1h1,q3k3,d4", "--backend", "naive"]),
    "mask_varlen": (LIB_FAILED, ["explain", "fwd,f32,b2h1,q9k9,d8,varlen=9+3,mask=bool"]),
    "check_absurd": (LIB_FAILED, ["check", "fwd,f32,b1h1,q1k9223372036854775807,d1,page2147483647"]),
    "check_paged_mask": (DONE, ["check", "fwd,f32,b1h1,q1k300,d64,mask=f32:bhqk,page16"]),
    "bad_rows": (BAD_USAGE, ["check", SMALL, "--rows", "0"]),
    "no_problem": (BAD_USAGE, ["check"]),
    "bad_problem": (BAD_USAGE, ["check", "fwd,bf16,b1h4k2,q20k30,d40,casual"]),
    "bad_groups": (BAD_USAGE, ["check", "fwd,bf16,b1h4k3,q20k30,d40"]),
    "bad_causal": (BAD_USAGE, ["run", "x.safetensors", "--causal=left"]),
    "bad_window": (BAD_USAGE, ["run", "x.safetensors", "--window", "3"]),
    "bad_dtype": (BAD_USAGE, ["run", "x.safetensors", "--dtype", "f8"]),
    "bad_name": (BAD_USAGE, ["run", "x.safetensors", "--name", "query=q"]),
    "two_files": (BAD_USAGE, ["run", "x.safetensors", "y.safetensors"]),
    "no_file": (BAD_FILE, ["run", "absent.safetensors"]),
    "no_problem_file": (BAD_FILE, ["check", "-f", "absent.txt"]),
    "odd_extension": (BAD_FILE, ["run", "x.pt"]),
    "odd_output": (BAD_USAGE, ["run", DATA / "minilm_l4_d384.safetensors", "-o", "x.txt"]),
    "check_forward": (DONE, ["check", SMALL]),
    "check_backward": (DONE, ["check", SMALL_BWD, "--dlse", "--threads", "1"]),
    "check_rows": (DONE, ["check", SMALL_BWD, SMALL, "--rows", "5", "--backend", "naive"]),
    "explain": (DONE, ["explain", "fwd,bf16,b1h32k4,q4096k4096,d512,causal"]),
    "explain_naive": (DONE, ["explain", "bwd,f16,b1h8,q64k64,d96v64", "--backend", "naive"]),
    "run_expect": (DONE, ["run", DATA / "minilm_l4_d384.safetensors", "--causal", "--expect",
                          DATA / "minilm_l4_d384_expected.safetensors", "--expect-suffix", "_causal"]),
    "run_mismatch": (CHECK_FAILED, ["run", DATA / "minilm_l4_d384.safetensors", "--expect",
                                    DATA / "minilm_l4_d384_expected.safetensors", "--expect-suffix",
                                    "_causal"]),
}


class Golden(unittest.TestCase):
    maxDiff = None

    def test_output(self):
        for name, (code, args) in GOLDENS.items():
            with self.subTest(name):
                result = ffpa(*args)
                shown = [str(a).replace(f"{ROOT}/", "") for a in args]
                printed = f"{result.stdout}{result.stderr}".replace(f"{ROOT}/", "")
                text = masked(f"$ ffpa {' '.join(shown)}\n{printed}exit {result.returncode}\n")
                file = GOLDEN / f"{name}.txt"
                if WRITE:
                    GOLDEN.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertEqual(text, file.read_text())

    def test_no_stale_files(self):
        self.assertEqual({f.stem for f in GOLDEN.iterdir()}, set(GOLDENS))

    def test_lines_fit_a_terminal(self):
        for name in ("help", "help_run", "help_check", "help_bench", "help_explain", "help_problem"):
            self.assertLessEqual(max(map(len, ffpa(*GOLDENS[name][1]).stdout.splitlines())), 96)


# ---- files ----

ITEM = {"F32": "f", "F64": "d", "F16": "e", "I32": "i", "I64": "q", "BOOL": "?"}


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(tensors, pad=0):
    """Bytes of a file with these (dtype, shape, values); `pad` spaces misalign the data."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        part = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{ITEM[dtype]}", *values)
        header[name] = entry(dtype, shape, len(data), len(data) + len(part))
        data += part
    return with_header(json.dumps(header).encode() + b" " * pad, data)


def with_header(header, data, length=None):
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n, = struct.unpack("<Q", raw[:8])
    assert n % 8 == 0
    out, covered = {}, 0
    for name, t in json.loads(raw[8:8 + n]).items():
        begin, end = t["data_offsets"]
        covered += end - begin
        part = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            values = [struct.unpack("<f", b"\0\0" + part[i:i + 2])[0] for i in range(0, len(part), 2)]
        else:
            code = ITEM[t["dtype"]]
            values = list(struct.unpack(f"<{len(part) // struct.calcsize(code)}{code}", part))
        out[name] = (t["dtype"], t["shape"], values)
    assert covered == len(raw) - 8 - n
    return out


def npy(shape, values, descr="<f4", order=False, version=1, header=None):
    if header is None:
        header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {tuple(shape)!r}, }}\n"
    code = {"<f4": "f", "<f2": "e", "<f8": "d", "|b1": "?"}.get(descr, "f")
    head = header.encode()
    return (b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(head)) +
            head + struct.pack(f"<{len(values)}{code}", *values))


def read_npy(path):
    raw = pathlib.Path(path).read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    n, = struct.unpack("<H", raw[8:10])
    assert (10 + n) % 64 == 0
    header = eval(raw[10:10 + n], {})  # noqa: S307 - our own output
    code = {"<f4": "f", "<f2": "e", "<f8": "d"}[header["descr"]]
    values = struct.unpack(f"<{math.prod(header['shape'])}{code}", raw[10 + n:])
    return header["shape"], list(values)


def wave(n, step=0.7):
    return [math.sin(step * i + 0.3 * step) for i in range(n)]


def attention(q, k, v, scale, keep=lambda i, j: True):
    """The definition, on lists of rows."""
    o, lse = [], []
    for i, row in enumerate(q):
        s = {j: scale * sum(a * b for a, b in zip(row, key)) for j, key in enumerate(k) if keep(i, j)}
        lse.append(math.log(sum(map(math.exp, s.values()))) if s else -math.inf)
        o.append([sum(math.exp(x - lse[i]) * v[j][d] for j, x in s.items()) for d in range(len(v[0]))])
    return o, lse


def rows(values, width):
    return [values[i:i + width] for i in range(0, len(values), width)]


def flat(nested):
    return [x for row in nested for x in row]


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def put(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def assertClose(self, got, wanted, tolerance):
        self.assertEqual(len(got), len(wanted))
        for x, y in zip(got, wanted):
            self.assertTrue(x == y or abs(x - y) <= tolerance, f"{x} is not {y}")


GOOD = {name: ("F32", [1, 1, 3, 2], wave(6)) for name in "qkv"}


class BadFiles(Folder):
    def refused(self, data, words, name="bad.safetensors", args=()):
        path = self.put(name, data)
        result = ffpa("run", path, *args, "-o", self.folder / "out.safetensors")
        self.assertEqual(result.returncode, BAD_FILE, f"{words}: {result.stdout}{result.stderr}")
        self.assertIn(f"{path}", result.stderr)
        self.assertIn(words, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(os.listdir(self.folder), [name] if not args else sorted(os.listdir(self.folder)))
        path.unlink()

    def refused_header(self, header, data, words, **options):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.refused(with_header(text, data, **options), words)

    def test_truncated_anywhere(self):
        whole = safetensors(GOOD)
        for n in [0, 1, 7, 8, 9, 60, len(whole) // 2, len(whole) - 1]:
            self.refused(whole[:n], ":")

    def test_lying_headers(self):
        q = entry("F32", [2], 0, 8)
        self.refused_header({"q": q}, bytes(8), "it says its header has", length=1 << 40)
        self.refused_header({"q": q}, bytes(8), "it says its header has", length=2**64 - 1)
        self.refused_header(b"[1]", b"", "not a JSON object")
        self.refused_header(b'{"q": ', b"", "not a JSON object")
        self.refused_header(b"{} x", b"", "goes on after")
        self.refused_header({"q": 3}, b"", "'q' is not an object")
        self.refused_header({"q": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), "'q' has no dtype")
        self.refused_header({"q": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4), "'q' has no shape")
        self.refused_header({"q": {"dtype": "F32", "shape": [1]}}, bytes(4), "'q': data_offsets")
        self.refused_header({n: entry("F31", [1, 2], 0, 8) if n == "q" else entry("F32", [1, 2], i * 8, i * 8 + 8)
                             for i, n in enumerate("qkv")}, bytes(24), "'q' has dtype F31, which attention cannot")
        self.refused_header({"q": entry("F32", [3], 0, 8)}, bytes(8), "take 12 bytes, data_offsets hold 8")
        self.refused_header({"q": entry("F32", [2], 0, 80)}, bytes(8), "leave the file's 8 bytes")
        self.refused_header({"q": entry("F32", [2], 8, 0)}, bytes(8), "leave the file's 8 bytes")
        self.refused_header({"q": entry("F32", [2], -8, 0)}, bytes(8), "not two whole numbers")
        self.refused_header({"q": entry("F32", [-2], 0, 8)}, bytes(8), "shape[0] is not a whole number")
        self.refused_header({"q": entry("F32", [0.5], 0, 8)}, bytes(8), "shape[0] is not a whole number")
        self.refused_header({"q": entry("F32", [2**40, 2**40], 0, 8)}, bytes(8), "shape overflows")
        self.refused_header({"q": entry("F32", [2**52, 2**52, 0], 0, 0)}, b"", "shape overflows")
        self.refused_header({"q": entry("F32", [1] * 9, 0, 4)}, bytes(4), "more than 8 dimensions")

    def test_tensors_that_do_not_belong_together(self):
        self.refused_header({"q": entry("F32", [2], 0, 8), "k": entry("F32", [2], 4, 12)}, bytes(12),
                            "'k' overlaps tensor 'q'")
        self.refused_header({"q": entry("F32", [1], 0, 4), "k": entry("F32", [1], 8, 12)}, bytes(12),
                            "a hole of 4 bytes before tensor 'k'")
        self.refused_header({"q": entry("F32", [1], 0, 4)}, bytes(9), "5 bytes follow")
        one = json.dumps(entry("F32", [1], 0, 4))
        two = json.dumps(entry("F32", [1], 4, 8))
        self.refused_header(f'{{"q": {one}, "q": {two}}}'.encode(), bytes(8), "'q' appears twice")

    def test_tensors_that_attention_cannot_take(self):
        self.refused(safetensors({n: GOOD[n] for n in "qk"}), "no tensor 'v'")
        self.refused(safetensors(dict(GOOD, k=("U8", [1, 1, 3, 2], bytes(6)))), "tensor 'k' has dtype U8")
        self.refused(safetensors(dict(GOOD, k=("F32", [6], wave(6)))), "tensor 'k' has rank 1")
        self.refused(safetensors(dict(GOOD, k=("F32", [1] * 5, [1.0]))), "tensor 'k' has rank 5")
        self.refused(safetensors(dict(GOOD, sink=("F32", [1, 1, 1], [1.0]))), "tensor 'sink' has rank 3")

    def test_long_names_leave_room_for_the_reason(self):
        path = f"{self.folder}/" + "./" * 1800 + "absent.safetensors"
        result = ffpa("run", path, "--json")
        self.assertEqual(result.returncode, BAD_FILE)
        for said in (result.stderr, json.loads(result.stdout)["error"]):
            self.assertIn("cannot open it: No such file", said)

    def test_only_what_is_needed_is_read(self):
        """Files far larger than memory, most of them holes."""
        sanitized = b"__asan_init" in pathlib.Path(PROGRAM).read_bytes()  # it wants terabytes of addresses

        def little_memory():
            if not sanitized:
                resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        large = 20 << 30
        path = self.put("large.npy", npy([3, 2], wave(6)))
        os.truncate(path, large)
        result = ffpa("run", path, path, path, preexec_fn=little_memory)
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertIn("shape and descr take 24 bytes", result.stderr)
        header = {"other": entry("F32", [large // 4], 0, large)}
        for i, name in enumerate("qkv"):
            header[name] = entry("F32", [1, 1, 3, 2], large + 24 * i, large + 24 * i + 24)
        raw = json.dumps(header).encode()
        path = self.put("large.safetensors", with_header(raw, b""))
        os.truncate(path, 8 + len(raw) + large + 72)
        result = ffpa("run", path, "-o", self.folder / "o.npy", preexec_fn=little_memory)
        self.assertEqual(result.returncode, DONE, result.stderr)
        result = ffpa("run", path, "--name", "q=other", preexec_fn=little_memory)
        self.assertEqual(result.returncode, BAD_FILE, result.stderr)
        path = self.put("header.npy", b"\x93NUMPY\2\0" + struct.pack("<I", 1 << 31))
        os.truncate(path, large)
        result = ffpa("run", path, path, path, preexec_fn=little_memory)
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertIn("more than 65536", result.stderr)

    def test_tensors_without_elements(self):
        many = (1 << 53) - 1
        for dtype in ("f32", "bf16"):
            path = self.put("x.safetensors", safetensors({n: ("F32", [0, many, 2], b"") for n in "qkv"}))
            result = ffpa("run", path, "--dtype", dtype, "-o", self.folder / "o.npy")
            self.assertEqual(result.returncode, LIB_FAILED)
            self.assertIn("more than 2^40 rows", result.stderr)

    def test_shapes_that_the_library_refuses(self):
        path = self.put("x.safetensors", safetensors(dict(GOOD, k=("F32", [1, 1, 3, 1], wave(3)))))
        result = ffpa("run", path, "-o", self.folder / "out.safetensors")
        self.assertEqual(result.returncode, LIB_FAILED)
        self.assertIn("k.shape[3]=1", result.stderr)
        self.assertEqual(os.listdir(self.folder), ["x.safetensors"])

    def test_npy(self):
        good = self.put("good.npy", npy([3, 2], wave(6)))
        whole = npy([3, 2], wave(6))

        def header(text, data=24):
            return npy([], [0.0] * (data // 4), header=text)
        cases = [(whole[:n], ":") for n in (0, 5, 9, 11, 40, len(whole) - 1)] + [
            (whole + b"x", "shape and descr take 24 bytes, the file holds 25"),
            (npy([3, 2], wave(6), version=9), "version 9"),
            (npy([3, 2], wave(6), descr=">f4"), "'>f4' is none of"),
            (npy([3, 2], wave(6), descr="<V2"), "--dtype bf16"),
            (header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 2), }"), "not a plain type"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 2), }"), "shape[0] is not"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': 6, }"), "not a tuple"),
            (header("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3, 2), }"), "neither True nor False"),
            (header("{'descr': '<f4', 'shape': (3, 2), }"), "lacks one of"),
            (header("{'shape': (3, 2), 'shape': (3, 2), }"), "a second key 'shape'"),
            (header("{'color': 3, }"), "an unknown key 'color'"),
            (header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 4), }}"), "shape overflows"),
            (header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70}, 4), }}"), "shape[0] is not"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }"), "take 32 bytes"),
        ]
        for data, words in cases:
            self.refused(data, words, name="bad.npy", args=[good, good])


class Outputs(Folder):
    def test_safetensors(self):
        path = self.put("x.safetensors", safetensors(GOOD))
        out = self.folder / "out.safetensors"
        out.write_text("old")
        result = ffpa("run", path, "--lse", "--grad", "-o", out)
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.safetensors", "x.safetensors"])
        written = read_safetensors(out)
        self.assertEqual(list(written), ["o", "lse", "dq", "dk", "dv"])
        self.assertEqual(written["o"][:2], ("F32", [1, 1, 3, 2]))
        self.assertEqual(written["lse"][:2], ("F32", [1, 1, 3]))

    def test_failure_leaves_the_old_file(self):
        q = ("F32", [1, 1, 500, 2], wave(1000))
        path = self.put("x.safetensors", safetensors({"q": q, "k": GOOD["k"], "v": GOOD["v"]}))
        for target in ("out.safetensors", "o.npy"):
            out = self.put(target, b"old")

            def limit():
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            result = ffpa("run", path, "-o", out, preexec_fn=limit)
            self.assertEqual(result.returncode, BAD_FILE, result.stderr)
            self.assertIn("cannot write it", result.stderr)
            self.assertEqual(out.read_bytes(), b"old")
            out.unlink()
            self.assertEqual(os.listdir(self.folder), ["x.safetensors"])

    def test_a_name_too_long_is_not_cut_off(self):
        path = self.put("x.safetensors", safetensors(GOOD))
        name = "o" * 90 + ".safetensors"
        room = 4095 - len(f"{self.folder}/{name}")
        for more in (1, 5, 50):  # beyond what a path may have; its first 4095 bytes name another file
            out = f"{self.folder}/" + "./" * (room // 2) + "/" * (room % 2 + more) + name
            self.assertEqual(ffpa("run", path, "-o", out).returncode, BAD_FILE)
            self.assertEqual(os.listdir(self.folder), ["x.safetensors"])

    def test_places_that_cannot_hold_it(self):
        path = self.put("x.safetensors", safetensors(GOOD))
        for out, words in [(self.folder / "absent" / "o.safetensors", "cannot create"),
                           (f"{self.folder}/absent/", "cannot create")]:
            result = ffpa("run", path, "-o", out)
            self.assertEqual(result.returncode, BAD_FILE, result.stderr)
            self.assertIn(words, result.stderr)
        os.mkfifo(self.folder / "pipe.npy")
        result = ffpa("run", path, "-o", self.folder / "pipe.npy")
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertIn("not a regular file", result.stderr)
        result = ffpa("run", path, "--lse", "-o", self.folder / "o.npy")
        self.assertEqual(result.returncode, BAD_USAGE)
        self.assertEqual(sorted(os.listdir(self.folder)), ["pipe.npy", "x.safetensors"])

    def test_links_and_permissions_stay(self):
        path = self.put("x.safetensors", safetensors(GOOD))
        (self.folder / "kept").mkdir()
        real = self.folder / "kept" / "real.safetensors"
        real.write_bytes(b"old")
        real.chmod(0o600)
        link, second, dangling = (self.folder / f"{n}.safetensors" for n in ("link", "second", "dangling"))
        link.symlink_to("kept/real.safetensors")
        second.symlink_to(link)
        dangling.symlink_to("kept/new.safetensors")
        for out in (real, link, second, dangling):
            real.write_bytes(b"old")
            result = ffpa("run", path, "-o", out)
            self.assertEqual(result.returncode, DONE, result.stderr)
            self.assertEqual(list(read_safetensors(out)), ["o"])
            self.assertEqual(out.is_symlink(), out != real)
        self.assertEqual(real.stat().st_mode & 0o777, 0o600)
        self.assertEqual(sorted(os.listdir(self.folder / "kept")), ["new.safetensors", "real.safetensors"])
        loop = self.folder / "loop.safetensors"
        loop.symlink_to(loop)
        self.assertEqual(ffpa("run", path, "-o", loop).returncode, BAD_FILE)
        self.assertTrue(loop.is_symlink())

    def test_signals_leave_nothing(self):
        n = 2000000
        q = ("F32", [n, 4], bytes(16 * n))
        path = self.put("x.safetensors", safetensors({"q": q, "k": ("F32", [1, 4], bytes(16)),
                                                      "v": ("F32", [1, 4], bytes(16))}))
        numbers = (signal.SIGTERM, signal.SIGQUIT, signal.SIGABRT, signal.SIGXCPU, signal.SIGALRM, signal.SIGUSR1,
                   signal.SIGPIPE)

        def default_signals():  # whatever this test was started with
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        out = self.folder / "o.npy"
        self.assertEqual(ffpa("run", path, "-o", out).returncode, DONE)
        whole = out.stat().st_size
        out.unlink()
        for number in numbers:
            for _ in range(20):  # until one comes in the middle of writing, not after the file is in place
                process = subprocess.Popen([PROGRAM, "run", path, "-o", out], stdout=subprocess.DEVNULL,
                                           restore_signals=True, preexec_fn=default_signals)
                while process.poll() is None and not any(f.endswith(".tmp") for f in os.listdir(self.folder)):
                    pass
                process.send_signal(number)
                ended = process.wait()
                self.assertIn(ended, (-number, DONE))
                left = sorted(os.listdir(self.folder))
                if left == ["x.safetensors"]:
                    break
                self.assertEqual(left, ["o.npy", "x.safetensors"])
                self.assertEqual(out.stat().st_size, whole)
                out.unlink()
            self.assertEqual((ended, left), (-number, ["x.safetensors"]))

    def test_folder_of_npy(self):
        path = self.put("x.safetensors", safetensors(GOOD))
        (self.folder / "out").mkdir()
        result = ffpa("run", path, "--grad", "--lse", "--dtype", "bf16", "-o", self.folder / "out")
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder / "out")),
                         ["dk.npy", "dq.npy", "dv.npy", "lse.npy", "o.npy"])
        shape, values = read_npy(self.folder / "out/o.npy")
        self.assertEqual(shape, (1, 1, 3, 2))
        for x in values:  # bf16 values, written as f32
            self.assertEqual(struct.pack("<f", x)[:2], b"\0\0")


class Results(Folder):
    """What comes out is attention: against the definition, in plain Python."""

    def run_tensors(self, tensors, *args, pad=0, names=("o",)):
        path = self.put("in.safetensors", safetensors(tensors, pad))
        out = self.folder / "out.safetensors"
        result = ffpa("run", path, *args, "-o", out)
        self.assertEqual(result.returncode, DONE, result.stderr)
        written = read_safetensors(out)
        return [written[name] for name in names]

    def test_definition_at_every_alignment(self):
        q, k, v = wave(12), wave(20, 1.1), wave(15, 0.4)
        tensors = {"q": ("F32", [3, 4], q), "k": ("F32", [5, 4], k), "v": ("F32", [5, 3], v)}
        o, lse = attention(rows(q, 4), rows(k, 4), rows(v, 3), 0.5, lambda i, j: j <= i + 2)
        for pad in range(5):
            got_o, got_lse = self.run_tensors(tensors, "--causal", "--lse", pad=pad, names=("o", "lse"))
            self.assertEqual((got_o[1], got_lse[1]), ([3, 3], [3]))
            self.assertClose(got_o[2], flat(o), 1e-6)
            self.assertClose(got_lse[2], lse, 1e-6)

    def test_options(self):
        q, k, v = wave(8), wave(8, 1.1), wave(8, 0.4)
        tensors = {"q": ("F32", [4, 2], q), "k": ("F32", [4, 2], k), "v": ("F32", [4, 2], v)}
        for args, scale, keep in [(["--causal=tl"], 0.5**0.5, lambda i, j: j <= i),
                                  (["--scale", "0"], 0, lambda i, j: True),
                                  (["--scale", "1.5", "--window", "1:-1"], 1.5, lambda i, j: j >= i - 1)]:
            o, _ = attention(rows(q, 2), rows(k, 2), rows(v, 2), scale, keep)
            self.assertClose(self.run_tensors(tensors, *args)[0][2], flat(o), 1e-6)

    def test_mask_sink_and_names(self):
        v = wave(6, 0.4)
        tensors = {"my.q": ("F32", [1, 1, 2, 2], [0.0] * 4), "k": ("F32", [1, 1, 3, 2], wave(6)),
                   "v": ("F32", [1, 1, 3, 2], v), "mask": ("BOOL", [2, 3], [True, False, True] + [False] * 3),
                   "sink": ("F32", [1], [math.log(2.0)])}
        o, lse = self.run_tensors(tensors, "--name", "q=my.q", "--lse", names=("o", "lse"))
        self.assertClose(o[2], [(v[0] + v[4]) / 4, (v[1] + v[5]) / 4, 0, 0], 1e-6)
        self.assertClose(lse[2], [math.log(4), math.log(2)], 1e-6)

    def test_empty_row(self):
        tensors = dict(GOOD, mask=("BOOL", [1, 1, 1, 3], [False] * 3))
        o, lse = self.run_tensors(tensors, "--lse", names=("o", "lse"))
        self.assertEqual(o[2], [0.0] * 6)
        self.assertEqual(lse[2], [-math.inf] * 3)

    def test_gradients(self):
        tensors = dict(GOOD, q=("F32", [1, 1, 3, 2], [0.0] * 6))
        dv, dk = self.run_tensors(tensors, "--grad", names=("dv", "dk"))
        self.assertClose(dv[2], [1.0] * 6, 1e-6)  # P = 1/3 everywhere, three rows of ones
        self.assertEqual(dk[2], [0.0] * 6)        # q is zero
        dout = ("F32", [1, 1, 3, 2], [3.0, 0.0] * 3)
        self.assertClose(self.run_tensors(dict(tensors, dout=dout), "--grad",
                                          names=("dv",))[0][2],
                         [3.0, 0.0] * 3, 1e-6)

    def test_layout(self):
        n, h, d = 3, 2, 2
        data = {name: wave(n * h * d, step) for name, step in (("q", 0.7), ("k", 1.1), ("v", 0.4))}

        def swapped(x):
            return [x[(i * h + g) * d + c] for g in range(h) for i in range(n) for c in range(d)]
        bhnd = self.run_tensors({m: ("F32", [1, h, n, d], swapped(x)) for m, x in data.items()})[0]
        for shape in ([1, n, h, d], [n, h, d]):
            bnhd = self.run_tensors({m: ("F32", shape, x) for m, x in data.items()}, "--layout", "bnhd")[0]
            self.assertEqual(bnhd[1], shape)
            self.assertEqual(swapped(bnhd[2]), bhnd[2])

    def test_layout_of_everything_that_backward_writes(self):
        """The layout option is about data; biases and statistics have one form."""
        b, h, n, d = 1, 2, 3, 2
        data = {m: wave(n * h * d, step) for m, step in (("q", 0.7), ("k", 1.1), ("v", 0.4), ("dout", 0.9))}
        extra = {"mask": ("F32", [b, h, n, n], wave(h * n * n, 0.3)), "sink": ("F32", [h], [0.1, -0.2]),
                 "dlse": ("F32", [b, h, n], wave(h * n, 0.5))}
        names = ["o", "lse", "dq", "dk", "dv", "dmask", "dsink"]

        def swapped(x):
            return [x[(i * h + g) * d + c] for g in range(h) for i in range(n) for c in range(d)]
        straight = self.run_tensors(dict(extra, **{m: ("F32", [b, h, n, d], swapped(x)) for m, x in data.items()}),
                                    "--grad", "--lse", names=names)
        bnhd = dict(extra, **{m: ("F32", [b, n, h, d], x) for m, x in data.items()})
        other = self.run_tensors(bnhd, "--grad", "--lse", "--layout", "bnhd", names=names)
        for name, x, y in zip(names, straight, other):
            with self.subTest(name):
                is_data = name in ("o", "dq", "dk", "dv")
                self.assertEqual(y[1], [b, n, h, d] if is_data else x[1])
                self.assertEqual(swapped(y[2]) if is_data else y[2], x[2])
        (self.folder / "out.safetensors").rename(self.folder / "answers.safetensors")
        result = ffpa("run", self.put("in.safetensors", safetensors(bnhd)), "--layout", "bnhd", "--grad", "--expect",
                      self.folder / "answers.safetensors", "--tolerance", "0")
        self.assertEqual(result.returncode, DONE, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count("PASS"), len(names))

    def test_unused_tensors_may_be_of_any_dtype(self):
        tensors = dict(GOOD, scales=("F8_E8M0", [3], b"abc"), packed=("F4", [1, 7], b"wxyz"))
        self.assertEqual(self.run_tensors(tensors)[0], self.run_tensors(GOOD)[0])

    def test_a_tensor_asked_for_must_be_there(self):
        path = self.put("x.safetensors", safetensors(dict(GOOD, mask=("BOOL", [3, 3], [True] * 9))))
        other = self.put("y.safetensors", safetensors({"bias": ("F32", [3, 3], wave(9))}))
        one = self.put("one.npy", npy([3, 2], wave(6)))
        for args, code, words in [(["--name", "sink=nowhere"], BAD_FILE, "no tensor 'nowhere' for sink"),
                                  (["--mask", other], BAD_FILE, "no tensor 'mask' for mask"),
                                  (["--mask", other, "--name", "mask=bias"], DONE, ""),
                                  (["--name", "dlse=nowhere"], BAD_USAGE, "nothing without --grad")]:
            result = ffpa("run", path, *args)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(words, result.stderr)
        result = ffpa("run", one, one, one, "--name", "k=key")
        self.assertEqual(result.returncode, BAD_USAGE)
        result = ffpa("run", path, "--mask", self.put("m.npy", npy([3, 3], [-math.inf] * 9)), "-o", self.folder / "o.npy")
        self.assertEqual(read_npy(self.folder / "o.npy")[1], [0.0] * 6)  # it wins over the main file's

    def test_npy_orders_types_and_versions(self):
        x = {name: wave(6, step) for name, step in (("q", 0.7), ("k", 1.1), ("v", 0.4))}
        o, _ = attention(*(rows(x[n], 2) for n in "qkv"), 0.5**0.5)
        for version, order, descr, tolerance in [(1, False, "<f4", 1e-6), (2, True, "<f4", 1e-6),
                                                 (3, True, "<f8", 1e-6), (1, False, "<f2", 2e-3)]:
            def stored(values):
                return [values[r * 2 + c] for c in range(2) for r in range(3)] if order else values
            paths = [self.put(f"{n}.npy", npy([3, 2], stored(x[n]), descr, order, version)) for n in "qkv"]
            result = ffpa("run", *paths, *(["--dtype", "f32"] if descr == "<f8" else []), "-o",
                          self.folder / "o.npy")
            self.assertEqual(result.returncode, DONE, result.stderr)
            shape, values = read_npy(self.folder / "o.npy")
            self.assertEqual(shape, (3, 2))
            self.assertClose(values, flat(o), tolerance)

    def test_expect_by_tolerance(self):
        data = DATA / "minilm_l4_d384.safetensors"
        expected = DATA / "minilm_l4_d384_expected.safetensors"
        self.assertEqual(ffpa("run", data, "--expect", expected).returncode, DONE)
        result = ffpa("run", data, "--expect", expected, "--tolerance", "1e-9")
        self.assertEqual(result.returncode, CHECK_FAILED)
        self.assertIn("FAIL", result.stdout)
        result = ffpa("run", data, "--expect", expected, "--tolerance", "0")
        self.assertEqual(result.returncode, CHECK_FAILED)
        result = ffpa("run", data, "--expect", expected, "--expect-suffix", "_no")
        self.assertEqual(result.returncode, BAD_FILE)

    def test_a_name_to_expect_is_not_cut_off(self):
        cut = "o" + "x" * 126
        path = self.put("x.safetensors", safetensors(GOOD))
        expected = self.put("e.safetensors", safetensors({cut: ("F32", [1, 1, 3, 2], wave(6))}))
        for length in (200, 2000):
            result = ffpa("run", path, "--expect", expected, "--expect-suffix", "x" * length)
            self.assertIn(result.returncode, (BAD_FILE, BAD_USAGE), result.stdout)

    def test_f64_with_a_gradient_of_lse(self):
        """q = 1, k = (ln 3, 0), dO = 0, dLSE = 1: dK = P."""
        tensors = {"q": ("F64", [1, 1], [1.0]), "k": ("F64", [2, 1], [math.log(3), 0.0]),
                   "v": ("F64", [2, 1], [1.0, 2.0]), "dout": ("F64", [1, 1], [0.0])}
        for dtype in ("F32", "F64"):
            dk, = self.run_tensors(dict(tensors, dlse=(dtype, [1], [1.0])), "--backend", "reference", "--grad",
                                   names=("dk",))
            self.assertClose(dk[2], [0.75, 0.25], 1e-12)

    def test_problem_file(self):
        path = self.put("problems.txt", f"# two\n{SMALL}\n\n  {SMALL_BWD}  # the second\r\n".encode())
        result = ffpa("check", "-f", path)
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertIn("2 of 2 problems passed", result.stdout)
        path = self.put("problems.txt", f"{SMALL}\nnonsense\n".encode())
        result = ffpa("check", "-f", path)
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertIn("problems.txt:2: ", result.stderr)
        result = ffpa("explain", "-f", "/dev/stdin", input=f"{SMALL}\n# from a pipe\n{SMALL}\n")
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertEqual(result.stdout.count("path "), 2)


# ---- JSON ----

class Json(Folder):
    def document(self, code, *args):
        result = ffpa(*args, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual((document["command"], document["exit"]), (args[0], code))
        self.assertEqual("error" in document, code in (BAD_USAGE, BAD_FILE, LIB_FAILED))
        return document

    def test_every_command(self):
        self.assertTrue(self.document(DONE, "info")["backends"]["reference"])
        checked = self.document(DONE, "check", SMALL, SMALL_BWD)["results"]
        self.assertEqual([r["pass"] for r in checked], [True, True])
        self.assertEqual([o["name"] for o in checked[1]["outputs"]],
                         ["o", "lse", "dq", "dk", "dv", "dmask", "dsink"])
        for output in checked[1]["outputs"]:
            self.assertLessEqual(output["max_error"], output["bound"])
        bench = self.document(DONE, "bench", SMALL, "fwd,f32,b1h2,q1k64,d32", "--seconds", "0")
        self.assertGreaterEqual(bench["results"][0]["runs"], 5)
        self.assertGreater(bench["results"][0]["median_seconds"], 0)
        self.assertIn("share_of_copy", bench["results"][1])
        explained = self.document(DONE, "explain", "fwd,bf16,b1h32k4,q4096k4096,d512,causal")["results"][0]
        self.assertEqual(explained["flop"], 2 * 32 * (4096 * 4097 / 2) * 1024)
        run = self.document(DONE, "run", DATA / "minilm_l4_d384.safetensors", "--expect",
                            DATA / "minilm_l4_d384_expected.safetensors")
        self.assertEqual([c["pass"] for c in run["compared"]], [True, True])

    def test_doctor(self):
        found = self.document(DONE, "doctor")
        self.assertTrue(found["cpu"]["good"])
        for name in ("driver", "compiler", "cache"):
            self.assertIsInstance(found[name]["good"], bool)
            self.assertTrue(found[name]["text"])

    def test_doctor_tries_the_cache(self):
        """A relative folder is one; what cannot be made, though /proc says it can be written, is not; a bad mode is said."""
        for environment, good, text in (({"FFPA_CACHE_DIR": "some/where"}, True, "some/where"),
                                        ({"FFPA_CACHE_DIR": "/proc/ffpa"}, False, "cannot be written"),
                                        ({"FFPA_CACHE": "off"}, False, "every process compiles again"),
                                        ({"FFPA_CACHE": "maybe"}, False, "none of on, read-only, off")):
            result = subprocess.run([PROGRAM, "doctor", "--json"], env=os.environ | environment, capture_output=True,
                                    text=True, timeout=60, cwd=self.folder)
            found = json.loads(result.stdout)["cache"]
            self.assertEqual(found["good"], good, found)
            self.assertIn(text, found["text"])
            self.assertEqual([f for f in os.listdir(self.folder) if "doctor" in f], [])

    def test_explain_says_what_a_call_says(self):
        """What explain takes, check runs; what it refuses, check refuses in the same words."""
        for op, dtype, shape, rest in itertools.product(
                ("fwd", "bwd"), ("f32", "f64"), ("b2h2k1,q9k9,d8", "b2h2,q0k9,d0v3", "b2h1,q1k0,d1"),
                ("", ",varlen=9+3", ",varlen=9+3,page4", ",page4", ",varlen=0+0,page3")):
            for mask in ("", ",mask=bool", ",mask=f16:bhqk", ",mask=f32:"):
                text = f"{op},{dtype},{shape}{rest}{mask}"
                explained = ffpa("explain", text, "--json")
                if explained.returncode == BAD_USAGE or (dtype == "f64" and explained.returncode == DONE):
                    continue  # no problem at all
                with self.subTest(text):
                    checked = ffpa("check", text, "--json")
                    self.assertEqual(checked.returncode, explained.returncode, checked.stderr)
                    if dtype == "f32":
                        self.assertEqual(checked.stderr, explained.stderr)

    def test_every_failure_is_a_document(self):
        for command in ("run", "check", "bench", "explain", "prebuild", "doctor", "info"):
            self.document(BAD_USAGE, command, "--frobnicate")
            self.document(BAD_USAGE, command, "--threads", "0")
        for args in (["--isa", "nonsense"], ["--threads", "9999"], ["--backend", "abacus"]):
            self.document(LIB_FAILED, "info", *args)

    def test_names_that_are_no_utf8(self):
        path = os.path.join(os.fsencode(self.folder), b"bad\xff\xc3.safetensors")
        result = subprocess.run([PROGRAM, "run", path, "--json"], capture_output=True, timeout=60)
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertIn("bad\ufffd\ufffd.safetensors", json.loads(result.stdout.decode("utf-8"))["error"])

    def test_failures(self):
        self.document(BAD_USAGE, "check", "nonsense")
        self.document(BAD_FILE, "run", "absent.safetensors")
        self.document(LIB_FAILED, "explain", SMALL, "--backend", "abacus")
        self.document(CHECK_FAILED, "run", DATA / "minilm_l4_d384.safetensors", "--expect",
                      DATA / "minilm_l4_d384_expected.safetensors", "--tolerance", "1e-9")

    def test_problems_round_trip(self):
        for text in [SMALL, SMALL_BWD, "fwd,f32,b1h1,q1k1,d1,softcap2.5,win-1:3,alibi,dropout0.25,seed9",
                     "fwd,bf16,b2h4k2,q3k50,d64,varlen=50+17,page16", "bwd,f16,b1h1,q5k5,d8v4,bnhd,scale0"]:
            once = self.document(DONE, "explain", text)["results"][0]["problem"]
            again = self.document(DONE, "explain", once)["results"][0]["problem"]
            self.assertEqual(once, again)
            self.assertEqual(sorted(once.split(",")), sorted(text.split(",")))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    WRITE = "--write" in arguments
    PROGRAM, *groups = [a for a in arguments if a != "--write"]
    PROGRAM = str(pathlib.Path(PROGRAM).resolve())
    unittest.main(argv=["cli_tests.py", *groups])
