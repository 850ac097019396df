"""Attention over NumPy arrays and borrowed CPU arrays: the same rules of shape, without autograd and without copies."""
import numpy

from . import _dlpack, _numpy_memory as memory, _run
from ._library import invalid, unsupported
from ._problem import Tensors
from ._rules import first_that_can, flag, heads_of, options_of


def _array(name, a, least, most=4):
    a = memory.accept(name, a)
    if not least <= a.ndim <= most:
        wanted = "%d to %d axes" % (least, most) if least != most else "%d axes" % least if least > 1 else "one axis"
        raise invalid("ffpa: %s.shape=%s must have %s" % (name, tuple(a.shape), wanted))
    return a


def _view(a, shape, strides):
    """The same memory under another shape. `strides` as a.strides has them: elements of borrowed arrays, else bytes."""
    if isinstance(a, _dlpack.Borrowed):
        return a.with_axes(shape, strides)
    return numpy.lib.stride_tricks.as_strided(a, shape, strides, writeable=False)


def _axes(name, a, least=2):
    """Four axes, ones in front."""
    a = _array(name, a, least)
    front = 4 - a.ndim
    return a if not front else _view(a, (1,) * front + a.shape, (0,) * front + a.strides)


def _column(name, a):
    """[B, H, N] as [B, H, N, 1]."""
    a = _array(name, a, 3, 3)
    return _view(a, a.shape + (1,), a.strides + (1 if isinstance(a, _dlpack.Borrowed) else a.itemsize,))


def _expanded(a, batch, heads):
    """Axes of 1 as many, without a copy."""
    if a.shape[:2] == (batch, heads):
        return a
    strides = tuple(step if had == n else 0 for step, had, n in zip(a.strides, a.shape, (batch, heads)))
    return _view(a, (batch, heads) + a.shape[2:], strides + a.strides[2:])


def _broadcast(q, k, v, enable_gqa):
    """Equal batch, heads as attention wants them."""
    batches = {a.shape[0] for a in (q, k, v)} - {1}
    if len(batches) > 1:
        raise invalid("ffpa: the batch axes of query %s, key %s and value %s do not broadcast" % (q.shape, k.shape, v.shape))
    batch, heads = max(batches, default=1), heads_of(q.shape[1], k.shape[1], v.shape[1], enable_gqa)
    if any(a.shape[1] not in (1, h) for a, h in zip((k, v), heads[1:])):
        raise unsupported("ffpa: key has %d heads and value %d; groups of different size would need a copy" % (
            k.shape[1], v.shape[1]))
    return [_expanded(a, batch, h) for a, h in zip((q, k, v), heads)]


def _per_head(name, a):
    if a is None:
        return None
    a = _array(name, a, 1, 2 if name == "alibi" else 1)
    memory.check_dtype(name, a)
    if isinstance(a, _dlpack.Borrowed):
        raise unsupported("ffpa: %s must be a NumPy array" % name)
    return numpy.asarray(a, dtype=numpy.float32).reshape((a.shape[0], -1, 1, 1) if a.ndim == 2 else (1, -1, 1, 1))


def _prepare(rows, mask, dropout_p, is_causal, scale, enable_gqa, extra):
    """(tensors, options) without dropout's state."""
    q, k, v = (_axes(name, a) for name, a in zip(("query", "key", "value"), rows))
    for name, a in (("query", q), ("key", k), ("value", v)):
        memory.check_dtype(name, a)
    mask = None if mask is None else _axes("attn_mask", mask, least=1)
    options = options_of(extra, dropout_p, is_causal, scale, mask is not None, (q.shape[2], k.shape[2]))
    for name in (options.forward_backend, options.backward_backend):
        if "sdpa" in name.split(","):
            raise unsupported("ffpa: backend 'sdpa' is for PyTorch tensors")
    q, k, v = _broadcast(q, k, v, flag("enable_gqa", enable_gqa))
    return Tensors(q, k, v, mask, _per_head("alibi", extra.alibi), _per_head("sink", extra.sink)), options


def question_of(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra, backward):
    """Backend's name -> (status, report) of the library on a call that is not made."""
    tensors, options = _prepare((query, key, value), mask, dropout_p, is_causal, scale, enable_gqa, extra)
    if options.dropout_p:
        tensors = tensors._replace(rng=numpy.zeros(2, numpy.int64))
    return _run.question_of(memory, tensors, options, backward)


def attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra):
    rows = [memory.accept(name, a) for name, a in zip(("query", "key", "value"), (query, key, value))]
    tensors, options = _prepare(rows, mask, dropout_p, is_causal, scale, enable_gqa, extra)
    if options.dropout_p:  # NumPy's global generator, as numpy.random.seed() leaves it
        tensors = tensors._replace(rng=numpy.random.randint(-2**63, 2**63 - 1, 2, dtype=numpy.int64))
    o, lse = first_that_can(options.forward_backend, lambda name: _run.forward(
        memory, tensors, options._replace(forward_backend=name)))
    front = 4 - max(a.ndim for a in rows)
    o, lse = o.reshape(o.shape[front:]), lse.reshape(lse.shape[front:-1])
    return (o, lse) if extra.return_lse else o


def backward(upstream, rows, results, mask, is_causal, scale, extra):
    rows = [_array(name, a, 4) for name, a in zip(("query", "key", "value"), rows)]
    tensors, options = _prepare(rows, mask, 0.0, is_causal, scale, True, extra)
    if any(t.shape != tuple(a.shape) for t, a in zip(tensors[:3], rows)):
        raise invalid("ffpa: query, key and value must have one batch size for ffpa_attn_backward, not %s, %s and %s" % tuple(
            a.shape[0] for a in rows))
    dout, dlse = upstream
    out, lse = _array("out", results[0], 4), _column("lse", results[1])
    results = out, lse, _array("dout", dout, 4), None if dlse is None else _column("dlse", dlse)
    wanted = _run.all_gradients(_run.layouts_of(memory, tensors))
    found = first_that_can(options.backward_backend, lambda name: _run.backward(
        memory, tensors, options._replace(backward_backend=name), results, wanted))
    if "dsink" in found:
        found["dsink"] = found["dsink"].reshape(-1)
    return found


def merge(out_a, lse_a, out_b, lse_b):
    """As _attention.merge, whose arguments it names."""
    out, lse = _run.merge(memory, _array("out_a", out_a, 4), _column("lse_a", lse_a), _array("out_b", out_b, 4),
                          _column("lse_b", lse_b))
    return out, lse[..., 0]
