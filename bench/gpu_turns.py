"""The sustained protocol: the library, the GEMM and PyTorch's fastest backend take turns in one process, in an order that
changes with every round. A turn is about --ms of calls uncounted, in which the card settles at the contestant's power,
then as long counted by one pair of events; the median of the rounds is shown, with the lowest and the highest. The card
is limited by power, so the ratio to the GEMM in the same rounds is the result. FLOP = 2 B Hq pairs (D + Dv) forward,
2 B Hq pairs (3 D + 2 Dv) backward."""
import argparse
import pathlib
import random
import statistics
import sys
import time

import gpu_case
from gpu_case import Gemm, about, elapsed

COLUMNS = "problem,path,ffpa_ms,ffpa_tflops,lowest,highest,gemm_tflops,of_gemm,torch_backend,torch_tflops,of_torch"


def turns(contestants, rounds, turn_ms):
    """{name: milliseconds of each round}. One whose call alone is longer than a turn has two rounds."""
    ms, calls, each = {name: [] for name in contestants}, {}, {}
    for name, run in contestants.items():
        each[name] = about(run)
        calls[name] = max(1, round(turn_ms / max(each[name], 1e-3)))
    for n in range(rounds):
        for name in random.sample(list(contestants), len(contestants)):
            run = contestants[name]
            if n >= 2 and each[name] > turn_ms:
                continue
            for _ in range(calls[name]):
                run()
            ms[name].append(elapsed(run, calls[name]))
    return ms


def measure(ffpa, gemm, case, args):
    """A row of the table."""
    run, path = case.ours(ffpa)
    backend, theirs = case.fastest_of_torch() if args.torch else ("none", None)
    who = {"ours": run, "gemm": gemm.run} | ({"torch": theirs} if theirs else {})
    ms = turns(who, args.turns, args.ms)
    flop = {"ours": case.flop(), "gemm": Gemm.FLOP, "torch": case.flop()}
    rates = {name: [flop[name] / t / 1e9 for t in times] for name, times in ms.items()}
    mid = {name: flop[name] / statistics.median(times) / 1e9 for name, times in ms.items()}
    peer = f"{backend},{mid['torch']:.1f},{mid['ours'] / mid['torch']:.2f}" if theirs else "none,,"
    return (f'"{case.text}",{path},{statistics.median(ms["ours"]):.3f},{mid["ours"]:.1f},{min(rates["ours"]):.1f},'
            f'{max(rates["ours"]):.1f},{mid["gemm"]:.1f},{mid["ours"] / mid["gemm"]:.3f},{peer}')


def parse(doc, tables):
    p = argparse.ArgumentParser(description=f"{doc}\n\n{__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=pathlib.Path)
    p.add_argument("problem", nargs="*", help="problem strings instead of a table")
    p.add_argument("--table", choices=tables, help=f"default {next(iter(tables))}")
    p.add_argument("--backend", default="cuda", help="cuda or cuda/FAMILY")
    p.add_argument("-k", dest="only", default="", help="problems that contain this")
    p.add_argument("--turns", type=int, default=4, help="rounds; 0 only runs each once, so that its kernels are in the cache")
    p.add_argument("--ms", type=float, default=60, help="of a turn, uncounted and counted")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no problem later")
    p.add_argument("--no-torch", dest="torch", action="store_false", help="PyTorch takes no turns")
    p.add_argument("--csv", type=pathlib.Path, help="append the rows here, as they come")
    return p.parse_intermixed_args()  # problems may come after options


def main(doc, tables):
    args = parse(doc, tables)
    library, table = args.library.resolve(), gpu_case.Table(args.csv, args.seconds)
    problems = [text for text in args.problem or tables[args.table or next(iter(tables))] if args.only in text]
    gpu_case.compile_all(library, args.backend, problems)
    ffpa, gemm = gpu_case.Ffpa(library, args.backend), Gemm()
    table.tell(gpu_case.heading(f"{args.turns} rounds, {args.ms:.0f} ms settled and counted"))
    table.tell(COLUMNS)
    begin = time.monotonic()
    while args.turns and time.monotonic() - begin < 1.5:  # from cold, the first readings would be too high
        elapsed(gemm.run, 10)
    for text in problems:
        if args.turns:
            table.row(text, lambda case: measure(ffpa, gemm, case, args))
        else:
            table.row(text, lambda case: f"# {case.text}: {case.ours(ffpa)[1]}")
    sys.exit(table.finish())
