#!/usr/bin/env python3
"""Files that cannot be what they say, and tensors that attention cannot take: each is refused in one line."""
import json
import os
import pathlib
import resource
import struct

from cli_program import BAD_FILE, DONE, LIB_FAILED, PROGRAM, Folder, ffpa, main
from tensor_files import GOOD, entry, npy, safetensors, wave, with_header


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


if __name__ == "__main__":
    main()
