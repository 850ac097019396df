#!/usr/bin/env python3
"""tests/gpu/check_gpu.sh without a GPU: made-up programs that pass, fail, or never end, and what it says of them.

usage: check_script_tests.py [TEST...]"""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "check_gpu.sh"
PASSES = "echo '[       OK ] a'"
FAILS = "echo '[  FAILED  ] b01_of_the_table'; exit 1"
HANGS = "echo '[       OK ] c'; sleep 1000"
ALL = ("test_cases_a", "test_options_grid", "test_random_problems", "test_partial_keys", "test_every_kernel",
       "test_hopper_kernels", "host_time")


class CheckGpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        (self.root / "bin").mkdir()
        (self.root / "build/tests").mkdir(parents=True)
        for name in ALL:
            self.program("build/tests/" + name, PASSES)

    def tearDown(self):
        self.folder.cleanup()

    def program(self, path, text):
        (self.root / path).write_text("#!/bin/sh\n" + text + "\n")
        (self.root / path).chmod(0o755)

    def run_script(self, *args):
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return subprocess.run([SCRIPT, "--build", "build", "--out", "out", "--processes", "8", *args], capture_output=True,
                              text=True, cwd=self.root, timeout=250, env=os.environ | {"PATH": path, "COMMIT": "abc1234"})

    def test_all_green(self):
        result = self.run_script("--part", "host,cases")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"host_time +1 passed +0 failed +0 out of time")
        self.assertRegex(result.stdout, r"cases +43 passed +0 failed +0 out of time")
        self.assertIn("abc1234", result.stdout)
        self.assertTrue(result.stdout.splitlines()[-1].startswith("check-gpu: all green in "))
        self.assertIn("all green", (self.root / "out/summary.txt").read_text())

    def test_python_a_process_a_file(self):
        files = len(list((SCRIPT.parents[2] / "bindings/python/tests").glob("test_*.py")))
        self.program("bin/python3", "echo '3 passed, 1 skipped in 0.10s'")
        result = self.run_script("--part", "python")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, rf"pytest +{files} passed +0 failed")
        self.assertIn(f"{3 * files} passed;", result.stdout)
        self.program("bin/python3", "case $* in *test_arrays*) echo 'FAILED test_arrays.py::b'; exit 1 ;; *) echo 'x passed' ;; esac")
        result = self.run_script("--part", "python")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, rf"pytest +{files - 1} passed +1 failed")
        self.assertIn("FAIL pytest_test_arrays", result.stdout)

    def test_a_failure_is_named(self):
        self.program("build/tests/test_cases_b", FAILS)
        result = self.run_script("--part", "cases")
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAIL test_cases_b_1", result.stdout)
        self.assertIn("b01_of_the_table", result.stdout)
        self.assertRegex(result.stdout, r"cases +43 passed +6 failed +0 out of time")

    def test_what_never_ends_is_stopped(self):
        self.program("build/tests/host_time", HANGS)
        self.program("build/tests/test_partial_keys", HANGS)
        result = self.run_script("--part", "host,cases", "--seconds", "5")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"host_time +0 passed +0 failed +1 out of time")
        self.assertRegex(result.stdout, r"cases +\d+ passed +0 failed +[1-9]\d* out of time")
        self.assertRegex(result.stdout, r"late test_partial_keys")
        self.assertRegex(result.stdout, r"FAILED in \d+ s: host_time cases ")

    def test_a_program_that_fails_alone(self):
        self.program("build/tests/host_time", FAILS)
        result = self.run_script("--part", "host")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"host_time +0 passed +1 failed")

    def test_every_kernel_meets_every_tool(self):
        self.program("bin/compute-sanitizer", f"echo $2 $(basename $5) $6 $FFPA_KERNEL_DEFINES >>{self.root}/met; shift 4; exec $*")
        result = self.run_script("--part", "sanitize")
        self.assertEqual(result.returncode, 0, result.stdout)
        met = [line.split() for line in (self.root / "met").read_text().splitlines()]
        tools, tests = {x[0] for x in met}, {(x[1], x[2]) for x in met}
        self.assertEqual(tools, {"memcheck", "racecheck", "synccheck", "initcheck"})
        self.assertEqual(len(met), 4 * len(tests))
        for line in met:
            self.assertEqual(line[3:], ["FFPA_EVERY_LANE=1"] if line[0] == "racecheck" else [])
        for name in ("test_every_kernel plain", "test_hopper_kernels pair", "test_hopper_kernels gradients_options"):
            self.assertIn(tuple(name.split()), tests)

    def test_bad_usage(self):
        for args in (["--part", "nonsense"], ["--frobnicate"], ["--seconds"]):
            self.assertEqual(self.run_script(*args).returncode, 2)


if __name__ == "__main__":
    unittest.main()
