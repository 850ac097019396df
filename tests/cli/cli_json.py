#!/usr/bin/env python3
"""--json: every command, every failure, as a document that says what the text says."""
import itertools
import json
import os
import subprocess

from cli_program import (BAD_FILE, BAD_USAGE, CHECK_FAILED, DATA, DONE, LIB_FAILED, PROGRAM, QUICK, SMALL, SMALL_BWD,
                         Folder, ffpa, main)


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
        """A relative folder is one; what cannot be made, though /proc says it can be written, is not; a bad mode is
        said."""
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
        problems = itertools.product(
            ("fwd", "bwd"), ("f32", "f64"), ("b2h2k1,q9k9,d8", "b2h2,q0k9,d0v3", "b2h1,q1k0,d1"),
            ("", ",varlen=9+3", ",varlen=9+3,page4", ",page4", ",varlen=0+0,page3"),
            ("", ",mask=bool", ",mask=f16:bhqk", ",mask=f32:"))
        for op, dtype, shape, rest, mask in itertools.islice(problems, 0, None, 7 if QUICK else 1):
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
    main()
