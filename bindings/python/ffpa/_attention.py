"""The public functions over any kind of array. Each looks at what it was given and goes to PyTorch's or NumPy's
side; neither is imported before it is needed."""
import sys
from typing import NamedTuple, Optional, Tuple

from . import _abi, _library, _run
from ._library import invalid


class Extra(NamedTuple):
    """Options of ffpa_attn_func that PyTorch's attention does not have."""

    causal_align: Optional[str]
    window: Optional[Tuple[int, int]]
    softcap: float
    sink: object
    alibi: object
    return_lse: bool
    deterministic: bool
    forward_backend: str
    backward_backend: str


_tensor = _attempt = None  # torch.Tensor and _torch_fast.attempt, once torch is there


def _is_tensor(array):
    if _tensor is None:
        if "torch" not in sys.modules:
            return False
        _with_torch()
    return isinstance(array, _tensor)


def _with_torch():
    global _tensor, _attempt
    import torch
    from . import _torch_fast, _torch_ops  # noqa: F401 - operators exist before something is compiled
    _tensor, _attempt = torch.Tensor, _torch_fast.attempt


if "torch" in sys.modules:
    _with_torch()


def ffpa_attn_func(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *,
                   causal_align=None, window=None, softcap=0.0, sink=None, alibi=None, return_lse=False,
                   deterministic=False, forward_backend="auto", backward_backend="auto"):
    """Exact attention with the signature and the meaning of torch.nn.functional.scaled_dot_product_attention:
    query [..., Hq, Nq, D], key [..., Hk, Nk, D], value [..., Hk, Nk, Dv] give [..., Hq, Nq, Dv]. PyTorch tensors
    (with gradients), NumPy arrays, or anything on the CPU that speaks DLPack.

    Beyond PyTorch's arguments:
    causal_align     with is_causal: "top_left" (PyTorch's meaning, the default) or "bottom_right" (the last query
                     sees the last key). Named, it also permits a mask together with is_causal
    window           (left, right): keys that a query sees before and after its centre, i + Nk - Nq (i with top-left
                     causal); negative = unlimited
    softcap          c > 0: scores become c * tanh(score / c)
    sink             [Hq]: one more logit for each row, without a value
    alibi            [Hq] or [B, Hq] slopes: score -= slope * |i + Nk - Nq - j|
    return_lse       also return the logarithm of each row's sum, [..., Hq, Nq], f32, differentiable
    deterministic    the same bits from run to run
    forward_backend, backward_backend
                     "auto"; "cuda", "cpu", "reference", "naive"; a family of kernels such as "sm80", which must be
                     what runs; "sdpa", PyTorch's own. Names joined by commas are tried in turn, the next one only
                     where the one before does not support the call. ffpa.last_path() tells what ran
    Raises FfpaError with a sentence that names the argument."""
    if _attempt is not None and not dropout_p and sink is None and alibi is None:
        known = _attempt(query, key, value, attn_mask, (is_causal, scale, enable_gqa, causal_align, window, softcap,
                                                        deterministic, forward_backend, backward_backend, return_lse))
        if known is not None:
            return known
    extra = Extra(causal_align, window if window is None else tuple(window), softcap, sink, alibi, return_lse,
                  deterministic, forward_backend, backward_backend)
    if _is_tensor(query):
        from ._torch_attention import attention
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, extra)
    from ._numpy_attention import attention
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, extra)


def ffpa_attn_varlen_func(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=0, max_seqlen_k=0, *,
                          dropout_p=0.0, softmax_scale=None, causal=False, causal_align="bottom_right", window=None,
                          softcap=0.0, sink=None, alibi=None, return_lse=False, deterministic=False,
                          forward_backend="auto", backward_backend="auto"):
    """Attention over packed sequences: query [total_q, Hq, D], key [total_k, Hk, D], value [total_k, Hk, Dv] give
    [total_q, Hq, Dv]; sequence s owns rows cu_seqlens[s] .. cu_seqlens[s + 1] - 1. Offsets are int32 or int64 tensors
    on the device of query and are never read on the host; the longest lengths are hints, 0 = unknown. Alignment of
    causal, window and alibi counts within each sequence. Rows past the last offset come out as zeros. The lse of
    return_lse is [Hq, total_q]. The other options are ffpa_attn_func's; PyTorch tensors only."""
    if not _is_tensor(query):
        raise invalid("ffpa_attn_varlen_func: query is a %s, not a torch.Tensor" % type(query).__name__)
    extra = Extra(causal_align, window if window is None else tuple(window), softcap, sink, alibi, return_lse,
                  deterministic, forward_backend, backward_backend)
    from ._torch_packed import varlen
    return varlen((query, key, value), (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), dropout_p, causal,
                  softmax_scale, extra)


def ffpa_attn_backward(dout, query, key, value, out, lse, attn_mask=None, is_causal=False, scale=None, *, dlse=None,
                       causal_align=None, window=None, softcap=0.0, sink=None, alibi=None, deterministic=False,
                       backward_backend="auto"):
    """Gradients of ffpa_attn_func for NumPy and DLPack arrays of four axes, from the out and lse that it returned: a
    dictionary with "dq", "dk", "dv", with an additive mask "dmask", with a sink "dsink". PyTorch tensors have
    autograd instead."""
    from ._numpy_attention import backward
    extra = Extra(causal_align, window if window is None else tuple(window), softcap, sink, alibi, False,
                  deterministic, "auto", backward_backend)
    return backward((dout, dlse), (query, key, value), (out, lse), attn_mask, is_causal, scale, extra)


def merge(out_a, lse_a, out_b, lse_b):
    """(out, lse) of attention over two disjoint sets of keys, from the results over each: out [B, H, N, Dv],
    lse [B, H, N]. For keys that are spread over devices or over time. Without a gradient."""
    if _is_tensor(out_a):
        from . import _torch_memory as memory
    else:
        from . import _numpy_memory as memory
        out_a, lse_a, out_b, lse_b = (memory.accept(name, a) for name, a in (
            ("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b)))
    for name, a, axes in (("out_a", out_a, 4), ("lse_a", lse_a, 3), ("out_b", out_b, 4), ("lse_b", lse_b, 3)):
        if len(a.shape) != axes:
            raise invalid("ffpa.merge: %s.shape=%s must have %d axes" % (name, tuple(a.shape), axes))
    out, lse = _run.merge(memory, out_a, lse_a[..., None], out_b, lse_b[..., None])
    return out, lse[..., 0]


# ---- asking ---------------------------------------------------------------------------------------------

class Report(NamedTuple):
    """How a call would run. `path` is "" where none of the backends takes it; `reason` says why then."""

    problem: str
    path: str
    reason: str
    workspace_bytes: int
    flop: float
    bytes: float
    tiles: Tuple[int, int, int]
    splits: int
    threads: int
    refusals: Tuple[str, ...]


def explain(problem, key=None, value=None, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
            *, backward=False, backend="auto", causal_align=None, window=None, softcap=0.0, sink=None, alibi=None,
            deterministic=False):
    """How a call would run, without running it: path, workspace, FLOP, bytes, tiles, and why other backends were passed
    over. Either a problem string such as "fwd,bf16,b1h32k8,q4096k4096,d512,causal", as it would be on this machine's
    processor, or the arguments of ffpa_attn_func, as they would be where their tensors are."""
    import ctypes
    status, report, text = _abi.FFPA_OK, _library.new(_abi.ffpa_report), ""
    if isinstance(problem, str):
        parsed, canonical = _library.new(_abi.ffpa_problem), ctypes.create_string_buffer(1024)
        _library.check(_library.lib.ffpa_problem_parse(problem.encode(), ctypes.byref(parsed)))
        _library.check(_library.lib.ffpa_problem_format(ctypes.byref(parsed), canonical, len(canonical)))
        status = _library.lib.ffpa_explain(_library.context(backend), ctypes.byref(parsed), ctypes.byref(report))
        text = canonical.value.decode()
    else:
        extra = Extra(causal_align, window if window is None else tuple(window), softcap, sink, alibi, True, deterministic,
                      backend, backend)
        if _is_tensor(problem):
            from ._torch_attention import ask
        else:
            from ._numpy_attention import ask
        status, report = ask(problem, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, extra, backward)
    reason = _library.lib.ffpa_last_error().decode() if status else ""
    if status not in (_abi.FFPA_OK, _abi.FFPA_E_UNSUPPORTED):
        _library.check(status)
    return Report(text, "" if status else report.path.decode(), reason, report.workspace_bytes, report.flop, report.bytes,
                  (report.tile_q, report.tile_k, report.tile_d), report.splits, report.threads,
                  tuple(report.refusals.decode().splitlines()))


def prebuild(problem, arch, directory):
    """Compile the kernels of a problem string for a GPU architecture such as "sm_90a" into a directory, on a machine
    with NVRTC and no need of a GPU; FFPA_CACHE_DIR=directory uses it anywhere."""
    import ctypes
    parsed = _library.new(_abi.ffpa_problem)
    _library.check(_library.lib.ffpa_problem_parse(problem.encode(), ctypes.byref(parsed)))
    _library.check(_library.lib.ffpa_prebuild(_library.context("auto"), ctypes.byref(parsed), arch.encode(),
                                              str(directory).encode()))


def info():
    """What a bug report needs, as a dictionary: versions, the library's file, the context's own description."""
    import platform
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return {
        "ffpa": _library.version(), "library": _library.library_path, "context": _library.describe(),
        "python": platform.python_version(), "machine": platform.machine(), "system": platform.platform(),
        "numpy": getattr(numpy, "__version__", "not imported"), "torch": getattr(torch, "__version__", "not imported"),
    }
