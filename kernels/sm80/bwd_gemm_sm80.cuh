// bwd_gemm_sm80.cuh - attention backward, second half: one product of the workspace with a tensor.
//     FFPA_KEYS 1:  dV = P^T dO,  dK = alpha dS^T Q     128 keys x BN columns a CTA, inner: queries of the group's heads
//     FFPA_KEYS 0:  dQ = alpha dS K                      128 queries x BN columns, inner: keys
//
// Why one product a launch, without atomics: each output tile is summed by one CTA in one order, so gradients
// are equal bit for bit from run to run. Heads of a group only lengthen the inner loop.
//
// 8 warps, 2 x 4, each 64 rows x BN / 4 columns; inner steps of 128 bytes (DEPTH elements).
// Barriers: one a slot; one at the end that gathers whether a thread found NaN or Inf in B (see guard_add).
//
// Registers: BN / 2 sums, fragments 40. Shared: STAGES slots of A (16 KiB) and B (BN x 128 bytes).
#include "common/epilogue.cuh"
#include "common/live.cuh"
#include "common/shapes.h"
#include "common/tiles.cuh"

static constexpr int BN = FFPA_BN, STAGES = FFPA_STAGES, THREADS = 256, WN = 4, MT = 4, NG = BN / 64;
static constexpr int DEPTH = PANEL_COLUMNS, DEPTHS = TILE / DEPTH; // inner elements of a slot, slots of a tile
static constexpr int A_BYTES = 128 * 128, SLOT = A_BYTES + BN * 128, B_PANELS = BN * ES / 128;
static_assert(STAGES * SLOT == gemm_shared_bytes(BN, STAGES), "shapes.h disagrees");
static_assert(STAGES * SLOT <= 227 * 1024 && STAGES >= 2, "shared budget: fewer STAGES");
static_assert(BN % 64 == 0 && BN <= 320, "columns split over 4 warps in groups of 16; registers");

struct Work {
    Sequence seq;
    int column, row;       // first column and first output row (key or query) of the tile
    int hk;                // key head
    int head, head_end;    // query heads to sum over
    int tile_from, tile_to; // inner tiles of each
    int line0;             // line of query tile 0 of this sequence
};

// Under causal the first keys and the last queries have the longest sums: they start first, all heads together.
FFPA_DEVICE bool work_keys_of(const gemm_args &a, Work &w, int x)
{
    const k_chunk &c = a.chunk;
    const int heads = (c.nh + a.group - 1) / a.group, line = FFPA_RANGE ? x / heads : x % a.key_tiles;
    const int s = line_owner(a.seq.cu_k, a.seq, line, a.seq.nk, 1, TILE);
    w.seq = sequence_at(a.seq, s);
    w.row = line_row(a.seq.cu_k, a.seq, s, line, a.seq.nk, 1, TILE);
    if (w.row >= w.seq.nk) return false;
    w.hk = c.h0 / a.group + (FFPA_RANGE ? x % heads : x / a.key_tiles);
    w.head = w.hk * a.group > c.h0 ? w.hk * a.group : c.h0;
    w.head_end = (w.hk + 1) * a.group < c.h0 + c.nh ? (w.hk + 1) * a.group : c.h0 + c.nh;
    w.line0 = line_first(a.seq.cu_q, a.seq, s, a.seq.nq, 1, TILE);
    const LiveRows live = live_rows(a.left, a.right, a.top_left, w.seq, w.row);
    w.tile_from = c.t0 - w.line0 > live.from ? c.t0 - w.line0 : live.from;
    w.tile_to = c.t0 + c.nt - w.line0 < live.to ? c.t0 + c.nt - w.line0 : live.to;
    return true;
}

FFPA_DEVICE bool work_queries_of(const gemm_args &a, Work &w, int x)
{
    const k_chunk &c = a.chunk;
    const int line = c.t0 + (FFPA_RANGE ? c.nt - 1 - x / c.nh : x % c.nt);
    const int s = line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, 1, TILE);
    w.seq = sequence_at(a.seq, s);
    w.line0 = line_first(a.seq.cu_q, a.seq, s, a.seq.nq, 1, TILE);
    w.row = line_row(a.seq.cu_q, a.seq, s, line, a.seq.nq, 1, TILE);
    if (w.row >= w.seq.nq) return false;
    w.head = c.h0 + (FFPA_RANGE ? x % c.nh : x / c.nt), w.head_end = w.head + 1;
    w.hk = w.head / a.group;
    const Live live = live_keys(a.left, a.right, a.top_left, w.seq, w.row);
    w.tile_from = live.from, w.tile_to = live.to;
    return true;
}

FFPA_DEVICE bool work_of(const gemm_args &a, Work &w)
{
    const int column_tiles = (a.cols + BN - 1) / BN, x = blockIdx.x / column_tiles;
    w.column = blockIdx.x % column_tiles * BN;
    return FFPA_KEYS ? work_keys_of(a, w, x) : work_queries_of(a, w, x);
}

// Where the inner loop is: head, tile, piece of the tile.
struct Inner {
    int head, tile, piece;
};
FFPA_DEVICE void advance(const Work &w, Inner &i)
{
    if (++i.piece < DEPTHS) return;
    i.piece = 0;
    if (++i.tile < w.tile_to) return;
    i.tile = w.tile_from, i.head++;
}

// Row of b for inner element `r` of the slot; `in` tells whether it is there.
FFPA_DEVICE const char *inner_row(const gemm_args &a, const Work &w, const Inner &x, int r, bool &in)
{
    const int size = dtype_size(FFPA_B_DTYPE), i = x.tile * TILE + x.piece * DEPTH + r;
    const char *base = (const char *)a.b.data;
    in = i < (FFPA_KEYS ? w.seq.nq : w.seq.nk);
    const i64 row = in ? i : 0;
    if (FFPA_KEYS) return base + (w.seq.q_batch * a.b.sb + x.head * a.b.sh + (w.seq.q_row + row) * a.b.sn) * size;
    return base + (w.seq.k_batch * a.b.sb + w.hk * a.b.sh + (w.seq.k_row + row) * a.b.sn) * size;
}

// First byte of the workspace tile row that the inner step reads.
FFPA_DEVICE const char *weights(const gemm_args &a, const Work &w, const Inner &x)
{
    const int line = FFPA_KEYS ? w.line0 + x.tile : w.line0 + w.row / TILE;
    return (const char *)a.a + ((i64)((x.head - a.chunk.h0) * a.chunk.nt + (line - a.chunk.t0)) * TILE) * a.chunk.ld * ES;
}

// A of output row r (a row behind the end has no weight) and inner element k.
FFPA_DEVICE float weight_at(const gemm_args &a, const Work &w, const Inner &x, int r, int k)
{
    const int inner = x.piece * DEPTH + k;
    const i64 ld = opaque(a.chunk.ld), at = FFPA_KEYS ? inner * ld + w.row + r : r * ld + x.tile * TILE + inner;
    return element_get_alone(weights(a, w, x), at, DTYPE);
}

FFPA_DEVICE void load_a(const gemm_args &a, const Work &w, const Inner &x, u32 dst)
{
    const char *base = weights(a, w, x);
#pragma unroll
    for (int i = threadIdx.x; i < 1024; i += THREADS) {
        const int piece = i & 7;
        if (FFPA_KEYS) { // DEPTH query rows of 128 keys: panels of DEPTH rows
            const int r = (i >> 3) % DEPTH, p = (i >> 3) / DEPTH;
            cp_async16(dst + p * DEPTH * 128 + panel_at(r, piece),
                       base + ((x.piece * DEPTH + r) * a.chunk.ld + w.row) * ES + p * 128 + piece * 16, 16);
        } else { // 128 query rows of DEPTH keys: one panel
            const int r = i >> 3;
            cp_async16(dst + panel_at(r, piece),
                       base + (r * a.chunk.ld + x.tile * TILE + x.piece * DEPTH) * ES + piece * 16, 16);
        }
    }
}

FFPA_DEVICE void feed(const gemm_args &a, const Work &w, Inner &x, u32 dst)
{
    if (x.head < w.head_end) {
        load_a(a, w, x, dst);
        constexpr int PASS = THREADS / 8 < DEPTH ? THREADS / 8 : DEPTH;
#pragma unroll COPY_UNROLL
        for (int r = threadIdx.x >> 3; r < DEPTH; r += PASS) {
            bool in;
            const char *row = inner_row(a, w, x, r, in);
#pragma unroll COPY_UNROLL
            for (int p = 0; p < B_PANELS; p++)
                piece_load<FFPA_ALIGNED, FFPA_B_DTYPE>(dst + A_BYTES + p * DEPTH * 128 + panel_at(r, threadIdx.x & 7), row,
                                                       a.b.sd, w.column + p * PANEL_COLUMNS + (threadIdx.x & 7) * (16 / ES),
                                                       in ? a.cols : 0);
        }
        advance(w, x);
    }
    cp_commit();
}

// Take NaN and Inf out of the pieces of B that this thread copied. Were there any?
FFPA_DEVICE bool guard_scan(u32 slot)
{
    bool found = false;
#pragma unroll 1
    for (int r = threadIdx.x >> 3; r < DEPTH; r += THREADS / 8)
#pragma unroll 1
        for (int p = 0; p < B_PANELS; p++)
            found |= piece_clean(slot + A_BYTES + p * DEPTH * 128 + panel_at(r, threadIdx.x & 7));
    return found;
}

typedef float Acc[MT][NG * 2][4];

FFPA_DEVICE int row_of(int m, int half)
{
    return (threadIdx.x >> 5) / WN * MT * 16 + m * 16 + half * 8 + (lane_id() >> 2);
}
FFPA_DEVICE int column_of(int n) { return ((n / 2) * WN + (threadIdx.x >> 5) % WN) * 16 + (n % 2) * 8 + (lane_id() & 3) * 2; }

FFPA_DEVICE void product_step(Acc &c, u32 slot)
{
    const int warp = threadIdx.x >> 5, row = warp / WN * MT * 16;
#pragma unroll STEP_UNROLL
    for (int k = 0; k < DEPTH; k += STEP) {
        u32 x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const int at = (row + m * 16) * ES; // bytes along a row of A transposed
            if (FFPA_KEYS)
                frag_a_rows(x[m], slot + (at >> 7) * DEPTH * 128, k, (at >> 4) & 7);
            else
                frag_a(x[m], slot, row + m * 16, k / STEP);
        }
#pragma unroll
        for (int n = 0; n < NG; n++) {
            const int g = n * WN + warp % WN;
            u32 y[4];
            frag_b_rows(y, slot + A_BYTES + g / GROUPS_PER_PANEL * DEPTH * 128, k, g % GROUPS_PER_PANEL * ES);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_step(c[m][n * 2], x[m], y[0], y[1]);
                mma_step(c[m][n * 2 + 1], x[m], y[2], y[3]);
            }
        }
    }
}

// May pairs of this inner tile be masked?
FFPA_DEVICE bool tile_guarded(const gemm_args &a, const Work &w, const Inner &x)
{
    if (!ROW_MASKS) return false;
    if (FFPA_MASK) return true;
    const int query = FFPA_KEYS ? x.tile * TILE : w.row, key = FFPA_KEYS ? w.row : x.tile * TILE;
    const Live live = live_keys(a.left, a.right, a.top_left, w.seq, query);
    return key < live.clear_from || (key + TILE < w.seq.nk ? key + TILE : w.seq.nk) > live.clear_to;
}

// After the last step, and only if guard_scan found some: NaN and Inf of B where their pair is not masked (pds leaves
// +0 there, and -0 where dropout took the weight).
FFPA_DEVICE void guard_add(const gemm_args &a, const Work &w, Acc &c)
{
    Inner x = {w.head, w.tile_from, 0};
#pragma unroll 1
    for (; x.head < w.head_end; advance(w, x)) {
        if (!tile_guarded(a, w, x)) continue;
#pragma unroll 1
        for (int k = 0; k < DEPTH; k++) {
            bool in;
            const char *row = inner_row(a, w, x, k, in);
            if (!in) continue;
            const i64 sd = opaque(a.b.sd);
            float p[MT][2];
#pragma unroll
            for (int m = 0; m < MT * 2; m++) p[m / 2][m % 2] = weight_at(a, w, x, row_of(m / 2, m % 2), k);
#pragma unroll
            for (int n = 0; n < NG * 4; n++) {
                const int column = w.column + column_of(n / 2) + n % 2;
                const float v = column < a.cols ? element_get_alone(row, column * sd, FFPA_B_DTYPE) : 0.0f;
                if (fabsf(v) < FFPA_INF) continue;
#pragma unroll
                for (int m = 0; m < MT * 2; m++)
                    if (__float_as_uint(p[m / 2][m % 2]) != 0) c[m / 2][n / 2][m % 2 * 2 + n % 2] += p[m / 2][m % 2] * v;
            }
        }
    }
}

FFPA_DEVICE i64 partial_row(const gemm_args &a, const Work &w, int r)
{
    const i64 first = FFPA_VARLEN && a.seq.cu_k ? w.seq.k_row : (i64)w.seq.s * a.seq.nk;
    return ((w.hk - a.chunk.h0 / a.group) * a.seq.total_k + first + w.row + r) * a.cols;
}

// With several chunks a kv head the sums pass through `partial`, in the order of the chunks.
FFPA_DEVICE void acc_store(const gemm_args &a, const Work &w, const Acc &c)
{
    const bool part = FFPA_KEYS && a.partial;
    const i64 head = FFPA_KEYS ? w.seq.k_batch * a.out.sb + w.hk * a.out.sh : w.seq.q_batch * a.out.sb + w.head * a.out.sh;
    const i64 first = (FFPA_KEYS ? w.seq.k_row : w.seq.q_row) + w.row;
    OutRow out = {a.out.data, 0, a.out.sd, a.cols, stores_pairs(a.out, FFPA_O_DTYPE, a.cols)};
#pragma unroll
    for (int m = 0; m < MT * 2; m++) {
        const int r = row_of(m / 2, m % 2);
        if (w.row + r >= (FFPA_KEYS ? w.seq.nk : w.seq.nq)) continue;
        OutRow sums = {a.partial, part ? partial_row(a, w, r) : 0, 1, a.cols, false};
        const float *before = a.partial + sums.at;
        out.at = head + (first + r) * a.out.sn;
#pragma unroll
        for (int n = 0; n < NG * 2; n++) {
            const int column = w.column + column_of(n);
            float x = c[m / 2][n][m % 2 * 2], y = c[m / 2][n][m % 2 * 2 + 1];
            if (part && !a.first && column < a.cols) x += before[column];
            if (part && !a.first && column + 1 < a.cols) y += before[column + 1];
            if (part && !a.last)
                store2<F32>(sums, column, x, y);
            else
                store2<FFPA_O_DTYPE>(out, column, x * a.alpha, y * a.alpha);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ gemm_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    const u32 ring = smem_addr(smem);
    Work w;
    if (!work_of(a, w)) return;
    Inner load = {w.tile_from < w.tile_to ? w.head : w.head_end, w.tile_from, 0}, at = load;
    u32 slot = 0, next = STAGES - 1;
    bool found = false; // NaN or Inf in B, in a guarded tile
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) feed(a, w, load, ring + i * SLOT);
    Acc c;
#pragma unroll
    for (int i = 0; i < MT * NG * 8; i++) c[i / (NG * 8)][i / 4 % (NG * 2)][i % 4] = 0.0f;
#pragma unroll 1
    for (; at.head < w.head_end; advance(w, at)) {
        cp_wait<STAGES - 2>();
        if (tile_guarded(a, w, at)) found |= guard_scan(ring + slot * SLOT);
        __syncthreads();
        feed(a, w, load, ring + next * SLOT);
        product_step(c, ring + slot * SLOT);
        next = slot, slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    if (ROW_MASKS && __syncthreads_or(found)) guard_add(a, w, c);
    acc_store(a, w, c);
}
