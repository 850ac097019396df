"""Attention over PyTorch tensors, and its gradient. Two ways to the same library calls: straight from here for
plain tensors, or through the dispatcher (_torch_ops.py) while something traces, transforms or fakes."""
import itertools

import torch
from torch.autograd import forward_ad

from . import _run, _torch_memory as memory
from ._library import unsupported
from ._problem import Tensors
from ._rules import first_that_can

NO_FORWARD_MODE = "attention has no forward-mode derivative here (torch.func.jvp, forward_ad)"
NO_SECOND = "ffpa: attention has no second derivative"
SDPA = torch._C._nn.scaled_dot_product_attention  # PyTorch's own, whatever F.scaled_dot_product_attention is by now

_GRADIENTS = ("q", "k", "v", "mask", "sink")
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_FIELDS = {name: 3 + i for i, name in enumerate(Tensors._fields)}  # position among the inputs of Attention.forward
_POSITIONS = [(name, _FIELDS[name]) for name in _GRADIENTS]

_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
is_neg = torch.Tensor.is_neg
_is_batch = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda t: False)
is_compiling = torch.compiler.is_compiling if hasattr(torch.compiler, "is_compiling") else torch._dynamo.is_compiling


def is_transformed():
    """Inside torch.vmap, torch.func.grad and their like."""
    return _transforms() is not None


def is_plain(tensors):
    """True when tensors are just memory, and nobody looks on: no subclass, no lazy negation, no function transform, no
    mode, tracer or forward-mode derivative."""
    for t in tensors:
        if t is not None and (type(t) not in _PLAIN or is_neg(t) or t.is_meta):
            return False
    return not (_transforms() or _modes() or _tracing() or forward_ad._current_level >= 0)


def attend(tensors, options):
    """(o, lse) with gradients; lse is [B, H, N, 1]."""
    if is_compiling() or not is_plain(tensors):
        from . import _torch_ops
        if not is_compiling():
            refuse_tangents(tensors)
        return _torch_ops.attend(tensors, options)
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                refuse_gradients(tensors)
                return Attention.apply(None, options, True, *tensors)
    return _run.forward(memory, tensors, options)


_numbers, _next = {}, itertools.count()  # of options, for compiled autograd: nodes of one number are derived by one code


# The base class whose apply() does not look for function transforms; attend() and the fast path have done so.
class _Function(getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)):
    @staticmethod
    def _compiled_autograd_key(ctx):
        return ctx._autograd_function_id, _numbers.setdefault(getattr(ctx, "options", None), next(_next))


class Attention(_Function):
    """`problem` is what _run.forward would find for the inputs, or None. Inputs are the first fields of Tensors. lse is
    a result only when it is wanted: each result costs microseconds."""

    @staticmethod
    def forward(ctx, problem, options, want_lse, *inputs):
        if problem is None:
            o, lse = _run.forward(memory, Tensors(*inputs), options)
        else:
            o, lse = _run.run(memory, problem, inputs)
        ctx.save_for_backward(o, lse, *inputs)
        ctx.options = options
        if not want_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, dout, dlse=None):
        o, lse, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted = tuple(["d" + name for name, at in _POSITIONS if at < len(needs) and needs[at]])
        result = [None] * len(needs)
        if wanted and (dout is not None or dlse is not None):
            refuse_batches(dout, dlse)
            dout, dlse = (t if t is None else t.resolve_neg() for t in (dout, dlse))
            derive = _plain_gradients if not is_compiling() and is_plain((dout, dlse, *inputs)) else _gradients_by_operator
            found = derive(Tensors(*inputs), ctx.options, (o, lse, dout, dlse), wanted)
            for name, at in _POSITIONS:
                if "d" + name in found:
                    result[at] = found["d" + name]
        return tuple(result)


def _plain_gradients(tensors, options, results, wanted):
    with torch.no_grad():
        found = gradients(tensors, options, *results, wanted)
    if torch.is_grad_enabled():  # create_graph=True
        found = dict(zip(wanted, NoSecondDerivative.apply(len(wanted), *[found[name] for name in wanted], *results[2:], *tensors)))
    return found


def _gradients_by_operator(tensors, options, results, wanted):
    """For compiled autograd, and for upstream gradients that are more than memory."""
    from . import _torch_ops
    return dict(zip(wanted, _torch_ops.derive(tensors, options, results, wanted)))


class NoSecondDerivative(_Function):
    """The first of `tensors`, so many, as results of all of them: a second derivative fails, and is not taken for zero."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple([t.detach() for t in tensors[:count]])

    @staticmethod
    def backward(ctx, *unused):
        raise unsupported(NO_SECOND)


def refuse_gradients(tensors):
    if tensors.alibi is not None and tensors.alibi.requires_grad:
        raise unsupported("ffpa: alibi.requires_grad is set; slopes have no gradient here (detach them)")


def refuse_tangents(tensors):
    """Under torch.autograd.forward_ad; transforms meet the jvp() in _torch_ops.py."""
    for name, t in zip(Tensors._fields, tensors):
        if t is not None and forward_ad._current_level >= 0 and not is_transformed() and t.is_floating_point() \
                and forward_ad.unpack_dual(t).tangent is not None:
            raise unsupported("ffpa: %s has a tangent, and %s" % (name, NO_FORWARD_MODE))


def refuse_batches(*upstream):
    for t in upstream:
        if t is not None and not is_compiling() and _is_batch(t):
            raise unsupported("ffpa: several upstream gradients at once (is_grads_batched=True, vectorize=True) are not "
                              "supported here; torch.vmap, torch.func.vjp and torch.func.jacrev are")


def gradients(tensors, options, o, lse, dout, dlse, wanted):
    def attempt(name):
        if name == "sdpa":
            return _sdpa_gradients(tensors, options, dout, dlse, wanted)
        chosen = options if name == options.backward_backend else options._replace(backward_backend=name)
        upstream = o.new_zeros(()).expand(o.shape) if dout is None else dout
        return _run.backward(memory, tensors, chosen, (o, lse, upstream, dlse), wanted)
    return first_that_can(options.backward_backend, attempt)


def _sdpa_gradients(tensors, options, dout, dlse, wanted):
    """PyTorch's own backward pass, because the caller asked for it: its forward once more, then its gradient."""
    check_sdpa_knows(tensors, options, dlse)
    leaves = {name: getattr(tensors, name).detach().requires_grad_("d" + name in wanted)
              for name in ("q", "k", "v", "mask") if getattr(tensors, name) is not None and name[0] in "qkvm"
              and getattr(tensors, name).is_floating_point()}
    mask = leaves.get("mask", tensors.mask)
    with torch.enable_grad():
        out = SDPA(leaves["q"], leaves["k"], leaves["v"], mask, 0.0, bool(options.causal), scale=options.scale,
                   **gqa_argument(tensors))
        names = [name for name in leaves if "d" + name in wanted]
        found = torch.autograd.grad(out, [leaves[name] for name in names], dout)
    _run.took_backward("sdpa")
    return {"d" + name: gradient for name, gradient in zip(names, found)}


def gqa_argument(tensors):
    """PyTorch before 2.5 has no such argument."""
    return {} if tensors.q.shape[1] == tensors.k.shape[1] else {"enable_gqa": True}


def check_sdpa_knows(tensors, options, dlse=None):
    bottom_right = options.causal == 2 and tensors.q.shape[2] != tensors.k.shape[2]
    foreign = [name for name, there in (
        ("window", options.window is not None), ("softcap", options.softcap), ("sink", tensors.sink is not None),
        ("alibi", tensors.alibi is not None), ("packed sequences", tensors.cu_q is not None),
        ("causal_align='bottom_right' with different lengths", bottom_right),
        ("the gradient of lse", dlse is not None),
        ("a mask together with is_causal", tensors.mask is not None and options.causal),
        ("dropout in a backward pass of its own", options.dropout_p and options.forward_backend != "sdpa"),
    ) if there]
    if foreign:
        raise unsupported("ffpa: backend 'sdpa' was asked for, but PyTorch's attention has no %s" % ", ".join(foreign))
