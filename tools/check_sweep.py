#!/usr/bin/env python3
"""`ffpa check` over everything that is promised: forward and backward, f32, f16 and bf16, the head
dimensions below, without options, with each one, and with many at once, at small sizes.

    tools/check_sweep.py [PROGRAM] [--only REGEX] [--list] [-- options of `ffpa check`]

About 3600 problems. Prints what failed with its repro line, the largest
error as a share of its bound for each output, and exits 1 if anything failed."""
import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile

DIMS = [1, 8, 40, 64, 72, 96, 128, 192, 256, 320, 384, 512, 513, 576, 640, 768, 1000, 1024]
DTYPES = ["f32", "f16", "bf16"]
PLAIN = "b1h4k2,q33k70"  # more rows than a panel has lanes, a partial tile of keys, two heads a group
DECODE = "b2h4k1,q1k150"
SIZES = [  # shapes, and the options that each one is checked with
    (PLAIN, ["", "causal", "causal_tl", "win9:3", "win20:-1,causal", "mask=bool", "mask=bool:bhqk",
             "mask=f32:bhqk", "mask=f16:k", "mask=bf16:hq", "softcap5", "alibi", "sink", "dropout0.3",
             "dropout1", "scale0", "scale-0.1", "bnhd", "seed7",
             "causal,mask=bf16,softcap20,alibi,sink,dropout0.1,bnhd"]),
    ("b3h4k2,q33k33", ["varlen=33+0+17", "varlen=1+33+2,causal,sink,alibi"]),
    ("b1h2,q130k200", ["", "causal", "mask=f32:hqk"]),  # several blocks and tiles
    (DECODE, ["", "win40:0", "mask=bool:bk", "softcap5,sink,alibi", "dropout0.3"]),
]
PAGED = ("b3h4k2,q2k150", ["varlen=150+1+64,page16", "varlen=150+0+64,page64,causal,sink"])


def problems():
    for op in ("fwd", "bwd"):
        for dtype in DTYPES:
            for d in DIMS:
                for size, options in SIZES + ([PAGED] if op == "fwd" else []):
                    for option in options:
                        yield ",".join(x for x in (op, dtype, size, "d%d" % d, option) if x)
                for dv in (d // 2 + 1, 1025 - d):
                    yield "%s,%s,%s,d%dv%d,causal,sink" % (op, dtype, PLAIN, d, dv)


def check(program, texts, extra):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(texts) + "\n")
        file.flush()
        run = subprocess.run([program, "check", "-f", file.name, "--json", *extra], capture_output=True, text=True)
    if not run.stdout:
        sys.exit("%s check: %s" % (program, run.stderr.strip()))
    return json.loads(run.stdout)["results"]


def explain_failure(result):
    print("FAIL %s" % result["repro"])
    if "error" in result:
        print("     %s" % result["error"])
    for o in result["outputs"]:
        if not o["pass"]:
            print("     %-6s error %s, bound %s (naive %s), %d elements NaN or infinite in only one" % (
                o["name"], o["max_error"], o["bound"], o["naive_error"], o["pattern_mismatches"]))


def main():
    extra = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    own = sys.argv[1:len(sys.argv) - len(extra) - (1 if "--" in sys.argv else 0)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/ffpa")
    parser.add_argument("--only", default="", help="regular expression on the problem string")
    parser.add_argument("--list", action="store_true", help="print the problems only")
    args = parser.parse_args(own)
    texts = [t for t in problems() if re.search(args.only, t)]
    if args.list:
        print("\n".join(texts))
        return 0
    failed, worst = 0, collections.defaultdict(lambda: (0.0, ""))
    for at in range(0, len(texts), 200):
        for result in check(args.program, texts[at:at + 200], extra):
            failed += not result["pass"]
            if not result["pass"]:
                explain_failure(result)
            for o in result["outputs"]:
                key = o["name"], re.search(r"f32|bf16|f16", result["problem"])[0]
                if o["max_error"] is not None and o["bound"]:
                    worst[key] = max(worst[key], (o["max_error"] / o["bound"], result["problem"]))
        print("\r%d of %d" % (min(at + 200, len(texts)), len(texts)), end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for (name, dtype), (share, problem) in sorted(worst.items()):
        print("%-6s %-5s at most %.2f of its bound: %s" % (name, dtype, share, problem))
    print("%d of %d problems passed" % (len(texts) - failed, len(texts)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
