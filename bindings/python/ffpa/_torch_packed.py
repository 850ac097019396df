"""Packed sequences and KV caches over PyTorch tensors."""
import torch

from . import _torch_memory as memory, _torch_ops
from ._library import invalid, unsupported, wrong_type
from ._problem import Tensors
from ._rules import first_that_can, options_of
from ._torch_attention import autocast, per_head, random_state
from ._torch_autograd import attend, is_compiling, is_plain


def _rows(names, tensors, axes):
    """All on the device of the first."""
    for name, t in zip(names, tensors):
        memory.check_plain(name, t, None if t is tensors[0] else tensors[0].device)
        memory.check_dtype(name, t)
        if t.dim() != axes:
            raise invalid("ffpa: %s.shape=%s must have %d axes" % (name, tuple(t.shape), axes))
    return tensors


def _index(name, t, device, least=0):
    """One axis of whole numbers, `least` of them or more."""
    if t is None:
        return None
    memory.check_plain(name, t, device)
    if t.dim() != 1 or t.shape[0] < least or t.dtype not in (torch.int32, torch.int64):
        raise invalid("ffpa: %s of shape %s and dtype %s must be one axis of int32 or int64%s" % (
            name, tuple(t.shape), t.dtype, ", one entry or more" if least else ""))
    return t.contiguous()


def varlen(rows, offsets, longest, dropout_p, causal, scale, extra):
    q, k, v = autocast(*_rows(("query", "key", "value"), rows, 3))
    device = q.device
    cu_q, cu_k = (_index(name, t, device, least=1) for name, t in zip(("cu_seqlens_q", "cu_seqlens_k"), offsets))
    if cu_q is None or cu_k is None:
        raise invalid("ffpa: cu_seqlens_q and cu_seqlens_k are both required")
    if cu_q.shape != cu_k.shape:
        raise invalid("ffpa: cu_seqlens_q has %d offsets and cu_seqlens_k %d" % (cu_q.shape[0], cu_k.shape[0]))
    for name, most in zip(("max_seqlen_q", "max_seqlen_k"), longest):
        if not isinstance(most, (int, torch.SymInt)):
            raise wrong_type("ffpa: %s is a %s, not an int" % (name, type(most).__name__))
    options = options_of(extra, dropout_p, causal, scale)._replace(max_q=longest[0], max_k=longest[1], batch=cu_q.shape[0] - 1)
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))  # [1, H, total, D]
    sink, alibi = per_head("sink", extra.sink, device), per_head("alibi", extra.alibi, device)

    def attempt(name):
        if name == "sdpa":
            raise unsupported("ffpa: forward_backend='sdpa': PyTorch's attention has no packed sequences")
        rng = random_state(options.dropout_p, device)
        return attend(Tensors(q, k, v, None, alibi, sink, rng, cu_q, cu_k), options._replace(forward_backend=name))
    o, lse = first_that_can(options.forward_backend, attempt)
    o = o.squeeze(0).transpose(0, 1)
    return (o, lse[0, :, :, 0]) if extra.return_lse else o


_CACHE_ROWS = ("q", "k_cache", "v_cache", "k", "v")


def with_cache(rows, new, index, causal, scale, extra):
    """Over a KV cache, forward only. rows: q [B, Nq, Hq, D], caches [entries, capacity, Hk, D] or pages; new: k and v
    to append, or (None, None); index: lengths, batch_index, block_table."""
    if (new[0] is None) != (new[1] is None):
        raise invalid("ffpa: k and v are appended together; %s is missing" % ("k" if new[0] is None else "v"))
    given = _rows(_CACHE_ROWS, rows if new[0] is None else rows + new, 4)
    q, device, alibi = given[0], given[0].device, per_head("alibi", extra.alibi, given[0].device)
    for name, t in dict(zip(_CACHE_ROWS, given), alibi=alibi).items():
        if t is not None and t.requires_grad and torch.is_grad_enabled():
            raise unsupported("ffpa: %s.requires_grad is set, and attention over a KV cache has no gradient; call it under "
                              "torch.no_grad()" % name)
    lengths, batch_index = (_index(name, t, device) for name, t in zip(("cache_seqlens", "cache_batch_idx"), index))
    table = index[2]
    for name, t in zip(("cache_seqlens", "cache_batch_idx", "block_table"), (lengths, batch_index, table)):
        if t is not None and t.shape[:1] != q.shape[:1]:
            raise invalid("ffpa: %s has %d entries and q %d sequences" % (name, t.shape[0], q.shape[0]))
    if table is not None:
        memory.check_plain("block_table", table, device)
        if table.dim() != 2 or table.dtype not in (torch.int32, torch.int64) or table.stride(1) != 1:
            raise invalid("ffpa: block_table must be [batch, pages] in int32 or int64, its rows contiguous")
    options = options_of(extra, 0.0, causal, scale)
    asked = (lengths, batch_index, table), alibi, options.scale, options.causal, list(options.window or ()), options.softcap
    if is_compiling() or not is_plain((*given, *asked[0], alibi)):
        return _torch_ops.attend_over_cache(given, *asked)
    for cache in given[1:3] if len(given) == 5 else ():
        if not cache.is_inference():  # which has no version
            torch.autograd.graph.increment_version(cache)  # who saved it for a gradient learns that it changed
    return _torch_ops.over_cache(given, *asked)
