#!/usr/bin/env python3
"""Print the README's tables from a CSV of bench/cpu.py: usage: readme_table.py bench/results/cpu-DATE.csv"""
import csv
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    notes = [line[2:] for line in lines if line.startswith("#")]
    return notes, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def cells(row):
    return "%.1f | %.1f | %.2f" % (float(row["ffpa"]), float(row["torch"]), float(row["ratio"])) if row else "- | - | -"


def main(path):
    notes, rows = read(path)
    cases = {row["case"]: row for row in rows}
    print("`make bench`, both libraries in one process, alternating; medians. The ratio is ffpa over PyTorch.")
    print("%s.\n%s.\n" % (notes[0], "; ".join(notes[1:])))
    print("| GFLOP/s | ffpa | PyTorch | ratio | causal: ffpa | PyTorch | ratio |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, row in cases.items():
        if row["unit"] == "GFLOP/s" and not name.endswith(",causal"):
            print("| `%s` | %s | %s |" % (name, cells(row), cells(cases.get(name + ",causal"))))
    print("\n| GB/s of K and V | ffpa | PyTorch | ratio | ffpa over copy |\n|---|---:|---:|---:|---:|")
    for name, row in cases.items():
        if row["unit"] == "GB/s":
            print("| `%s` | %s | %.2f |" % (name, cells(row), float(row["share_of_copy"])))


if __name__ == "__main__":
    main(sys.argv[1])
