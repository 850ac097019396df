"""scaled_dot_product_attention over PyTorch tensors: its shapes, broadcasting and rules, then the options that
PyTorch does not have."""
import torch

from . import _abi, _run, _torch_fast, _torch_memory as memory
from ._library import BACKENDS, FfpaError, invalid, unsupported
from ._problem import Options, Tensors
from ._torch_autograd import SDPA, attend, check_sdpa_knows, gqa_argument, is_compiling, is_plain

_ALIGNED = {None: _abi.FFPA_TOP_LEFT, "top_left": _abi.FFPA_TOP_LEFT, "bottom_right": _abi.FFPA_BOTTOM_RIGHT}


def prepare(given, dropout_p, is_causal, scale, enable_gqa, extra):
    """(rows, options): query, key, value and mask with four axes each, and what is asked of them."""
    q, k, v, mask = given
    check_inputs((q, k, v) if mask is None else given)
    q, k, v = autocast(q, k, v)
    if not (k.dtype == q.dtype == v.dtype):
        raise invalid("Expected query, key, and value to have the same dtype, but got query.dtype: %s key.dtype: %s "
                      "and value.dtype: %s instead." % (q.dtype, k.dtype, v.dtype))
    if mask is not None:
        check_mask(mask, q.dtype, is_causal and extra.causal_align is None)
    if dropout_p < 0.0 or dropout_p > 1.0:
        raise invalid("dropout probability has to be between 0 and 1, but got %s" % dropout_p)
    if extra.causal_align not in _ALIGNED:
        raise invalid("ffpa: causal_align=%r is neither 'top_left' nor 'bottom_right'" % (extra.causal_align,))
    if extra.window is not None and extra.causal_align == "top_left" and not is_causal and q.shape[-2] != k.shape[-2]:
        raise unsupported("ffpa: window=%s with causal_align='top_left' needs is_causal=True where query and key have "
                          "different lengths" % (extra.window,))
    if is_regular(q.shape, k.shape, v.shape, enable_gqa):
        rows = (q, k, v, mask if mask is None or mask.dim() == 4 else as_4d(mask))
    else:
        rows = broadcast(q, k, v, mask, enable_gqa)
    return rows, Options(scale, _ALIGNED[extra.causal_align] if is_causal else _abi.FFPA_CAUSAL_NONE, extra.window,
                         extra.softcap, dropout_p, extra.deterministic, extra.forward_backend, extra.backward_backend)


def attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, extra):
    """`extra` is a _attention.Extra: the options that PyTorch does not have."""
    given = (q, k, v, mask)
    rows, options = prepare(given, dropout_p, is_causal, scale, enable_gqa, extra)
    o, lse = with_backend(rows, extra.sink, extra.alibi, options, extra.return_lse)
    if not is_compiling() and options.forward_backend in BACKENDS and all(a is b for a, b in zip(given, rows)) \
            and not dropout_p and extra.sink is None is extra.alibi and is_plain(given):
        call = (is_causal, scale, enable_gqa, *extra[:3], *extra[6:9], extra.return_lse)  # as ffpa_attn_func has it
        _torch_fast.remember(given, call, options)
    if q.dim() != 4 or o.shape[:2] != q.shape[:2]:
        o, lse = unbroadcast(o, lse, q, k, v)
    return (o, lse.squeeze(-1)) if extra.return_lse else o


def ask(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra, backward):
    """(status, report) of the library on a call that is not made."""
    rows, options = prepare((query, key, value, mask), dropout_p, is_causal, scale, enable_gqa, extra)
    sink, alibi = (per_head(name, getattr(extra, name), query.device) for name in ("sink", "alibi"))
    rng = torch.zeros(2, dtype=torch.int64, device=query.device) if dropout_p else None  # no draw for a question
    tensors = Tensors(*rows, alibi, sink, rng)
    return _run.ask(memory, tensors, options, backward)


def is_regular(q, k, v, enable_gqa):
    """Shapes that the library takes as they are."""
    if not len(q) == len(k) == len(v) == 4 or not q[0] == k[0] == v[0] or k[1] != v[1]:
        return False
    return q[1] == k[1] or bool(enable_gqa and k[1] and q[1] % k[1] == 0)


def check_inputs(inputs):
    for name, t in zip(("query", "key", "value", "attn_mask"), inputs):
        if not isinstance(t, torch.Tensor) or t.is_nested or t.layout is not torch.strided or t.device != inputs[0].device \
                or t.device.type == "meta" and type(t) is torch.Tensor:
            memory.check_plain(name, t, inputs[0].device)
        elif t.dim() < 2 and name != "attn_mask":
            raise invalid("Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: %d, "
                          "key.dim: %d and value.dim: %d instead." % tuple(x.dim() for x in inputs[:3]))


def check_mask(mask, dtype, causal_too):
    if mask.dtype not in (torch.bool, torch.float32, dtype):
        raise invalid("Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
                      "%s and  query.dtype: %s instead." % (mask.dtype, dtype))
    if causal_too:
        raise invalid("Explicit attn_mask should not be set when is_causal=True (causal_align=... permits both)")


def autocast(q, k, v):
    """As autocast treats PyTorch's attention: every floating-point input except f64 in the lower dtype."""
    dtype = _torch_fast.autocast_dtype(q.device.type)
    if dtype is None or q.dtype == k.dtype == v.dtype == dtype:
        return q, k, v
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype is not torch.float64 else t for t in (q, k, v))


# ---- shapes: any leading axes, broadcast as matmul does --------------------------------------------------

def as_4d(t):
    """Leading axes of 1 in front, or the axes before the last three as one."""
    if t.dim() > 4:
        return t.flatten(0, t.dim() - 4)
    return t.reshape((1,) * (4 - t.dim()) + tuple(t.shape))


def broadcast(q, k, v, mask, enable_gqa):
    """Four axes each, equal batch, heads as attention wants them. Views where PyTorch can make views."""
    dims = max(q.dim(), k.dim(), v.dim(), 3)
    q, k, v = (t.reshape((1,) * (dims - t.dim()) + tuple(t.shape)) for t in (q, k, v))
    try:
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        heads = _heads(q.shape[-3], k.shape[-3], v.shape[-3], enable_gqa)
    except RuntimeError as error:
        if isinstance(error, FfpaError):
            raise
        raise invalid("ffpa: the batch axes of query %s, key %s and value %s do not broadcast" % (
            tuple(q.shape), tuple(k.shape), tuple(v.shape))) from None
    if mask is not None and mask.dim() > 4:
        mask = mask.expand(lead + tuple(mask.shape[-3:]))
    q, k, v = (_with_heads(t, lead, h) for t, h in zip((q, k, v), heads))
    return as_4d(q), as_4d(k), as_4d(v), None if mask is None else as_4d(mask)


def _heads(hq, hk, hv, enable_gqa):
    """Head counts to expand to. One key head serves all query heads as it is; so do groups, when enabled."""
    if enable_gqa:
        if 0 in (hk, hv) or hq % hk or hq % hv:
            raise invalid("Number of heads in key and value must divide the number of heads in query: query has %d "
                          "heads, key %d, value %d" % (hq, hk, hv))
        shared = hk if hk == hv else hq
        return hq, shared, shared
    full = max(hq, hk, hv) if 0 not in (hq, hk, hv) else 0
    if any(h not in (1, full) for h in (hq, hk, hv)):
        raise invalid("ffpa: query has %d heads, key %d, value %d; pass enable_gqa=True to share key heads" % (hq, hk, hv))
    return (full, 1, 1) if hk == hv == 1 else (full, full, full)


def _with_heads(t, lead, heads):
    had = t.shape[-3]
    if had not in (1, heads):  # groups where key and value differ: each head of the smaller one, repeated
        t = t.repeat_interleave(heads // had, -3)
    return t.expand(lead + (heads,) + tuple(t.shape[-2:]))


def unbroadcast(o, lse, q, k, v):
    """The caller's axes again."""
    dims = max(q.dim(), k.dim(), v.dim())
    if dims == 2:
        return [t if t is None else t[0, 0] for t in (o, lse)]
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    return [t if t is None else t.reshape(lead + tuple(t.shape[1:])) for t in (o, lse)]


# ---- tensors and options together -------------------------------------------------------------------------

def random_state(dropout_p, device):
    """Dropout's seed and offset, drawn by PyTorch's generator where the tensors are: no host waits for it, a CUDA
    graph draws anew at each replay, and what saves and restores the generator's state gets the same bits."""
    return torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=device) if dropout_p > 0.0 else None


def per_head(name, t, device):
    if t is None:
        return None
    memory.check_plain(name, t, device)
    t = t.float()
    if t.dim() == 1:
        return t.reshape(1, -1, 1, 1)
    if t.dim() == 2 and name == "alibi":
        return t.reshape(t.shape[0], -1, 1, 1)
    raise invalid("ffpa: %s.shape=%s; it must have one value a head%s" % (
        name, tuple(t.shape), ", or [batch, heads]" if name == "alibi" else ""))


def with_backend(rows, sink, alibi, options, want_lse):
    """Run on the backends named, in their order; the next one only where one says it does not do this."""
    q, k, v, mask = rows
    sink, alibi = per_head("sink", sink, q.device), per_head("alibi", alibi, q.device)
    if "," not in options.forward_backend and options.forward_backend != "sdpa":
        return attend(Tensors(q, k, v, mask, alibi, sink, random_state(options.dropout_p, q.device)), options)
    names = options.forward_backend.split(",")
    for name in names:
        chosen = options._replace(forward_backend=name.strip())
        try:
            if chosen.forward_backend == "sdpa":
                return _pytorch(Tensors(q, k, v, mask, alibi, sink), chosen, want_lse)
            return attend(Tensors(q, k, v, mask, alibi, sink, random_state(options.dropout_p, q.device)), chosen)
        except FfpaError as error:
            if error.status not in (_abi.FFPA_E_UNSUPPORTED, _abi.FFPA_E_NO_DEVICE) or name == names[-1]:
                raise


def _pytorch(tensors, options, want_lse):
    """PyTorch's own attention, because the caller named it."""
    if want_lse:
        raise unsupported("ffpa: backend 'sdpa' was asked for, but PyTorch's attention has no lse")
    if options.backward_backend not in ("auto", "sdpa"):
        raise invalid("ffpa: backward_backend=%r cannot follow forward_backend='sdpa', which keeps no lse" % (
            options.backward_backend,))
    check_sdpa_knows(tensors, options)
    q, k, v, mask = tensors[:4]
    o = SDPA(q, k, v, mask, options.dropout_p, bool(options.causal), scale=options.scale, **gqa_argument(tensors))
    if not is_compiling():
        _run.took("sdpa")
    return o, None
