"""python -m ffpa.bench: attention by libffpa beside PyTorch's own backends and other packages that are installed.

Every implementation of a problem runs in one process, in turns; medians. On a GPU time is taken by events on the
stream and the GPU is kept busy before it is measured. Results are compared as well: a wrong answer is often fast."""
import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import statistics
import sys
import time
from typing import Callable, NamedTuple, Optional

try:
    import torch
except ImportError:
    raise SystemExit("ffpa.bench needs PyTorch") from None

import ffpa

from . import _abi, _library
from ._torch_autograd import SDPA

GPU = ["fwd,bf16,b1h32,q8192k8192,d512", "fwd,bf16,b1h32,q8192k8192,d512,causal", "fwd,bf16,b1h32k8,q8192k8192,d512",
       "fwd,bf16,b1h32,q1024k8192,d512", "fwd,bf16,b1h32,q8192k8192,d320", "fwd,bf16,b1h32,q8192k8192,d128,causal",
       "bwd,bf16,b1h32,q8192k8192,d512", "bwd,bf16,b1h32,q8192k8192,d512,causal", "fwd,bf16,b8h16k2,q1k16384,d512"]
CPU = ["fwd,f32,b1h8,q1024k1024,d512", "fwd,f32,b1h8,q1024k1024,d512,causal", "fwd,bf16,b1h8,q1024k1024,d512",
       "bwd,f32,b1h8,q1024k1024,d512", "fwd,f32,b1h8k1,q1k32768,d512"]
_DTYPES = {_abi.FFPA_F32: torch.float32, _abi.FFPA_F16: torch.float16, _abi.FFPA_BF16: torch.bfloat16}


class Problem(NamedTuple):
    text: str
    backward: bool
    dtype: torch.dtype
    q: tuple
    k: tuple
    v: tuple
    causal: Optional[str]
    bnhd: bool
    flop: float
    bytes: float

    @property
    def decode(self):
        """Few rows against many keys: memory is the limit, and bytes say more than FLOP."""
        return self.q[2] * (self.q[1] // self.k[1]) <= 64 and not self.backward


def parse(text):
    p = _library.new(_abi.ffpa_problem)
    _library.check(_library.lib.ffpa_problem_parse(text.encode(), ctypes.byref(p)))
    if p.dtype not in _DTYPES or p.has_window or p.mask_dtype or p.softcap or p.dropout or p.has_scale or p.alibi \
            or p.sink or p.n_lengths or p.page or 0 in (p.b, p.hq, p.nq, p.nk, p.d, p.dv):
        raise _library.unsupported("ffpa.bench: %s: dense problems in f32, f16, bf16, causal or not, nothing empty" % text)
    report = ffpa.explain(text)
    causal = {_abi.FFPA_TOP_LEFT: "top_left", _abi.FFPA_BOTTOM_RIGHT: "bottom_right"}.get(p.causal)
    return Problem(report.problem, p.op == _abi.FFPA_BACKWARD, _DTYPES[p.dtype], (p.b, p.hq, p.nq, p.d),
                   (p.b, p.hk, p.nk, p.d), (p.b, p.hk, p.nk, p.dv), causal, bool(p.bnhd), report.flop, report.bytes)


# ---- implementations: name -> function of (q, k, v, problem), which raises where it does not do the problem ---------

def _ffpa(q, k, v, p):
    return ffpa.ffpa_attn_func(q, k, v, is_causal=p.causal is not None, causal_align=p.causal, enable_gqa=True)


def _sdpa(backend):
    def run(q, k, v, p):
        from torch.nn.attention import sdpa_kernel
        if p.causal == "bottom_right" and q.shape[2] != k.shape[2]:
            raise RuntimeError("PyTorch's causal is top-left")
        with sdpa_kernel(backend):
            return SDPA(q, k, v, is_causal=p.causal is not None, enable_gqa=q.shape[1] != k.shape[1])
    return run


def _turned(function):
    """For packages that want rows before heads."""
    def run(q, k, v, p):
        return function(*(t.transpose(1, 2) for t in (q, k, v)), p).transpose(1, 2)
    return run


def _flash_attn(q, k, v, p):
    from flash_attn import flash_attn_func
    if p.causal == "top_left" and q.shape[1] != k.shape[1]:
        raise RuntimeError("flash-attn's causal is bottom-right")
    return flash_attn_func(q, k, v, causal=p.causal is not None)


def _xformers(q, k, v, p):
    from xformers import ops
    if q.shape[2] != k.shape[2]:
        raise RuntimeError("heads must be repeated first")
    bias = ops.fmha.attn_bias.LowerTriangularMask() if p.causal else None
    return ops.memory_efficient_attention(q, k, v, attn_bias=bias)


def _ffpa_attn(q, k, v, p):
    from ffpa_attn import ffpa_attn_func
    return ffpa_attn_func(q, k, v, is_causal=p.causal is not None, enable_gqa=q.shape[1] != k.shape[1])


def implementations():
    from torch.nn.attention import SDPBackend
    found = {"ffpa": _ffpa}
    for label, name in (("torch flash", "FLASH_ATTENTION"), ("torch efficient", "EFFICIENT_ATTENTION"),
                        ("torch cudnn", "CUDNN_ATTENTION"), ("torch math", "MATH")):
        if hasattr(SDPBackend, name):
            found[label] = _sdpa(getattr(SDPBackend, name))
    for package, function in (("flash_attn", _turned(_flash_attn)), ("xformers", _turned(_xformers)),
                              ("ffpa_attn", _ffpa_attn)):
        if importlib.util.find_spec(package):
            found[package] = function
    return found


# ---- measuring --------------------------------------------------------------------------------------------------------

class Clock:
    def __init__(self, device):
        self.gpu = device.startswith("cuda")

    def seconds(self, run):
        if not self.gpu:
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class Row(NamedTuple):
    problem: str
    implementation: str
    milliseconds: Optional[float]
    rate: Optional[float]  # TFLOP/s; TB/s for decode; on a CPU GFLOP/s and GB/s
    unit: str
    difference: Optional[float]
    note: str


def _inputs(p, device):
    torch.manual_seed(1)
    made = []
    for b, h, n, d in (p.q, p.k, p.v):
        t = torch.randn((b, n, h, d) if p.bnhd else (b, h, n, d), device=device).to(p.dtype)
        made.append((t.transpose(1, 2) if p.bnhd else t).requires_grad_(p.backward))
    return made


def _call(function, inputs, p, dout) -> Callable:
    """What is timed: forward, or the gradient alone."""
    if not p.backward:
        def forward():
            with torch.no_grad():
                return [function(*inputs, p)]
        return forward
    out = function(*inputs, p)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]


def _distance(a, b):
    """Largest difference, head by head: a whole difference in f32 may be larger than what is left of a GPU's memory."""
    return max((x.float() - y.float()).abs().max().item() for x, y in zip(a.flatten(0, 1), b.flatten(0, 1)))


def measure(p, device, budget):
    """One Row for each implementation; those that refuse have a note instead of a time."""
    scale, unit = (1e12, "T") if device == "cuda" else (1e9, "G")
    work, unit = (p.bytes, unit + "B/s") if p.decode else (p.flop, unit + "FLOP/s")
    try:
        clock, inputs = Clock(device), _inputs(p, device)
        dout = torch.randn(p.q[:3] + p.v[3:], device=device).to(p.dtype)
    except RuntimeError as error:  # more than the memory holds
        return [Row(p.text, name, None, None, unit, None, _first_line(error)) for name in implementations()]
    calls, notes, apart, ours = {}, {}, {}, None
    for name, function in implementations().items():
        try:
            calls[name] = _call(function, inputs, p, dout)
            answer = calls[name]()
            ours = answer if name == "ffpa" else ours
            apart[name] = None if ours is None else max(_distance(a, b) for a, b in zip(answer, ours))
            del answer
        except Exception as error:  # noqa: BLE001 - whatever a package raises is its refusal
            calls.pop(name, None)
            notes[name] = _first_line(error)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
    first = {name: clock.seconds(call) for name, call in calls.items()}
    rounds = max(3, min(30, int(budget / max(sum(first.values()), 1e-9))))
    times = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(rounds if clock.gpu else 1):
            call()  # warm: clocks, caches, the allocator
        times[name] = [clock.seconds(call) for _ in range(rounds)]
    if not clock.gpu:  # a CPU is shared with others: take turns
        times = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(clock.seconds(call))
    rows = []
    for name in implementations():
        if name not in calls:
            rows.append(Row(p.text, name, None, None, unit, None, notes[name]))
            continue
        median = statistics.median(times[name])
        rows.append(Row(p.text, name, median * 1e3, work / median / scale, unit, apart[name], ""))
    return rows


# ---- showing ------------------------------------------------------------------------------------------------------------

def progress(done, total, text):
    """One line that is rewritten, on terminals only."""
    if sys.stderr.isatty():
        filled = 30 * done // total
        end = "\n" if done == total else ""
        print("\r[%s%s] %d/%d %-56s" % ("#" * filled, "." * (30 - filled), done, total, text[:56]), end=end, file=sys.stderr,
              flush=True)


def speed_up(rows):
    """ffpa's speed over the fastest other's; None where either is missing."""
    ours = [r.milliseconds for r in rows if r.implementation == "ffpa" and r.milliseconds]
    theirs = [r.milliseconds for r in rows if r.implementation != "ffpa" and r.milliseconds]
    return min(theirs) / ours[0] if ours and theirs else None


def table(results):
    lines = ["%-46s %-16s %10s %10s %-8s %8s %9s" % ("problem", "implementation", "ms", "rate", "", "ffpa is", "max diff")]
    for rows in results:
        ours = next((r.milliseconds for r in rows if r.implementation == "ffpa"), None)
        for i, r in enumerate(rows):
            title = r.problem if i == 0 else ""
            if r.milliseconds is None:
                lines.append("%-46s %-16s %10s %s" % (title, r.implementation, "-", r.note))
            else:
                ratio = "" if r.implementation == "ffpa" or not ours else "%.2fx" % (r.milliseconds / ours)
                lines.append("%-46s %-16s %10.3f %10.1f %-8s %8s %9.1e" % (
                    title, r.implementation, r.milliseconds, r.rate, r.unit, ratio,
                    float("nan") if r.difference is None else r.difference))
    return "\n".join(lines)


def heading(device, commit):
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU, %d threads" % torch.get_num_threads()
    return "%s; torch %s; %s; %s%s" % (name, torch.__version__, _library.describe(), "commit %s; " % commit if commit else "",
                                       datetime.date.today())


def _seconds(text):
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("%s is not a time" % text)
    return value


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ffpa.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="problem strings such as fwd,bf16,b1h32,q8192k8192,d512,causal; "
                        "default: a list for the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=_seconds, default=2.0, help="of timed calls for each problem")
    parser.add_argument("--json", metavar="FILE", help="write the rows; - for standard output instead of the table")
    parser.add_argument("--plot", metavar="FILE.png", help="write a picture of the rates (needs matplotlib)")
    parser.add_argument("--commit", default="", help="what the library was built from, for the heading")
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    for option, path in (("--json", asked.json), ("--plot", asked.plot)):  # said before the work, not after it
        folder = os.path.dirname(path or "") or "."
        if path and not os.access(path if os.path.exists(path) else folder, os.W_OK) or path and os.path.isdir(path):
            parser.error("%s %s: cannot be written" % (option, path))
    if asked.plot:
        from ._bench_plot import check
        check(parser, asked.plot)
    try:
        problems = [parse(text) for text in asked.problems or (GPU if asked.device == "cuda" else CPU)]
    except ffpa.FfpaError as error:
        parser.error(str(error))
    results = []
    for i, p in enumerate(problems):
        progress(i, len(problems), p.text)
        results.append(measure(p, asked.device, asked.seconds))
    progress(len(problems), len(problems), "done")
    title = heading(asked.device, asked.commit)
    if asked.json != "-":
        print(title)
        print(table(results))
    if asked.json:
        document = json.dumps({"about": title, "rows": [r._asdict() for rows in results for r in rows]}, indent=1)
        if asked.json == "-":
            print(document)
        else:
            with open(asked.json, "w", encoding="utf-8") as file:
                file.write(document + "\n")
    if asked.plot:
        from ._bench_plot import plot
        plot(results, title, asked.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
