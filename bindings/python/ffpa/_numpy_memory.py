"""NumPy arrays, and CPU arrays that speak DLPack, as the library's views. Outputs are NumPy arrays."""
import numpy

from . import _abi, _dlpack
from ._library import unsupported, wrong_type
from ._problem import Layout

CODES = {
    "float32": _abi.FFPA_F32, "float16": _abi.FFPA_F16, "bfloat16": _abi.FFPA_BF16, "float64": _abi.FFPA_F64,
    "bool": _abi.FFPA_BOOL, "int32": _abi.FFPA_I32, "int64": _abi.FFPA_I64,
}
_FLOATING = ("float32", "float16", "bfloat16", "float64")
_NAMES = {code: name for name, code in CODES.items()}


def accept(name, array):
    """An array of ours from what the caller has: NumPy's own, or anything with __dlpack__ on the CPU."""
    if isinstance(array, numpy.ma.MaskedArray):
        raise unsupported("ffpa: %s is a masked array; pass its .data, and what it masks as attn_mask" % name)
    if isinstance(array, (numpy.ndarray, _dlpack.Borrowed)):
        made = array
    elif hasattr(array, "__dlpack__"):
        made = _dlpack.borrow(name, array)
    else:
        raise wrong_type("ffpa: %s is a %s; it must be a NumPy array, a torch.Tensor or speak DLPack" % (
            name, type(array).__name__))
    if isinstance(made, numpy.ndarray):
        if made.dtype.name not in CODES or not made.dtype.isnative:
            raise unsupported("ffpa: %s.dtype=%s is not one of %s" % (name, made.dtype, ", ".join(CODES)))
        if any(step % made.itemsize for step in made.strides):
            raise unsupported("ffpa: %s.strides=%s are not whole numbers of its %d-byte elements" % (
                name, made.strides, made.itemsize))
    return made


def check_dtype(name, a):
    code = layout(a).dtype
    if _NAMES[code] not in _FLOATING:
        raise unsupported("ffpa: %s.dtype=%s is none of %s" % (name, _NAMES[code], ", ".join(_FLOATING)))


def key(arrays):
    return tuple([None if a is None else (a.dtype, a.shape, a.strides) for a in arrays])


def layout(a):
    if isinstance(a, _dlpack.Borrowed):
        return Layout(a.dtype, _abi.FFPA_HOST, a.shape, a.strides)
    return Layout(CODES[a.dtype.name], _abi.FFPA_HOST, a.shape, tuple(step // a.itemsize for step in a.strides))


def pointer(a):
    return a.pointer if isinstance(a, _dlpack.Borrowed) else a.__array_interface__["data"][0]


def dtype_of(code):
    if code != _abi.FFPA_BF16:
        return numpy.dtype(_NAMES[code])
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise unsupported("ffpa: a bfloat16 result needs NumPy's bfloat16: pip install ml_dtypes") from None
    return numpy.dtype(bfloat16)


def maker(layout, like, packed):
    """A function that makes an array of a layout."""
    dtype = dtype_of(layout.dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride)) if all(layout.shape) else 0
    strides = [s * dtype.itemsize for s in layout.stride]
    new = numpy.zeros if packed else numpy.empty
    return lambda: numpy.lib.stride_tricks.as_strided(new(size, dtype), layout.shape, strides)


def work_maker(size, like):
    return None  # the library takes its own for the call


def set_stream(params, like):
    pass
