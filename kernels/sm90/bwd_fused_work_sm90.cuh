// bwd_fused_work_sm90.cuh - the tile of a CTA of bwd_fused_sm90.cuh: which own rows, which walked rows, and which of these
// each of those sees.
#pragma once
#include "sm90/ring_sm90.cuh"
#include "common/scores.cuh"

static constexpr int D = FFPA_D, DV = FFPA_DV, BM = 128, BN = FFPA_BN, STAGES = FFPA_STAGES;
static constexpr bool KEYS = FFPA_KEYS;
// May rows of a tile differ in what they see, or foreign rows follow?
static constexpr bool GUARD = FFPA_RANGE || FFPA_VARLEN;

// What the CTA computes.
struct Work {
    Sequence seq;
    int head, row;            // of the own side: head, first row in its sequence
    int n, walked;            // rows of the own and of the walked side
    int first, blocks, heads; // walked blocks of each walked head; how many heads
    int clear_from, clear_to; // walked rows that every own row sees
    KeyRange line;            // FFPA_RANGE: query i sees keys [lo + i, hi + i)
};

// Walked rows [lo, hi) that own row r sees.
FFPA_DEVICE KeyRange seen_by(const Work &t, int r)
{
    if (!FFPA_RANGE) return {0, t.walked};
    const int lo = KEYS ? r - t.line.hi + 1 : r + t.line.lo, hi = KEYS ? r - t.line.lo + 1 : r + t.line.hi;
    const int from = clamp_int(lo, 0, t.walked);
    return {from, clamp_int(hi, from, t.walked)};
}

// Heads in groups; within a group the first lines of all its heads first, for under causal they are the longest. False:
// no rows there.
FFPA_DEVICE bool work_of(const fused_args &a, Work &t)
{
    const void *cu = KEYS ? a.seq.cu_k : a.seq.cu_q;
    const int dense = KEYS ? a.seq.nk : a.seq.nq, own_heads = KEYS ? a.hk : a.hq;
    const int per = a.tiles * a.head_group, group = blockIdx.x / per, rest = blockIdx.x - group * per;
    const int left = a.heads - group * a.head_group, size = left < a.head_group ? left : a.head_group;
    const int line = rest / size, x = group * a.head_group + rest % size;
    const bool packed = FFPA_VARLEN && cu;
    const int s = packed ? line_owner(cu, a.seq, line, dense, 1, BM) : x / own_heads;
    t.head = packed ? x : x % own_heads;
    t.seq = sequence_at(a.seq, s);
    t.n = KEYS ? t.seq.nk : t.seq.nq, t.walked = KEYS ? t.seq.nq : t.seq.nk;
    t.row = packed ? line_row(cu, a.seq, s, line, dense, 1, BM) : line * BM;
    if (t.row >= t.n) return false;
    if (FFPA_RANGE && !KEYS) t.row = (t.n - 1) / BM * BM - t.row;
    t.line = key_line(a.scores, t.seq.nq, t.seq.nk);
    const int last = t.row + BM < t.n ? t.row + BM - 1 : t.n - 1;
    const KeyRange top = seen_by(t, t.row), bottom = seen_by(t, last);
    t.clear_from = bottom.lo, t.clear_to = top.hi;
    t.first = top.lo / BN;
    t.blocks = top.lo < bottom.hi ? (bottom.hi + BN - 1) / BN - t.first : 0;
    t.heads = KEYS ? a.group : 1;
    return true;
}

// Does every own row see the block at walked row `at`? Keys that are not there would have a weight; rows have none by their LSE.
FFPA_DEVICE bool is_clear(const Work &t, int at)
{
    return (KEYS && !GUARD) || (at >= t.clear_from && at + BN <= t.clear_to);
}

FFPA_DEVICE i64 lse_at(const fused_args &a, const Work &t, int head, int i)
{
    return t.seq.q_batch * a.lse.sb + head * a.lse.sh + (t.seq.q_row + i) * a.lse.sn;
}
FFPA_DEVICE i64 delta_at(const fused_args &a, const Work &t, int head, int i)
{
    const i64 row = FFPA_VARLEN && a.seq.cu_q ? t.seq.q_row : (i64)t.seq.s * a.seq.nq;
    return head * a.seq.total_q + row + i;
}

// What a query's scores in base 2 begin with, and its delta. No LSE, no weights: neither has a row that is not there.
struct Numbers {
    float minus_lse, delta;
};
FFPA_DEVICE Numbers numbers_of(const fused_args &a, const Work &t, int head, int i)
{
    if (i >= t.seq.nq) return {-FFPA_INF, 0.0f};
    const float lse = ldg_f32((const float *)a.lse.data + lse_at(a, t, head, i));
    const float delta = ldg_f32(a.delta + delta_at(a, t, head, i));
    return {lse == -FFPA_INF ? -FFPA_INF : -lse * LOG2E, delta};
}

// ---- the walk: every warp that loads, and both teams, go through the same blocks -----------------

struct Walk {
    Ring ring;
    int head, block, left; // of the walked side; blocks to come, this one included
};
FFPA_DEVICE Walk walk_of(const Work &t) { return {{0, 0}, 0, 0, t.blocks * t.heads}; }
FFPA_DEVICE void walk_on(const Work &t, Walk &w)
{
    ring_next<STAGES>(w.ring);
    if (++w.block == t.blocks) w.block = 0, w.head++;
    w.left--;
}
FFPA_DEVICE int walk_at(const Work &t, const Walk &w) { return (t.first + w.block) * BN; }
