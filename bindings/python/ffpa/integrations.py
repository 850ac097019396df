"""Registration with packages that let attention be chosen by name:

    ffpa.register_transformers()    then AutoModel.from_pretrained(..., attn_implementation="ffpa")
    ffpa.register_diffusers()       then model.set_attention_backend("ffpa")
"""
from ._attention import ffpa_attn_func
from ._library import unsupported


def transformers_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
                           softcap=None, s_aux=None, position_bias=None, **kwargs):
    """The attention function of transformers' AttentionInterface, over [B, H, N, D]. Groups of heads are computed as
    they are, without repeating keys; softcap, sinks (s_aux) and position biases, too. Windows arrive in the mask."""
    if kwargs.get("output_attentions"):
        raise unsupported("ffpa: output_attentions=True: the weights are never in memory; use attn_implementation='eager'")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # As for PyTorch's attention: a mask says everything, and a single row sees all keys.
    is_causal = query.shape[2] > 1 and attention_mask is None and bool(is_causal)
    if position_bias is not None:
        attention_mask = _with_bias(attention_mask, position_bias)
    out = ffpa_attn_func(query, key, value, attn_mask=attention_mask, dropout_p=dropout, is_causal=is_causal,
                         causal_align="top_left", scale=scaling, enable_gqa=True, softcap=softcap or 0.0, sink=s_aux)
    return out.transpose(1, 2).contiguous(), None  # already contiguous where the query lay so


def _with_bias(mask, bias):
    if mask is None:
        return bias
    import torch
    return torch.where(mask, bias, float("-inf")) if mask.dtype == torch.bool else mask + bias


def register_transformers(name="ffpa"):
    """Needs transformers 4.53 or newer."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def diffusers_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
                        return_lse=False, _parallel_config=None):
    """An attention backend of diffusers, over [B, N, H, D]."""
    if _parallel_config is not None:
        raise unsupported("ffpa: diffusers' context parallelism is not supported by this backend")
    found = ffpa_attn_func(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=attn_mask,
                           dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
                           return_lse=return_lse)
    if return_lse:
        return found[0].transpose(1, 2), found[1].transpose(1, 2)
    return found.transpose(1, 2)


def register_diffusers(name="ffpa"):
    """Needs diffusers 0.35 or newer. Its backends are members of an enumeration, so this adds a member. The attention
    inside its image autoencoders asks PyTorch directly: F.scaled_dot_product_attention = ffpa.ffpa_attn_func is for
    those."""
    from diffusers.models import attention_dispatch as dispatch
    names = dispatch.AttentionBackendName
    if name not in names._value2member_map_:
        member = str.__new__(names, name)
        member._name_, member._value_ = name.upper(), name
        names._member_map_[name.upper()] = names._value2member_map_[name] = member
        names._member_names_.append(name.upper())
    dispatch._AttentionBackendRegistry.register(names(name))(diffusers_attention)
