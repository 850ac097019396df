"""ffpa.selftest(): small problems on everything that is here, against float64."""
import numpy

from . import _attention, _oracle
from ._library import FfpaError, describe
from ._run import last_path

CASES = (  # name, (b, hq, hk, nq, nk, d, dv), options of the oracle
    ("plain, 512 wide", (1, 2, 2, 70, 70, 512, 512), {}),
    ("causal, bottom-right, grouped heads", (2, 6, 2, 33, 65, 320, 320), {"causal": "bottom_right"}),
    ("causal, top-left, value narrower than key", (1, 2, 1, 40, 24, 576, 512), {"causal": "top_left"}),
    ("window and softcap", (1, 3, 3, 50, 50, 64, 64), {"window": (7, 3), "softcap": 5.0}),
    ("added mask, scale", (2, 2, 2, 19, 37, 96, 96), {"scale": 0.3, "mask": (1, 2, 19, 37)}),
    ("sink and alibi", (1, 4, 2, 21, 30, 128, 128), {"sink": True, "alibi": True}),
    ("one query row", (1, 8, 1, 1, 300, 512, 512), {}),
)
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.5e-2}  # of the largest element: twice the rounding of a plain computation


def make(sizes, options, seed=1):
    """Inputs in f32 and the options filled in."""
    b, hq, hk, nq, nk, d, dv = sizes
    random = numpy.random.default_rng(seed)
    draw = lambda *shape: random.standard_normal(shape, dtype=numpy.float32)
    filled = dict(options)
    for name, shape in (("mask", options.get("mask")), ("sink", (hq,)), ("alibi", (hq,))):
        if options.get(name):
            filled[name] = abs(draw(*shape)) if name == "alibi" else draw(*shape)
    return (draw(b, hq, nq, d), draw(b, hk, nk, d), draw(b, hk, nk, dv), draw(b, hq, nq, dv)), filled


def arguments(filled, convert=lambda a: a):
    """The oracle's options as those of ffpa_attn_func."""
    given = {name: convert(value) if isinstance(value, numpy.ndarray) else value for name, value in filled.items()}
    causal = given.pop("causal", None)
    if causal:
        given.update(is_causal=True, causal_align=causal)
    if "mask" in given:
        given["attn_mask"] = given.pop("mask")
    return given


def error(found, expected):
    """Largest difference as a share of the largest element."""
    found = numpy.asarray(found, dtype=numpy.float64)
    return float(abs(found - expected).max() / max(1.0, abs(expected).max()))


def _expected(inputs, filled):
    q, k, v, dout = (x.astype(numpy.float64) for x in inputs)
    o, lse, _ = _oracle.forward(q, k, v, **filled)
    return dict(_oracle.backward(dout, q, k, v, **filled), o=o, lse=lse)


def _numpy_case(sizes, options):
    inputs, filled = make(sizes, options)
    q, k, v, dout = inputs
    given = arguments(filled)
    o, lse = _attention.ffpa_attn_func(q, k, v, enable_gqa=True, return_lse=True, **given)
    path = last_path()
    found = dict(_attention.ffpa_attn_backward(dout, q, k, v, o, lse, **given), o=o, lse=lse)
    expected = _expected(inputs, filled)
    return path, max(error(found[name], expected[name]) for name in expected), TOLERANCE["float32"]


def _torch_case(sizes, options, device, dtype):
    import torch
    inputs, filled = make(sizes, options)
    convert = lambda a: torch.from_numpy(a).to(device)
    rounded = [convert(x).to(dtype) for x in inputs]
    leaves = [x.requires_grad_() for x in rounded[:3]]
    given = arguments(filled, lambda a: convert(a).requires_grad_(a is not filled.get("alibi")))
    o, lse = _attention.ffpa_attn_func(*leaves, enable_gqa=True, return_lse=True, **given)
    path = last_path()
    o.backward(rounded[3])
    plain = lambda t: t.detach().double().cpu().numpy()
    expected = _expected([plain(x) for x in rounded], filled)
    found = {"o": o, "lse": lse, "dq": leaves[0].grad, "dk": leaves[1].grad, "dv": leaves[2].grad}
    if "attn_mask" in given:
        found["dmask"] = given["attn_mask"].grad
    if "sink" in given:
        found["dsink"] = given["sink"].grad
    return path, max(error(plain(found[name]), expected[name]) for name in expected), TOLERANCE[str(dtype)[6:]]


def _runs():
    for name, sizes, options in CASES:
        yield "numpy f32: " + name, lambda: _numpy_case(sizes, options)
    if not _attention.has_torch():
        return
    import torch
    devices = ["cpu"] + ["cuda:%d" % i for i in range(torch.cuda.device_count())]
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16):
            for name, sizes, options in CASES:
                yield "torch %s %s: %s" % (device, str(dtype)[6:], name), lambda: _torch_case(sizes, options, device, dtype)


def run(verbose):
    say = print if verbose else lambda *line: None
    say(describe())
    failed = passed = 0
    for name, case in _runs():
        try:
            path, worst, bound = case()
            good, text = worst <= bound, "%s, error %.1e of %.0e" % (path, worst, bound)
        except FfpaError as problem:
            good, text = False, "%s: %s" % (problem.name, problem)
        passed, failed = passed + good, failed + (not good)
        say("%s %-68s %s" % ("ok  " if good else "FAIL", name, text))
    say("selftest: %d passed, %d failed%s" % (passed, failed, "" if _attention.has_torch() else
                                              " (import torch first to test it, too)"))
    if failed:
        raise AssertionError("ffpa.selftest: %d of %d checks failed" % (failed, passed + failed))  # also under python -O
