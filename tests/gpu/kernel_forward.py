"""Forward calls of the kernels on torch tensors: what the library's host code does, in Python."""
import torch

from kernel_launch import (Append, Chunk, Combine, DTYPES, Delta, Dmask, Dropout, Dsink, Fwd, Gemm, Pds, Scores, Sequences,
                           ck, tensor, variant)

SHARED = 227


def ptr(t):
    return None if t is None else t.data_ptr()


class Call:
    """One problem. q [B, Hq, Nq, D], k, v [B, Hk, Nk, D] (or packed, or a cache); options by name."""

    def __init__(self, q, k, v, **opts):
        self.q, self.k, self.v = q, k, v
        o = dict(scale=None, left=-1, right=-1, top_left=0, softcap=0.0, mask=None, alibi=None, sink=None, p=None,
                 seed=0, offset=0, cu_q=None, cu_k=None, lengths=None, batch_index=None, table=None, new_keys=0,
                 splits=0, pack=None, o_dtype=None, config=None, batch=None)
        assert not set(opts) - set(o), opts
        self.__dict__.update(o | opts)
        self.dtype = DTYPES[q.dtype]
        self.hq, self.hk, self.d, self.dv = q.shape[1], k.shape[1], q.shape[3], v.shape[3]
        self.group = self.hq // self.hk
        self.o_dtype = self.o_dtype or q.dtype
        if self.batch is None:
            cu = self.cu_q if self.cu_q is not None else self.cu_k
            self.batch = q.shape[0] if cu is None else cu.numel() - 1

    def sequences(self):
        s = Sequences(cu_q=ptr(self.cu_q), cu_k=ptr(self.cu_k), lengths=ptr(self.lengths),
                      batch_index=ptr(self.batch_index), block_table=ptr(self.table), batch=self.batch,
                      nq=self.q.shape[2], nk=self.k.shape[2], new_keys=self.new_keys)
        index = next((t for t in (self.cu_q, self.cu_k, self.lengths, self.table) if t is not None), None)
        s.index64 = index is not None and index.dtype == torch.int64
        s.entries = self.k.shape[0]
        if self.table is not None:
            s.table_stride, s.table_width, s.page_size = self.table.stride(0), self.table.shape[1], self.k.shape[2]
            s.nk = s.table_width * s.page_size
        s.total_q = self.q.shape[2] if self.cu_q is not None else self.batch * self.q.shape[2]
        s.total_k = self.k.shape[2] if self.cu_k is not None else self.batch * self.k.shape[2]
        return s

    def scores(self):
        s = Scores(mask=tensor(self.mask), alibi=ptr(self.alibi), sink=ptr(self.sink), sink_sh=1, left=self.left,
                   right=self.right, top_left=self.top_left, softcap=self.softcap)
        if self.alibi is not None:
            s.alibi_sb, s.alibi_sh = (0 if self.alibi.shape[0] == 1 else self.alibi.stride(0)), self.alibi.stride(1)
        s.scale = self.d ** -0.5 if self.scale is None else self.scale
        return s

    def dropping(self):
        p = self.p or 0.0
        return Dropout(seed=self.seed, offset=self.offset, threshold=round(p * 2**32),
                       keep_scale=1 / (1 - p) if p < 1 else 0.0)

    def aligned(self, *tensors):
        def rows16(t):
            size = t.element_size()
            return t.stride(3) == 1 and t.data_ptr() % 16 == 0 and all(
                s * size % 16 == 0 for s, n in zip(t.stride()[:3], t.shape) if n > 1)
        return int(all(rows16(t) for t in tensors or (self.q, self.k, self.v)))

    def options(self):
        return dict(RANGE=int(self.left >= 0 or self.right >= 0), SOFTCAP=int(self.softcap > 0),
                    MASK=0 if self.mask is None else DTYPES[self.mask.dtype], ALIBI=int(self.alibi is not None),
                    DROPOUT=int(self.p is not None), VARLEN=int(self.cu_q is not None or self.cu_k is not None))

    def tile_line(self, tile, rows=1):
        if self.cu_q is not None:
            return self.q.shape[2] * rows // tile + self.batch
        return self.batch * ck.ceil_div(self.q.shape[2] * rows, tile)

    def forward_plan(self):
        rows = self.q.shape[2] * self.group
        pack = self.pack if self.pack is not None else (rows <= 64 and self.cu_q is None)
        options = dict(self.options(), ALIGNED=self.aligned())
        config = self.config or ck.forward_config(self.dtype, self.d, self.dv, rows if pack else 128, SHARED, options)
        cache = 2 if self.table is not None else int(self.lengths is not None)
        return variant("sm80/fwd_sm80.cuh", DTYPE=self.dtype, O_DTYPE=DTYPES[self.o_dtype], D=self.d, DV=self.dv,
                       **config, ALIGNED=self.aligned(), SINK=int(self.sink is not None), CACHE=cache, PACK=int(pack),
                       SPLIT=int(self.splits > 0), **self.options())

    def combine_plan(self):
        return variant("any/split_combine.cuh", DTYPE=self.dtype, O_DTYPE=DTYPES[self.o_dtype],
                       VARLEN=int(self.cu_q is not None))

    def variants(self):
        return [self.forward_plan()] + ([self.combine_plan()] if self.splits else [])

    def outputs(self):
        b, h, n, _ = self.q.shape
        o = torch.full((b, h, n, self.dv), float("nan"), dtype=self.o_dtype, device="cuda")
        return o, torch.full((b, h, n, 1), float("nan"), device="cuda")

    def forward(self, cache, o, lse):
        plan = self.forward_plan()
        f = dict(plan[1])
        wn = f["WN"]
        a = Fwd(q=tensor(self.q), k=tensor(self.k), v=tensor(self.v), o=tensor(o), lse=tensor(lse),
                seq=self.sequences(), scores=self.scores(), dropout=self.dropping(), hq=self.hq, hk=self.hk,
                group=self.group, splits=max(1, self.splits))
        heads = self.hk if f["PACK"] else self.hq
        a.tiles = self.tile_line(f["BM"], self.group if f["PACK"] else 1)
        if self.splits:
            total = a.seq.total_q
            self.part = getattr(self, "part", None)
            if self.part is None:
                self.part = torch.full((self.splits * self.hq * total * (self.dv + 1),), float("nan"), device="cuda")
            a.o_part = self.part.data_ptr()
            a.lse_part = a.o_part + 4 * self.splits * self.hq * total * self.dv
        shared = ck.forward_bytes(self.dtype, self.d, f["BM"], f["BN"], wn, f["STAGES"] * f["PANELS"])
        cache.launch(plan, a, a.splits * heads * a.tiles, shared, 32 * f["WM"] * wn)
        if self.splits:
            m = Combine(o_part=a.o_part, lse_part=a.lse_part, o=a.o, lse=a.lse, seq=a.seq, hq=self.hq,
                        splits=a.splits, dv=self.dv)
            cache.launch(self.combine_plan(), m, ck.ceil_div(self.hq * a.seq.total_q, 8), 0)
        return o, lse


class Gradients:
    """Backward of a Call: delta, then for each chunk P and dS and the products. `limit` bounds P and dS in bytes."""

    def __init__(self, call, dout, dlse=None, dmask=None, limit=2**30):
        self.call, self.dout, self.dlse, self.dmask, self.limit = call, dout, dlse, dmask, limit
        c = call
        self.chunks = self.plan_chunks()
        base = dict(DTYPE=c.dtype, **c.options())
        words = dict(DTYPE=c.dtype, VARLEN=base["VARLEN"], DO_DTYPE=DTYPES[dout.dtype])
        self.delta_plan = variant("any/bwd_delta.cuh", O_DTYPE=DTYPES[c.o_dtype], **words)
        self.pds_plan = variant("sm80/bwd_pds_sm80.cuh", **base, D=c.d, DV=c.dv, DO_DTYPE=DTYPES[dout.dtype],
                                DMASK=int(dmask is not None), STAGES=ck.pds_stages(SHARED),
                                ALIGNED=int(c.aligned(c.q, c.k, c.v, dout) and dout.dtype == c.q.dtype))
        self.gemm_plans = {n: self.gemm_plan(keys, b, cols) for n, keys, b, cols in
                           (("dv", 1, dout, c.dv), ("dk", 1, c.q, c.d), ("dq", 0, c.k, c.d))}
        self.dmask_plan = None if dmask is None else variant(
            "any/bwd_mask.cuh", DTYPE=c.dtype, O_DTYPE=DTYPES[dmask.dtype], RANGE=base["RANGE"])
        self.dsink_plan = None if c.sink is None else variant("any/bwd_sink.cuh", DTYPE=c.dtype, VARLEN=base["VARLEN"])

    def gemm_plan(self, keys, b, cols):
        c = self.call
        aligned = int(c.aligned(b) and b.dtype == c.q.dtype)
        o = dict(c.options(), ALIGNED=aligned, KEYS=keys)
        return variant("sm80/bwd_gemm_sm80.cuh", DTYPE=c.dtype, B_DTYPE=DTYPES[b.dtype], O_DTYPE=c.dtype, KEYS=keys,
                       **ck.gemm_config(c.dtype, cols, SHARED, o, self.row_tiles(keys)), RANGE=o["RANGE"], MASK=o["MASK"], VARLEN=o["VARLEN"],
                       ALIGNED=aligned)

    def row_tiles(self, keys):
        h0, nh, _, nt, _, _ = self.chunks[0]
        return ck.ceil_div(nh, self.call.group) * ck.ceil_div(self.call.k.shape[2], 128) if keys else nh * nt

    def variants(self):
        return [v for v in (self.delta_plan, self.pds_plan, *self.gemm_plans.values(), self.dmask_plan, self.dsink_plan)
                if v is not None]

    def plan_chunks(self):
        """[(h0, nh, t0, nt, first, last)]: whole groups, else parts of a group's rows."""
        c, s = self.call, self.call.sequences()
        lines = c.tile_line(128)
        self.ld = max(128, ck.ceil_div(s.total_k if c.cu_k is not None else s.nk, 128) * 128)
        tile = 128 * self.ld * (2 * c.q.element_size() + (4 if self.dmask is not None else 0))
        groups = min(c.hk, self.limit // max(1, tile * lines * c.group))
        if groups >= 1:
            return [(g * c.group, min(groups, c.hk - g) * c.group, 0, lines, 1, 1) for g in range(0, c.hk, groups)]
        nt = max(1, min(lines, self.limit // (tile * c.group)))
        starts = range(0, lines, nt)
        return [(g * c.group, c.group, t, min(nt, lines - t), int(t == 0), int(t == starts[-1]))
                for g in range(c.hk) for t in starts]

    def run(self, cache, o, lse, dq, dk, dv, dsink=None):
        c, s, sc = self.call, self.call.sequences(), self.call.scores()
        biggest = max((nh * nt for _, nh, _, nt, _, _ in self.chunks), default=0) * 128 * self.ld
        if not hasattr(self, "work"):
            self.work = [torch.full((biggest,), float("nan"), dtype=c.q.dtype, device="cuda") for _ in range(2)]
            self.dbias = torch.full((biggest,), float("nan"), device="cuda") if self.dmask is not None else None
            self.delta = torch.full((c.hq * s.total_q,), float("nan"), device="cuda")
            many = any(not (f and last) for *_, f, last in self.chunks)
            self.partial = [torch.full((s.total_k * n,), float("nan"), device="cuda") if many else None
                            for n in (c.dv, c.d)]
            self.mask_partial = None if self.dmask is None else torch.full((self.dmask.numel(),), float("nan"), device="cuda")
        cache.launch(self.delta_plan, Delta(o=tensor(o), dout=tensor(self.dout), dlse=tensor(self.dlse),
                                            delta=ptr(self.delta), seq=s, hq=c.hq, dv=c.dv),
                     ck.ceil_div(c.hq * s.total_q, 8), 0)
        if dsink is not None:
            cache.launch(self.dsink_plan, Dsink(lse=tensor(lse), delta=ptr(self.delta), sink=ptr(c.sink), dsink=ptr(dsink),
                                                sink_sh=1, dsink_sh=1, seq=s, hq=c.hq), c.hq, 0)
        for n, (h0, nh, t0, nt, first, last) in enumerate(self.chunks):
            chunk = Chunk(ld=self.ld, h0=h0, nh=nh, t0=t0, nt=nt)
            a = Pds(q=tensor(c.q), k=tensor(c.k), v=tensor(c.v), dout=tensor(self.dout), lse=tensor(lse),
                    delta=ptr(self.delta), p=ptr(self.work[0]), ds=ptr(self.work[1]), dbias=ptr(self.dbias), seq=s,
                    scores=sc, dropout=c.dropping(), chunk=chunk, hq=c.hq, hk=c.hk, group=c.group, key_tiles=self.ld // 128)
            stages = dict(self.pds_plan[1])["STAGES"]
            cache.launch(self.pds_plan, a, nh * nt * a.key_tiles, ck.pds_bytes(stages))
            for name, work, b, out, partial in (("dv", 0, self.dout, dv, 0), ("dk", 1, c.q, dk, 1), ("dq", 1, c.k, dq, None)):
                keys = name != "dq"
                g = Gemm(a=ptr(self.work[work]), b=tensor(b), out=tensor(out), seq=s, chunk=chunk,
                         alpha=1.0 if name == "dv" else sc.scale, hq=c.hq, hk=c.hk, group=c.group, cols=out.shape[3],
                         left=c.left, right=c.right, top_left=c.top_left, first=first, last=last)
                if keys and not (first and last):
                    g.partial = ptr(self.partial[partial])
                g.key_tiles = (c.k.shape[2] // 128 + c.batch if c.cu_k is not None
                               else c.batch * ck.ceil_div(c.k.shape[2], 128))
                f = dict(self.gemm_plans[name][1])
                tiles = ck.ceil_div(nh, c.group) * g.key_tiles if keys else nh * nt
                cache.launch(self.gemm_plans[name], g, tiles * ck.ceil_div(g.cols, f["BN"]),
                             ck.gemm_bytes(f["BN"], f["STAGES"]))
            if self.dmask is not None:
                mb, mh, mq, mk = self.dmask.shape
                m = Dmask(dbias=ptr(self.dbias), dmask=tensor(self.dmask), partial=ptr(self.mask_partial), seq=s, chunk=chunk,
                          hq=c.hq, mb=mb, mh=mh, mq=mq, mk=mk, left=c.left, right=c.right, top_left=c.top_left,
                          first=int(n == 0), last=int(n == len(self.chunks) - 1))
                cache.launch(self.dmask_plan, m, mb * mh * mq * ck.ceil_div(mk, 32), 0)
