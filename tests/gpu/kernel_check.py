#!/usr/bin/env python3
"""Check the CUDA kernels alone on a GPU: every case against float64, accepted within twice the naive error
(gradients: three times), plus 1e-5; then time them. Usage: kernel_check.py [check] [time] [-k TEXT]"""
import math
import os
import statistics
import sys
import time
import traceback
import zlib

import torch

from kernel_forward import Call, Gradients
from kernel_launch import Cache, ck
from kernel_oracle import Answer

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEN = torch.Generator("cuda")


def randn(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(*shape, generator=GEN, device="cuda") * scale).to(dtype)


class Case:
    """`make()` returns the Call and a list of (out index, Answer options, q, k, v) for the sequences to compare."""

    def __init__(self, name, make):
        self.name, self.make = name, make


def dense(name, b, hq, hk, nq, nk, d, dv=None, dtype=BF16, prepare=None, **opts):
    def make():
        GEN.manual_seed(zlib.crc32(name.encode()))
        q, k, v = randn(b, hq, nq, d, dtype=dtype), randn(b, hk, nk, d, dtype=dtype), randn(b, hk, nk, dv or d, dtype=dtype)
        if prepare:
            q, k, v = prepare(q, k, v)
        o = {n: x() if callable(x) else x for n, x in opts.items()}
        return Call(q, k, v, **o), [(s, slice(None), slice(0, nk), s) for s in range(b)]
    return Case(name, make)


def answer(call, q, k, v, b, naive):
    o = {n: getattr(call, n) for n in ("scale", "left", "right", "top_left", "softcap", "sink", "p", "seed", "offset")}
    o["p"] = call.p
    if call.alibi is not None:
        o["alibi"] = call.alibi[b if call.alibi.shape[0] > 1 else 0, :, 0, 0]
    if call.mask is not None:
        o["mask"] = call.mask[b if call.mask.shape[0] > 1 else 0]
    return Answer(q, k, v, b=b, naive=naive, **o)


def compare(out, right, naive, factor, floor=1e-5):
    out, right, naive = out.double(), right.double(), naive.double()
    pattern = [torch.isnan, lambda x: x == math.inf, lambda x: x == -math.inf]
    if any((f(out) != f(right)).any() for f in pattern):
        return math.inf, math.inf
    ok = torch.isfinite(right)
    if not ok.any():
        return 0.0, 0.0
    e, n = ((x - right)[ok].abs().max().item() for x in (out, torch.where(torch.isfinite(naive), naive, right)))
    return e / (factor * n + floor), ((out - right)[ok].norm() / right[ok].norm().clamp_min(1e-30)).item()


def check_forward(cache, case):
    call, parts = case.make()
    o, lse = call.outputs()
    call.forward(cache, o, lse)
    torch.cuda.synchronize()
    worst, relative = 0.0, 0.0
    for batch, rows, keys, b in parts:
        k, v = keys(call) if callable(keys) else (call.k[b][:, keys], call.v[b][:, keys])
        q = call.q[batch][:, rows]
        right, naive = (answer(call, q, k, v, b, n) for n in (False, True))
        for got, name in ((o[batch][:, rows], "o"), (lse[batch][:, rows, 0], "lse")):
            ulp = 1.2e-7 * max([0.0, *torch.nan_to_num(right.lse, 0, 0, 0).abs().flatten().tolist()]) if name == "lse" else 0  # it is stored in f32
            r, rel = compare(got, getattr(right, name), getattr(naive, name).to(got.dtype), 2, 1e-5 + ulp)
            worst, relative = max(worst, r), max(relative, rel)
    again, lse2 = call.outputs()
    call.forward(cache, again, lse2)
    same = torch.equal(torch.nan_to_num(o, 7.0), torch.nan_to_num(again, 7.0))
    return worst, relative, same


def backward_setup(call, opts):
    """What backward reads, with o and lse from the forward kernel, and NaN outputs."""
    GEN.manual_seed(9)
    b, h, n, _ = call.q.shape
    dout = randn(b, h, n, call.dv, dtype=opts.get("do_dtype", call.q.dtype))
    if opts.get("expanded"):
        dout = torch.ones(1, 1, 1, 1, dtype=call.q.dtype, device="cuda").expand(b, h, n, call.dv)
    dlse = torch.randn(b, h, n, 1, generator=GEN, device="cuda") if opts.get("dlse") else None
    dmask = None
    if call.mask is not None and call.mask.dtype != torch.bool:
        dmask = torch.full_like(call.mask, float("nan"))
    return Gradients(call, dout, dlse, dmask, **({"limit": opts["limit"]} if "limit" in opts else {}))


def check_backward(cache, case, opts):
    call, parts = case.make()
    g = backward_setup(call, opts)
    o, lse = call.outputs()
    call.forward(cache, o, lse)
    runs = []
    for _ in range(2):
        outs = [torch.full_like(x, float("nan")) for x in (call.q, call.k, call.v)]
        dsink = None if call.sink is None else torch.full_like(call.sink, float("nan"))
        g.run(cache, o, lse, *outs, dsink=dsink)
        runs.append([*outs] + [x.clone() for x in (dsink, g.dmask) if x is not None])
    torch.cuda.synchronize()
    same = all(torch.equal(torch.nan_to_num(x, 7.0), torch.nan_to_num(y, 7.0)) for x, y in zip(*runs))
    worst, relative = {}, {}
    totals = {False: {}, True: {}}
    for batch, rows, keys, b in parts:
        k, v = keys(call) if callable(keys) else (call.k[b][:, keys], call.v[b][:, keys])
        span = keys if not callable(keys) else call_span(call, b)
        both = [answer(call, call.q[batch][:, rows], k, v, b, n).backward(
            g.dout[batch][:, rows], None if g.dlse is None else g.dlse[batch][:, rows, 0]) for n in (False, True)]
        kb = 0 if callable(keys) else b
        for name, got in (("dq", runs[0][0][batch][:, rows]), ("dk", runs[0][1][kb][:, span]), ("dv", runs[0][2][kb][:, span])):
            right, naive = (getattr(x, name) for x in both)
            r, rel = compare(got, right, naive.to(got.dtype), 3)
            worst[name], relative[name] = max(worst.get(name, 0), r), max(relative.get(name, 0), rel)
        for x in both:
            t = totals[x.naive]
            if call.sink is not None:
                t["dsink"] = t.get("dsink", 0) + x.dsink
            if g.dmask is not None:
                t.setdefault("dmask", []).append(x.ds)
    for i, name in enumerate(totals[False]):
        right, naive = (totals[n][name] for n in (False, True))
        if name == "dmask":
            axes = [a for a in range(4) if g.dmask.shape[a] == 1]
            right, naive = (torch.stack(x).sum(axes, keepdim=True) if axes else torch.stack(x) for x in (right, naive))
        worst[name], relative[name] = compare(runs[0][3 + i], right, naive.to(runs[0][3 + i].dtype), 3,
                                              floor=1e-5 * max(1.0, right.abs().max().item()))
    return worst, relative, same


def call_span(call, s):
    cu = call.cu_k.tolist()
    return slice(cu[s], cu[s + 1])


# ---- cases ------------------------------------------------------------------------------------------

def strided(q, k, v):
    """Inner stride 3, base off by one element."""
    def odd(x):
        b, h, n, d = x.shape
        t = torch.zeros(b * h * n * d * 3 + 1, dtype=x.dtype, device="cuda")[1:].view(b, h, n, d, 3)[..., 0]
        t.copy_(x)
        return t
    return odd(q), odd(k), odd(v)


def bnhd(q, k, v):
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]


def mask_of(*shape, dtype=BF16, keep=0.7):
    def make():
        seen = torch.rand(*shape, generator=GEN, device="cuda") < keep
        if dtype == torch.bool:
            return seen
        bias = torch.randn(*shape, generator=GEN, device="cuda").to(dtype)
        return torch.where(seen, bias, -math.inf) if keep < 1 else bias
    return make


def slopes(b, h):
    return lambda: torch.rand(b, h, 1, 1, generator=GEN, device="cuda")


def packed(name, lens_q, lens_k, hq, hk, d, index=torch.int32, tail=3, **opts):
    def make():
        GEN.manual_seed(1)
        cu = [torch.tensor([0] + list(torch.tensor(x).cumsum(0)), dtype=index, device="cuda") for x in (lens_q, lens_k)]
        q = randn(1, hq, sum(lens_q) + tail, d)
        k, v = randn(1, hk, sum(lens_k) + tail, d), randn(1, hk, sum(lens_k) + tail, d)
        call = Call(q, k, v, cu_q=cu[0], cu_k=cu[1], **opts)
        parts = []
        for s in range(len(lens_q)):
            rows, keys = (slice(int(c[s]), int(c[s + 1])) for c in cu)
            parts.append((0, rows, (lambda kk: lambda c: (c.k[0][:, kk], c.v[0][:, kk]))(keys), s))
        return call, parts
    return Case(name, make)


def cached(name, b, hq, hk, nq, capacity, lengths, d, dv=None, page=0, index=torch.int32, batch_index=None, **opts):
    def make():
        GEN.manual_seed(2)
        nan = float("nan")
        q = randn(b, hq, nq, d)
        if page:
            width = capacity // page
            pages = b * width + 3
            k, v = randn(pages, hk, page, d), randn(pages, hk, page, dv or d)
            table = torch.randperm(pages, generator=GEN, device="cuda")[:b * width].view(b, width).to(index)
            for s in range(b):
                for p in range(width):
                    used = min(max(lengths[s] - p * page, 0), page)
                    k[table[s, p].item(), :, used:], v[table[s, p].item(), :, used:] = nan, nan
            opts["table"] = table
        else:
            entries = b + 2
            k, v = randn(entries, hk, capacity, d), randn(entries, hk, capacity, dv or d)
            at = batch_index or list(range(b))
            for s in range(b):
                k[at[s], :, lengths[s]:], v[at[s], :, lengths[s]:] = nan, nan
            if batch_index:
                opts["batch_index"] = torch.tensor(batch_index, dtype=index, device="cuda")
        if "sink" in opts:
            opts["sink"] = opts["sink"].cuda()
        call = Call(q, k, v, lengths=torch.tensor(lengths, dtype=index, device="cuda"), batch=b, **opts)

        def keys(s):
            def get(c):
                if page:
                    rows = [c.table[s, p].item() for p in range(c.table.shape[1])]
                    kk, vv = (torch.cat([t[r] for r in rows], 1)[:, :lengths[s]] for t in (c.k, c.v))
                    return kk, vv
                e = (batch_index or list(range(b)))[s]
                return c.k[e][:, :lengths[s]], c.v[e][:, :lengths[s]]
            return get
        return call, [(s, slice(None), keys(s), s) for s in range(b)]
    return Case(name, make)


def forward_cases():
    causal = dict(right=0)
    for d in (8, 64, 72, 128, 256, 320, 512, 576, 768, 1024):
        yield dense(f"d{d}", 2, 4, 2, 150, 333, d, pack=False)
    for d in (65, 257, 1023):
        yield dense(f"d{d} any stride", 1, 2, 2, 70, 133, d)
    for d in (64, 320, 512, 1024):
        yield dense(f"f16 d{d}", 1, 2, 2, 150, 333, d, dtype=F16)
        yield dense(f"f32 d{d}", 1, 2, 1, 150, 333, d, dtype=F32, **causal)
        yield dense(f"f32 out d{d}", 1, 2, 2, 70, 133, d, o_dtype=F32)
        yield dense(f"causal d{d}", 1, 4, 2, 300, 300, d, **causal)
    yield dense("d64 v320", 1, 2, 2, 100, 133, 64, 320)
    yield dense("mla 576/512", 1, 4, 1, 100, 333, 576, 512)
    yield dense("dv 1", 1, 2, 2, 100, 133, 16, 1)
    yield dense("strided", 2, 4, 2, 100, 133, 64, prepare=strided)
    yield dense("bnhd", 2, 4, 2, 100, 133, 320, prepare=bnhd)
    yield dense("causal q<k", 1, 2, 2, 100, 333, 64, **causal)
    yield dense("causal q>k empty rows", 1, 2, 2, 333, 100, 64, **causal)
    yield dense("causal top left", 1, 2, 2, 333, 100, 512, top_left=1, **causal)
    yield dense("window", 1, 2, 2, 333, 444, 512, left=50, right=20)
    yield dense("window left", 1, 2, 2, 333, 444, 64, left=50, right=0)
    yield dense("softcap", 1, 2, 2, 100, 333, 320, softcap=5.0, scale=1.0)
    yield dense("scale 0", 1, 2, 2, 100, 333, 64, scale=0.0)
    yield dense("scale -1", 1, 2, 2, 100, 333, 64, scale=-1.0)
    yield dense("alibi", 2, 4, 2, 100, 333, 512, alibi=slopes(1, 4), **causal)
    yield dense("sink", 2, 4, 2, 100, 333, 512, sink=lambda: randn(4, dtype=F32), **causal)
    for dtype in (torch.bool, F32, F16, BF16):
        yield dense(f"mask {dtype}", 2, 4, 2, 100, 333, 512, mask=mask_of(2, 4, 100, 333, dtype=dtype))
    yield dense("mask keys", 2, 4, 2, 100, 333, 64, mask=mask_of(2, 1, 1, 333, dtype=torch.bool))
    yield dense("mask rows", 2, 4, 2, 100, 333, 64, mask=mask_of(1, 4, 100, 1, dtype=F32), **causal)
    yield dense("bias lowest", 1, 1, 1, 20, 33, 64,
                mask=lambda: torch.full((1, 1, 1, 33), -3.4028234e38, device="cuda"), scale=0.0)
    yield dense("dropout", 2, 4, 2, 100, 333, 512, p=0.3, seed=2**40 + 5, offset=2**33 + 7)
    yield dense("dropout 1", 1, 2, 2, 100, 133, 64, p=1.0)
    yield dense("every", 2, 4, 2, 100, 333, 320, mask=mask_of(2, 1, 100, 333, dtype=F32), p=0.2, softcap=5.0,
                alibi=slopes(2, 4), sink=lambda: randn(4, dtype=F32), left=200, right=0)
    yield dense("huge scores", 1, 1, 1, 33, 65, 64, prepare=lambda q, k, v: (q * 1000, k * 1000, v), scale=1.0)
    yield packed("varlen", [3, 130, 0, 77], [50, 130, 20, 0], 4, 2, 512, right=0)
    yield packed("varlen i64", [1, 200, 64], [300, 1, 64], 4, 1, 64, index=torch.int64)
    for splits in (0, 1, 3, 64):
        yield cached(f"decode splits {splits}", 3, 8, 2, 1, 1024, [1000, 5, 0], 512, splits=splits, pack=True)
    yield cached("decode causal q4", 2, 32, 4, 4, 512, [500, 2], 512, splits=5, right=0)
    yield cached("decode group 48", 2, 48, 1, 1, 256, [100, 77], 512, splits=2)
    yield cached("decode batch index", 2, 8, 2, 1, 256, [100, 77], 64, splits=2, batch_index=[3, 1], index=torch.int64)
    yield cached("decode sink", 2, 8, 2, 1, 256, [100, 0], 256, splits=3, sink=torch.linspace(-1, 1, 8))
    for page in (16, 64, 100):
        yield cached(f"paged {page}", 3, 8, 2, 3, page * 8, [page * 7 + 5, 1, page], 512, page=page, splits=4, right=0)
    yield cached("paged mla", 2, 16, 1, 1, 512, [333, 100], 576, 512, page=64, splits=3)


def backward_cases():
    causal = dict(right=0)
    for d in (8, 64, 72, 128, 320, 512, 1024):
        yield dense(f"d{d}", 2, 4, 2, 150, 333, d), {}
        yield dense(f"causal d{d}", 1, 4, 1, 300, 300, d, **causal), {}
    for d in (64, 512):
        yield dense(f"f16 d{d}", 1, 2, 2, 150, 333, d, dtype=F16), {}
        yield dense(f"f32 d{d}", 1, 2, 1, 150, 333, d, dtype=F32, **causal), {}
        yield dense(f"any stride d{d}", 1, 2, 2, 100, 133, d, prepare=strided), {}
        yield dense(f"dO f32 d{d}", 1, 2, 2, 100, 133, d), dict(do_dtype=F32)
    yield dense("d65", 1, 2, 2, 70, 133, 65), {}
    yield dense("mla 576/512", 1, 4, 1, 100, 333, 576, 512), {}
    yield dense("d64 v320", 1, 2, 2, 100, 133, 64, 320), {}
    yield dense("dO expanded", 1, 2, 2, 100, 133, 64), dict(expanded=1)
    yield dense("dlse", 1, 2, 2, 100, 133, 320), dict(dlse=1)
    yield dense("bnhd", 2, 4, 2, 200, 333, 320, prepare=bnhd), {}
    yield dense("causal q<k", 1, 2, 2, 200, 700, 64, **causal), {}
    yield dense("causal q>k", 1, 2, 2, 700, 200, 64, **causal), {}
    yield dense("causal top left", 1, 2, 2, 700, 200, 64, top_left=1, **causal), {}
    yield dense("window", 1, 2, 2, 700, 800, 64, left=50, right=20), {}
    yield dense("window chunked", 1, 4, 2, 700, 800, 64, left=50, right=20), dict(limit=2**20)
    yield dense("chunked heads", 2, 8, 4, 300, 300, 64, **causal), dict(limit=2**21)
    yield dense("chunked rows", 2, 4, 1, 600, 300, 320), dict(limit=2**20)
    yield dense("softcap", 1, 2, 2, 100, 333, 320, softcap=5.0, scale=1.0), {}
    yield dense("alibi", 2, 4, 2, 100, 333, 64, alibi=slopes(1, 4), **causal), {}
    yield dense("sink", 2, 4, 2, 200, 333, 64, sink=lambda: randn(4, dtype=F32), **causal), dict(dlse=1)
    for shape in ((2, 4, 200, 333), (1, 1, 1, 333), (2, 1, 200, 1), (1, 4, 1, 1), (1, 1, 200, 333)):
        for dtype in (F32, BF16):
            yield dense(f"mask {shape} {dtype}", 2, 4, 2, 200, 333, 64, mask=mask_of(*shape, dtype=dtype)), {}
    yield dense("mask causal chunked", 2, 4, 2, 300, 333, 64, mask=mask_of(1, 1, 300, 333, dtype=F32), **causal), dict(limit=2**20)
    yield dense("bool mask", 2, 4, 2, 200, 333, 64, mask=mask_of(2, 4, 200, 333, dtype=torch.bool)), {}
    yield dense("dropout", 2, 4, 2, 200, 333, 320, p=0.3, seed=2**40 + 5, offset=2**33 + 7), {}
    yield dense("every", 2, 4, 2, 200, 333, 320, mask=mask_of(2, 1, 200, 333, dtype=F32), p=0.2, softcap=5.0,
                alibi=slopes(2, 4), sink=lambda: randn(4, dtype=F32), left=200, right=0), dict(dlse=1)
    yield packed("varlen", [3, 130, 0, 300], [50, 130, 20, 0], 4, 2, 64, right=0), {}
    yield packed("varlen i64 chunked", [1, 200, 64], [300, 1, 64], 4, 1, 64, index=torch.int64), dict(limit=2**19)


def gradients_of(cache, q, k, v, dout, **opts):
    call = Call(q, k, v, **opts)
    g = Gradients(call, dout)
    o, lse = call.outputs()
    call.forward(cache, o, lse)
    outs = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    g.run(cache, o, lse, *outs)
    return outs


def check_backward_poison(cache):
    """Causal: NaN in query 100 must not reach the keys behind it nor other queries, NaN in key 200 no query before it."""
    good = []
    for d in (64, 512):
        GEN.manual_seed(6)
        q, k, v, dout = (randn(1, 2, 300, d) for _ in range(4))
        q2, do2, k2, v2 = (x.clone() for x in (q, dout, k, v))
        q2[:, :, 100], do2[:, :, 100], k2[:, :, 200], v2[:, :, 200] = (float("nan"),) * 4
        dq, dk, dv = gradients_of(cache, q, k, v, dout, right=0)
        qq, qk, qv = gradients_of(cache, q2, k, v, do2, right=0)
        kq, _, _ = gradients_of(cache, q, k2, v2, dout, right=0)
        others = [i for i in range(300) if i != 100]
        good.append([torch.equal(dq[:, :, others], qq[:, :, others]), torch.equal(dk[:, :, 101:], qk[:, :, 101:]),
                     torch.equal(dv[:, :, 101:], qv[:, :, 101:]), bool(torch.isnan(qk[:, :, :101]).all()),
                     torch.equal(dq[:, :, :200], kq[:, :, :200]), bool(torch.isnan(kq[:, :, 200:]).all())])
    return good


def check_poison(cache):
    """NaN in V of keys that some rows do not see: those rows must not notice, bit for bit."""
    worst = []
    for d, opts in ((64, dict(right=0)), (512, dict(right=0)), (512, dict(left=30, right=5)), (320, dict(mask=1)),
                    (1024, dict(right=0))):
        GEN.manual_seed(5)
        q, k, v = (randn(1, 2, 200, d) for _ in range(3))
        if "mask" in opts:
            opts = dict(mask=torch.rand(1, 1, 200, 200, generator=GEN, device="cuda") < 0.5)
        clean = Call(q, k, v, **opts)
        a = clean.forward(cache, *clean.outputs())[0]
        v2 = v.clone()
        v2[:, :, 150, :] = float("nan")
        v2[:, :, 70, 5] = math.inf
        b = Call(q, k, v2, **opts)
        b = b.forward(cache, *b.outputs())[0]
        seen = answer(clean, q[0], k[0], v[0], 0, False).seen[None]
        keep = ~(seen[..., 150] | seen[..., 70])
        ok = torch.equal(a[keep], b[keep]) and bool(torch.isnan(b[seen[..., 150]]).all())
        only = seen[..., 70] & ~seen[..., 150]
        ok &= bool((b[only][:, 5] == math.inf).all()) and torch.equal(a[only][:, 6:], b[only][:, 6:])
        worst.append((d, ok))
    return worst


# ---- timing -----------------------------------------------------------------------------------------

def median_ms(run, repeat=20):
    for _ in range(4):
        run()
    times = []
    for _ in range(repeat):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def time_cases():
    """Head dimensions with a config (None: the table's)."""
    for d in (64, 128, 256, 320, 384, 448, 512, 640, 768, 1024):
        yield d, None


def time_torch(d, n, h, causal):
    """PyTorch's own attention on the same problem, in the same run."""
    q, k, v, dout = (randn(1, h, n, d) for _ in range(4))
    for t in (q, k, v):
        t.requires_grad_()
    attention = torch.nn.functional.scaled_dot_product_attention
    pairs = (n + 1) / 2 if causal else n
    with torch.no_grad():
        ms = median_ms(lambda: attention(q, k, v, is_causal=causal), 5)
    o = attention(q, k, v, is_causal=causal)
    back = median_ms(lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True), 3)
    print(f"PyTorch {torch.__version__} d{d} causal{int(causal)}: forward {4 * h * d * n * pairs / ms / 1e9:.0f}, "
          f"backward {10 * h * d * n * pairs / back / 1e9:.0f} TFLOP/s", flush=True)


def timings(cache):
    n, h = 8192, 32
    print(f"{torch.cuda.get_device_name()}, {time.strftime('%Y-%m-%d')}, commit {os.environ.get('COMMIT', 'unknown')}; "
          f"B1 H{h} N{n} bf16, median of 5 calls after 4 (decode: of 20)", flush=True)
    cases = list(time_cases())
    for causal in (0, 1):
        for d, config in cases:
            q, k, v = (randn(1, h, n, d) for _ in range(3))
            call = Call(q, k, v, config=config, right=0 if causal else -1)
            o, lse = call.outputs()
            try:
                ms = median_ms(lambda: call.forward(cache, o, lse), 5)
            except RuntimeError as e:
                print(f"forward d{d} {config}: {e}")
                continue
            flop = 4 * h * d * n * ((n + 1) / 2 if causal else n)
            print(f"forward d{d} causal{causal} {list(dict(call.forward_plan()[1]).values())[4:10]}: {ms:.3f} ms {flop / ms / 1e9:.0f} TFLOP/s", flush=True)
    for d in (128, 256, 320, 512, 1024):
        for causal, hk in ((0, 32), (1, 32), (0, 8)):
            q, dout = randn(1, h, n, d), randn(1, h, n, d)
            k, v = randn(1, hk, n, d), randn(1, hk, n, d)
            call = Call(q, k, v, right=0 if causal else -1)
            o, lse = call.outputs()
            try:
                call.forward(cache, o, lse)
                g = Gradients(call, dout)
                outs = [torch.empty_like(x) for x in (q, k, v)]
                ms = median_ms(lambda: g.run(cache, o, lse, *outs), 5)
            except RuntimeError as e:
                print(f"backward d{d}: {e}")
                continue
            flop = 10 * h * d * n * ((n + 1) / 2 if causal else n)
            print(f"backward d{d} causal{causal} hk{hk}: {ms:.2f} ms {flop / ms / 1e9:.0f} TFLOP/s, "
                  f"{len(g.chunks)} chunks", flush=True)
            del g, outs, q, k, v, o
    for d in (320, 512, 1024):
        for causal in (False, True):
            time_torch(d, n, h, causal)
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.numel() / median_ms(lambda: y.copy_(x)) / 1e9
    for splits in (8, 16, 33):
        q, k, v = randn(8, 32, 1, 512), randn(8, 4, 32768, 512), randn(8, 4, 32768, 512)
        call = Call(q, k, v, splits=splits)
        o, lse = call.outputs()
        ms = median_ms(lambda: call.forward(cache, o, lse))
        tb = 2 * k.numel() * 2 / ms / 1e9
        print(f"decode b8h32k4 q1k32768 d512 splits {splits}: {ms:.3f} ms {tb:.2f} TB/s, {tb / copy:.2f} of copy", flush=True)


def main():
    cache = Cache("sm_90a")
    modes = [m for m in sys.argv[1:] if m in ("check", "time")] or ["check", "time"]
    only = sys.argv[sys.argv.index("-k") + 1] if "-k" in sys.argv else ""
    cases = [c for c in forward_cases() if only in c.name]
    start = time.monotonic()
    variants = [v for c in cases for v in c.make()[0].variants()] if "check" in modes else []
    gradients = [c for c in backward_cases() if only in c[0].name]
    if "check" in modes:
        for case, opts in gradients:
            call = case.make()[0]
            variants += call.variants() + backward_setup(call, opts).variants()
    if "time" in modes:
        for d in (128, 256, 320, 512, 1024):
            q, k = (torch.empty(1, 1, 1, d, dtype=BF16, device="cuda").expand(1, h, 8192, d) for h in (32, 8))
            for causal in (-1, 0):
                for kv in (q, k):
                    variants += Gradients(Call(q, kv, kv, right=causal), q).variants()
        for d, config in time_cases():
            for causal in (-1, 0):
                t = torch.empty(1, 1, 64, d, dtype=BF16, device="cuda")
                variants += Call(t, t, t, config=config, right=causal, pack=False).variants()
    cache.compile(variants)
    print(f"{len(cache.cubins)} variants compiled in {time.monotonic() - start:.1f} s", flush=True)
    bad = 0
    for case in cases if "check" in modes else []:
        try:
            worst, relative, same = check_forward(cache, case)
            ok = worst <= 1 and same
            text = f"{worst:.2f} of the bound, relative {relative:.1e}{'' if same else ', NOT REPEATABLE'}"
        except Exception as e:  # noqa: BLE001 - one broken case must not hide the others
            ok, text = False, traceback.format_exc(limit=2)
            if "CUDA" in text or "error" in f"{e}":
                print(text)
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {case.name}: {text}", flush=True)
    failed = 0
    for case, opts in gradients if "check" in modes else []:
        try:
            worst, relative, same = check_backward(cache, case, opts)
            ok = max(worst.values()) <= 1 and same
            text = " ".join(f"{n} {worst[n]:.2f} ({relative[n]:.1e})" for n in worst) + ("" if same else " NOT REPEATABLE")
        except Exception:  # noqa: BLE001
            ok, text = False, traceback.format_exc(limit=3)
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} backward {case.name}: {text}", flush=True)
    bad += failed
    if "check" in modes:
        print(f"{failed} of {len(gradients)} backward cases fail, poison", check_backward_poison(cache), flush=True)
        print("poison", check_poison(cache), flush=True)
        print(f"{bad} of {len(cases)} cases of either fail", flush=True)
    if "time" in modes:
        timings(cache)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
