// bwd_pds_sm80.cuh - attention backward, first half: P and dS of a chunk to the workspace.
//     S = Q K^T,  P = e^(s - LSE),  dP = dO V^T,  dS = P (dP - delta) (1 - (t/c)^2)      128 q x 128 k a CTA
//
// Why write P and dS out: a pair costs 2 (D + Dv) flop here and leaves 4 bytes, and dV, dK, dQ become plain
// products without recomputation, atomics or ordering. Every mask, bias and dropout rule of backward is here.
//
//             time ->
//   copies    | Q0 K0 | Q1 K1 ..   | dO0 V0 | dO1 V1 ..  |     cp.async, STAGES - 1 slots ahead
//   warps     |       | S += Q K^T | P      | dP += dO V^T | dS
//
// 8 warps, 2 x 4, each 64 q x 32 k; where options, any stride or f32 leave no registers for that, a CTA takes half
// of a tile's queries (BM), each warp 32 q x 32 k. One barrier a slot: the slot has arrived for every thread, and the one
// before it may be overwritten. P is kept in registers (f32) until dP is there.
//
// Registers: S or P 64, dP 64 (half with BM = 64), row state 16, fragments 24. Shared: STAGES slots of two panels.
// Every element of a tile with a visible pair is written, zeros included; tiles without one are not touched
// and the other kernels leave them out by the same rule (common/live.cuh).
#include "common/dropout.cuh"
#include "common/live.cuh"
#include "common/scores.cuh"
#include "common/shapes.h"
#include "common/tiles.cuh"

static constexpr int D = FFPA_D, DV = FFPA_DV, STAGES = FFPA_STAGES, THREADS = 256, WN = 4, SG = 2;
static constexpr int BM = FFPA_BM, MT = BM / 32, PARTS = TILE / BM; // queries of a CTA, of a warp / 16
static constexpr int QP = shape_panels(D, ES), VP = shape_panels(DV, ES), TURNS = QP + VP;
static constexpr int QUERIES = BM * 128, SLOT = QUERIES + TILE * 128;
static_assert(BM == 128 || BM == 64, "a tile of 128 queries, or half of one");
static_assert(STAGES * SLOT == pds_shared_bytes(BM, STAGES), "shapes.h disagrees");
static_assert(STAGES >= 2 && STAGES * SLOT <= 227 * 1024, "shared budget: fewer STAGES");

struct Work {
    Sequence seq;
    int h, row, key; // query head, first row and first key of the CTA's part of the tile
    int tile_row;    // first row of the tile: there is one, which `row` of its second half need not be
    i64 out;         // element (row, key) in P, dS and dbias
    bool clear;      // every row sees every key
};

struct Sources {
    const char *q, *dout;
    KeyRows k, v;
};

FFPA_DEVICE bool work_of(const pds_args &a, Work &w)
{
    const k_chunk &c = a.chunk;
    const int part = blockIdx.x % PARTS, block = blockIdx.x / PARTS;
    const int kt = block % a.key_tiles, x = block / a.key_tiles, line = c.t0 + x % c.nt;
    const int s = line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, 1, TILE);
    w.seq = sequence_at(a.seq, s);
    w.h = c.h0 + x / c.nt;
    w.tile_row = line_row(a.seq.cu_q, a.seq, s, line, a.seq.nq, 1, TILE);
    w.row = w.tile_row + part * BM;
    w.key = kt * TILE;
    w.out = ((i64)((w.h - c.h0) * c.nt + (line - c.t0)) * TILE + part * BM) * c.ld + w.key;
    if (w.tile_row >= w.seq.nq || w.key >= w.seq.nk) return false;
    const Live live = live_keys(a.scores.left, a.scores.right, a.scores.top_left, w.seq, w.tile_row);
    w.clear = w.key >= live.clear_from && w.key + TILE <= live.clear_to && w.tile_row + TILE <= w.seq.nq;
    return kt >= live.from && kt < live.to;
}

// One panel of N rows of COLUMNS, `limit` of them there.
template <int N, int SOURCE, int COLUMNS>
FFPA_DEVICE void load_panel(u32 dst, const char *base, i64 sn_bytes, i64 sd, int limit, int p)
{
    const int piece = threadIdx.x & 7;
#pragma unroll COPY_UNROLL
    for (int r = threadIdx.x >> 3; r < N; r += THREADS / 8)
        piece_load<FFPA_ALIGNED, SOURCE>(dst + panel_at(r, piece), r < limit ? base + r * sn_bytes : base, sd,
                                         p * PANEL_COLUMNS + piece * (16 / ES), r < limit ? COLUMNS : 0);
}

FFPA_DEVICE void feed(const pds_args &a, const Work &w, const Sources &src, int turn, u32 slot)
{
    const int rows = w.seq.nq - w.row, keys = w.seq.nk - w.key;
    if (turn < QP) {
        load_panel<BM, DTYPE, D>(slot, src.q, a.q.sn * ES, a.q.sd, rows, turn);
        load_panel<TILE, DTYPE, D>(slot + QUERIES, src.k.base, src.k.sn, src.k.sd, keys, turn);
    } else if (turn < TURNS) {
        const int p = turn - QP;
        load_panel<BM, FFPA_DO_DTYPE, DV>(slot, src.dout, a.dout.sn * dtype_size(FFPA_DO_DTYPE), a.dout.sd, rows, p);
        load_panel<TILE, DTYPE, DV>(slot + QUERIES, src.v.base, src.v.sn, src.v.sd, keys, p);
    }
    cp_commit();
}

FFPA_DEVICE Sources sources_of(const pds_args &a, const Work &w)
{
    const int hk = w.h / a.group;
    const i64 row = w.seq.q_row + w.row;
    Sources s = {(const char *)a.q.data + (w.seq.q_batch * a.q.sb + w.h * a.q.sh + row * a.q.sn) * ES,
                 (const char *)a.dout.data +
                     (w.seq.q_batch * a.dout.sb + w.h * a.dout.sh + row * a.dout.sn) * dtype_size(FFPA_DO_DTYPE),
                 key_rows(a.k, a.seq, w.seq, hk, ES), key_rows(a.v, a.seq, w.seq, hk, ES)};
    s.k.base += w.key * s.k.sn, s.v.base += w.key * s.v.sn;
    return s;
}

typedef float Acc[MT][SG * 2][4]; // half the rows x 32 keys of a warp

FFPA_DEVICE int row_of(int m, int half)
{
    return (threadIdx.x >> 5) / WN * MT * 16 + m * 16 + half * 8 + (lane_id() >> 2);
}
FFPA_DEVICE int warp_key() { return (threadIdx.x >> 5) % WN * SG * 16; }

FFPA_DEVICE void acc_zero(Acc &c)
{
#pragma unroll
    for (int i = 0; i < MT * SG * 8; i++) c[i / (SG * 8)][i / 4 % (SG * 2)][i % 4] = 0.0f;
}

// c += A B^T over one slot.
FFPA_DEVICE void product_step(Acc &c, u32 slot)
{
    const int row = (threadIdx.x >> 5) / WN * MT * 16;
#pragma unroll STEP_UNROLL
    for (int k = 0; k < 4; k++) {
        u32 y[SG][4];
#pragma unroll
        for (int n = 0; n < SG; n++) frag_b(y[n], slot + QUERIES, warp_key() + n * 16, k);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            u32 x[4];
            frag_a(x, slot, row + m * 16, k);
#pragma unroll
            for (int n = 0; n < SG * 2; n++) mma_step(c[m][n], x, y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
        }
    }
}

// 32 neighbouring keys of a row, two of each 8 in each lane of a quad: 16-byte stores after a 4 x 4 transpose.
FFPA_DEVICE void row_store(void *base, i64 at, const float (&x)[SG * 2][2])
{
    const int t = lane_id() & 3;
    if (DTYPE == F32) {
#pragma unroll
        for (int n = 0; n < SG * 2; n++) element_put2(base, at + n * 8 + t * 2, F32, x[n][0], x[n][1]);
        return;
    }
    u32 w[4];
#pragma unroll
    for (int n = 0; n < 4; n++) w[n] = DTYPE == F16 ? pack_f16(x[n][0], x[n][1]) : pack_bf16(x[n][0], x[n][1]);
#pragma unroll
    for (int d = 1; d < 4; d *= 2)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n & d) continue;
            const u32 give = __shfl_xor_sync(~0u, t & d ? w[n] : w[n | d], d);
            if (t & d)
                w[n] = give;
            else
                w[n | d] = give;
        }
    *(uint4 *)((u16 *)base + at + t * 8) = make_uint4(w[0], w[1], w[2], w[3]);
}

struct Drops {
    u32 kept[2]; // bit (m % 2) * 16 + half * 8 + n * 2 + e of word m / 2
};
FFPA_DEVICE bool drop_bit(const Drops &d, int m, int half, int n, int e)
{
    return d.kept[m / 2] >> ((m % 2) * 16 + half * 8 + n * 2 + e) & 1;
}

FFPA_DEVICE void drops_row(u32 &kept, const DropKey &key, u32 bh, int i, int j, int shift)
{
#pragma unroll
    for (int n = 0; n < SG * 2; n++) {
        bool keeps[2];
        drop_keeps2(key, bh, i, j + n * 8, keeps);
        kept |= ((u32)keeps[0] | (u32)keeps[1] << 1) << (shift + n * 2);
    }
}

// S becomes what multiplies dP - delta: P, times the slope of the softcap. P itself goes to the workspace.
FFPA_DEVICE void weights_step(const pds_args &a, const Work &w, const DropKey &key, Acc &s, Drops &drops)
{
    const int j = w.key + warp_key() + (lane_id() & 3) * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = w.row + row_of(m, half), in = i < w.seq.nq ? i : w.tile_row;
            const ScoreRow row = score_row(a.scores, w.seq, w.h, in);
            float lse = ((const float *)a.lse.data)[w.seq.q_batch * a.lse.sb + w.h * a.lse.sh + (w.seq.q_row + in) * a.lse.sn];
            if (lse == -FFPA_INF || i >= w.seq.nq) lse = FFPA_INF; // a row without keys: P = 0
            const i64 at = opaque(w.out + row_of(m, half) * a.chunk.ld + warp_key());
            if (FFPA_DROPOUT) drops_row(drops.kept[m / 2], key, w.seq.s * a.hq + w.h, i, j, m % 2 * 16 + half * 8);
            float p[SG * 2][2];
#pragma unroll
            for (int n = 0; n < SG * 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    const float t = score_capped(a.scores, x), v = score(a.scores, row, t, j + n * 8 + e, w.clear);
                    x = v == -FFPA_INF || lse == FFPA_INF ? 0.0f : exp_of(v - lse);
                    p[n][e] = x;
                    // A dropped weight is -0: unlike an unseen pair's +0 it lets NaN and Inf of dO through (guard_add).
                    if (FFPA_DROPOUT && v != -FFPA_INF && lse != FFPA_INF)
                        p[n][e] = drop_bit(drops, m, half, n, e) ? x * a.dropout.keep_scale : -0.0f;
                    const float slope = 1.0f - (t / a.scores.softcap) * (t / a.scores.softcap);
                    if (FFPA_SOFTCAP && FFPA_DMASK)
                        a.dbias[at + n * 8 + (lane_id() & 3) * 2 + e] = slope; // until finish_step wants it
                    else if (FFPA_SOFTCAP)
                        x = x == 0.0f ? 0.0f : x * slope;
                }
            row_store(a.p, at, p);
        }
}

// dS to the workspace.
FFPA_DEVICE void finish_step(const pds_args &a, const Work &w, const Acc &p, Acc &dp, const Drops &drops)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = w.row + row_of(m, half), in = i < w.seq.nq ? i : w.tile_row;
            const i64 line = FFPA_VARLEN && a.seq.cu_q ? w.seq.q_row : (i64)w.seq.s * a.seq.nq;
            const float delta = a.delta[w.h * a.seq.total_q + line + in];
            const i64 at = opaque(w.out + row_of(m, half) * a.chunk.ld + warp_key());
            float ds[SG * 2][2];
#pragma unroll
            for (int n = 0; n < SG * 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float x = p[m][n][half * 2 + e];
                    float y = dp[m][n][half * 2 + e];
                    if (FFPA_DROPOUT) y = drop_bit(drops, m, half, n, e) ? y * a.dropout.keep_scale : 0.0f;
                    ds[n][e] = x == 0.0f ? 0.0f : x * (y - delta);
                    if (FFPA_DMASK) {
                        float *bias = a.dbias + opaque(at + n * 8 + (lane_id() & 3) * 2 + e);
                        const float slope = FFPA_SOFTCAP ? *bias : 1.0f;
                        *bias = ds[n][e];
                        if (FFPA_SOFTCAP) ds[n][e] = x == 0.0f ? 0.0f : ds[n][e] * slope;
                    }
                }
            row_store(a.ds, at, ds);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ pds_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    const u32 ring = smem_addr(smem);
    Work w;
    if (!work_of(a, w)) return;
    const Sources src = sources_of(a, w);
    const DropKey key = FFPA_DROPOUT ? drop_key(a.dropout) : DropKey{0, 0, 0, 0};
    Drops drops = {{0, 0}};
    u32 slot = 0, next = STAGES - 1;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) feed(a, w, src, i, ring + i * SLOT);
    Acc s, dp;
    acc_zero(s);
#pragma unroll 1
    for (int turn = 0; turn < QP; turn++) {
        cp_wait<STAGES - 2>();
        __syncthreads();
        feed(a, w, src, turn + STAGES - 1, ring + next * SLOT);
        product_step(s, ring + slot * SLOT);
        next = slot, slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    weights_step(a, w, key, s, drops);
    acc_zero(dp);
#pragma unroll 1
    for (int turn = QP; turn < TURNS; turn++) {
        cp_wait<STAGES - 2>();
        __syncthreads();
        feed(a, w, src, turn + STAGES - 1, ring + next * SLOT);
        product_step(dp, ring + slot * SLOT);
        next = slot, slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    finish_step(a, w, s, dp, drops);
}
