"""flash-attn's three functions by name, argument and layout, over libffpa. What it does not do it refuses:
`from ffpa.flash_attn import flash_attn_func`."""
import torch

from ._attention import Extra
from ._library import invalid, unsupported, wrong_type
from ._torch_attention import attention
from ._torch_memory import check_plain
from ._torch_packed import varlen, with_cache


def _extra(causal, window_size, softcap, alibi_slopes, deterministic):
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise wrong_type("ffpa.flash_attn: window_size=%r is not a pair (left, right)" % (window_size,)) from None
    window = None if left < 0 and (right < 0 or causal) else (left, right)
    return Extra("bottom_right", window, softcap, None, alibi_slopes, True, deterministic, "auto", "auto")


def _refuse(**arguments):
    for name, (value, meaning) in arguments.items():
        if value:
            raise unsupported("ffpa.flash_attn: %s: %s" % (name, meaning))


def _result(out, lse, dropout_p, return_attn_probs):
    if not return_attn_probs:
        return out
    _refuse(return_attn_probs=(dropout_p > 0, "the dropped weights are never in memory; use it without dropout"))
    return out, lse, None


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """q [B, Nq, Hq, D], k and v [B, Nk, Hk, D]; causal and windows are bottom-right. With return_attn_probs also the
    lse [B, Hq, Nq] and None."""
    for name, t in zip("qkv", (q, k, v)):
        if not isinstance(t, torch.Tensor):
            raise wrong_type("ffpa.flash_attn: %s is a %s, not a torch.Tensor" % (name, type(t).__name__))
        if t.dim() != 4:
            raise invalid("ffpa.flash_attn: %s must be a tensor [batch, rows, heads, D]" % name)
    extra = _extra(causal, window_size, softcap, alibi_slopes, deterministic)
    out, lse = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, dropout_p, causal, softmax_scale,
                         True, extra)
    return _result(out.transpose(1, 2), lse, dropout_p, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Rows [total, heads, D]. The longest lengths are hints. With return_attn_probs also the lse [Hq, total] and None."""
    _refuse(block_table=(block_table is not None, "pages of packed sequences; flash_attn_with_kvcache takes pages"))
    extra = _extra(causal, window_size, softcap, alibi_slopes, deterministic)
    out, lse = varlen((q, k, v), (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k)), dropout_p, causal,
                      softmax_scale, extra)
    return _result(out, lse, dropout_p, return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False):
    """q [B, Nq, Hq, D] over caches [entries, capacity, Hk, D], or [pages, page_size, Hk, D] with a block_table. k and v
    are appended at cache_seqlens first. num_splits is a hint that this library does without."""
    _refuse(rotary_cos=(rotary_cos is not None or rotary_sin is not None, "rotary embedding is not part of this call"),
            cache_leftpad=(cache_leftpad is not None, "left padding of a cache"))
    for name, t in (("q", q), ("k_cache", k_cache)):
        check_plain(name, t)
    if cache_seqlens is None:
        if block_table is not None or k is not None:
            raise invalid("ffpa.flash_attn: cache_seqlens is required with block_table and with k")
        cache_seqlens = k_cache.shape[1]
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    extra = _extra(causal, window_size, softcap, alibi_slopes, False)
    out, lse = with_cache((q, k_cache, v_cache), (k, v), (cache_seqlens, cache_batch_idx, block_table), causal,
                          softmax_scale, extra)
    return (out, lse) if return_softmax_lse else out
