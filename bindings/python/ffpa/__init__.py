"""Exact attention for large head dimensions: libffpa from Python.

    import ffpa
    out = ffpa.ffpa_attn_func(q, k, v, is_causal=True)      # PyTorch tensors, NumPy arrays, DLPack on the CPU
    torch.nn.functional.scaled_dot_product_attention = ffpa.ffpa_attn_func

Neither torch nor a GPU is needed to import this. `python -m ffpa.bench` compares, ffpa.selftest() checks an
installation, ffpa.info() is for bug reports."""
from ._attention import (Report, explain, ffpa_attn_backward, ffpa_attn_func, ffpa_attn_varlen_func, info, merge,
                         prebuild)
from ._library import FfpaError, version as _version
from ._run import last_backward_path, last_path

__version__ = _version()


def selftest(verbose=True):
    """Check this installation against float64 on small problems: NumPy always, PyTorch and its GPUs where they are.
    Raises AssertionError on a wrong result."""
    from ._selftest import run
    return run(verbose)


def __getattr__(name):
    """flash-attn's three functions, which need torch, and registration with other packages: at first use."""
    if name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
        from . import flash_attn
        return getattr(flash_attn, name)
    if name in ("register_transformers", "register_diffusers"):
        from . import integrations
        return getattr(integrations, name)
    raise AttributeError("module 'ffpa' has no attribute %r" % name)


__all__ = [
    "FfpaError", "Report", "explain", "ffpa_attn_backward", "ffpa_attn_func", "ffpa_attn_varlen_func",
    "info", "last_backward_path", "last_path",
    "merge", "prebuild", "register_diffusers", "register_transformers", "selftest",
]
