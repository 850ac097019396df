"""ffpa_attn_func in the place of F.scaled_dot_product_attention: the same results, shapes and errors."""
import functools
import math

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import ffpa  # noqa: E402
from ffpa._torch_autograd import SDPA  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def randn(device, dtype, *shape):
    return torch.randn(*shape, device=device).to(dtype)


def same(device, dtype, *inputs, **call):
    """Ours beside PyTorch's math in float64, forward and backward."""
    torch.manual_seed(7)
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in inputs]
    found, expected = ffpa.ffpa_attn_func(*leaves, **call), SDPA(*wide, **call)
    assert found.shape == expected.shape and found.dtype == dtype and found.device == leaves[0].device
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
    dout = torch.randn_like(found)
    wrt = [(a, b) for a, b in zip(leaves, wide) if a.requires_grad]
    ours = torch.autograd.grad(found, [a for a, _ in wrt], dout)
    theirs = torch.autograd.grad(expected, [b for _, b in wrt], dout.double())
    for a, b, (leaf, _) in zip(ours, theirs, wrt):
        assert a.shape == leaf.shape and a.dtype == leaf.dtype
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=0, atol=4 * bound)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nq, nk, d, dv", [(40, 40, 64, 64), (17, 90, 512, 512), (90, 17, 320, 320), (1, 50, 512, 512),
                                           (33, 33, 72, 40)])
def test_dense(device, dtype, causal, nq, nk, d, dv):
    same(device, dtype, randn(device, dtype, 2, 3, nq, d), randn(device, dtype, 2, 3, nk, d),
         randn(device, dtype, 2, 3, nk, dv), is_causal=causal)


@pytest.mark.parametrize("group", [1, 2, 5, 6])
def test_grouped_heads(device, group):
    same(device, torch.float32, randn(device, torch.float32, 2, 2 * group, 20, 64), *[
        randn(device, torch.float32, 2, 2, 30, 64) for _ in range(2)], enable_gqa=True)


SHAPES = [  # query, key, value, mask, call
    ((5, 16), (7, 16), (7, 8), None, {}),
    ((3, 5, 16), (3, 7, 16), (3, 7, 8), (5, 7), {}),
    ((3, 5, 16), (3, 7, 16), (3, 7, 8), (3, 5, 7), {}),
    ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 16), None, {"is_causal": True}),
    ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 16), (2, 1, 1, 5, 7), {}),
    ((2, 4, 5, 16), (2, 1, 7, 16), (2, 1, 7, 16), None, {}),
    ((1, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), None, {}),
    ((2, 1, 5, 16), (2, 4, 7, 16), (1, 4, 7, 16), None, {}),
    ((2, 4, 5, 16), (4, 7, 16), (4, 7, 16), None, {}),
    ((4, 5, 16), (2, 7, 16), (2, 7, 16), None, {"enable_gqa": True}),
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), (7,), {}),
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), (2, 1, 1, 7), {}),
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), (4, 5, 1), {}),
    ((2, 4, 5, 16), (2, 2, 7, 16), (2, 1, 7, 16), None, {"enable_gqa": True}),
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), None, {"scale": 0.0}),
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), None, {"scale": -1.5}),
    ((2, 4, 5, 16), (1, 2, 4, 7, 16), (2, 4, 7, 16), None, {"is_causal": True}),
    ((4, 5, 16), (1, 1, 4, 7, 16), (4, 7, 8), None, {}),
    ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 16), (3, 1, 5, 7), {}),
    ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 16), (1, 4, 5, 7), {}),
    ((2, 2, 3, 4, 5, 16), (2, 2, 3, 4, 7, 16), (1, 2, 3, 4, 7, 16), (2, 3, 1, 5, 7), {}),
]


@pytest.mark.parametrize("q, k, v, mask, call", SHAPES, ids=[str(s[:4]) + str(s[4]) for s in SHAPES])
def test_shapes_and_broadcasting(device, q, k, v, mask, call):
    dtype = torch.float32
    masks = [] if mask is None else [randn(device, dtype, *mask)]
    same(device, dtype, *[randn(device, dtype, *shape) for shape in (q, k, v)], *masks, **call)


@pytest.mark.parametrize("mask_dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("axes", [(1, 1, 30, 40), (2, 1, 1, 40), (1, 3, 30, 1), (2, 3, 30, 40), (1, 1, 1, 1)])
def test_masks_and_their_gradients(device, mask_dtype, axes):
    mask = torch.randn(axes, device=device)
    mask = mask > -1 if mask_dtype == torch.bool else mask.to(mask_dtype)
    same(device, torch.bfloat16, *[randn(device, torch.bfloat16, 2, 3, n, 64) for n in (30, 40, 40)], mask)


def test_rows_without_keys_are_zero(device):
    q = randn(device, torch.float32, 1, 1, 4, 8).requires_grad_()
    mask = torch.ones(4, 4, dtype=torch.bool, device=device)
    mask[2] = False
    out, lse = ffpa.ffpa_attn_func(q, q, q, mask, return_lse=True)
    assert (out[0, 0, 2] == 0).all() and lse[0, 0, 2].item() == -math.inf
    out.sum().backward()
    assert q.grad.isfinite().all()


def test_views_are_read_where_they_are(device):
    """Transposed, sliced, expanded and reversed inputs; gradients come back in the inputs' own shapes."""
    base = randn(device, torch.float32, 2, 20, 3, 4, 64)
    q, k, v = base[:, :, 0].transpose(1, 2), base[:, :, 1].transpose(1, 2), base[:, :, 2].transpose(1, 2)
    same(device, torch.float32, q, k, v, is_causal=True)
    same(device, torch.float32, q, k[:, :1].expand(2, 4, 20, 64), v[:, :1].expand(2, 4, 20, 64))
    same(device, torch.float32, q[..., ::2], k[..., 1::2], v[..., :5])
    same(device, torch.float32, q.mT.contiguous().mT, k.mT.contiguous().mT, v)
    out = ffpa.ffpa_attn_func(q, k, v)
    assert out.transpose(1, 2).is_contiguous(), "rows before heads, as the query has them"


def test_expanded_inputs_are_not_copied():
    q = torch.randn(1, 1, 4, 64)
    k = torch.randn(1, 1, 1, 64).expand(1, 1, 2**32, 64)  # a terabyte, if it were copied
    from ffpa import _torch_memory as memory
    assert memory.layout(k).stride[2] == 0
    with torch.no_grad():
        small = ffpa.ffpa_attn_func(q, k[:, :, :50000], k[:, :, :50000])
    torch.testing.assert_close(small, k[:, :, :4].clone(), rtol=1e-4, atol=1e-4)


def test_gradient_of_an_expanded_output(device):
    q, k, v = (randn(device, torch.float32, 1, 2, 9, 32).requires_grad_() for _ in range(3))
    ours = torch.autograd.grad(ffpa.ffpa_attn_func(q, k, v).sum(), [q, k, v])
    theirs = torch.autograd.grad(SDPA(q, k, v).sum(), [q, k, v])
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_only_some_inputs_want_gradients(device):
    q, k, v = (randn(device, torch.float32, 1, 2, 9, 32) for _ in range(3))
    k.requires_grad_()
    (dk,) = torch.autograd.grad(ffpa.ffpa_attn_func(q, k, v).square().sum(), [k])
    (expected,) = torch.autograd.grad(SDPA(q, k, v).square().sum(), [k])
    torch.testing.assert_close(dk, expected, rtol=1e-4, atol=1e-5)
    assert not ffpa.ffpa_attn_func(q, q, v).requires_grad
    with torch.no_grad():
        assert not ffpa.ffpa_attn_func(q, k, v).requires_grad


def test_in_place_change_before_backward_is_noticed(device):
    q = randn(device, torch.float32, 1, 1, 4, 8).requires_grad_()
    k = q * 2
    out = ffpa.ffpa_attn_func(q, k, k)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ---- the patch ------------------------------------------------------------------------------------------

@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", ffpa.ffpa_attn_func)


def test_patched_modules_give_pytorchs_results(device, patched):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 2, 64, dropout=0.0, batch_first=True).to(device)
    x, mask = torch.randn(2, 10, 64, device=device), torch.nn.Transformer.generate_square_subsequent_mask(10, device=device)
    found = layer(x, src_mask=mask)
    assert "ffpa" in str(ffpa.last_path()) or ffpa.last_path().split("/")[0] in ("cpu", "cuda")
    F.scaled_dot_product_attention = SDPA
    torch.testing.assert_close(found, layer(x, src_mask=mask), rtol=1e-4, atol=1e-4)


# ---- PyTorch's CausalBias: a tensor that says causal, and whose memory says nothing ------------------------------

@pytest.mark.parametrize("way", ["called", "patched", "patched with options"])
@pytest.mark.parametrize("variant", ["causal_upper_left", "causal_lower_right"])
def test_causal_bias(device, monkeypatch, variant, way):
    bias = pytest.importorskip("torch.nn.attention.bias")
    call = functools.partial(ffpa.ffpa_attn_func, forward_backend="auto,cpu") if "options" in way else ffpa.ffpa_attn_func
    if way != "called":
        monkeypatch.setattr(F, "scaled_dot_product_attention", call)
        call = lambda *inputs, **more: F.scaled_dot_product_attention(*inputs, **more)
    for nq, nk in ((5, 9), (7, 7), (1, 4)):
        q, k = randn(device, torch.float32, 2, 4, nq, 16).requires_grad_(), randn(device, torch.float32, 2, 2, nk, 16)
        mask = getattr(bias, variant)(nq, nk)
        written_out = mask._materialize(q.device)
        for _ in range(2):
            found, expected = call(q, k, k, mask, enable_gqa=True), SDPA(q, k, k, written_out, enable_gqa=True)
            assert ffpa.last_path().startswith(device)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            ours, theirs = (torch.autograd.grad(out.square().sum(), q)[0] for out in (found, expected))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_causal_bias_is_checked():
    bias = pytest.importorskip("torch.nn.attention.bias")
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    with pytest.raises(ffpa.FfpaError, match="CausalBias for 5 queries and 7 keys; there are 5 and 9"):
        ffpa.ffpa_attn_func(q, k, k, bias.causal_lower_right(5, 7))
    with pytest.raises(ffpa.FfpaError, match="is_causal=True"):
        ffpa.ffpa_attn_func(q, k, k, bias.causal_upper_left(5, 9), is_causal=True)
    with pytest.raises(ffpa.FfpaError, match="query is a NoneType|key is a NoneType"):
        ffpa.ffpa_attn_func(q, None, k, bias.causal_upper_left(5, 9))
    flop = [ffpa.explain(q, k, k, f(5, 9)).flop for f in (bias.causal_upper_left, bias.causal_lower_right)]
    assert flop == [4 * 16 * 2 * pairs for pairs in (1 + 2 + 3 + 4 + 5, 5 + 6 + 7 + 8 + 9)]


def both_refuse(error, *inputs, **call):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(error):  # of PyTorch's paths the one that checks everything
        SDPA(*inputs, **call)
    with pytest.raises(error) as caught:
        ffpa.ffpa_attn_func(*inputs, **call)
    return str(caught.value)


def test_errors_are_pytorchs(device):
    q = randn(device, torch.float32, 2, 4, 5, 16)
    assert "same dtype" in both_refuse(RuntimeError, q, q.half(), q)
    assert "2 dimensional" in both_refuse(RuntimeError, q[0, 0, 0], q, q)
    assert "attn_mask" in both_refuse(RuntimeError, q, q, q, torch.ones(5, 5, dtype=torch.bool, device=device), is_causal=True)
    assert "attn_mask dtype" in both_refuse(RuntimeError, q, q, q, torch.ones(5, 5, dtype=torch.int32, device=device))
    assert "enable_gqa" in both_refuse(RuntimeError, q, q[:, :2], q[:, :2])
    assert "divide" in both_refuse(RuntimeError, q, q[:, :3], q[:, :3], enable_gqa=True)
    assert "shape[3]" in both_refuse(RuntimeError, q, q[..., :8], q)
    assert "mask" in both_refuse(RuntimeError, q, q, q, torch.ones(5, 6, device=device))
    assert "broadcast" in both_refuse(RuntimeError, q, q[:1].expand(3, 4, 5, 16), q)
    with pytest.raises(ffpa.FfpaError, match="dropout probability has to be between 0 and 1, but got 1.5"):
        ffpa.ffpa_attn_func(q, q, q, dropout_p=1.5)  # some of PyTorch's kernels do not look
    with pytest.raises(TypeError):
        ffpa.ffpa_attn_func(q, q, q, is_casual=True)
    for call in (dict(is_causal="no"), dict(is_causal=None), dict(scale="1"), dict(scale=1j), dict(dropout_p=None),
                 dict(enable_gqa=None), dict(is_causal=torch.tensor(True)), dict(attn_mask=True)):
        assert "'" not in both_refuse(TypeError, q, q, q, **call)
    with pytest.raises(ffpa.FfpaError, match="dropout probability"):
        ffpa.ffpa_attn_func(q, q, q, dropout_p=math.nan)


def test_bad_input_names_the_argument():
    q = torch.randn(1, 2, 4, 8)
    cases = [
        ((q, q.to("meta"), q), "key is on the meta device"),
        ((q.to_sparse(), q, q), "query has layout torch.sparse_coo"),
        ((q, q, q.int()), "value.dtype: torch.int32"),
        ((q.int(),) * 3, "query.dtype=torch.int32"),
        ((q.cfloat(),) * 3, "query.dtype=torch.complex64"),
        ((q[None], q, q, torch.ones(3, 1, 1, 4, 4)), "attn_mask.shape=(3, 1, 1, 4, 4)"),
        ((q, q, q, torch.ones(2, 1, 1, 4, 4)), "attn_mask.shape=(2, 1, 1, 4, 4)"),
        ((q, q, None), "value is a NoneType"),
        ((q, q.numpy(), q), "key is a ndarray"),
        ((torch.nested.nested_tensor([q[0], q[0]]), q, q), "query is a nested tensor"),
        ((q.double(),) * 3, "reference"),
    ]
    if torch.cuda.is_available():
        cases.append(((q, q.cuda(), q), "key is on cuda:0, query on cpu"))
    for inputs, sentence in cases:
        with pytest.raises(ffpa.FfpaError) as caught:
            ffpa.ffpa_attn_func(*inputs)
        assert sentence in str(caught.value)
    for _ in range(3):  # known layouts, too
        ffpa.ffpa_attn_func(q, q, q)
        with pytest.raises(ffpa.FfpaError, match="query is on the meta device"):
            ffpa.ffpa_attn_func(*[q.to("meta")] * 3)
    for name in ("sink", "alibi"):
        with pytest.raises(ffpa.FfpaError, match=name + ".dtype=torch.complex64"):
            ffpa.ffpa_attn_func(q, q, q, **{name: torch.ones(2, dtype=torch.complex64)})
    with pytest.raises(RuntimeError):
        torch.ones(4, 4, dtype=torch.bool, requires_grad=True)  # PyTorch itself refuses a bool mask with a gradient
