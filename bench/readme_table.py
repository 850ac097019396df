#!/usr/bin/env python3
"""Print the README's table from a CSV of bench/cpu.py: usage: readme_table.py bench/results/cpu-DATE.csv"""
import csv
import sys


def main(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    notes = [line[2:] for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    print("`make bench`, both libraries in one process, alternating; medians. The ratio is ffpa over PyTorch.")
    print("%s." % notes[0])
    print("%s.\n" % notes[-1])
    print("| case | unit | ffpa | PyTorch | ratio |\n|---|---|---:|---:|---:|")
    for row in rows:
        print("| `%s` | %s | %.1f | %.1f | %.2f |" % (
            row["case"], row["unit"], float(row["ffpa"]), float(row["torch"]), float(row["ratio"])))


if __name__ == "__main__":
    main(sys.argv[1])
