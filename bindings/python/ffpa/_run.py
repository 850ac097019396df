"""Forward, backward and merge over any kind of array. `memory` is the module that knows the kind: _numpy_memory or
_torch_memory, each with key, layout, pointer, maker, work_maker and set_stream."""
import ctypes
import threading

from . import _abi
from ._library import check, context, lib, new
from ._problem import BackwardProblem, Kept, Problem, Tensors, dense_layout, set_layout

_forward_problems, _backward_problems = Kept(), Kept()
_last = threading.local()
_ffpa_forward = lib.ffpa_forward


def last_path():
    """Path that the last call on this thread took, such as "cpu/avx2/forward" or "sdpa"; "" before the first.
    Backward passes that PyTorch runs on threads of its own are seen by last_backward_path()."""
    return getattr(_last, "other", None) or lib.ffpa_last_path().decode()


def took(path):
    """Note that something else than the library answered the call; None = the library did."""
    _last.other = path


_last_backward = ""


def last_backward_path():
    """Path that the last backward pass took, on any thread."""
    return _last_backward


def took_backward(path):
    global _last_backward
    _last_backward = path


def layouts_of(memory, tensors):
    layout = memory.layout
    return Tensors(*[None if t is None else layout(t) for t in tensors])


def forward(memory, tensors, options, want_lse=True):
    """(o, lse), both new; lse is [B, H, N, 1], None when not wanted."""
    return run(memory, problem_of(memory, tensors, options, want_lse), tensors)


def problem_of(memory, tensors, options, want_lse):
    """Planned, and kept for the next call of the same layouts."""
    key = (memory.key(tensors), options, want_lse)
    problem = _forward_problems.get(key)
    if problem is None:
        problem = Problem(layouts_of(memory, tensors), options, want_lse, memory, tensors.q)
        slot = problem.take()
        slot.bind(tensors, memory.pointer)
        problem.plan(slot, memory, tensors.q)
        problem.give(slot)
        _forward_problems.put(key, problem)
    return problem


def run(memory, problem, tensors):
    """A problem whose layouts are those of `tensors`, whose first fields suffice when the rest are absent."""
    pointer, slot = memory.pointer, problem.take()
    for at, view in slot.views:
        view.data = pointer(tensors[at])
    if slot.sides:
        slot.bind_sides(tensors, pointer)
    o, lse = problem.new_o(), None
    slot.o.data = pointer(o)
    if problem.new_lse is not None:
        lse = problem.new_lse()
        slot.lse.data = pointer(lse)
    work = problem.new_work and problem.new_work(slot.params)  # noqa: F841 - lives until the call has been enqueued
    status = _ffpa_forward(problem.context, slot.ref)
    if status:
        check(status)
    problem.spare.append(slot)
    _last.other = None
    return o, lse


def backward(memory, tensors, options, results, wanted):
    """Gradients by name, for the names in `wanted`. `results` are (o, lse, dout, dlse or None)."""
    o, lse, dout, dlse = results
    pointer = memory.pointer
    key = (memory.key(tensors), options, memory.key(results), wanted)
    problem = _backward_problems.get(key)
    known = problem is not None
    if not known:
        problem = _new_backward(memory, tensors, options, results, wanted)
    slot = problem.take()
    slot.forward.bind(tensors, pointer)
    slot.forward.o.data, slot.forward.lse.data, slot.dout.data = pointer(o), pointer(lse), pointer(dout)
    if dlse is not None:
        slot.dlse.data = pointer(dlse)
    if not known:
        problem.plan(slot, memory, tensors.q)
        _backward_problems.put(key, problem)
    gradients = {}
    for name, view in slot.outputs:
        made = gradients[name] = problem.makers[name]()
        view.data = pointer(made)
    work = problem.new_work and problem.new_work(slot.params)
    check(lib.ffpa_backward(problem.context, slot.ref))
    problem.give(slot)
    del work
    _last.other = None
    took_backward(problem.path)
    return gradients


def _new_backward(memory, tensors, options, results, wanted):
    layouts = layouts_of(memory, tensors)
    o, lse, dout, dlse = (None if t is None else memory.layout(t) for t in results)
    forward_problem = Problem(layouts, options, True, memory, tensors.q)
    set_layout(forward_problem.params.o, o)  # as they are, which the library holds to what they must be
    set_layout(forward_problem.params.lse, lse)
    return BackwardProblem(forward_problem, layouts, options, dout, dlse, wanted)


def all_gradients(layouts):
    """Names of what backward can give."""
    added = layouts.mask is not None and layouts.mask.dtype != _abi.FFPA_BOOL
    return ("dq", "dk", "dv") + ("dmask",) * added + ("dsink",) * (layouts.sink is not None)


def question_of(memory, tensors, options, backward):
    """Backend's name -> (status, report): how a call would run that is not made; or its gradients, all of them."""
    layouts = layouts_of(memory, tensors)

    def question(backend):
        chosen, report = options._replace(forward_backend=backend, backward_backend=backend), new(_abi.ffpa_report)
        problem = Problem(layouts, chosen, True, memory, tensors.q)
        if not backward:
            slot = problem.take()
            slot.bind(tensors, memory.pointer)
            return lib.ffpa_forward_supported(problem.context, slot.ref, ctypes.byref(report)), report
        problem = BackwardProblem(problem, layouts, chosen, problem.o, None, all_gradients(layouts))
        slot = problem.take()
        slot.forward.bind(tensors, memory.pointer)
        return lib.ffpa_backward_supported(problem.context, slot.ref, ctypes.byref(report)), report
    return question


def merge(memory, o_a, lse_a, o_b, lse_b):
    """Attention over two disjoint sets of keys from the results over each, [B, H, N, D] and [B, H, N, 1]."""
    p = new(_abi.ffpa_merge_params)
    o, lse = (memory.maker(dense_layout(memory.layout(a)), a, False)() for a in (o_a, lse_a))
    for name, array in dict(o_a=o_a, lse_a=lse_a, o_b=o_b, lse_b=lse_b, o=o, lse=lse).items():
        tensor = getattr(p, name)
        set_layout(tensor, memory.layout(array))
        tensor.data = memory.pointer(array)
    memory.set_stream(p, o_a)
    check(lib.ffpa_merge(context("auto"), ctypes.byref(p)))
    return o, lse

