"""scaled_dot_product_attention over PyTorch tensors: its shapes, broadcasting and rules, then the options that
PyTorch does not have."""
import torch

from . import _run, _torch_fast, _torch_memory as memory, _torch_ops
from ._library import BACKENDS, FfpaError, invalid, unsupported
from ._problem import Tensors
from ._rules import first_that_can, flag, heads_of, options_of
from ._torch_autograd import SDPA, attend, check_sdpa_knows, gqa_argument, is_compiling, is_plain


def prepare(given, dropout_p, is_causal, scale, enable_gqa, extra):
    """(rows, options): query, key, value and mask with four axes each, and what is asked of them. enable_gqa is a bool."""
    q, k, v, mask = given
    check_inputs((q, k, v) if mask is None else given)
    q, k, v = autocast(q, k, v)
    if not (k.dtype == q.dtype == v.dtype):
        raise invalid("Expected query, key, and value to have the same dtype, but got query.dtype: %s key.dtype: %s "
                      "and value.dtype: %s instead." % (q.dtype, k.dtype, v.dtype))
    memory.check_dtype("query", q)
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise invalid("Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
                      "%s and  query.dtype: %s instead." % (mask.dtype, q.dtype))
    options = options_of(extra, dropout_p, is_causal, scale, mask is not None, (q.shape[-2], k.shape[-2]))
    if is_regular(q.shape, k.shape, v.shape, enable_gqa) and (mask is None or mask.dim() <= 4):
        rows = (q, k, v, mask if mask is None or mask.dim() == 4 else as_4d(mask))
    else:
        rows = broadcast(q, k, v, mask, enable_gqa)
    return rows, options


def attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, extra):
    """`extra` is a _attention.Extra: the options that PyTorch does not have."""
    given, enable_gqa = (q, k, v, mask), flag("enable_gqa", enable_gqa)
    rows, options = prepare(given, dropout_p, is_causal, scale, enable_gqa, extra)
    o, lse = with_backend(rows, extra.sink, extra.alibi, options, extra.return_lse)
    if not is_compiling() and options.forward_backend in BACKENDS and all(a is b for a, b in zip(given, rows)) \
            and not options.dropout_p and extra.sink is None is extra.alibi and is_plain(given):
        call = (bool(is_causal), options.scale, enable_gqa, extra.causal_align, options.window, options.softcap,
                options.deterministic, options.forward_backend, options.backward_backend, extra.return_lse)
        _torch_fast.remember(given, call, options)
    if not q.dim() == k.dim() == v.dim() == 4:
        o, lse = unbroadcast(o, lse, q, k, v)
    return (o, lse.squeeze(-1)) if extra.return_lse else o


def question_of(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra, backward):
    """Backend's name -> (status, report) of the library on a call that is not made."""
    enable_gqa = flag("enable_gqa", enable_gqa)
    rows, options = prepare((query, key, value, mask), dropout_p, is_causal, scale, enable_gqa, extra)
    sink, alibi = (per_head(name, getattr(extra, name), query.device) for name in ("sink", "alibi"))
    rng = torch.zeros(2, dtype=torch.int64, device=query.device) if options.dropout_p else None  # no draw for a question
    return _run.question_of(memory, Tensors(*rows, alibi, sink, rng), options, backward)


def merge(out_a, lse_a, out_b, lse_b):
    """As _attention.merge, whose arguments it names."""
    parts = (out_a, lse_a, out_b, lse_b)
    for name, t, axes in zip(("out_a", "lse_a", "out_b", "lse_b"), parts, (4, 3, 4, 3)):
        memory.check_plain(name, t, None if t is out_a else out_a.device)
        memory.check_dtype(name, t)
        if t.dim() != axes:
            raise invalid("ffpa: %s.shape=%s must have %d axes" % (name, tuple(t.shape), axes))
        if t.requires_grad and torch.is_grad_enabled():
            raise unsupported("ffpa: %s.requires_grad is set; merge has no gradient: call it under torch.no_grad()" % name)
    out_a, lse_a, out_b, lse_b = (out_a, lse_a.unsqueeze(-1), out_b, lse_b.unsqueeze(-1))
    if is_compiling() or not is_plain(parts):
        _torch_ops.require()
        out, lse = torch.ops.ffpa.merge(out_a, lse_a, out_b, lse_b)
    else:
        out, lse = _run.merge(memory, out_a, lse_a, out_b, lse_b)
    return out, lse.squeeze(-1)


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
        heads = heads_of(q.shape[-3], k.shape[-3], v.shape[-3], enable_gqa)
    except RuntimeError as error:
        if isinstance(error, FfpaError):
            raise
        raise invalid("ffpa: the batch axes of query %s, key %s and value %s do not broadcast" % (
            tuple(q.shape), tuple(k.shape), tuple(v.shape))) from None
    if mask is not None and (mask.dim() > 4 or dims > 4 and mask.dim() == 4):
        own = mask.shape[:-3]
        if len(own) > len(lead) or any(n not in (1, full) for n, full in zip(reversed(own), reversed(lead))):
            raise invalid("ffpa: attn_mask.shape=%s does not broadcast to query, key and value, whose batch axes are %s" % (
                tuple(mask.shape), tuple(lead)))
        mask = mask.expand(lead + tuple(mask.shape[-3:]))
    q, k, v = (_with_heads(t, lead, h) for t, h in zip((q, k, v), heads))
    return as_4d(q), as_4d(k), as_4d(v), None if mask is None else as_4d(mask)


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
    memory.check_dtype(name, t)
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

    def attempt(name):
        chosen = options._replace(forward_backend=name)
        if name == "sdpa":
            return _pytorch(Tensors(q, k, v, mask, alibi, sink), chosen, want_lse)
        if mask is not None and mask.dtype == torch.float64:
            raise unsupported("ffpa: attn_mask.dtype=torch.float64 is none of bool, float32, float16, bfloat16")
        if is_compiling() and q.dtype == torch.float64 and name != options.forward_backend and name != "reference":
            raise unsupported("ffpa: query.dtype=torch.float64 is for forward_backend='reference'")  # not seen before it runs
        return attend(Tensors(q, k, v, mask, alibi, sink, random_state(options.dropout_p, q.device)), chosen)
    return first_that_can(options.forward_backend, attempt)


def _pytorch(tensors, options, want_lse):
    """PyTorch's own attention, because the caller named it."""
    if want_lse:
        raise unsupported("ffpa: backend 'sdpa' was asked for, but PyTorch's attention has no lse")
    if not {"auto", "sdpa"} & set(options.backward_backend.split(",")):
        raise invalid("ffpa: backward_backend=%r cannot follow forward_backend='sdpa', which keeps no lse" % (
            options.backward_backend,))
    check_sdpa_knows(tensors, options)
    q, k, v, mask = tensors[:4]
    o = SDPA(q, k, v, mask, options.dropout_p, bool(options.causal), scale=options.scale, **gqa_argument(tensors))
    if not is_compiling():
        _run.took("sdpa")
    return o, None
