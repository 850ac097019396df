"""Arrays of other libraries on the CPU, borrowed through DLPack without NumPy in between (it knows no bfloat16)."""
import ctypes

from . import _abi
from ._library import unsupported

_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_CODES = {  # (DLPack's type code, bits) -> ours
    (2, 32): _abi.FFPA_F32, (2, 16): _abi.FFPA_F16, (4, 16): _abi.FFPA_BF16, (2, 64): _abi.FFPA_F64,
    (6, 8): _abi.FFPA_BOOL, (0, 32): _abi.FFPA_I32, (0, 64): _abi.FFPA_I64,
}

_VERSIONED_OFFSET = 32  # of DLManagedTensorVersioned: its version, two pointers and its flags come first
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Borrowed:
    """Where an array is, and the capsule that keeps it there."""

    def __init__(self, capsule, tensor, dtype):
        self.capsule, self.dtype = capsule, dtype
        self.pointer = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[:tensor.ndim])
        if tensor.strides:
            self.strides = tuple(tensor.strides[:tensor.ndim])
        else:
            strides, step = [], 1
            for size in reversed(self.shape):
                strides.insert(0, step)
                step *= size
            self.strides = tuple(strides)

    @property
    def ndim(self):
        return len(self.shape)

    def with_axes(self, shape, strides):
        """The same memory under another shape."""
        view = object.__new__(Borrowed)
        view.capsule, view.dtype, view.pointer, view.shape, view.strides = (
            self.capsule, self.dtype, self.pointer, tuple(shape), tuple(strides))
        return view


def borrow(name, array):
    device = array.__dlpack_device__()[0]
    if device not in _CPU_DEVICES:
        raise unsupported("ffpa: %s is in memory of DLPack device type %d; outside PyTorch only CPU arrays are taken "
                          "(torch.from_dlpack makes a tensor of it without a copy)" % (name, device))
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))  # in which an array can say that it is read-only
        except TypeError:  # of an older exporter
            capsule = array.__dlpack__()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise unsupported("ffpa: %s cannot be borrowed through DLPack: %s" % (name, error)) from None
    # Left unconsumed: the capsule frees its tensor when it goes.
    versioned = _is_valid(capsule, b"dltensor_versioned")
    at = _pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    tensor = _DLTensor.from_address(at + _VERSIONED_OFFSET * versioned)
    code = _CODES.get((tensor.code, tensor.bits))
    if code is None or tensor.lanes != 1:
        raise unsupported("ffpa: %s has DLPack type code %d of %d bits, which attention does not take" % (
            name, tensor.code, tensor.bits))
    return Borrowed(capsule, tensor, code)
