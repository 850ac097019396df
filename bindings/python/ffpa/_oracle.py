"""Attention and its gradient in float64 NumPy, written from docs/numerics.md: what selftest and the tests compare
with. Slow, and holds every score."""
import numpy


def _shared(k, hq):
    return numpy.repeat(k, hq // k.shape[1], axis=1)


def _allowed(shape, causal, window):
    """Keys that causal and window permit, [Nq, Nk]."""
    nq, nk = shape
    i, j = numpy.arange(nq)[:, None], numpy.arange(nk)[None, :]
    centre = i if causal == "top_left" else i + nk - nq
    keep = numpy.ones(shape, bool)
    if causal:
        keep &= j <= centre
    if window:
        left, right = window
        keep &= (left < 0) | (j >= centre - left)
        keep &= (right < 0) | (j <= centre + right)
    return keep


def scores(q, k, scale=None, causal=None, window=None, softcap=0.0, mask=None, alibi=None):
    """(s, t): scores with -inf where a key is not allowed, and before mask and alibi."""
    d = q.shape[3]
    t = (1.0 / numpy.sqrt(d) if scale is None else scale) * (q @ _shared(k, q.shape[1]).swapaxes(2, 3))
    if softcap:
        t = softcap * numpy.tanh(t / softcap)
    s, shape = t.copy(), t.shape[2:]
    if alibi is not None:
        i, j = numpy.arange(shape[0])[:, None], numpy.arange(shape[1])[None, :]
        s = s - alibi.reshape(-1, q.shape[1], 1, 1) * abs(i + shape[1] - shape[0] - j)
    if mask is not None:
        s = numpy.where(mask, s, -numpy.inf) if mask.dtype == bool else s + mask
    return numpy.where(_allowed(shape, causal, window), s, -numpy.inf), t


def forward(q, k, v, sink=None, **options):
    """(o, lse, p): p are the weights, [B, Hq, Nq, Nk]."""
    s, _ = scores(q, k, **options)
    extra = numpy.full(s.shape[:3], -numpy.inf) if sink is None else numpy.broadcast_to(sink[None, :, None], s.shape[:3])
    top = numpy.maximum(s.max(3, initial=-numpy.inf), extra)
    top = numpy.where(numpy.isfinite(top), top, 0.0)
    with numpy.errstate(divide="ignore"):
        lse = top + numpy.log(numpy.exp(s - top[..., None]).sum(3) + numpy.exp(extra - top))
    p = numpy.where(numpy.isneginf(s), 0.0, numpy.exp(s - numpy.where(numpy.isfinite(lse), lse, 0.0)[..., None]))
    return p @ _shared(v, q.shape[1]), lse, p


def backward(dout, q, k, v, dlse=None, sink=None, mask=None, **options):
    """Gradients by name."""
    o, lse, p = forward(q, k, v, sink=sink, mask=mask, **options)
    _, t = scores(q, k, mask=mask, **options)
    hq, hk = q.shape[1], k.shape[1]
    scale, softcap = options.get("scale"), options.get("softcap", 0.0)
    scale = 1.0 / numpy.sqrt(q.shape[3]) if scale is None else scale
    delta = (dout * o).sum(3) - (0.0 if dlse is None else dlse)
    ds = p * (dout @ _shared(v, hq).swapaxes(2, 3) - delta[..., None])
    dx = ds * (1 - (t / softcap) ** 2) if softcap else ds
    group = lambda x: x.reshape(x.shape[0], hk, hq // hk, *x.shape[2:]).sum(2)
    found = {"dq": scale * dx @ _shared(k, hq), "dk": group(scale * dx.swapaxes(2, 3) @ q),
             "dv": group(p.swapaxes(2, 3) @ dout)}
    if mask is not None and mask.dtype != bool:
        axes = tuple(a for a in range(4) if mask.shape[a] == 1)
        found["dmask"] = ds.sum(axes, keepdims=True) if axes else ds
    if sink is not None:
        with numpy.errstate(invalid="ignore"):
            weight = numpy.exp(sink[None, :, None] - lse)
        found["dsink"] = -(numpy.where(numpy.isfinite(weight), weight, 0.0) * delta).sum((0, 2))
    return found
