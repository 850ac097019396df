"""What ffpa_attn_func has beyond PyTorch: options, lse, backends, dropout, autocast, packed sequences."""
import numpy
import pytest

torch = pytest.importorskip("torch")

import ffpa  # noqa: E402
from ffpa import _oracle  # noqa: E402
from ffpa._selftest import CASES, _torch_case  # noqa: E402
from ffpa._torch_autograd import SDPA  # noqa: E402


def make(device, *shapes, dtype=torch.float32):
    return [torch.randn(*shape, device=device).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_options_with_gradients(device, dtype, case):
    _, worst, bound = _torch_case(case[1], case[2], device, dtype)
    assert worst <= bound


def test_causal_by_name(device):
    q, k = make(device, (1, 1, 2, 8), (1, 1, 5, 8))
    q.zero_()
    v = torch.eye(5, device=device)[None, None]
    weights = lambda **call: ffpa.ffpa_attn_func(q, k, v, is_causal=True, **call)[0, 0].tolist()
    assert weights() == weights(causal_align="top_left") == [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]
    numpy.testing.assert_allclose(weights(causal_align="bottom_right"), [[0.25] * 4 + [0], [0.2] * 5], rtol=1e-6)


def test_mask_together_with_named_causal(device):
    q, k, v = make(device, (1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 3))
    q.zero_()
    v.copy_(torch.eye(3))
    mask = torch.tensor([False, True, True], device=device)
    out = ffpa.ffpa_attn_func(q, k, v, mask, is_causal=True, causal_align="bottom_right")
    assert out[0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]]


def test_gradient_of_lse(device):
    q, k = torch.ones(1, 1, 1, 1, device=device), torch.tensor([3.0, 1.0], device=device).log()[None, None, :, None]
    leaves = [t.clone().requires_grad_() for t in (q, k, torch.ones_like(k))]
    _, lse = ffpa.ffpa_attn_func(*leaves, scale=1.0, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), leaves)
    assert dq.item() == pytest.approx(0.823959, abs=1e-5)
    numpy.testing.assert_allclose(dk.flatten().tolist(), [0.75, 0.25], rtol=1e-5)
    assert (dv == 0).all()


def test_double_backward_is_refused(device):
    q = torch.randn(1, 1, 4, 8, device=device, requires_grad=True)
    (dq,) = torch.autograd.grad(ffpa.ffpa_attn_func(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(ffpa.FfpaError, match="no second derivative"):
        dq.sum().backward()


@pytest.mark.parametrize("way", ["eager", "operator"])
def test_second_derivative_is_never_taken_for_zero(device, way):
    """The gradient of a plain sum: its upstream gradient is a constant, but it depends on the inputs all the same."""
    q = torch.randn(1, 1, 4, 8, device=device, requires_grad=True)
    key = torch.randn(1, 1, 4, 8, dtype=torch.complex64, device=device).conj().imag if way == "operator" else q
    (dq,) = torch.autograd.grad(ffpa.ffpa_attn_func(q, key, q).sum(), q, create_graph=True)
    with pytest.raises(ffpa.FfpaError, match="no second derivative"):
        (dq.square().sum() + q.sum()).backward()


@pytest.mark.skipif(not hasattr(torch._C._functorch, "is_legacy_batchedtensor"), reason="PyTorch that cannot tell")
@pytest.mark.parametrize("way", ["eager", "operator"])
def test_several_upstream_gradients_at_once_are_refused(device, way):
    q = torch.randn(1, 1, 4, 8, device=device, requires_grad=True)
    key = torch.randn(1, 1, 4, 8, dtype=torch.complex64, device=device).conj().imag if way == "operator" else q
    out = ffpa.ffpa_attn_func(q, key, q)
    with pytest.raises(ffpa.FfpaError, match="is_grads_batched"):
        torch.autograd.grad(out, q, torch.randn(3, *out.shape, device=device), is_grads_batched=True)


def test_lazily_negated_upstream_gradient(device):
    q = torch.randn(1, 1, 4, 8, device=device, requires_grad=True)
    dout = torch.randn(1, 1, 4, 8, dtype=torch.complex64, device=device).conj().imag
    assert dout.is_neg()
    ours, theirs = (torch.autograd.grad(f(q, q, q), q, dout)[0] for f in (ffpa.ffpa_attn_func, SDPA))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_forward_mode_is_refused(device):
    from torch.autograd import forward_ad
    q, tangent = (torch.randn(1, 1, 4, 8, device=device) for _ in range(2))
    for _ in range(2):
        with forward_ad.dual_level():
            with pytest.raises(ffpa.FfpaError, match="k has a tangent"):
                ffpa.ffpa_attn_func(q, forward_ad.make_dual(q, tangent), q)
            assert ffpa.ffpa_attn_func(q, q, q).shape == q.shape  # nothing to derive
        ffpa.ffpa_attn_func(q, q, q)
    with pytest.raises(ffpa.FfpaError, match="forward-mode"):
        torch.func.jvp(lambda q: ffpa.ffpa_attn_func(q, q, q), (q,), (tangent,))


def test_options_are_read_at_each_call(device):
    """An option that is a tensor may change between calls."""
    q = torch.randn(1, 1, 4, 8, device=device)
    for name in ("scale", "softcap"):
        option = torch.tensor(0.5)
        found = []
        for value in (0.5, 3.0, 0.5):
            option.fill_(value)
            found.append(ffpa.ffpa_attn_func(q, q, q, **{name: option}))
            assert found[-1].equal(ffpa.ffpa_attn_func(q, q, q, **{name: value}))
        assert not found[0].equal(found[1])


def test_numbers_have_no_gradient(device):
    """A scale that is learned would never learn."""
    q, learned = torch.randn(1, 1, 4, 8, device=device), torch.tensor(0.5, device=device, requires_grad=True)
    for name in ("scale", "softcap", "dropout_p"):
        with pytest.raises(TypeError, match=name + r"\.requires_grad is set"):
            ffpa.ffpa_attn_func(q, q, q, **{name: learned})
    assert ffpa.ffpa_attn_func(q, q, q, scale=learned.detach()).equal(ffpa.ffpa_attn_func(q, q, q, scale=0.5))


def test_slopes_have_no_gradient(device):
    q = torch.randn(1, 2, 4, 8, device=device, requires_grad=True)
    with pytest.raises(ffpa.FfpaError, match="alibi.requires_grad"):
        ffpa.ffpa_attn_func(q, q, q, alibi=torch.ones(2, device=device, requires_grad=True))


# ---- backends by name -------------------------------------------------------------------------------------

def test_backends_and_paths(device):
    q = torch.randn(1, 2, 8, 64, device=device)
    plain = ffpa.ffpa_attn_func(q, q, q)
    assert ffpa.last_path().startswith(device)
    assert ffpa.ffpa_attn_func(q, q, q, forward_backend=device).equal(plain)
    theirs = ffpa.ffpa_attn_func(q, q, q, forward_backend="sdpa")
    assert ffpa.last_path() == "sdpa" and theirs.equal(SDPA(q, q, q))
    ffpa.ffpa_attn_func(q, q, q)
    assert ffpa.last_path().startswith(device)
    with pytest.raises(ffpa.FfpaError, match="cuda/warp9"):
        ffpa.ffpa_attn_func(q, q, q, forward_backend="warp9")


def test_explain_a_call(device):
    q, k = torch.randn(1, 4, 7, 512, device=device), torch.randn(1, 2, 9, 512, device=device)
    for backward in (False, True):
        report = ffpa.explain(q, k, k, enable_gqa=True, backward=backward)
        assert report.path.startswith(device) and report.path.endswith("backward" if backward else "forward")


def test_another_backend_only_with_leave():
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ffpa.FfpaError) as caught:
        ffpa.ffpa_attn_func(q, q, q)
    assert caught.value.name == "FFPA_E_UNSUPPORTED"
    out = ffpa.ffpa_attn_func(q, q, q, forward_backend="auto,sdpa")
    assert ffpa.last_path() == "sdpa" and out.equal(SDPA(q, q, q))
    out = ffpa.ffpa_attn_func(q, q, q, forward_backend="auto,reference", backward_backend="reference")
    assert ffpa.last_path() == "reference/forward"
    torch.testing.assert_close(out, SDPA(q, q, q))
    dq = torch.autograd.grad(out.square().sum(), q)[0]
    torch.testing.assert_close(dq, torch.autograd.grad(SDPA(q, q, q).square().sum(), q)[0])


def test_backends_by_turns():
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64, requires_grad=True)
    out = ffpa.ffpa_attn_func(q, q, q, forward_backend="auto,reference", backward_backend="auto,reference")
    dq = torch.autograd.grad(out.square().sum(), q)[0]
    assert (ffpa.last_path(), ffpa.last_backward_path()) == ("reference/backward", "reference/backward")
    torch.testing.assert_close(dq, torch.autograd.grad(SDPA(q, q, q).square().sum(), q)[0])
    out = ffpa.ffpa_attn_func(q, q, q, forward_backend="reference", backward_backend="auto,sdpa")
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), q)[0], dq)
    assert ffpa.last_backward_path() == "sdpa"
    mask = torch.randn(4, 4, dtype=torch.float64)
    assert ffpa.ffpa_attn_func(q, q, q, mask, forward_backend="auto,sdpa").equal(SDPA(q, q, q, mask))
    rows, cu = q.detach()[0, 0][:, None], torch.tensor([0, 4], dtype=torch.int32)
    packed = ffpa.ffpa_attn_varlen_func(rows, rows, rows, cu, cu, forward_backend="auto,reference")
    torch.testing.assert_close(packed[:, 0], SDPA(q, q, q)[0, 0])
    with pytest.raises(ffpa.FfpaError, match="packed sequences"):
        ffpa.ffpa_attn_varlen_func(rows, rows, rows, cu, cu, forward_backend="auto,sdpa")


def test_saved_tensors_of_another_dtype_are_refused():
    """A hook that forgets to give back what it was given: not read as if it had."""
    q = torch.randn(1, 2, 40, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t):
        out = ffpa.ffpa_attn_func(q, q, q)
    with pytest.raises(ffpa.FfpaError, match="dtype"):
        out.sum().backward()


def test_pytorchs_backward_by_name(device):
    leaves = [torch.randn(2, h, 9, 32, device=device, requires_grad=True) for h in (4, 2, 2)]
    mask = torch.randn(9, 9, device=device, requires_grad=True)
    out = ffpa.ffpa_attn_func(*leaves, mask, enable_gqa=True, backward_backend="sdpa")
    found = torch.autograd.grad(out.square().sum(), [*leaves, mask])
    assert ffpa.last_backward_path() == "sdpa"
    expected = torch.autograd.grad(SDPA(*leaves, mask, enable_gqa=True).square().sum(), [*leaves, mask])
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_pytorchs_backend_refuses_what_it_does_not_know(device):
    q = torch.randn(1, 2, 4, 8, device=device)
    for call, word in ((dict(softcap=3.0), "softcap"), (dict(window=(1, 1)), "window"), (dict(return_lse=True), "lse"),
                       (dict(sink=torch.ones(2, device=device)), "sink"),
                       (dict(backward_backend="cpu"), "backward_backend")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.ffpa_attn_func(q, q, q, forward_backend="sdpa", **call)


# ---- dropout --------------------------------------------------------------------------------------------------

def probe(device):
    q = torch.zeros(2, 2, 64, 64, device=device)
    return q, torch.eye(64, device=device).expand(2, 2, 64, 64)


def test_dropout_comes_from_pytorchs_generator(device):
    q, eye = probe(device)
    draw = lambda: ffpa.ffpa_attn_func(q, q, eye, dropout_p=0.3)
    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    assert draw().equal(first) and not second.equal(first)
    assert not first[0, 0].equal(first[0, 1]) and not first[0].equal(first[1])
    kept = first != 0
    assert abs(kept.float().mean().item() - 0.7) < 4 * (0.21 / kept.numel()) ** 0.5
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / 64 / 0.7))
    assert (ffpa.ffpa_attn_func(q, q, eye, dropout_p=1.0) == 0).all()
    assert ffpa.ffpa_attn_func(q, q, eye, dropout_p=0.0).equal(ffpa.ffpa_attn_func(q, q, eye))


def test_backward_drops_what_forward_dropped(device):
    q, eye = probe(device)
    v = eye.clone().requires_grad_()
    out = ffpa.ffpa_attn_func(q, q, v, dropout_p=0.3)
    out.backward(eye)
    torch.testing.assert_close(v.grad, out.detach().transpose(2, 3))


def test_checkpointing_redraws_the_same_bits(device):
    from torch.utils.checkpoint import checkpoint
    x = torch.randn(1, 2, 40, 64, device=device, requires_grad=True)
    block = lambda x: ffpa.ffpa_attn_func(x, x, x, dropout_p=0.5)
    for reentrant in (False, True):
        torch.manual_seed(1)
        plain = torch.autograd.grad(block(x).square().sum(), x)[0]
        torch.manual_seed(1)
        out = checkpoint(block, x, use_reentrant=reentrant)
        out.square().sum().backward()
        assert x.grad.equal(plain)
        x.grad = None


# ---- autocast --------------------------------------------------------------------------------------------------

def test_autocast(device):
    q = torch.randn(1, 2, 10, 64, device=device, requires_grad=True)
    with torch.autocast(device, torch.bfloat16):
        out = ffpa.ffpa_attn_func(q, q.bfloat16(), q)
        assert out.dtype == SDPA(q, q.bfloat16(), q).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert ffpa.ffpa_attn_func(q, q, q).dtype == torch.float32
        for _ in range(2):  # the second time by look-up
            assert ffpa.ffpa_attn_func(q, q, q).dtype == torch.bfloat16
            assert ffpa.ffpa_attn_func(*[q.half()] * 3).dtype == torch.bfloat16
            assert ffpa.ffpa_attn_func(*[q.bfloat16()] * 3).equal(out)
    for _ in range(2):
        assert ffpa.ffpa_attn_func(q, q, q).dtype == torch.float32
    assert out.equal(ffpa.ffpa_attn_func(*[q.bfloat16()] * 3))
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


# ---- packed sequences, flash-attn's names --------------------------------------------------------------

LENGTHS = [(3, 5), (0, 4), (40, 40), (7, 0), (20, 33)]


def packed(device, dtype=torch.float32, hq=4, hk=2, d=64, dv=64, index=torch.int32):
    nq, nk = (sum(n) for n in zip(*LENGTHS))
    offsets = [torch.tensor([0] + list(numpy.cumsum(n)), dtype=index, device=device) for n in zip(*LENGTHS)]
    return make(device, (nq, hq, d), (nk, hk, d), (nk, hk, dv), dtype=dtype), offsets


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_dense_ones_side_by_side(device, index, causal):
    (q, k, v), (cu_q, cu_k) = packed(device, dv=48, index=index)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out, lse = ffpa.ffpa_attn_varlen_func(*leaves, cu_q, cu_k, 40, 40, causal=causal, return_lse=True)
    assert out.shape == (q.shape[0], 4, 48) and lse.shape == (4, q.shape[0])
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, dout)
    for s, (nq, nk) in enumerate(LENGTHS):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        one = [t.detach()[at].transpose(0, 1)[None].requires_grad_() for t, at in ((q, rows), (k, keys), (v, keys))]
        alone, alone_lse = ffpa.ffpa_attn_func(*one, is_causal=causal, causal_align="bottom_right", enable_gqa=True,
                                               return_lse=True)
        torch.testing.assert_close(out[rows], alone[0].transpose(0, 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lse[:, rows], alone_lse[0], rtol=1e-4, atol=1e-5)
        expected = torch.autograd.grad(alone, one, dout[rows].transpose(0, 1)[None])
        for a, at, b in zip(found, (rows, keys, keys), expected):
            torch.testing.assert_close(a[at], b[0].transpose(0, 1), rtol=1e-3, atol=1e-4)


def test_longest_is_a_hint_and_the_tail_is_zero(device):
    (q, k, v), (cu_q, cu_k) = packed(device)
    full = ffpa.ffpa_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40)
    assert ffpa.ffpa_attn_varlen_func(q, k, v, cu_q, cu_k).equal(full)
    longer = torch.cat([q, torch.full_like(q[:5], float("nan"))]).requires_grad_()
    out = ffpa.ffpa_attn_varlen_func(longer, k, v, cu_q, cu_k, 40, 40)
    assert out[:-5].equal(full) and (out[-5:] == 0).all()
    out.sum().backward()
    assert (longer.grad[-5:] == 0).all() and longer.grad.isfinite().all()


def test_packed_arguments_are_checked(device):
    (q, k, v), (cu_q, cu_k) = packed(device)
    for call, word in (((q[0], k, v, cu_q, cu_k), "query"), ((q, k, v, cu_q[:-1], cu_k), "offsets"),
                       ((q, k, v, cu_q[:0], cu_k), "one entry or more"), ((q, k, v, cu_q, None), "required"),
                       ((q, k, v, cu_q.float(), cu_k), "cu_seqlens_q"),
                       ((q, k, v, cu_q.long(), cu_k), "dtype"), ((q, k.int(), v, cu_q, cu_k), "key.dtype"),
                       ((q, k, v, cu_q, cu_k, None, None), "max_seqlen_q"), ((q, None, v, cu_q, cu_k), "key is a NoneType")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.ffpa_attn_varlen_func(*call)
    for p in (-0.5, float("nan"), 1.5):
        with pytest.raises(ffpa.FfpaError, match="dropout probability"):
            ffpa.ffpa_attn_varlen_func(q, k, v, cu_q, cu_k, dropout_p=p)
    for window in (None, 3, (1,)):
        with pytest.raises(ffpa.FfpaError, match="window_size"):
            ffpa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, window_size=window)


def test_flash_attn_func(device):
    q, k, v = make(device, (2, 20, 4, 64), (2, 30, 2, 64), (2, 30, 2, 64))
    out, lse, nothing = ffpa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert nothing is None and lse.shape == (2, 4, 20) and out.is_contiguous()
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    expected = ffpa.ffpa_attn_func(*turned, is_causal=True, causal_align="bottom_right", enable_gqa=True)
    assert out.equal(expected.transpose(1, 2))
    narrow = ffpa.flash_attn_func(q, k, v, causal=True, window_size=(5, -1), softcap=4.0, softmax_scale=0.2)
    wide = [t.double().cpu().numpy() for t in turned]
    oracle = _oracle.forward(*wide, causal="bottom_right", window=(5, -1), softcap=4.0, scale=0.2)[0]
    numpy.testing.assert_allclose(narrow.transpose(1, 2).cpu().numpy(), oracle, rtol=1e-3, atol=1e-4)


def test_flash_attn_varlen_func(device):
    (q, k, v), (cu_q, cu_k) = packed(device)
    out, lse, _ = ffpa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, causal=True, return_attn_probs=True)
    expected = ffpa.ffpa_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, causal=True)
    assert out.equal(expected) and lse.shape == (4, q.shape[0])
    with pytest.raises(ffpa.FfpaError, match="block_table"):
        ffpa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, block_table=cu_q[None])


def test_merge_names_the_argument_and_drops_nothing(device):
    out, lse = ffpa.ffpa_attn_func(*make(device, (1, 2, 9, 64), (1, 2, 40, 64), (1, 2, 40, 64)), return_lse=True)
    for call, word in (((out, lse, None, lse), "out_b is a NoneType"), ((out, lse, out.to("meta"), lse), "out_b is on the meta"),
                       ((out, lse, out, lse.to_sparse()), "lse_b has layout"), ((out, lse[0], out, lse), "lse_a.shape"),
                       ((out.int(), lse, out, lse), "out_a.dtype"),
                       ((out, lse, out.clone().requires_grad_(), lse), "out_b.requires_grad")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.merge(*call)
    with torch.no_grad():
        expected = ffpa.merge(-out, lse, out.clone().requires_grad_(), lse)[0]
    lazy = torch.complex(out, out).conj().imag
    assert lazy.is_neg() and ffpa.merge(lazy, lse, out, lse)[0].equal(expected)


def test_merge(device):
    q, k, v = make(device, (1, 2, 9, 64), (1, 2, 40, 64), (1, 2, 40, 64))
    whole, lse = ffpa.ffpa_attn_func(q, k, v, return_lse=True)
    parts = [ffpa.ffpa_attn_func(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 15), slice(15, 40))]
    out, merged = ffpa.merge(*parts[0], *parts[1])
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged, lse, rtol=1e-5, atol=1e-5)


# ---- repeated calls are found by look-up: the answer must not depend on which call came first -----------------------

def test_repeated_calls_see_every_difference(device):
    """The same layouts again and again, one thing changed each time."""
    q, k, v = make(device, (1, 4, 6, 32), (1, 4, 6, 32), (1, 4, 6, 32))
    mask = torch.randn(6, 6, device=device)
    calls = [dict(), dict(is_causal=True), dict(scale=0.3), dict(scale=0.0), dict(attn_mask=mask), dict(attn_mask=mask > 0),
             dict(is_causal=True, causal_align="bottom_right"), dict(window=(1, 1)), dict(softcap=2.0),
             dict(attn_mask=mask[:1]), dict(forward_backend="reference") if device == "cpu" else dict()]
    first = [ffpa.ffpa_attn_func(q, k, v, **call) for call in calls]
    for i in range(len(calls)):
        for j, call in enumerate(calls):
            assert ffpa.ffpa_attn_func(q, k, v, **call).equal(first[j]), (i, call)
            both = ffpa.ffpa_attn_func(q, k, v, **dict(call, return_lse=True))
            assert both[0].equal(first[j]) and both[1].shape == (1, 4, 6)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert ffpa.ffpa_attn_func(turned, k, v).equal(first[0])
    assert ffpa.ffpa_attn_func(q.bfloat16(), k.bfloat16(), v.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ffpa.FfpaError, match="same dtype"):
        ffpa.ffpa_attn_func(q, k.bfloat16(), v)
    grouped = ffpa.ffpa_attn_func(q, k[:, :2], v[:, :2], enable_gqa=True)
    for _ in range(2):
        assert ffpa.ffpa_attn_func(q, k[:, :2], v[:, :2], enable_gqa=True).equal(grouped)
        with pytest.raises(ffpa.FfpaError, match="enable_gqa"):
            ffpa.ffpa_attn_func(q, k[:, :2], v[:, :2])


def test_threads_share_kept_problems(device):
    import threading
    q = torch.randn(1, 2, 50, 64, device=device)
    expected, wrong = [ffpa.ffpa_attn_func(q * s, q, q) for s in range(4)], []

    def work(s):
        for _ in range(30):
            if not ffpa.ffpa_attn_func(q * s, q, q).equal(expected[s]):
                wrong.append(s)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_what_decoders_call_is_found_by_look_up(device):
    from ffpa import _torch_fast
    q, k, v = make(device, (1, 4, 6, 32), (1, 2, 9, 32), (1, 2, 9, 32), dtype=torch.bfloat16)
    _torch_fast._known.entries.clear()
    ffpa.ffpa_attn_func(q, k, v, is_causal=True, enable_gqa=True)
    assert len(_torch_fast._known.entries) == 1
    (entry,) = _torch_fast._known.entries.values()
    assert not entry.problems
    ffpa.ffpa_attn_func(q, k, v, is_causal=True, enable_gqa=True)
    assert list(entry.problems) == [False]
