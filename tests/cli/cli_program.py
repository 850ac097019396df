"""The program under test, for the tests beside this file: each is FILE PROGRAM [TEST...]."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "examples/data"
PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
QUICK = os.environ.get("FFPA_TEST_EFFORT") == "quick"  # for sanitizer builds
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


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
