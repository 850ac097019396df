#!/usr/bin/env python3
"""The files that the program writes: all of them or none, whatever happens."""
import os
import resource
import signal
import struct
import subprocess

from cli_program import BAD_FILE, BAD_USAGE, DONE, PROGRAM, QUICK, Folder, ffpa, main
from tensor_files import GOOD, read_npy, read_safetensors, safetensors, wave


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
        n = 500000 if QUICK else 2000000
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


if __name__ == "__main__":
    main()
