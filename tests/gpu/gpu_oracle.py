"""Attention by its definition on torch tensors: float64 for the right answer, the inputs' precision with
P and dS rounded ("naive") for the error that is allowed."""
import math

import torch


def philox_words(seed, offset, bh, i, j):
    """The Philox word of (head, query, key), as core/dropout.h defines it; int64 tensors that broadcast."""
    low = 0xFFFFFFFF
    k0, k1 = seed & low, (seed >> 32) ^ (offset >> 32)
    bh, i, j = torch.broadcast_tensors(bh, i, j)
    c = [j >> 2, i.clone(), bh.clone(), torch.full_like(i, offset & low)]

    def mul(m, x):  # 32 x 32 -> (high, low) without 64-bit overflow
        a, b = (m & 0xFFFF) * x, (m >> 16) * x
        mid = (a >> 16) + (b & 0xFFFF)
        return (b >> 16) + (mid >> 16), ((mid & 0xFFFF) << 16) | (a & 0xFFFF)

    for _ in range(10):
        h0, l0 = mul(0xD2511F53, c[0])
        h1, l1 = mul(0xCD9E8D57, c[2])
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return torch.gather(torch.stack(c), 0, (j & 3)[None])[0]


class Answer:
    """q [Hq, Nq, D], k, v [Hk, Nk, D] of one sequence."""

    def __init__(self, q, k, v, *, scale=None, left=-1, right=-1, top_left=0, softcap=0.0, mask=None, alibi=None,
                 sink=None, p=None, seed=0, offset=0, b=0, naive=False):
        work = torch.float32 if naive else torch.float64
        self.work, self.dtype, self.naive = work, q.dtype, naive
        hq, nq, d = q.shape
        self.group, nk, dev = hq // k.shape[0], k.shape[1], q.device
        self.q, self.k, self.v = q.to(work), *(x.to(work).repeat_interleave(self.group, 0) for x in (k, v))
        self.scale, self.cap, self.sink = d ** -0.5 if scale is None else scale, softcap, sink
        x = self.scale * (self.q @ self.k.transpose(1, 2))
        self.t = softcap * torch.tanh(x / softcap) if softcap else x
        s, i, j = self.t, torch.arange(nq, device=dev)[:, None], torch.arange(nk, device=dev)[None]
        if alibi is not None:
            s = s - alibi.to(work)[:, None, None] * (i + nk - nq - j).abs()
        centre = i if top_left else i + nk - nq
        seen = torch.ones(hq, nq, nk, dtype=torch.bool, device=dev)
        if right >= 0:
            seen &= j <= centre + right
        if left >= 0:
            seen &= j >= centre - left
        if mask is not None and mask.dtype == torch.bool:
            seen &= mask
        elif mask is not None:
            s = s + mask.to(work)
            seen &= mask.expand_as(seen) != -math.inf
        self.s = torch.where(seen, s, -math.inf)
        self.seen = seen & (self.s != -math.inf)
        logits = self.s if sink is None else torch.cat([self.s, sink.to(work)[:, None, None].expand(hq, nq, 1)], 2)
        self.lse = torch.logsumexp(logits, 2)
        self.p = torch.where(self.seen, torch.softmax(logits, 2)[..., :nk], 0.0)
        self.keep = None
        if p is not None:
            bh = b * hq + torch.arange(hq, device=dev)[:, None, None]
            self.keep = (philox_words(seed, offset, bh, i[None], j[None]) >= round(p * 2**32)).to(work)
            self.keep *= 1 / (1 - p) if p < 1 else 0.0
        self.o = self.round(self.kept(self.p)) @ self.v

    def kept(self, x):
        return x if self.keep is None else x * self.keep

    def round(self, x):
        return x.to(self.dtype).to(self.work) if self.naive else x

    def backward(self, dout, o, dlse=None):
        """Gradients as functions of the O that forward wrote: delta = <dO, O> - dLSE."""
        dout = dout.to(self.work)
        delta = (dout * o.to(self.work)).sum(2)
        if dlse is not None:
            delta = delta - dlse.to(self.work)
        delta = torch.where(self.lse == -math.inf, 0.0, delta)
        self.ds = torch.where(self.seen, self.p * (self.kept(dout @ self.v.transpose(1, 2)) - delta[..., None]), 0.0)
        dx = self.ds * (1 - (self.t / self.cap) ** 2) if self.cap else self.ds
        dx = self.round(torch.where(self.seen, dx, 0.0))
        self.dq = self.scale * (dx @ self.k)

        def grouped(x):
            return x.unflatten(0, (-1, self.group)).sum(1)
        self.dk = grouped(self.scale * (dx.transpose(1, 2) @ self.q))
        self.dv = grouped(self.round(self.kept(self.p)).transpose(1, 2) @ dout)
        if self.sink is not None:
            e = torch.exp(self.sink.to(self.work)[:, None] - self.lse)
            self.dsink = -(torch.where(self.lse == -math.inf, 0.0, e) * delta).sum(1)
        return self
