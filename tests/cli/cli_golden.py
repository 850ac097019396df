#!/usr/bin/env python3
"""What the program prints, against golden files, with what varies masked. FFPA_GOLDEN=write in the
environment refreshes them."""
import os
import re
import unittest

from cli_program import (BAD_FILE, BAD_USAGE, CHECK_FAILED, DATA, DONE, LIB_FAILED, ROOT, SMALL, SMALL_BWD, ffpa,
                         main)

GOLDEN = ROOT / "tests/golden/cli"
WRITE = os.environ.get("FFPA_GOLDEN") == "write"

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
    (r"(cuda|amx_bf16|avx512_bf16|avx512|avx2) +(yes|no:.*)", r"\1 ..."),
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
    "prebuild_backend": (BAD_USAGE, ["prebuild", SMALL, "--arch", "sm_90a", "--out", "pack", "--backend", "cuda"]),
    "doctor_isa": (BAD_USAGE, ["doctor", "--isa", "avx2"]),
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


if __name__ == "__main__":
    main()
