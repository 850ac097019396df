"""NumPy and DLPack arrays through the library, against float64."""
import itertools

import numpy
import pytest
from hypothesis import given, strategies as st

import ffpa
from ffpa import _oracle
from ffpa._selftest import arguments, error, make

F64 = lambda *arrays: [a.astype(numpy.float64) for a in arrays]


@st.composite
def problems(draw):
    hk = draw(st.integers(1, 3))
    d = draw(st.sampled_from([1, 3, 8, 40, 64, 100, 320, 512]))
    sizes = (draw(st.integers(1, 3)), hk * draw(st.integers(1, 4)), hk, draw(st.integers(1, 70)), draw(st.integers(1, 90)),
             d, draw(st.sampled_from([d, 1, 33, 128])))
    b, hq, _, nq, nk = sizes[:5]
    options = {}
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from(["top_left", "bottom_right"]))
    if draw(st.booleans()) and "causal" not in options:
        options["window"] = (draw(st.integers(-1, 30)), draw(st.integers(-1, 30)))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.0, 20.0]))
    if draw(st.booleans()):
        options["mask"] = tuple(draw(st.sampled_from([1, n])) for n in (b, hq, nq, nk))
    for name in ("sink", "alibi"):
        if draw(st.booleans()):
            options[name] = True
    return sizes, options, draw(st.integers(0, 2**31))


@given(problems())
def test_forward_and_backward_agree_with_float64(problem):
    sizes, options, seed = problem
    inputs, filled = make(sizes, options, seed)
    q, k, v, dout = inputs
    call = arguments(filled)
    o, lse = ffpa.ffpa_attn_func(q, k, v, enable_gqa=True, return_lse=True, **call)
    found = dict(ffpa.ffpa_attn_backward(dout, q, k, v, o, lse, **call), o=o)
    q, k, v, dout = F64(*inputs)
    expected_o, expected_lse, _ = _oracle.forward(q, k, v, **filled)
    expected = dict(_oracle.backward(dout, q, k, v, **filled), o=expected_o)
    empty = numpy.isneginf(expected_lse)
    assert (numpy.isneginf(lse) == empty).all()
    assert error(lse[~empty], expected_lse[~empty]) < 1e-5 if (~empty).any() else True
    for name, value in expected.items():
        assert error(found[name], value) < 3e-5, name


def test_oracle_gradient_is_the_slope_of_its_forward():
    """Central differences, so that the judge of the other tests is judged, too."""
    inputs, filled = make((1, 2, 1, 3, 4, 3, 2), {"causal": "bottom_right", "softcap": 2.0, "mask": (1, 1, 3, 4), "sink": True})
    q, k, v, dout = F64(*inputs)
    filled = {n: x.astype(float) if isinstance(x, numpy.ndarray) else x for n, x in filled.items()}
    found = _oracle.backward(dout, q, k, v, **filled)
    value = lambda: (_oracle.forward(q, k, v, **filled)[0] * dout).sum()
    for name, x in (("dq", q), ("dk", k), ("dv", v), ("dmask", filled["mask"]), ("dsink", filled["sink"])):
        for at in itertools.product(*map(range, x.shape)):
            kept, step = x[at], 1e-6
            x[at] = kept + step
            up = value()
            x[at] = kept - step
            down = value()
            x[at] = kept
            assert found[name][at] == pytest.approx((up - down) / (2 * step), abs=1e-7), (name, at)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_strided_views_need_no_copy(axes):
    random = numpy.random.default_rng(5)
    order = [axes.index(i) for i in range(3)]
    make_view = lambda: random.standard_normal([(2, 3, 20)[a] for a in axes] + [48], dtype="f4").transpose(*order, 3)
    q, k, v = make_view(), make_view(), make_view()[..., ::-1]
    expected = ffpa.ffpa_attn_func(*(numpy.ascontiguousarray(a) for a in (q, k, v)), is_causal=True)
    assert abs(ffpa.ffpa_attn_func(q, k, v, is_causal=True) - expected).max() < 1e-6


def test_fewer_axes():
    q, k, v = (numpy.random.default_rng(i).standard_normal((5, 16), dtype="f4") for i in range(3))
    flat = ffpa.ffpa_attn_func(q, k, v)
    assert flat.shape == (5, 16)
    assert numpy.array_equal(flat, ffpa.ffpa_attn_func(q[None], k[None], v[None])[0])
    o, lse = ffpa.ffpa_attn_func(q[None], k[None], v[None], return_lse=True)
    assert lse.shape == (1, 5) and o.shape == (1, 5, 16)


@pytest.mark.parametrize("backend", ["reference", "naive"])
def test_slow_backends_by_name(backend):
    q = numpy.random.default_rng(0).standard_normal((1, 2, 9, 32))
    o = ffpa.ffpa_attn_func(*[q.astype("f4")] * 3, forward_backend=backend)
    assert ffpa.last_path() == backend + "/forward"
    assert error(o, _oracle.forward(q, q, q)[0]) < 1e-6


def test_f64_runs_on_the_reference_only():
    q = numpy.random.default_rng(0).standard_normal((1, 1, 4, 8))
    with pytest.raises(ffpa.FfpaError, match="reference") as caught:
        ffpa.ffpa_attn_func(q, q, q)
    assert caught.value.name == "FFPA_E_UNSUPPORTED"
    o = ffpa.ffpa_attn_func(q, q, q, forward_backend="reference")
    assert o.dtype == numpy.float64 and error(o, _oracle.forward(q, q, q)[0]) < 1e-14


def test_dropout_is_numpys_generator():
    q, v = numpy.zeros((2, 2, 64, 8), "f4"), numpy.ones((2, 2, 64, 8), "f4")
    draw = lambda p: ffpa.ffpa_attn_func(q, q, v, dropout_p=p)
    numpy.random.seed(3)
    first, second = draw(0.5), draw(0.5)
    numpy.random.seed(3)
    assert numpy.array_equal(first, draw(0.5)) and not numpy.array_equal(first, second)
    kept = first[..., 0] * 32  # each weight is 1/64, kept ones doubled
    assert numpy.allclose(kept, numpy.round(kept)) and abs(kept.mean() - 32) < 4 * 4 / 16
    assert (draw(1.0) == 0).all()


@pytest.mark.parametrize("case", ["batch", "queries", "keys"])
def test_empty_axes(case):
    shape = {"batch": (0, 2, 4), "queries": (1, 2, 0), "keys": (1, 2, 4)}[case]
    q = numpy.ones(shape + (8,), "f4")
    k = numpy.ones((shape[0], 2, 0 if case == "keys" else 3, 8), "f4")
    o, lse = ffpa.ffpa_attn_func(q, k, k, return_lse=True)
    assert o.shape == q.shape and (o == 0).all() and numpy.isneginf(lse).all()


def test_merge_of_halves_is_the_whole():
    random = numpy.random.default_rng(2)
    q, k, v = (random.standard_normal((2, 3, n, 64), dtype="f4") for n in (10, 50, 50))
    whole, lse = ffpa.ffpa_attn_func(q, k, v, return_lse=True)
    parts = [ffpa.ffpa_attn_func(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 20), slice(20, 50))]
    merged, merged_lse = ffpa.merge(*parts[0], *parts[1])
    assert abs(merged - whole).max() < 1e-6 and abs(merged_lse - lse).max() < 1e-5


class Foreign:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @property
    def shape(self):
        return self.array.shape


def test_dlpack():
    q, k, v = (numpy.random.default_rng(i).standard_normal((1, 2, 7, 24), dtype="f4") for i in range(3))
    expected = ffpa.ffpa_attn_func(q, k, v)
    assert numpy.array_equal(ffpa.ffpa_attn_func(Foreign(q), Foreign(k), Foreign(v)), expected)
    turned = Foreign(numpy.ascontiguousarray(k.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3))
    assert numpy.array_equal(ffpa.ffpa_attn_func(Foreign(q), turned, Foreign(v)), expected)
    assert numpy.array_equal(ffpa.ffpa_attn_func(Foreign(q[0, 0]), k[0, 0], v[0, 0]), expected[0, 0])


class Bare:
    """As little as an exporter needs: no shape, and of an older version of the protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_of_read_only_and_of_bare_exporters():
    q = numpy.random.default_rng(0).standard_normal((1, 2, 7, 24), dtype="f4")
    expected, fixed = ffpa.ffpa_attn_func(q, q, q), q.copy()
    fixed.flags.writeable = False
    assert numpy.array_equal(ffpa.ffpa_attn_func(fixed, fixed, fixed), expected)
    assert numpy.array_equal(ffpa.ffpa_attn_func(Bare(q), Bare(q), Bare(q)), expected)
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 1):  # before, NumPy cannot say that an array is read-only
        assert numpy.array_equal(ffpa.ffpa_attn_func(Foreign(fixed), Foreign(fixed), Foreign(fixed)), expected)
    with pytest.raises(ffpa.FfpaError, match="key cannot be borrowed"):
        ffpa.ffpa_attn_func(q, Bare(fixed), q)


def test_dlpack_from_elsewhere_names_the_argument():
    class Far(Foreign):
        def __dlpack_device__(self):
            return (2, 0)
    q = numpy.ones((1, 1, 2, 4), "f4")
    with pytest.raises(ffpa.FfpaError, match="key is in memory of DLPack device type 2"):
        ffpa.ffpa_attn_func(q, Far(q), q)


BAD = [
    ("key has another D", dict(key=numpy.ones((1, 2, 4, 9), "f4")), r"k\.shape\[3\]"),
    ("heads do not divide", dict(key=numpy.ones((1, 3, 4, 8), "f4"), value=numpy.ones((1, 3, 4, 8), "f4"), enable_gqa=True),
     "query has 2 heads, key 3"),
    ("heads without leave", dict(query=numpy.ones((1, 4, 4, 8), "f4")), "enable_gqa"),
    ("one axis", dict(query=numpy.ones(8, "f4")), r"query\.shape=\(8,\)"),
    ("dtypes differ", dict(key=numpy.ones((1, 2, 4, 8), "f2")), r"k\.dtype"),
    ("whole numbers", dict(value=numpy.ones((1, 2, 4, 8), "i4")), r"value\.dtype=int32"),
    ("whole slopes", dict(alibi=numpy.ones(2, "i4")), r"alibi\.dtype=int32"),
    ("complex", dict(query=numpy.ones((1, 2, 4, 8), "c8")), r"query\.dtype=complex64"),
    ("other byte order", dict(query=numpy.ones((1, 2, 4, 8), ">f4")), r"query\.dtype"),
    ("a list", dict(query=[[1.0]]), "query is a list"),
    ("mask too wide", dict(attn_mask=numpy.ones((4, 5), bool)), r"mask\.shape\[3\]=5"),
    ("mask of integers", dict(attn_mask=numpy.ones((4, 4), "i4")), "mask"),
    ("mask and causal", dict(attn_mask=numpy.ones((4, 4), bool), is_causal=True), "attn_mask"),
    ("dropout above 1", dict(dropout_p=1.5), "dropout"),
    ("softcap below 0", dict(softcap=-1.0), "softcap"),
    ("alignment by another name", dict(is_causal=True, causal_align="middle"), "causal_align='middle'"),
    ("unknown backend", dict(forward_backend="warp9"), "backend=cuda/warp9"),
    ("sink of other heads", dict(sink=numpy.ones(3, "f4")), "sink"),
    ("PyTorch's backend", dict(forward_backend="sdpa"), "sdpa"),
    ("masked array", dict(value=numpy.ma.masked_array(numpy.ones((1, 2, 4, 8), "f4"), True)), "value is a masked array"),
    ("batches do not broadcast", dict(query=numpy.ones((2, 2, 4, 8), "f4"), key=numpy.ones((3, 2, 4, 8), "f4")), "broadcast"),
    ("five axes", dict(query=numpy.ones((1, 1, 2, 4, 8), "f4")), r"query\.shape=\(1, 1, 2, 4, 8\)"),
    ("complex sink", dict(sink=numpy.ones(2, "c8")), r"sink\.dtype=complex64"),
    ("sink of two axes", dict(sink=numpy.ones((1, 2), "f4")), r"sink\.shape=\(1, 2\)"),
    ("slopes of three axes", dict(alibi=numpy.ones((1, 2, 1), "f4")), r"alibi\.shape=\(1, 2, 1\)"),
    ("window without a centre", dict(key=numpy.ones((1, 2, 9, 8), "f4"), value=numpy.ones((1, 2, 9, 8), "f4"), window=(1, 1),
                                     causal_align="top_left"), "window"),
    ("a name that is empty", dict(forward_backend="auto,"), "forward_backend='auto,'"),
]


@pytest.mark.parametrize("change, sentence", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_names_the_argument(change, sentence):
    call = {name: numpy.ones((1, 2, 4, 8), "f4") for name in ("query", "key", "value")}
    with pytest.raises(ffpa.FfpaError, match=sentence):
        ffpa.ffpa_attn_func(**dict(call, **change))


WRONG_TYPES = [("scale", "0.5"), ("scale", 1j), ("scale", numpy.ones(2)), ("dropout_p", None), ("softcap", "2"), ("window", 5),
               ("window", (1,)), ("window", (1.5, 2)), ("is_causal", "yes"), ("is_causal", None), ("enable_gqa", 2),
               ("return_lse", "no"), ("deterministic", []), ("forward_backend", None), ("backward_backend", 5), ("query", [1.0]),
               ("attn_mask", True), ("sink", [1.0, 2.0]), ("alibi", 3.0), ("key", None)]


@pytest.mark.parametrize("name, value", WRONG_TYPES, ids=["%s=%r" % w for w in WRONG_TYPES])
def test_wrong_types_name_the_argument(name, value):
    call = {name: numpy.ones((1, 2, 4, 8), "f4") for name in ("query", "key", "value")}
    with pytest.raises(TypeError, match=name) as caught:
        ffpa.ffpa_attn_func(**dict(call, **{name: value}))
    assert isinstance(caught.value, ffpa.FfpaError)


def test_numbers_of_any_kind_are_numbers():
    q = numpy.random.default_rng(0).standard_normal((1, 1, 6, 8), dtype="f4")
    plain = ffpa.ffpa_attn_func(q, q, q, is_causal=True, scale=2.0, window=(2, 0), softcap=3.0)
    same = ffpa.ffpa_attn_func(q, q, q, is_causal=numpy.bool_(True), scale=numpy.array(2), window=[numpy.int64(2), 0],
                               softcap=numpy.float32(3))
    assert numpy.array_equal(same, plain)
    wide = ffpa.ffpa_attn_func(q, q, q, window=(2**70, -2**70))
    assert numpy.array_equal(wide, ffpa.ffpa_attn_func(q, q, q))


@pytest.mark.parametrize("q, k, v", [((1, 4), (2, 4), (2, 4)), ((2, 4), (1, 4), (2, 4)), ((2, 1), (1, 4), (2, 4)),
                                     ((2, 4), (1, 1), (2, 1)), ((2, 4), (2, 4), (1, 1))])
def test_broadcasting(q, k, v):
    random = numpy.random.default_rng(4)
    inputs = [random.standard_normal(lead + (n, 8), dtype="f4") for lead, n in ((q, 5), (k, 7), (v, 7))]
    full = [numpy.broadcast_to(a, (2, 4) + a.shape[2:]).copy() for a in inputs]
    expected = _oracle.forward(*F64(*full))[0]
    assert error(ffpa.ffpa_attn_func(*inputs), expected) < 1e-6
    assert error(ffpa.ffpa_attn_func(*map(Foreign, inputs)), expected) < 1e-6
    assert ffpa.ffpa_attn_func(inputs[0][0, 0], *inputs[1:]).shape == numpy.broadcast_shapes(k, v) + (5, 8)


def test_backends_by_turns():
    q = numpy.random.default_rng(0).standard_normal((1, 1, 4, 8))
    o, lse = ffpa.ffpa_attn_func(q, q, q, return_lse=True, forward_backend="auto, reference")
    assert ffpa.last_path() == "reference/forward"
    found = ffpa.ffpa_attn_backward(q, q, q, q, o, lse, backward_backend="auto,reference")
    assert ffpa.last_backward_path() == "reference/backward"
    assert error(found["dq"], _oracle.backward(q, q, q, q)["dq"]) < 1e-12
    with pytest.raises(ffpa.FfpaError, match="q.dtype|f64"):
        ffpa.ffpa_attn_func(q, q, q, forward_backend="auto,cpu")


@pytest.mark.parametrize("name", ["out", "lse", "dout", "dlse"])
def test_backward_does_not_read_past_arrays_of_another_dtype(name):
    q = numpy.random.default_rng(0).standard_normal((1, 2, 4, 8), dtype="f4")
    o, lse = ffpa.ffpa_attn_func(q, q, q, return_lse=True)
    given = dict(out=o, lse=lse, dout=o, dlse=lse)
    given[name] = given[name].astype("f2")
    with pytest.raises(ffpa.FfpaError, match=r"(o|lse|dout|dlse)\.dtype=f16"):
        ffpa.ffpa_attn_backward(given["dout"], q, q, q, given["out"], given["lse"], dlse=given["dlse"])


def test_backward_and_merge_name_the_argument():
    q = numpy.ones((2, 2, 4, 8), "f4")
    o, lse = ffpa.ffpa_attn_func(q, q, q, return_lse=True)
    for call, word in (((None, q, q, q, o, lse), "dout"), ((o, q, q, q, o, None), "lse"), ((o, q, q, q, o, lse[0]), "lse"),
                       ((o, q, q[:1], q[:1], o, lse), "batch"), ((o[0], q, q, q, o, lse), "dout")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.ffpa_attn_backward(*call)
    with pytest.raises(ffpa.FfpaError, match="attn_mask"):
        ffpa.ffpa_attn_backward(o, q, q, q, o, lse, numpy.ones((4, 4), bool), is_causal=True)
    for call, word in (((o, lse, None, lse), "out_b"), ((o, lse[0], o, lse), "lse_a"), ((o[0], lse, o, lse), "out_a")):
        with pytest.raises(ffpa.FfpaError, match=word):
            ffpa.merge(*call)


def test_borrowed_results():
    q = numpy.random.default_rng(0).standard_normal((1, 2, 4, 8), dtype="f4")
    o, lse = ffpa.ffpa_attn_func(q, q, q, return_lse=True)
    far = [Foreign(a) for a in (q, o, lse)]
    found = ffpa.ffpa_attn_backward(far[1], *[far[0]] * 3, far[1], far[2])
    assert numpy.array_equal(found["dq"], ffpa.ffpa_attn_backward(o, q, q, q, o, lse)["dq"])
    assert numpy.array_equal(ffpa.merge(far[1], far[2], o, lse)[0], ffpa.merge(o, lse, o, lse)[0])
