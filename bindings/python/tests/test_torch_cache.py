"""flash_attn_with_kvcache: attention over a KV cache, appended to or not, paged or not, in plain and in compiled code."""
import pytest

torch = pytest.importorskip("torch")

import ffpa  # noqa: E402

needs_operators = pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="PyTorch before 2.4")


def make(device, *shapes):
    return [torch.randn(*shape, device=device) for shape in shapes]


@pytest.mark.parametrize("paged", [False, True])
def test_flash_attn_with_kvcache(device, paged):
    lengths = torch.tensor([5, 33, 0], dtype=torch.int32, device=device)
    q, new_k, new_v = make(device, (3, 2, 4, 64), (3, 2, 2, 64), (3, 2, 2, 64))
    if paged:
        caches = make(device, (12, 16, 2, 64), (12, 16, 2, 64))
        table = torch.tensor([[7, 1, 4], [11, 0, 3], [2, 9, 5]], dtype=torch.int32, device=device)
        dense = [c[table.long()].flatten(1, 2) for c in caches]
    else:
        caches, table = make(device, (3, 48, 2, 64), (3, 48, 2, 64)), None
        dense = [c.clone() for c in caches]
    out, lse = ffpa.flash_attn_with_kvcache(q, *caches, new_k, new_v, cache_seqlens=lengths, block_table=table, causal=True,
                                            return_softmax_lse=True)
    assert lse.shape == (3, 4, 2)
    for b, n in enumerate(lengths.tolist()):
        k, v = (torch.cat([c[b, :n], new[b]])[None] for c, new in zip(dense, (new_k, new_v)))
        expected = ffpa.flash_attn_func(q[b:b + 1], k, v, causal=True)
        torch.testing.assert_close(out[b:b + 1], expected, rtol=1e-4, atol=1e-5)
        for cache, new in zip(caches, (new_k, new_v)):
            rows = cache[table[b].long()].flatten(0, 1) if paged else cache[b]
            assert rows[n:n + 2].equal(new[b]), "appended where the sequence ended"
    with pytest.raises(ffpa.FfpaError, match="rotary_cos"):
        ffpa.flash_attn_with_kvcache(q, *caches, rotary_cos=q, cache_seqlens=lengths)


def test_cache_arguments_are_checked(device):
    q, new = make(device, (2, 1, 4, 64), (2, 1, 2, 64))
    caches, pages = make(device, (2, 16, 2, 64), (2, 16, 2, 64)), make(device, (4, 16, 2, 64), (4, 16, 2, 64))
    index = lambda *shape: torch.zeros(shape, dtype=torch.int32, device=device)
    for call, word in ((dict(cache_seqlens=index(1)), "cache_seqlens has 1 entries"),
                       (dict(cache_seqlens=index(3)), "cache_seqlens has 3 entries"),
                       (dict(cache_seqlens=2, cache_batch_idx=index(1)), "cache_batch_idx has 1 entries"),
                       (dict(k_cache=pages[0], v_cache=pages[1], cache_seqlens=2, block_table=index(1, 2)), "block_table has 1"),
                       (dict(k=new, cache_seqlens=2), "v is missing"), (dict(v=new, cache_seqlens=2), "k is missing"),
                       (dict(q=None), "q is a NoneType"),
                       (dict(v_cache=caches[1].int()), "v_cache.dtype")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.flash_attn_with_kvcache(**dict(dict(q=q, k_cache=caches[0], v_cache=caches[1]), **call))


@pytest.mark.parametrize("appending", [False, True])
@pytest.mark.parametrize("lengths", [4, None])
def test_no_sequences(device, appending, lengths):
    """A batch of none: as a server has it between requests."""
    q, caches, new = torch.empty(0, 1, 4, 64, device=device), make(device, (0, 16, 2, 64), (0, 16, 2, 64)), (None, None)
    if appending:
        new, lengths = make(device, (0, 1, 2, 64), (0, 1, 2, 64)), torch.empty(0, dtype=torch.int32, device=device)
    assert ffpa.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lengths).shape == (0, 1, 4, 64)
    pages, table = make(device, (3, 16, 2, 64), (3, 16, 2, 64)), torch.empty(0, 2, dtype=torch.int32, device=device)
    before = [page.clone() for page in pages]
    assert ffpa.flash_attn_with_kvcache(q, *pages, *new, cache_seqlens=4 if lengths is None else lengths,
                                        block_table=table).shape == (0, 1, 4, 64)
    assert all(a.equal(b) for a, b in zip(pages, before))


# ---- gradients, transforms, views ------------------------------------------------------------------------------

def small(device):
    """q, caches, what to append, lengths."""
    q, new_k, new_v = make(device, (2, 1, 4, 64), (2, 1, 2, 64), (2, 1, 2, 64))
    return q, make(device, (2, 16, 2, 64), (2, 16, 2, 64)), (new_k, new_v), torch.tensor([3, 9], dtype=torch.int32, device=device)


def test_gradients_are_refused_by_name(device):
    q, caches, new, lengths = small(device)
    for call in (dict(q=q.clone().requires_grad_()), dict(v_cache=caches[1].clone().requires_grad_()),
                 dict(k=new[0].clone().requires_grad_(), v=new[1]),
                 dict(alibi_slopes=torch.ones(4, device=device, requires_grad=True))):
        name = next(name for name, t in call.items() if t.requires_grad).replace("_slopes", "")
        call = dict(dict(q=q, k_cache=caches[0], v_cache=caches[1], cache_seqlens=lengths), **call)
        with pytest.raises(ffpa.FfpaError, match=name + r"\.requires_grad is set.*no gradient"):
            ffpa.flash_attn_with_kvcache(**call)
        with torch.no_grad():
            assert ffpa.flash_attn_with_kvcache(**call).shape == q.shape


def test_appending_is_a_change_in_place(device):
    """Whoever saved the cache for a gradient of its own must hear of it."""
    q, caches, new, lengths = small(device)
    weight = torch.ones(64, device=device, requires_grad=True)
    saved = (caches[0] * weight).sum()
    with torch.no_grad():
        ffpa.flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths)  # reads alone
        before = caches[0]._version
        ffpa.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lengths)
    assert caches[0]._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    with torch.inference_mode():  # tensors without a version
        ffpa.flash_attn_with_kvcache(q.clone(), *[c.clone() for c in caches], *new, cache_seqlens=lengths)


@needs_operators
def test_transforms_are_refused_and_lazy_negation_is_not(device):
    from torch.autograd import forward_ad
    q, caches, new, lengths = small(device)
    with pytest.raises(ffpa.FfpaError, match="function transforms"):
        torch.vmap(lambda q: ffpa.flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths))(q[None])
    with forward_ad.dual_level(), pytest.raises(ffpa.FfpaError, match="q has a tangent"):
        ffpa.flash_attn_with_kvcache(forward_ad.make_dual(q, q), *caches, cache_seqlens=lengths)
    lazy = torch.complex(q, -q).conj().imag
    assert lazy.is_neg()
    for more in ((), new):
        expected = ffpa.flash_attn_with_kvcache(q, *caches, *more, cache_seqlens=lengths)
        torch.testing.assert_close(ffpa.flash_attn_with_kvcache(lazy, *caches, *more, cache_seqlens=lengths), expected)
    cache = torch.complex(caches[1], -caches[1]).conj().imag
    torch.testing.assert_close(ffpa.flash_attn_with_kvcache(q, caches[0], cache, cache_seqlens=lengths + 1), expected)
    with pytest.raises(ffpa.FfpaError, match="v_cache is lazily negated"):
        ffpa.flash_attn_with_kvcache(q, caches[0], cache, *new, cache_seqlens=lengths)


# ---- operators, and code that is compiled --------------------------------------------------------------------------

def decoding(device, paged):
    """Arguments of step(), and the tensors that it may change."""
    q, new_k, new_v = make(device, (3, 2, 4, 64), (3, 2, 2, 64), (3, 2, 2, 64))
    caches = make(device, (12, 16, 2, 64), (12, 16, 2, 64)) if paged else make(device, (3, 48, 2, 64), (3, 48, 2, 64))
    table = torch.tensor([[7, 1, 4], [11, 0, 3], [2, 9, 5]], dtype=torch.int32, device=device) if paged else None
    lengths = torch.tensor([5, 33, 0], dtype=torch.int32, device=device)
    return q, caches, (new_k, new_v), lengths, table


@needs_operators
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("appending", [False, True])
def test_opcheck(device, appending, paged):
    from ffpa import _torch_ops  # noqa: F401
    q, caches, new, lengths, table = decoding(device, paged)
    operator = torch.ops.ffpa.forward_appending if appending else torch.ops.ffpa.forward_cached
    slopes = torch.rand(1, 4, 1, 1, device=device)
    torch.library.opcheck(operator.default, (q, *caches, *(new if appending else ()), lengths, None, table, slopes, 0.3, 2,
                                             [9, 0], 4.0))


def step(q, k_cache, v_cache, k, v, lengths, table):
    """What surrounds attention in a decoder: work before it and after, and a reader of the changed cache."""
    out, lse = ffpa.flash_attn_with_kvcache(q * 1.5, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table,
                                            causal=True, return_softmax_lse=True)
    return out + 1, lse, k_cache.sum((0, 2))


@needs_operators
@pytest.mark.parametrize("appending, paged", [(False, True), (True, False), (True, True)])
def test_compile_has_no_graph_break(device, compiler, appending, paged):
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    for _ in range(2):
        q, caches, new, lengths, table = decoding(device, paged)
        ours, theirs = ([c.clone() for c in caches] for _ in range(2))
        new = new if appending else (None, None)
        found, expected = compiled(q, *ours, *new, lengths, table), step(q, *theirs, *new, lengths, table)
        for a, b in zip((*found, *ours), (*expected, *theirs)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert ours[0].equal(caches[0]) != appending


@needs_operators
def test_compile_with_changing_lengths_and_views_of_one_buffer(device):
    """As decoders keep it: one buffer for all layers, of which each appends to its own slice."""
    torch._dynamo.reset()

    def layers(q, buffer, new, lengths):
        for layer in range(2):
            q = ffpa.flash_attn_with_kvcache(q, buffer[layer, 0], buffer[layer, 1], new, new, cache_seqlens=lengths)
        return q

    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, capacity in ((2, 16), (3, 20), (5, 33)):
        q, buffer, new = make(device, (batch, 1, 4, 64), (2, 2, batch, capacity, 2, 64), (batch, 1, 2, 64))
        lengths = torch.arange(batch, dtype=torch.int32, device=device)
        ours, theirs = buffer.clone(), buffer.clone()
        torch.testing.assert_close(compiled(q, ours, new, lengths), layers(q, theirs, new, lengths))
        assert ours.equal(theirs) and not ours.equal(buffer)


@needs_operators
def test_fake_tensors_have_the_strides_of_real_ones(device):
    from torch._subclasses.fake_tensor import FakeTensorMode
    q, caches, new, lengths, table = decoding(device, False)
    for query in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        call = lambda *t: ffpa.flash_attn_with_kvcache(*t[:-1], cache_seqlens=t[-1], return_softmax_lse=True)
        tensors = (query, *caches, *new, lengths)
        real = call(*tensors)
        with FakeTensorMode() as mode:
            fake = call(*[mode.from_tensor(t) for t in tensors])
        for a, b in zip(real, fake):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
