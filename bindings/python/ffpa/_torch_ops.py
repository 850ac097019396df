"""torch.ops.ffpa: the same calls as operators of PyTorch's dispatcher, for torch.compile, export, fake tensors,
function transforms and dispatch modes. Plain eager calls do not come through here."""
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _run, _torch_memory as memory
from ._library import unsupported
from ._problem import Options, Tensors
from ._torch_autograd import (NO_FORWARD_MODE, NO_SECOND, gradients, is_compiling, is_transformed, refuse_batches,
                              refuse_gradients, refuse_tangents)

AVAILABLE = hasattr(torch.library, "custom_op")  # PyTorch 2.4


def _custom_op(name, **how):
    return torch.library.custom_op(name, **how) if AVAILABLE else lambda function: function


def _options(scale, causal, window, softcap, dropout_p, deterministic, backends, longest):
    return Options(scale, causal, tuple(window) if window else None, softcap, dropout_p, deterministic,
                   backends.split("/")[0], backends.split("/")[1], *longest)


def _arguments(options):
    """Of both operators after the tensors, in the order of their schema."""
    return (options.scale, options.causal, list(options.window or ()), float(options.softcap),
            float(options.dropout_p), options.deterministic,
            options.forward_backend + "/" + options.backward_backend, [options.max_q, options.max_k])


def _batch(tensors):
    offsets = tensors.cu_q if tensors.cu_q is not None else tensors.cu_k
    return 0 if offsets is None else offsets.shape[0] - 1


@_custom_op("ffpa::forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], alibi: Optional[Tensor], sink: Optional[Tensor],
            rng: Optional[Tensor], cu_q: Optional[Tensor], cu_k: Optional[Tensor], scale: Optional[float], causal: int,
            window: Sequence[int], softcap: float, dropout_p: float, deterministic: bool, backends: str,
            longest: Sequence[int]) -> Tuple[Tensor, Tensor]:
    tensors = Tensors(q, k, v, mask, alibi, sink, rng, cu_q, cu_k)
    options = _options(scale, causal, window, softcap, dropout_p, deterministic, backends, longest)
    return _run.forward(memory, tensors, options._replace(batch=_batch(tensors)))


def _rows_like(q, columns):
    """An empty tensor as output_layout() lays one out."""
    b, h, n, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((b, n, h, columns)).transpose(1, 2)
    return q.new_empty((b, h, n, columns))


def _forward_fake(q, k, v, mask, alibi, sink, rng, cu_q, cu_k, scale, causal, window, softcap, dropout_p, deterministic,
                  backends, longest):
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _rows_like(q, v.shape[3]), q.new_empty(tuple(q.shape[:3]) + (1,), dtype=dtype)


@_custom_op("ffpa::backward", mutates_args=())
def backward(dout: Optional[Tensor], dlse: Optional[Tensor], o: Tensor, lse: Tensor, wanted: str, q: Tensor, k: Tensor,
             v: Tensor, mask: Optional[Tensor], alibi: Optional[Tensor], sink: Optional[Tensor], rng: Optional[Tensor],
             cu_q: Optional[Tensor], cu_k: Optional[Tensor], scale: Optional[float], causal: int, window: Sequence[int],
             softcap: float, dropout_p: float, deterministic: bool, backends: str,
             longest: Sequence[int]) -> List[Tensor]:
    tensors = Tensors(q, k, v, mask, alibi, sink, rng, cu_q, cu_k)
    options = _options(scale, causal, window, softcap, dropout_p, deterministic, backends, longest)
    names = tuple(wanted.split(","))
    found = gradients(tensors, options._replace(batch=_batch(tensors)), o, lse, dout, dlse, names)
    return [found[name] for name in names]


def _backward_fake(dout, dlse, o, lse, wanted, q, k, v, mask, alibi, sink, *rest):
    made = {"dq": (q, q.shape[3]), "dk": (k, k.shape[3]), "dv": (v, v.shape[3])}
    dense = {"dmask": mask, "dsink": sink}
    return [_rows_like(*made[name]) if name in made else dense[name].new_empty(dense[name].shape)
            for name in wanted.split(",")]


@_custom_op("ffpa::merge", mutates_args=())
def merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> Tuple[Tensor, Tensor]:
    return _run.merge(memory, o_a, lse_a, o_b, lse_b)


def _merge_fake(o_a, lse_a, o_b, lse_b):
    return o_a.new_empty(o_a.shape), lse_a.new_empty(lse_a.shape)


def over_cache(rows, index, alibi, scale, causal, window, softcap):
    """rows: q and the caches, rows before heads, and what is appended; index: lengths, batch_index, block_table."""
    q, k, v, k_new, v_new = (*[t.transpose(1, 2) for t in rows], None, None)[:5]
    tensors = Tensors(q, k, v, None, alibi, None, None, None, None, *index, k_new, v_new)
    o, lse = _run.forward(memory, tensors, Options(scale, causal, tuple(window) if window else None, softcap))
    return o.transpose(1, 2), lse.squeeze(-1)


@_custom_op("ffpa::forward_cached", mutates_args=())
def forward_cached(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, batch_index: Optional[Tensor],
                   block_table: Optional[Tensor], alibi: Optional[Tensor], scale: Optional[float], causal: int,
                   window: Sequence[int], softcap: float) -> Tuple[Tensor, Tensor]:
    return over_cache((q, k_cache, v_cache), (lengths, batch_index, block_table), alibi, scale, causal, window, softcap)


@_custom_op("ffpa::forward_appending", mutates_args=("k_cache", "v_cache"))
def forward_appending(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor,
                      batch_index: Optional[Tensor], block_table: Optional[Tensor], alibi: Optional[Tensor],
                      scale: Optional[float], causal: int, window: Sequence[int],
                      softcap: float) -> Tuple[Tensor, Tensor]:
    return over_cache((q, k_cache, v_cache, k, v), (lengths, batch_index, block_table), alibi, scale, causal, window,
                      softcap)


def _cached_fake(q, k_cache, v_cache, *rest):
    rows = q.transpose(1, 2)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _rows_like(rows, v_cache.shape[3]).transpose(1, 2), q.new_empty(tuple(rows.shape[:3]), dtype=dtype)


def _setup_context(ctx, inputs, output):
    tensors = Tensors(*inputs[:9])
    refuse_gradients(tensors)
    o, lse = output
    ctx.save_for_backward(o, lse, *inputs[:9])
    ctx.rest = inputs[9:]
    ctx.set_materialize_grads(False)


_INPUTS = {"dq": 0, "dk": 1, "dv": 2, "dmask": 3, "dsink": 5}


def _gradient(ctx, dout, dlse):
    o, lse, *inputs = ctx.saved_tensors
    wanted = [name for name, at in _INPUTS.items() if ctx.needs_input_grad[at]]
    result = [None] * (len(inputs) + len(ctx.rest))
    if wanted and (dout is not None or dlse is not None):
        refuse_batches(dout, dlse)
        found = torch.ops.ffpa.backward(dout, dlse, o, lse, ",".join(wanted), *inputs, *ctx.rest)
        for name, gradient in zip(wanted, found):
            result[_INPUTS[name]] = gradient
    return tuple(result)


# ---- vmap: the mapped axis joins the batch ------------------------------------------------------------------

def _folded(t, dim, size, batch):
    """[B, ...] with a mapped axis somewhere as [size * B, ...]. What is not mapped is repeated, as a view if it can."""
    if t is None:
        return None
    t = t.movedim(dim, 0) if dim is not None else t.expand((size,) + tuple(t.shape))
    if t.shape[1] != batch:  # a broadcast batch axis cannot stay 1 beside a mapped one
        t = t.expand((size, batch) + tuple(t.shape[2:]))
    return t.flatten(0, 1)


def _fold(tensors, dims, size):
    if tensors.cu_q is not None or tensors.cu_k is not None:
        raise unsupported("ffpa: vmap over packed sequences is not supported; pack the mapped axis as well")
    if dims[5] is not None:
        raise unsupported("ffpa: vmap over sink is not supported")
    if tensors.rng is not None:
        raise unsupported("ffpa: vmap with dropout is not supported")
    batch = tensors.q.shape[0 if dims[0] != 0 else 1]
    folded = {}
    for name, dim in zip(("q", "k", "v", "mask", "alibi"), dims):
        t = getattr(tensors, name)
        if t is not None and not (name in ("mask", "alibi") and dim is None and t.shape[0] == 1):
            folded[name] = _folded(t, dim, size, batch)
    return tensors._replace(**folded), batch


def _forward_vmap(info, in_dims, *arguments):
    tensors, batch = _fold(Tensors(*arguments[:9]), in_dims, info.batch_size)
    o, lse = torch.ops.ffpa.forward(*tensors[:9], *arguments[9:])
    return tuple(t.unflatten(0, (info.batch_size, batch)) for t in (o, lse)), (0, 0)


def _backward_vmap(info, in_dims, dout, dlse, o, lse, wanted, *arguments):
    tensors, dims, size = Tensors(*arguments[:9]), in_dims[5:], info.batch_size
    if "dsink" in wanted or "dmask" in wanted:
        raise unsupported("ffpa: vmap over the gradient of a mask or a sink is not supported")
    folded, batch = _fold(tensors, dims, size)
    results = [_folded(t, dim, size, batch) for t, dim in zip((dout, dlse, o, lse), in_dims)]
    found = torch.ops.ffpa.backward(*results, wanted, *folded[:9], *arguments[9:])
    return [t.unflatten(0, (size, batch)) for t in found], [0] * len(found)


def _no_second(ctx, *unused):
    raise unsupported(NO_SECOND)


if AVAILABLE:
    forward.register_fake(_forward_fake)
    backward.register_fake(_backward_fake)
    merge.register_fake(_merge_fake)
    forward_cached.register_fake(_cached_fake)
    forward_appending.register_fake(_cached_fake)
    forward.register_autograd(_gradient, setup_context=_setup_context)
    backward.register_autograd(_no_second)
    if hasattr(torch.library, "register_vmap"):
        torch.library.register_vmap("ffpa::forward", _forward_vmap)
        torch.library.register_vmap("ffpa::backward", _backward_vmap)


class Transformed(torch.autograd.Function):
    """The operators under function transforms, which do not look into an operator's own autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rest, *inputs):
        return torch.ops.ffpa.forward(*inputs, *rest)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output, *inputs[1:])
        ctx.rest = inputs[0]

    @staticmethod
    def backward(ctx, dout, dlse):
        o, lse, *inputs = ctx.saved_tensors
        wanted = [name for name, at in _INPUTS.items() if ctx.needs_input_grad[1 + at]]
        result = [None] * (1 + len(inputs))
        if wanted:
            found = TransformedBackward.apply(",".join(wanted), ctx.rest, dout, dlse, o, lse, *inputs)
            for name, gradient in zip(wanted, found):
                result[1 + _INPUTS[name]] = gradient
        return tuple(result)

    @staticmethod
    def jvp(ctx, *unused):
        raise unsupported("ffpa: " + NO_FORWARD_MODE)


class TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(wanted, rest, dout, dlse, o, lse, *inputs):
        return tuple(torch.ops.ffpa.backward(dout, dlse, o, lse, wanted, *inputs, *rest))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *unused):
        raise unsupported(NO_SECOND)

    @staticmethod
    def jvp(ctx, *unused):
        raise unsupported("ffpa: " + NO_FORWARD_MODE)


def require():
    if not AVAILABLE:
        raise unsupported("ffpa: torch.compile, function transforms and tensor subclasses need PyTorch 2.4 or newer; "
                          "this is %s" % torch.__version__)


def attend_over_cache(rows, index, *rest):
    require()
    for name, t in zip(("k_cache", "v_cache"), rows[1:3] if len(rows) == 5 and not is_compiling() else ()):
        if t.is_neg():  # which PyTorch would write to a copy
            raise unsupported("ffpa: %s is lazily negated (%s.resolve_neg() is not), and rows are to be appended" % (name, name))
    if not is_compiling() and is_transformed():
        raise unsupported("ffpa: attention over a KV cache does not go with function transforms (torch.vmap, torch.func)")
    refuse_tangents(Tensors(*rows[:3], alibi=rest[0]))
    call = torch.ops.ffpa.forward_cached if len(rows) == 3 else torch.ops.ffpa.forward_appending
    return call(*rows, *index, *rest)


def attend(tensors, options):
    require()
    if not is_compiling() and is_transformed():
        return Transformed.apply(_arguments(options), *tensors[:9])
    return torch.ops.ffpa.forward(*tensors[:9], *_arguments(options))


def derive(tensors, options, results, wanted):
    """Gradients in the order of `wanted`; results are (o, lse, dout or None, dlse or None)."""
    require()
    o, lse, dout, dlse = results
    return torch.ops.ffpa.backward(dout, dlse, o, lse, ",".join(wanted), *tensors[:9], *_arguments(options))
