"""Attention over NumPy arrays and borrowed CPU arrays: the same rules of shape, without autograd."""
import numpy

from . import _abi, _dlpack, _numpy_memory as memory, _run
from ._library import invalid, unsupported
from ._problem import Options, Tensors

_ALIGNED = {None: _abi.FFPA_TOP_LEFT, "top_left": _abi.FFPA_TOP_LEFT, "bottom_right": _abi.FFPA_BOTTOM_RIGHT}


def _axes(name, a, least=2):
    """Four axes, ones in front."""
    if not least <= a.ndim <= 4:
        raise invalid("ffpa: %s.shape=%s must have %d to 4 axes" % (name, tuple(a.shape), least))
    if a.ndim == 4:
        return a
    front = (1,) * (4 - a.ndim)
    if isinstance(a, _dlpack.Borrowed):
        return a.with_axes(front + a.shape, (0,) * len(front) + a.strides)
    return a.reshape(front + a.shape) if a.size == 0 else numpy.lib.stride_tricks.as_strided(
        a, front + a.shape, (0,) * len(front) + a.strides, writeable=False)


def _heads(name, a):
    if a is None:
        return None
    a = numpy.asarray(a, dtype=numpy.float32)
    return a.reshape((a.shape[0], -1, 1, 1) if a.ndim == 2 and name == "alibi" else (1, -1, 1, 1))


def _tensors(rows, mask, extra, rng=None):
    q, k, v = (_axes(name, memory.accept(name, a)) for name, a in zip(("query", "key", "value"), rows))
    if mask is not None:
        mask = _axes("attn_mask", memory.accept("attn_mask", mask), least=1)
    return Tensors(q, k, v, mask, _heads("alibi", extra.alibi), _heads("sink", extra.sink), rng)


def _options(extra, dropout_p, is_causal, scale):
    if extra.causal_align not in _ALIGNED:
        raise invalid("ffpa: causal_align=%r is neither 'top_left' nor 'bottom_right'" % (extra.causal_align,))
    for name in (extra.forward_backend, extra.backward_backend):
        if "sdpa" in name or "," in name:
            raise unsupported("ffpa: backend %r is for PyTorch tensors" % name)
    return Options(scale, _ALIGNED[extra.causal_align] if is_causal else _abi.FFPA_CAUSAL_NONE, extra.window,
                   extra.softcap, dropout_p, extra.deterministic, extra.forward_backend, extra.backward_backend)


def ask(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra, backward):
    """(status, report) of the library on a call that is not made."""
    return _run.ask(memory, _tensors((query, key, value), mask, extra), _options(extra, dropout_p, is_causal, scale),
                    backward)


def attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, extra):
    if not 0.0 <= dropout_p <= 1.0:
        raise invalid("dropout probability has to be between 0 and 1, but got %s" % dropout_p)
    if mask is not None and is_causal and extra.causal_align is None:
        raise invalid("Explicit attn_mask should not be set when is_causal=True (causal_align=... permits both)")
    rng = None
    if dropout_p > 0.0:  # NumPy's global generator, as numpy.random.seed() leaves it
        rng = numpy.random.randint(-2**63, 2**63 - 1, 2, dtype=numpy.int64)
    t = _tensors((query, key, value), mask, extra, rng)
    if not enable_gqa and t.k.shape[1] not in (1, t.q.shape[1]):
        raise invalid("ffpa: query has %d heads and key %d; pass enable_gqa=True to share key heads" % (
            t.q.shape[1], t.k.shape[1]))
    o, lse = _run.forward(memory, t, _options(extra, dropout_p, is_causal, scale))
    front = 4 - len(query.shape)
    o, lse = o.reshape(o.shape[front:]), lse.reshape(lse.shape[front:-1])
    return (o, lse) if extra.return_lse else o


def backward(upstream, rows, results, mask, is_causal, scale, extra):
    t = _tensors(rows, mask, extra)
    dout, dlse = upstream
    out, lse = results
    lse = _column("lse", lse)
    dlse = None if dlse is None else _column("dlse", dlse)
    out, dout = (_axes(name, memory.accept(name, a), least=4) for name, a in (("out", out), ("dout", dout)))
    wanted = ("dq", "dk", "dv")
    if t.mask is not None and memory.layout(t.mask).dtype != _abi.FFPA_BOOL:
        wanted += ("dmask",)
    if t.sink is not None:
        wanted += ("dsink",)
    found = _run.backward(memory, t, _options(extra, 0.0, is_causal, scale), (out, lse, dout, dlse), wanted)
    if "dsink" in found:
        found["dsink"] = found["dsink"].reshape(-1)
    return found


def _column(name, a):
    a = memory.accept(name, a)
    if isinstance(a, _dlpack.Borrowed) or a.ndim != 3:
        raise invalid("ffpa: %s must be a NumPy array [B, H, N]" % name)
    return a[..., None]
