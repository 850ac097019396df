"""PyTorch tensors as the library's views: no copies; outputs and workspace from PyTorch's allocators."""
import functools

import torch

from . import _abi
from ._library import invalid, unsupported, wrong_type
from ._problem import Layout

CODES = {
    torch.float32: _abi.FFPA_F32, torch.float16: _abi.FFPA_F16, torch.bfloat16: _abi.FFPA_BF16,
    torch.float64: _abi.FFPA_F64, torch.bool: _abi.FFPA_BOOL, torch.int32: _abi.FFPA_I32, torch.int64: _abi.FFPA_I64,
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# The current stream as a number, without making an object: what generated code calls, too.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def key(tensors):
    return tuple([None if t is None else (t.dtype, t.device, t.shape, t.stride()) for t in tensors])


def layout(t):
    if t.dtype not in CODES:
        raise unsupported("ffpa: dtype %s of a tensor of shape %s is not one of %s" % (
            t.dtype, tuple(t.shape), ", ".join(str(d) for d in CODES)))
    return Layout(CODES[t.dtype], device_code(t), tuple(t.shape), t.stride())


def device_code(t):
    if t.device.type == "cpu":
        return _abi.FFPA_HOST
    if t.device.type == "cuda" and torch.version.hip is None:
        return t.device.index + 1
    raise unsupported("ffpa: device %s of a tensor of shape %s is neither the CPU nor an NVIDIA GPU" % (
        t.device, tuple(t.shape)))


pointer = torch.Tensor.data_ptr


def maker(layout, like, packed):
    """A function that makes a tensor of a layout. Rows past the end of packed sequences belong to nobody and are not
    written: they are zero here."""
    made = functools.partial(torch.empty_strided, layout.shape, layout.stride, dtype=_DTYPES[layout.dtype],
                             device=like.device)
    return (lambda: made().zero_()) if packed else made


def set_stream(params, like):
    if like.is_cuda:
        params.stream = _raw_stream(like.device.index)


def work_maker(size, like):
    """A function that makes a call's workspace and sets the current stream in its params; None where the library
    needs neither. PyTorch's allocator gives memory away again only to what comes later on the stream."""
    if not like.is_cuda:
        return None  # the library takes its own for the call
    device, index = like.device, like.device.index
    if not size:
        def only_stream(params):
            params.stream = _raw_stream(index)
        return only_stream

    def make(params):
        params.stream = _raw_stream(index)
        made = torch.empty(size, dtype=torch.uint8, device=device)
        params.workspace, params.workspace_bytes = made.data_ptr(), size
        return made
    return make


def check_dtype(name, t):
    if t.dtype not in _FLOATING:
        raise unsupported("ffpa: %s.dtype=%s is none of %s" % (name, t.dtype, ", ".join(str(d) for d in _FLOATING)))


def check_plain(name, t, device=None):
    """What cannot be told from a layout, said by the argument's name. Without a device, any that the library knows."""
    if not isinstance(t, torch.Tensor):
        raise wrong_type("ffpa: %s is a %s, not a torch.Tensor" % (name, type(t).__name__))
    if t.is_nested:
        raise unsupported("ffpa: %s is a nested tensor; pass packed sequences to ffpa_attn_varlen_func" % name)
    if t.layout is not torch.strided:
        raise unsupported("ffpa: %s has layout %s; it must be strided" % (name, t.layout))
    if t.device.type == "meta":
        raise unsupported("ffpa: %s is on the meta device, which holds no data" % name)
    if device is None:
        device_code(t)
    elif t.device != device:
        raise invalid("ffpa: %s is on %s, query on %s; they must be on one device" % (name, t.device, device))
