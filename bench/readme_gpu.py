#!/usr/bin/env python3
"""Print the README's tables of GPU rates from the CSVs of bench/hopper_small.py, bench/hopper_forward.py and
bench/gpu_backward.py, in this order: usage: readme_gpu.py bench/results/{hopper_small,hopper_forward,gpu_backward}_h200.csv"""
import re
import sys

from readme_table import read

PLAIN = re.compile(r"...,bf16,b1h32(?:k32)?,q8192k8192,d(\d+)(?:v(\d+))?$")


def by_name(rows):
    """Rows by problem: rate, share of the GEMM in that run, ratio to PyTorch. Tables older than bench/gpu_turns.py call
    two columns otherwise."""
    return {row.get("problem") or row["case"]: (float(row.get("ffpa_tflops") or row["tflops"]), float(row["of_gemm"]),
                                                row.get("of_torch") or "-") for row in rows}


def cells(row):
    return "%.0f | %.2f | %s" % row if row else "- | - | -"


def table(*paths):
    rates = {}
    for path in paths:
        notes, rows = read(path)
        rates |= by_name(rows)
        print("%s.  " % notes[0])
    print("\n| head dimension | TFLOP/s | of the GEMM | of PyTorch | causal: TFLOP/s | of the GEMM | of PyTorch |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    widths = {name: match.groups() for name in rates if (match := PLAIN.match(name))}
    for name, (d, dv) in sorted(widths.items(), key=lambda item: (int(item[1][0]), -int(item[1][1] or 0))):
        print("| %s | %s | %s |" % (d + "/" + dv if dv else d, cells(rates[name]), cells(rates.get(name + ",causal"))))


def main(small, wide, backward):
    print("Forward:\n")
    table(small, wide)
    print("\nBackward, five products counted:\n")
    table(backward)


if __name__ == "__main__":
    main(*sys.argv[1:])
