"""torch.compile, opcheck, export, fake tensors and function transforms."""
import pytest

torch = pytest.importorskip("torch", minversion="2.4")
F = torch.nn.functional

import ffpa  # noqa: E402
from ffpa import _torch_ops  # noqa: E402
from ffpa._problem import Options, Tensors  # noqa: E402
from ffpa._torch_autograd import SDPA  # noqa: E402


def randn(device, *shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device=device).to(dtype).requires_grad_(grad)


def op_inputs(device, kind):
    """Arguments of torch.ops.ffpa.forward, and which of its inputs are tensors with gradients."""
    q, k, v = (randn(device, 2, h, n, 32, grad=True) for h, n in ((4, 6), (2, 9), (2, 9)))
    options, more = Options(causal=2), {}
    if kind == "rows before heads":
        q = randn(device, 2, 6, 4, 32).transpose(1, 2).requires_grad_()
    elif kind == "mask and sink":
        more = dict(mask=randn(device, 1, 4, 1, 9, grad=True), sink=randn(device, 1, 4, 1, 1, grad=True),
                    alibi=randn(device, 1, 4, 1, 1))
        options = Options(window=(3, 3), softcap=2.0, scale=0.5)
    elif kind == "dropout":
        more, options = dict(rng=torch.tensor([3, 4], device=device)), Options(dropout_p=0.25)
    elif kind == "packed":
        q, k, v = (randn(device, 1, h, n, 32, grad=True) for h, n in ((4, 6), (2, 9), (2, 9)))
        offsets = lambda *at: torch.tensor(at, dtype=torch.int32, device=device)
        more = dict(cu_q=offsets(0, 2, 6), cu_k=offsets(0, 5, 9))
    return (*Tensors(q, k, v, **more)[:9], *_torch_ops._arguments(options))


KINDS = ["heads before rows", "rows before heads", "mask and sink", "dropout", "packed"]


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_forward(device, kind):
    torch.library.opcheck(torch.ops.ffpa.forward.default, op_inputs(device, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_backward(device, kind):
    inputs = [t.detach() if isinstance(t, torch.Tensor) else t for t in op_inputs(device, kind)]
    o, lse = torch.ops.ffpa.forward(*inputs)
    wanted = "dq,dk,dv" + (",dmask,dsink" if kind == "mask and sink" else "")
    arguments = (torch.randn_like(o), torch.randn_like(lse), o, lse, wanted, *inputs)
    torch.library.opcheck(torch.ops.ffpa.backward.default, arguments)


def test_opcheck_merge(device):
    o, lse = randn(device, 2, 3, 4, 8).transpose(1, 2), randn(device, 2, 4, 3, 1)
    torch.library.opcheck(torch.ops.ffpa.merge.default, (o, lse, o * 2, lse + 1))


class Block(torch.nn.Module):
    """Attention with heads 512 wide, keys shared by two heads, as decoders have it."""

    def __init__(self, width=32, heads=2, d=512):
        super().__init__()
        self.d = d
        self.q, self.k, self.v = (torch.nn.Linear(width, n * d, bias=False) for n in (heads, 1, 1))
        self.out = torch.nn.Linear(heads * d, width, bias=False)

    def forward(self, x, **call):
        q, k, v = (f(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, **call).transpose(1, 2).flatten(2))


@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", ffpa.ffpa_attn_func)
    torch._dynamo.reset()


def compare(block, compiled, x, **call):
    ours, eager = compiled(x, **call), block(x, **call)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    wrt = [x, *block.parameters()]
    for a, b in zip(torch.autograd.grad(ours.square().mean(), wrt), torch.autograd.grad(eager.square().mean(), wrt)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_compile_has_no_graph_break(device, patched, compiler):
    block = Block().to(device)
    compiled = torch.compile(block, fullgraph=True, backend=compiler)
    compare(block, compiled, randn(device, 2, 10, 32, grad=True))


def test_compile_with_changing_lengths(device, patched):
    block = Block().to(device)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (10, 11, 33):
        compare(block, compiled, randn(device, 2, n, 32, grad=True))


def test_compile_with_dropout_and_options(device, patched):
    q = randn(device, 1, 2, 20, 64, grad=True)
    call = lambda q: ffpa.ffpa_attn_func(q, q, q, dropout_p=0.5, window=(4, 2), softcap=3.0, return_lse=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    (o, lse), grad = compiled(q), None
    grad = torch.autograd.grad(o.sum() + lse.sum(), q)[0]
    torch.manual_seed(3)
    o2, lse2 = call(q)
    assert o.equal(o2) and lse.equal(lse2)
    torch.testing.assert_close(grad, torch.autograd.grad(o2.sum() + lse2.sum(), q)[0])


def test_compile_under_autocast(device, patched):
    block = Block().to(device)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = randn(device, 1, 8, 32)
    with torch.autocast(device, torch.bfloat16):
        torch.testing.assert_close(compiled(x), block(x), rtol=1e-2, atol=1e-2)


def test_compile_packed_sequences(device):
    torch._dynamo.reset()
    q, cu = randn(device, 9, 2, 64, grad=True), torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    call = lambda q: ffpa.ffpa_attn_varlen_func(q, q, q, cu, cu, 5, 5, causal=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert compiled(q).equal(call(q))
    a, b = (torch.autograd.grad(f(q).square().sum(), q)[0] for f in (compiled, call))
    torch.testing.assert_close(a, b)


def test_compile_merge(device):
    torch._dynamo.reset()
    out, lse = ffpa.ffpa_attn_func(*[randn(device, 1, 2, 9, 64)] * 3, return_lse=True)
    merge = lambda out, lse: ffpa.merge(out, lse, out * 2, lse)
    for a, b in zip(torch.compile(merge, fullgraph=True, backend="aot_eager")(out, lse), merge(out, lse)):
        assert a.equal(b)


@pytest.mark.skipif(not hasattr(torch._dynamo.compiled_autograd, "_enable"), reason="PyTorch with other names")
def test_compiled_autograd(device):
    """The backward pass of eager calls, traced and compiled: as one graph, and by each call's own options."""
    torch._dynamo.reset()
    q, sink = randn(device, 1, 2, 9, 64, grad=True), randn(device, 2, grad=True)

    def loss(**call):
        torch.manual_seed(3)
        out, lse = ffpa.ffpa_attn_func(q, q, q, return_lse=True, sink=sink, **call)
        return ffpa.ffpa_attn_func(out, q, out, scale=0.3).square().mean() + lse.mean()

    for call in (dict(), dict(scale=0.7, window=(2, 2)), dict(dropout_p=0.5)):
        expected = torch.autograd.grad(loss(**call), (q, sink))
        q.grad = sink.grad = None
        out = loss(**call)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            out.backward()
        for a, b in zip((q.grad, sink.grad), expected):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_compile_leaves_to_pytorch_what_it_was_permitted_to():
    torch._dynamo.reset()
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    call = lambda q: ffpa.ffpa_attn_func(q, q, q, forward_backend="auto,sdpa")
    assert torch.compile(call, fullgraph=True, backend="aot_eager")(q).equal(SDPA(q, q, q))


def test_export(device, patched):
    block = Block().to(device)
    x = randn(device, 1, 6, 32)
    program = torch.export.export(block, (x,))
    assert any("ffpa" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), block(x))


def test_fake_tensors_have_the_strides_of_real_ones(device):
    from torch._subclasses.fake_tensor import FakeTensorMode
    q = randn(device, 2, 6, 4, 32).transpose(1, 2)
    k = randn(device, 2, 2, 9, 32)
    real = ffpa.ffpa_attn_func(q, k, k, enable_gqa=True, return_lse=True)
    with FakeTensorMode() as mode:
        fake = ffpa.ffpa_attn_func(*[mode.from_tensor(t) for t in (q, k, k)], enable_gqa=True, return_lse=True)
    for a, b in zip(real, fake):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_compiled_without_the_package_knowing_torch_first():
    """Imported before torch, used first inside a compiled function."""
    import os
    import subprocess
    import sys
    code = ("import ffpa, torch; q = torch.randn(1, 2, 4, 8)\n"
            "f = torch.compile(lambda q: ffpa.ffpa_attn_func(q, q, q), fullgraph=True, backend='aot_eager')\n"
            "assert f(q).equal(ffpa.ffpa_attn_func(q, q, q)); print('same')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "same", done.stderr


# ---- function transforms -------------------------------------------------------------------------------------------

needs_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="PyTorch before 2.5")


@needs_vmap
@pytest.mark.parametrize("dims", [(0, 0, 0, None), (1, 0, 0, None), (0, None, None, None), (0, 0, 0, 0), (2, None, 0, 0)])
def test_vmap(device, dims):
    shape = lambda *s: s
    inputs = []
    for dim, one in zip(dims, (shape(2, 3, 5, 16), shape(2, 3, 7, 16), shape(2, 3, 7, 16), shape(1, 3, 5, 7))):
        one = list(one)
        if dim is not None:
            one.insert(dim, 4)
        inputs.append(randn(device, *one))
    if dims[3] is None:
        inputs[3] = None
    ours = torch.vmap(ffpa.ffpa_attn_func, dims)(*inputs)
    slices = [[t if dim is None else t.select(dim, i) for t, dim in zip(inputs, dims)] for i in range(4)]
    torch.testing.assert_close(ours, torch.stack([SDPA(*s) for s in slices]), rtol=1e-4, atol=1e-5)
    nothing = [t if dim is None else t.narrow(dim, 0, 0) for t, dim in zip(inputs, dims)]
    assert torch.vmap(ffpa.ffpa_attn_func, dims)(*nothing).shape == (0,) + ours.shape[1:]


@needs_vmap
def test_vmap_of_a_gradient(device):
    q, k = randn(device, 4, 1, 2, 5, 16), randn(device, 1, 2, 7, 16)
    loss = lambda f: lambda q, k: f(q, k, k).square().sum()
    ours = torch.vmap(torch.func.grad(loss(ffpa.ffpa_attn_func), argnums=(0, 1)), (0, None))(q, k)
    for i in range(4):
        theirs = torch.func.grad(loss(SDPA), argnums=(0, 1))(q[i], k)
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a[i], b, rtol=1e-3, atol=1e-4)


@needs_vmap
def test_vmap_refuses_clearly(device):
    q, sink = randn(device, 3, 1, 2, 5, 16), randn(device, 3, 2)
    with pytest.raises(ffpa.FfpaError, match="vmap over sink"):
        torch.vmap(lambda q, s: ffpa.ffpa_attn_func(q, q, q, sink=s))(q, sink)
    with pytest.raises(RuntimeError, match="random"):
        torch.vmap(lambda q: ffpa.ffpa_attn_func(q, q, q, dropout_p=0.5))(q)


def test_dispatch_modes_see_the_operator(device):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    q = randn(device, 1, 1, 4, 8)
    with Seen() as seen:
        ffpa.ffpa_attn_func(q, q, q)
    assert "ffpa.forward.default" in seen.names


def test_function_modes_and_symbolic_tracers_see_the_call(device, patched):
    from torch.overrides import TorchFunctionMode

    class Seen(TorchFunctionMode):
        names = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    q = randn(device, 1, 1, 4, 8)
    with Seen() as seen:
        out = F.scaled_dot_product_attention(q, q, q, scale=0.3)
    assert "ffpa_attn_func" in seen.names and out.equal(ffpa.ffpa_attn_func(q, q, q, scale=0.3))

    class Layer(torch.nn.Module):
        def forward(self, x, mask):
            return F.scaled_dot_product_attention(x, x, x, mask, scale=0.3)
    mask = randn(device, 4, 4)
    traced = torch.fx.symbolic_trace(Layer())
    assert any(node.target is ffpa.ffpa_attn_func for node in traced.graph.nodes)
    assert traced(q, mask).equal(ffpa.ffpa_attn_func(q, q, q, mask, scale=0.3))


def test_lazily_negated_inputs(device):
    q = torch.randn(1, 1, 4, 8, dtype=torch.complex64, device=device).conj().imag
    assert q.is_neg()
    torch.testing.assert_close(ffpa.ffpa_attn_func(q, q, q), SDPA(q, q, q), rtol=1e-4, atol=1e-5)
