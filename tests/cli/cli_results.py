#!/usr/bin/env python3
"""What comes out is attention: against the definition, in plain Python."""
import math

from cli_program import BAD_FILE, BAD_USAGE, CHECK_FAILED, DATA, DONE, SMALL, SMALL_BWD, Folder, ffpa, main
from tensor_files import GOOD, npy, read_npy, read_safetensors, safetensors, wave


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


class Results(Folder):
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
        mask = self.put("m.npy", npy([3, 3], [-math.inf] * 9))
        ffpa("run", path, "--mask", mask, "-o", self.folder / "o.npy")
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


if __name__ == "__main__":
    main()
