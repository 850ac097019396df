"""What the benches on a GPU share: the library on the current device, a case by its problem string with its calls by the
library and by PyTorch, timing by CUDA events, and rows that are written as they come."""
import concurrent.futures
import ctypes
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import warnings

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cpu  # noqa: E402

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
FORM = re.compile(r"(fwd|bwd),(bf16|f16),b(\d+)h(\d+)(?:k(\d+))?,q(\d+)k(\d+),d(\d+)(?:v(\d+))?(,causal)?(,bnhd)?")
DEVICE = "cuda"


class Ffpa(cpu.Ffpa):
    """On the current device, in PyTorch's stream."""

    def __init__(self, library, backend, cache=None):
        self.abi = cpu.load_mirror()
        self.lib = self.abi.declare(ctypes.CDLL(str(library)))
        options = self.abi.ffpa_context_options(backend=backend.encode())
        options.struct_size = ctypes.sizeof(options)
        if cache:
            options.cache_dir = cache.encode()
        self.context = ctypes.c_void_p()
        self.call("ffpa_context_create", options, ctypes.byref(self.context))

    def tensor(self, t):
        view = super().tensor(t)
        view.device = 1 + t.device.index
        return view

    def with_workspace(self, params, query):
        need = ctypes.c_size_t()
        self.call(query, self.context, params, ctypes.byref(need))
        params.memory = torch.empty(need.value, dtype=torch.uint8, device=DEVICE)  # lives as long as params
        params.workspace, params.workspace_bytes = params.memory.data_ptr(), need.value
        params.stream = torch.cuda.current_stream().cuda_stream
        return params

    def path(self):
        return self.lib.ffpa_last_path().decode()


def compile_all(library, backend, problems):
    """Compile what the problems take into the cache, on all processors, by the program beside the library: one process
    alone would spend most of a bench's time on it."""
    program = library.parent / "ffpa"
    if not program.exists() or not torch.cuda.is_available():
        return
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    folder = os.environ.get("FFPA_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ffpa")
    libraries = f"{library.parent}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"  # of a pack (tools/pack_gpu_check.sh)
    start, environment = time.monotonic(), os.environ | {"FFPA_BACKEND": backend, "LD_LIBRARY_PATH": libraries}
    command = [program, "prebuild", "--arch", arch, "--out", folder]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        for _ in workers.map(lambda p: subprocess.run([*command, p], env=environment, capture_output=True), problems):
            pass  # what did not compile says so when it runs
    print(f"compiled in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


# ---- timing ------------------------------------------------------------------------------------------

def elapsed(run, calls):
    """Milliseconds a call, of as many in a row."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def about(run):
    """Milliseconds a call, roughly: after one that does not count, of one where it is long, else of ten."""
    run()
    ms = elapsed(run, 1)
    return ms if ms > 5 else elapsed(run, 10)


def median_ms(run, budget_ms=600):
    """Of up to 20 calls, fewer (at least 3) when they would take longer than the budget."""
    run()
    repeat = max(3, min(20, int(budget_ms / max(about(run), 1e-3))))
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeat)]
    for begin, end in pairs:  # none is waited for, so that the device never idles between two
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs)


# ---- cases -------------------------------------------------------------------------------------------

class Case:
    """A problem string such as fwd,bf16,b1h32k8,q8192k8192,d512v512,causal,bnhd; tensors are made at first use."""

    def __init__(self, text):
        m = FORM.fullmatch(text)
        if not m:
            raise ValueError(f"cannot read the problem {text}")
        self.text, self.op, self.dtype = text, m[1], dict(bf16=torch.bfloat16, f16=torch.float16)[m[2]]
        self.b, self.hq, self.nq, self.nk, self.d = (int(m[i]) for i in (3, 4, 6, 7, 8))
        self.hk, self.dv = int(m[5] or self.hq), int(m[9] or self.d)
        self.causal, self.bnhd = bool(m[10]), bool(m[11])
        self.data = None

    def pairs(self):
        if not self.causal:
            return self.nq * self.nk
        return sum(min(self.nk, max(0, i + 1 + self.nk - self.nq)) for i in range(self.nq))

    def flop(self):
        """Two products forward, five backward: S, dP, dV, dK, dQ."""
        columns = self.d + self.dv if self.op == "fwd" else 3 * self.d + 2 * self.dv
        return 2.0 * self.b * self.hq * self.pairs() * columns

    def kv_bytes(self):
        return 2.0 * self.b * self.hk * self.nk * (self.d + self.dv)

    def random(self, heads, rows, columns):
        shape = (self.b, rows, heads, columns) if self.bnhd else (self.b, heads, rows, columns)
        t = torch.randn(*shape, device=DEVICE, dtype=self.dtype)
        return t.transpose(1, 2) if self.bnhd else t

    def tensors(self):
        """q, k, v, dout (None forward)."""
        if self.data is None:
            torch.manual_seed(1)
            self.data = (self.random(self.hq, self.nq, self.d), self.random(self.hk, self.nk, self.d),
                         self.random(self.hk, self.nk, self.dv),
                         self.random(self.hq, self.nq, self.dv) if self.op == "bwd" else None)
        return self.data

    def ours(self, ffpa):
        """(call, path) of the library, which has run once."""
        q, k, v, dout = self.tensors()
        o, lse = self.random(self.hq, self.nq, self.dv), torch.empty(self.b, self.hq, self.nq, 1, device=DEVICE)
        params, name = ffpa.forward_params(q, k, v, o, lse, self.causal), "ffpa_forward"
        ffpa.call(name, ffpa.context, params)
        keep = [o, lse, params]
        if self.op == "bwd":
            grads = [torch.empty_like(t) for t in (q, k, v)]
            keep += [grads, params]
            params, name = ffpa.backward_params(params, dout, *grads), "ffpa_backward"
            ffpa.call(name, ffpa.context, params)
        function, argument = getattr(ffpa.lib, name), ctypes.byref(params)

        def run(keep=(keep, params)):
            if function(ffpa.context, argument):
                raise RuntimeError(ffpa.lib.ffpa_last_error().decode())
        return run, ffpa.path()

    def of_torch(self, backend):
        """One call by a backend of PyTorch, which may refuse when it runs; of backward, the forward has run."""
        q, k, v, dout = self.tensors()
        grouped = dict(enable_gqa=True) if self.hk != self.hq else {}

        def forward():
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **grouped)
        if self.op == "fwd":
            return forward
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        o = forward()

        def backward():
            with sdpa_kernel(backend):
                return torch.autograd.grad(o, (q, k, v), dout, retain_graph=True)
        return backward

    def fastest_of_torch(self):
        """(backend, call) of the fastest that runs, ("none", None) where none does. "math" writes the scores out: only
        where no other runs. Its causal is from the top left: no peer of ours where Nq is not Nk."""
        best = (float("inf"), "none", None)
        for name, backend in BACKENDS.items():
            if (name == "math" and best[2]) or (self.causal and self.nq != self.nk):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch says of each backend why it was not used
                    run = self.of_torch(backend)
                    ms = about(run)
            except RuntimeError:  # does not take it, or out of memory
                continue
            if ms < best[0]:
                best = (ms, name, run)
        return best[1:]


class Gemm:
    """bf16 8192^3, the roof."""

    FLOP = 2.0 * 8192**3

    def __init__(self):
        a, b, c = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
        self.run = lambda: torch.mm(a, b, out=c)


# ---- rows --------------------------------------------------------------------------------------------

def commit():
    """Of this tree: COMMIT in the environment where there is no repository."""
    known = os.environ.get("COMMIT")
    if known:
        return known
    try:
        return subprocess.run(["git", "-C", cpu.ROOT, "rev-parse", "--short", "HEAD"], check=True, capture_output=True,
                              text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def heading(protocol):
    return (f"# {torch.cuda.get_device_name()}; torch {torch.__version__}; {datetime.date.today()}; commit {commit()}; "
            f"{pathlib.Path(sys.argv[0]).name}, {protocol}")


class Table:
    """Rows shown and appended to a file as they come; no row begins after `seconds`, and one that fails is a comment."""

    def __init__(self, path, seconds):
        self.start, self.seconds = time.monotonic(), seconds
        self.file = open(path, "a", encoding="utf-8") if path else None
        self.failed, self.late = 0, []

    def tell(self, line):
        print(line, flush=True)
        if self.file:
            print(line, file=self.file, flush=True)

    def row(self, text, measure):
        """The row that measure(Case) gives."""
        if time.monotonic() - self.start > self.seconds:
            self.late.append(text)
            return
        for attempt in (lambda: self.tell(measure(Case(text))), torch.cuda.empty_cache):
            try:
                attempt()
            except Exception as e:  # noqa: BLE001 - one case must not lose the others
                self.failed += 1
                self.tell(f'# FAILED "{text}": {type(e).__name__}: {" ".join(str(e).split())[:300]}')

    def finish(self):
        """1 where a row failed; what was not run is said, and is no failure: the caller set the time."""
        if self.late:
            self.tell(f"# not run within {self.seconds:.0f} s: " + " ".join(self.late))
        if self.file:
            self.file.close()
        return int(self.failed > 0)
