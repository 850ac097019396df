"""Packed sequences and KV caches over PyTorch tensors."""
import torch

from . import _abi, _run, _torch_memory as memory
from ._library import invalid, unsupported
from ._problem import Options, Tensors
from ._torch_attention import _ALIGNED, autocast, per_head, random_state
from ._torch_autograd import attend, refuse_gradients


def _rows(name, t, device, axes):
    memory.check_plain(name, t, device)
    if t.dim() != axes:
        raise invalid("ffpa: %s.shape=%s must have %d axes" % (name, tuple(t.shape), axes))
    return t


def _offsets(name, t, device):
    if t is None:
        return None
    memory.check_plain(name, t, device)
    if t.dim() != 1 or t.shape[0] < 1 or t.dtype not in (torch.int32, torch.int64):
        raise invalid("ffpa: %s of shape %s and dtype %s must be one axis of offsets in int32 or int64" % (
            name, tuple(t.shape), t.dtype))
    return t.contiguous()


def _aligned(extra, causal):
    if extra.causal_align not in _ALIGNED:
        raise invalid("ffpa: causal_align=%r is neither 'top_left' nor 'bottom_right'" % (extra.causal_align,))
    return _ALIGNED[extra.causal_align] if causal else _abi.FFPA_CAUSAL_NONE


def varlen(rows, offsets, longest, dropout_p, causal, scale, extra):
    device = rows[0].device
    q, k, v = autocast(*[_rows(name, t, device, 3) for name, t in zip(("query", "key", "value"), rows)])
    cu_q, cu_k = (_offsets(name, t, device) for name, t in zip(("cu_seqlens_q", "cu_seqlens_k"), offsets))
    if cu_q is None or cu_k is None:
        raise invalid("ffpa: cu_seqlens_q and cu_seqlens_k are both required")
    if cu_q.shape != cu_k.shape:
        raise invalid("ffpa: cu_seqlens_q has %d offsets and cu_seqlens_k %d" % (cu_q.shape[0], cu_k.shape[0]))
    if "sdpa" in extra.forward_backend or "," in extra.forward_backend:
        raise unsupported("ffpa: forward_backend=%r: PyTorch's attention has no packed sequences" % extra.forward_backend)
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))  # [1, H, total, D]
    sink, alibi = per_head("sink", extra.sink, device), per_head("alibi", extra.alibi, device)
    options = Options(scale, _aligned(extra, causal), extra.window, extra.softcap, dropout_p, extra.deterministic,
                      extra.forward_backend, extra.backward_backend, longest[0], longest[1], cu_q.shape[0] - 1)
    o, lse = attend(Tensors(q, k, v, None, alibi, sink, random_state(dropout_p, device), cu_q, cu_k), options)
    o = o.squeeze(0).transpose(0, 1)
    return (o, lse[0, :, :, 0]) if extra.return_lse else o


def with_cache(rows, new, index, causal, scale, extra):
    """Over a KV cache, forward only. rows: q [B, Nq, Hq, D], caches [entries, capacity, Hk, D] or pages; new: k and v
    to append, or (None, None); index: lengths, batch_index, block_table."""
    device = rows[0].device
    names = ("q", "k_cache", "v_cache")
    q, k, v = (_rows(name, t, device, 4).transpose(1, 2) for name, t in zip(names, rows))
    k_new, v_new = (None if t is None else _rows(name, t, device, 4).transpose(1, 2) for name, t in zip("kv", new))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, k_new, v_new)):
        raise unsupported("ffpa: attention over a KV cache has no gradient; call it under torch.no_grad()")
    lengths, batch_index = (_offsets(name, t, device) for name, t in zip(("cache_seqlens", "cache_batch_idx"), index))
    table = index[2]
    if table is not None:
        memory.check_plain("block_table", table, device)
        if table.dim() != 2 or table.dtype not in (torch.int32, torch.int64) or table.stride(1) != 1:
            raise invalid("ffpa: block_table must be [batch, pages] in int32 or int64, its rows contiguous")
    tensors = Tensors(q, k, v, alibi=per_head("alibi", extra.alibi, device), sink=per_head("sink", extra.sink, device),
                      lengths=lengths, batch_index=batch_index, block_table=table, k_new=k_new, v_new=v_new)
    refuse_gradients(tensors)
    options = Options(scale, _aligned(extra, causal), extra.window, extra.softcap, 0.0, extra.deterministic,
                      extra.forward_backend, extra.backward_backend)
    o, lse = _run.forward(memory, tensors, options)
    return o.transpose(1, 2), lse.squeeze(-1)
