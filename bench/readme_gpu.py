#!/usr/bin/env python3
"""Print the README's table of GPU rates from the CSVs of bench/hopper_small.py and bench/hopper_forward.py:
usage: readme_gpu.py bench/results/hopper_small_h200.csv bench/results/hopper_forward_h200.csv"""
import re
import sys

from readme_table import read

PLAIN = re.compile(r"fwd,bf16,b1h32(?:k32)?,q8192k8192,d(\d+)(?:v(\d+))?$")


def by_name(rows):
    """Rows by problem: rate, share of the GEMM in that run, ratio to PyTorch where it ran beside. Tables older than
    bench/gpu_turns.py call two columns otherwise."""
    return {row.get("problem") or row["case"]: (float(row.get("ffpa_tflops") or row["tflops"]), float(row["of_gemm"]),
                                                row.get("of_torch") or "-") for row in rows}


def cells(row):
    return "%.0f | %.2f | %s" % row if row else "- | - | -"


def main(small, wide):
    notes_small, rows_small = read(small)
    notes_wide, rows_wide = read(wide)
    print("%s. %s\n" % (notes_small[0], " ".join(notes_wide)))
    print("| head dimension | TFLOP/s | of the GEMM | of PyTorch | causal: TFLOP/s | of the GEMM | of PyTorch |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rates = by_name(rows_small) | by_name(rows_wide)
    for name, row in rates.items():
        match = PLAIN.match(name)
        if match:
            d, dv = match.group(1), match.group(2) or match.group(1)
            print("| %s | %s | %s |" % (d if d == dv else d + "/" + dv, cells(row), cells(rates.get(name + ",causal"))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
