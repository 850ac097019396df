"""Problems of several tiles and what must come out: every case against float64, accepted within twice the error of
the naive computation (gradients: three times), plus 1e-5. library_check.py runs them."""
import math
import zlib

import torch

from gpu_oracle import Answer

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEN = torch.Generator("cuda")


class Problem:
    """One problem. q [B, Hq, Nq, D], k, v [B, Hk, Nk, D] (or packed, or a cache); options by name."""

    def __init__(self, q, k, v, **opts):
        self.q, self.k, self.v = q, k, v
        o = dict(scale=None, left=-1, right=-1, top_left=0, softcap=0.0, mask=None, alibi=None, sink=None, p=None,
                 seed=0, offset=0, cu_q=None, cu_k=None, lengths=None, batch_index=None, table=None, o_dtype=None,
                 batch=None)
        assert not set(opts) - set(o), opts
        self.__dict__.update(o | opts)
        self.dv = v.shape[3]
        self.o_dtype = self.o_dtype or q.dtype
        if self.batch is None:
            cu = self.cu_q if self.cu_q is not None else self.cu_k
            self.batch = q.shape[0] if cu is None else cu.numel() - 1

    def outputs(self):
        b, h, n, _ = self.q.shape
        o = torch.full((b, h, n, self.dv), float("nan"), dtype=self.o_dtype, device="cuda")
        return o, torch.full((b, h, n, 1), float("nan"), device="cuda")


def randn(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(*shape, generator=GEN, device="cuda") * scale).to(dtype)


class Case:
    """`make()` returns the Problem and a list of (out index, Answer options, q, k, v) for the sequences to compare."""

    def __init__(self, name, make):
        self.name, self.make = name, make


def dense(name, b, hq, hk, nq, nk, d, dv=None, dtype=BF16, prepare=None, **opts):
    def make():
        GEN.manual_seed(zlib.crc32(name.encode()))
        q, k, v = randn(b, hq, nq, d, dtype=dtype), randn(b, hk, nk, d, dtype=dtype), randn(b, hk, nk, dv or d, dtype=dtype)
        if prepare:
            q, k, v = prepare(q, k, v)
        o = {n: x() if callable(x) else x for n, x in opts.items()}
        return Problem(q, k, v, **o), [(s, slice(None), slice(0, nk), s) for s in range(b)]
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


def check_forward(library, case):
    call, parts = case.make()
    o, lse = call.outputs()
    library.forward(call, o, lse)
    torch.cuda.synchronize()
    worst, relative = {}, {}
    for batch, rows, keys, b in parts:
        k, v = keys(call) if callable(keys) else (call.k[b][:, keys], call.v[b][:, keys])
        q = call.q[batch][:, rows]
        right, naive = (answer(call, q, k, v, b, n) for n in (False, True))
        for got, name in ((o[batch][:, rows], "o"), (lse[batch][:, rows, 0], "lse")):
            ulp = 1.2e-7 * max([0.0, *torch.nan_to_num(right.lse, 0, 0, 0).abs().flatten().tolist()]) if name == "lse" else 0  # it is stored in f32
            r, rel = compare(got, getattr(right, name), getattr(naive, name).to(got.dtype), 2, 1e-5 + ulp)
            worst[name], relative[name] = max(worst.get(name, 0), r), max(relative.get(name, 0), rel)
    again, lse2 = call.outputs()
    library.forward(call, again, lse2)
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
    return dict(dout=dout, dlse=dlse, dmask=dmask, limit=opts.get("limit", 0))


def check_backward(library, case, opts):
    call, parts = case.make()
    g = backward_setup(call, opts)
    o, lse = call.outputs()
    library.forward(call, o, lse)
    runs = []
    for _ in range(2):
        outs = [torch.full_like(x, float("nan")) for x in (call.q, call.k, call.v)]
        dsink = None if call.sink is None else torch.full_like(call.sink, float("nan"))
        library.backward(call, g, o, lse, *outs, dsink=dsink)
        runs.append([*outs] + [x.clone() for x in (dsink, g["dmask"]) if x is not None])
    torch.cuda.synchronize()
    same = all(torch.equal(torch.nan_to_num(x, 7.0), torch.nan_to_num(y, 7.0)) for x, y in zip(*runs))
    worst, relative = {}, {}
    totals = {False: {}, True: {}}
    for batch, rows, keys, b in parts:
        k, v = keys(call) if callable(keys) else (call.k[b][:, keys], call.v[b][:, keys])
        span = keys if not callable(keys) else call_span(call, b)
        both = [answer(call, call.q[batch][:, rows], k, v, b, n).backward(
            g["dout"][batch][:, rows], o[batch][:, rows], None if g["dlse"] is None else g["dlse"][batch][:, rows, 0]) for n in (False, True)]
        kb = 0 if callable(keys) else b
        for name, got in (("dq", runs[0][0][batch][:, rows]), ("dk", runs[0][1][kb][:, span]), ("dv", runs[0][2][kb][:, span])):
            right, naive = (getattr(x, name) for x in both)
            r, rel = compare(got, right, naive.to(got.dtype), 3)
            worst[name], relative[name] = max(worst.get(name, 0), r), max(relative.get(name, 0), rel)
        for x in both:
            t = totals[x.naive]
            if call.sink is not None:
                t["dsink"] = t.get("dsink", 0) + x.dsink
            if g["dmask"] is not None:
                t.setdefault("dmask", []).append(x.ds)
    for i, name in enumerate(totals[False]):
        right, naive = (totals[n][name] for n in (False, True))
        if name == "dmask":
            axes = [a for a in range(4) if g["dmask"].shape[a] == 1]
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
        call = Problem(q, k, v, cu_q=cu[0], cu_k=cu[1], **opts)
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
        call = Problem(q, k, v, lengths=torch.tensor(lengths, dtype=index, device="cuda"), batch=b, **opts)

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
        yield dense(f"d{d}", 2, 4, 2, 150, 333, d)
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
    yield dense("parts", 1, 4, 2, 300, 2000, 512)
    yield dense("parts causal", 2, 4, 2, 300, 1900, 256, sink=lambda: randn(4, dtype=F32), **causal)
    yield dense("parts and whole tiles", 1, 1, 1, 9216, 2048, 512)
    yield cached("parts of a cache", 2, 8, 2, 100, 2048, [1900, 105], 128, right=0)
    yield packed("varlen", [3, 130, 0, 77], [50, 130, 20, 0], 4, 2, 512, right=0)
    yield packed("varlen i64", [1, 200, 64], [300, 1, 64], 4, 1, 64, index=torch.int64)
    yield cached("decode", 3, 8, 2, 1, 1024, [1000, 5, 0], 512)
    yield cached("decode long", 1, 8, 2, 1, 40000, [39999], 512)
    yield cached("decode causal q4", 2, 32, 4, 4, 512, [500, 2], 512, right=0)
    yield cached("decode group 48", 2, 48, 1, 1, 256, [100, 77], 512)
    yield cached("decode batch index", 2, 8, 2, 1, 256, [100, 77], 64, batch_index=[3, 1], index=torch.int64)
    yield cached("decode sink", 2, 8, 2, 1, 256, [100, 0], 256, sink=torch.linspace(-1, 1, 8))
    for page in (16, 64, 100):
        yield cached(f"paged {page}", 3, 8, 2, 3, page * 8, [page * 7 + 5, 1, page], 512, page=page, right=0)
    yield cached("paged mla", 2, 16, 1, 1, 512, [333, 100], 576, 512, page=64)


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


def gradients_of(library, q, k, v, dout, **opts):
    call = Problem(q, k, v, **opts)
    o, lse = call.outputs()
    library.forward(call, o, lse)
    outs = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    library.backward(call, dict(dout=dout), o, lse, *outs)
    return outs


def near(x, y):
    """Equal but for rounding: a row that NaN of an unseen key would have spoiled may be computed again, in another order."""
    return bool(torch.isfinite(x).all() and (x.float() - y.float()).norm() <= 0.005 * x.float().norm())


def check_backward_poison(library):
    """Causal: NaN in query 100 must not reach the keys behind it nor other queries, NaN in key 200 no query before it.
    True when all holds."""
    good = []
    for d in (64, 512):
        GEN.manual_seed(6)
        q, k, v, dout = (randn(1, 2, 300, d) for _ in range(4))
        q2, do2, k2, v2 = (x.clone() for x in (q, dout, k, v))
        q2[:, :, 100], do2[:, :, 100], k2[:, :, 200], v2[:, :, 200] = (float("nan"),) * 4
        dq, dk, dv = gradients_of(library, q, k, v, dout, right=0)
        qq, qk, qv = gradients_of(library, q2, k, v, do2, right=0)
        kq, _, _ = gradients_of(library, q, k2, v2, dout, right=0)
        others = [i for i in range(300) if i != 100]
        good.append([torch.equal(dq[:, :, others], qq[:, :, others]), torch.equal(dk[:, :, 101:], qk[:, :, 101:]),
                     torch.equal(dv[:, :, 101:], qv[:, :, 101:]), bool(torch.isnan(qk[:, :, :101]).all()),
                     near(dq[:, :, :200], kq[:, :, :200]), bool(torch.isnan(kq[:, :, 200:]).all())])
    return all(map(all, good))


def check_poison(library):
    """NaN in V of keys that some rows do not see: those rows must not notice."""
    worst = []
    for d, opts in ((64, dict(right=0)), (512, dict(right=0)), (512, dict(left=30, right=5)), (320, dict(mask=1)),
                    (1024, dict(right=0))):
        GEN.manual_seed(5)
        q, k, v = (randn(1, 2, 200, d) for _ in range(3))
        if "mask" in opts:
            opts = dict(mask=torch.rand(1, 1, 200, 200, generator=GEN, device="cuda") < 0.5)
        clean = Problem(q, k, v, **opts)
        a = library.forward(clean, *clean.outputs())
        v2 = v.clone()
        v2[:, :, 150, :] = float("nan")
        v2[:, :, 70, 5] = math.inf
        b = Problem(q, k, v2, **opts)
        b = library.forward(b, *b.outputs())
        seen = answer(clean, q[0], k[0], v[0], 0, False).seen[None]
        keep = ~(seen[..., 150] | seen[..., 70])
        ok = near(a[keep], b[keep]) and bool(torch.isnan(b[seen[..., 150]]).all())
        only = seen[..., 70] & ~seen[..., 150]
        ok &= bool((b[only][:, 5] == math.inf).all()) and near(a[only][:, 6:], b[only][:, 6:])
        worst.append(ok)
    return all(worst)
