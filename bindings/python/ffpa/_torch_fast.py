"""Repeated eager calls: what was checked and planned for the same layouts and options is found again by one look-up,
with no more work than reading the tensors' sizes. Anything unusual takes the way through _torch_attention.py, and the
answer is the same."""
import torch

from . import _run, _torch_memory as memory
from ._problem import Kept, Tensors
from ._torch_autograd import Attention, is_compiling, is_plain

_known = Kept()
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_grad_enabled = torch.is_grad_enabled
device_of = torch.Tensor.get_device  # a number: -1 is the CPU. Problems are remembered for CPUs and NVIDIA GPUs only


def autocast_dtype(device_type):
    """The dtype that autocast wants, or None. PyTorch before 2.4 asks with other words."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    if device_type == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def key_of(q, k, v, mask, call):
    """`call` is a tuple of everything that is not a tensor."""
    key = (q.shape, q.stride(), q.dtype, device_of(q), k.shape, k.stride(), k.dtype, device_of(k), v.shape, v.stride(),
           v.dtype, device_of(v), call)
    return key if mask is None else key + (mask.shape, mask.stride(), mask.dtype, device_of(mask))


class Entry:
    """Of one key: options, and the problems with and without lse, found at their first use."""

    def __init__(self, options):
        self.options, self.problems = options, {}

    def problem(self, inputs, want_lse):
        return self.problems.get(want_lse) or self._find(inputs, want_lse)

    def _find(self, inputs, want_lse):
        found = self.problems[want_lse] = _run.problem_of(memory, Tensors(*inputs), self.options, want_lse)
        return found


def overridden(tensors):
    """Whether __torch_function__ of something wants to see the call, as it would see PyTorch's."""
    return not is_compiling() and torch.overrides.has_torch_function(tensors)


def remember(given, call, options):
    """A call that the general way took as it is: four axes each, no broadcasting, one backend of the library."""
    _known.put(key_of(*given, call), Entry(options))


def attempt(q, k, v, mask, call):
    """The result of a call that is known, else None."""
    if is_compiling():
        return None
    try:
        if _any_autocast() and autocast_dtype(q.device.type) not in (None, q.dtype):
            return None
        entry = _known.get(key_of(q, k, v, mask, call))
    except (AttributeError, TypeError, RuntimeError):  # not tensors, or without strides: others say what is wrong
        return None
    if entry is None:
        return None
    inputs = (q, k, v) if mask is None else (q, k, v, mask)
    if not is_plain(inputs):
        return None
    want_lse = call[-1]
    if _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                            mask is not None and mask.requires_grad):
        found = Attention.apply(entry.problem(inputs, True), entry.options, want_lse, *inputs)
    else:
        found = _run.run(memory, entry.problem(inputs, want_lse), inputs)
        if not want_lse:
            return found[0]
    return (found[0], found[1].squeeze(-1)) if want_lse else found
