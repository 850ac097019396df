"""The public functions over any kind of array. Each looks at what it was given and goes to PyTorch's or NumPy's
side; neither is imported before it is needed."""
import sys
from typing import NamedTuple, Optional, Tuple

from . import _abi, _library, _run
from ._library import FfpaError, invalid, wrong_type
from ._rules import backends_of, first_that_can, flag


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


_tensor = _attempt = _overridden = _override = None  # PyTorch's and _torch_fast's, once torch is there


def has_torch():
    """Whether somebody has imported torch, to its end."""
    return hasattr(sys.modules.get("torch"), "compile")


def _is_tensor(array):
    if _tensor is None:
        if not has_torch():
            return False
        _with_torch()
    return isinstance(array, _tensor)


def _with_torch():
    global _tensor, _attempt, _overridden, _override
    import torch
    from . import _torch_fast, _torch_ops  # noqa: F401 - operators exist before something is compiled
    _tensor, _attempt, _overridden = torch.Tensor, _torch_fast.attempt, _torch_fast.overridden
    _override = torch.overrides.handle_torch_function


if has_torch():
    _with_torch()


def _is_causal_bias(mask):
    """PyTorch's CausalBias, known by where it comes from: importing that would bring all of torch._dynamo."""
    return type(mask).__module__ == "torch.nn.attention.bias"


def _of_bias(bias, query, key, is_causal):
    """attn_mask, is_causal, causal_align in the place of PyTorch's CausalBias, a tensor whose memory says nothing."""
    if is_causal:
        raise invalid("Explicit attn_mask should not be set when is_causal=True, and attn_mask is a CausalBias")
    lengths = [t.shape[-2] if _is_tensor(t) and t.dim() > 1 else None for t in (query, key)]
    if None not in lengths and lengths != [bias.seq_len_q, bias.seq_len_kv]:
        raise invalid("ffpa: attn_mask is a CausalBias for %d queries and %d keys; there are %d and %d" % (
            bias.seq_len_q, bias.seq_len_kv, *lengths))
    return None, True, "top_left" if bias.variant.name == "UPPER_LEFT" else "bottom_right"


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
    if _attempt is not None and dropout_p == 0 and sink is None and alibi is None:
        known = _attempt(query, key, value, attn_mask, (is_causal, scale, enable_gqa, causal_align, window, softcap,
                                                        deterministic, forward_backend, backward_backend, return_lse))
        if known is not None:
            return known
    tensors = _is_tensor(query)
    if tensors and _is_causal_bias(attn_mask):
        attn_mask, is_causal, causal_align = _of_bias(attn_mask, query, key, is_causal)
    extra = Extra(causal_align, window, softcap, sink, alibi, flag("return_lse", return_lse), deterministic, forward_backend,
                  backward_backend)
    if _overridden is not None and _overridden((query, key, value, attn_mask)):  # by a subclass, a mode, a symbolic tracer
        return _override(ffpa_attn_func, (query, key, value, attn_mask), query, key, value, attn_mask, dropout_p, is_causal,
                         scale, enable_gqa, **extra._asdict())
    if tensors:
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
        raise wrong_type("ffpa: query is a %s, not a torch.Tensor" % type(query).__name__)
    extra = Extra(causal_align, window, softcap, sink, alibi, flag("return_lse", return_lse), deterministic, forward_backend,
                  backward_backend)
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
    extra = Extra(causal_align, window, softcap, sink, alibi, False, deterministic, "auto", backward_backend)
    return backward((dout, dlse), (query, key, value), (out, lse), attn_mask, is_causal, scale, extra)


def merge(out_a, lse_a, out_b, lse_b):
    """(out, lse) of attention over two disjoint sets of keys, from the results over each: out [B, H, N, Dv],
    lse [B, H, N]. For keys that are spread over devices or over time. Without a gradient: call it under torch.no_grad()."""
    if _is_tensor(out_a):
        from ._torch_attention import merge
    else:
        from ._numpy_attention import merge
    return merge(out_a, lse_a, out_b, lse_b)


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
    processor and says everything, or the arguments of ffpa_attn_func, as they would be where their tensors are."""
    if _is_tensor(problem) and _is_causal_bias(attn_mask):
        attn_mask, is_causal, causal_align = _of_bias(attn_mask, problem, key, is_causal)
    extra = Extra(causal_align, window, softcap, sink, alibi, True, deterministic, backend, backend)
    text, reason, reports = "", "", [None]
    if isinstance(problem, str):
        besides = (key, value, attn_mask, scale, causal_align, window, sink, alibi)
        if any(b is not None for b in besides) or any((dropout_p, is_causal, enable_gqa, backward, softcap, deterministic)):
            raise invalid("ffpa.explain: a problem string says everything; besides it only backend=... is taken")
        text, question = _question_of_string(problem)
    else:
        if _is_tensor(problem):
            from ._torch_attention import question_of
        else:
            from ._numpy_attention import question_of
        question = question_of(problem, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, extra, backward)

    def attempt(name):
        if name == "sdpa":
            raise invalid("ffpa.explain: backend='sdpa' is PyTorch's attention, which does not say how it would run")
        status, reports[0] = question(name)
        _library.check(status)
    try:
        first_that_can(backends_of("backend", backend), attempt)
    except FfpaError as error:
        if error.status != _abi.FFPA_E_UNSUPPORTED or reports[0] is None:
            raise
        reason = error.sentence
    report = reports[0]
    return Report(text, "" if reason else report.path.decode(), reason, report.workspace_bytes, report.flop, report.bytes,
                  (report.tile_q, report.tile_k, report.tile_d), report.splits, report.threads,
                  tuple(report.refusals.decode().splitlines()))


def _question_of_string(problem):
    """Its canonical form, and backend's name -> (status, report)."""
    import ctypes
    parsed, canonical = _library.new(_abi.ffpa_problem), ctypes.create_string_buffer(1024)
    _library.check(_library.lib.ffpa_problem_parse(problem.encode(), ctypes.byref(parsed)))
    _library.check(_library.lib.ffpa_problem_format(ctypes.byref(parsed), canonical, len(canonical)))

    def question(backend):
        report = _library.new(_abi.ffpa_report)
        return _library.lib.ffpa_explain(_library.context(backend), ctypes.byref(parsed), ctypes.byref(report)), report
    return canonical.value.decode(), question


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
