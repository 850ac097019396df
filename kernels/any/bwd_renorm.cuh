// bwd_renorm.cuh - rows of P and dS whose LSE had no room for the logarithm of their sum: after pds, before the products.
//
// pds makes P = e^(s - LSE). Where |LSE| is large, f32 keeps it in steps that swallow the sum's logarithm: all keys
// biased by the lowest finite number leave LSE = that number, and each key of the row would weigh 1. The row's own sum
// puts that right: P, dS and dbias are proportional to it. One warp a row; other rows are left after one load.
#include "common/blocks.cuh"
#include "common/epilogue.cuh"
#include "common/live.cuh"

static constexpr float COARSE = 16384.0f; // from here on a step of LSE is 2^-10 or more

// Row r of a tile of P and dS: rows one behind the other, or, with FFPA_BLOCKS, blocks.
struct Row {
    i64 at; // its first element, or its half of the tile's
    int r;
};
FFPA_DEVICE Row row_of(const k_chunk &c, i64 tile, int r)
{
    return FFPA_BLOCKS ? Row{(tile * TILE + r / 64 * 64) * c.ld, r % 64} : Row{(tile * TILE + r) * c.ld, r};
}
FFPA_DEVICE i64 element_at(const Row &x, int j)
{
    return FFPA_BLOCKS ? x.at + j / 64 * BLOCK_ELEMENTS + block_element(x.r, j % 64) : x.at + j;
}

FFPA_DEVICE float row_sum(const void *p, const Row &x, int from, int to)
{
    float sum = 0.0f;
    for (int j = from + (threadIdx.x & 31); j < to; j += 32) sum += element_get(p, element_at(x, j), DTYPE);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ renorm_args a)
{
    const k_chunk &c = a.chunk;
    const i64 x = (i64)blockIdx.x * 8 + (threadIdx.x >> 5), tile = x / TILE;
    if (tile >= (i64)c.nh * c.nt) return;
    const int r = (int)(x % TILE), line = c.t0 + (int)(tile % c.nt), h = c.h0 + (int)(tile / c.nt);
    const int s = line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, 1, TILE);
    const Sequence q = sequence_at(a.seq, s);
    const int tile_row = line_row(a.seq.cu_q, a.seq, s, line, a.seq.nq, 1, TILE);
    if (tile_row >= q.nq || tile_row + r >= q.nq) return;
    const float lse = ((const float *)a.lse.data)[q.q_batch * a.lse.sb + h * a.lse.sh + (q.q_row + tile_row + r) * a.lse.sn];
    if (!(fabsf(lse) >= COARSE) || fabsf(lse) == FFPA_INF) return;
    const Live live = live_keys(a.left, a.right, a.top_left, q, tile_row);
    const int from = live.from * TILE, to = live.to * TILE < q.nk ? live.to * TILE : q.nk;
    const Row row = row_of(c, tile, r);
    const float sum = row_sum(a.p, row, from, to);
    if (!(sum > 0.0f) || sum == FFPA_INF) return;
    for (int j = from + (threadIdx.x & 31); j < to; j += 32) {
        const i64 at = element_at(row, j);
        element_put(a.p, at, DTYPE, element_get(a.p, at, DTYPE) / sum);
        element_put(a.ds, at, DTYPE, element_get(a.ds, at, DTYPE) / sum);
        if (a.dbias) a.dbias[(tile * TILE + r) * c.ld + j] /= sum;
    }
}
