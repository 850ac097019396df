// bwd_mask.cuh - gradient of an additive mask: dbias of a chunk summed over the mask's broadcast axes, in one order.
// A CTA makes 32 neighbouring keys of one mask row (or the one element of a row of one key): 8 warps share the
// source rows, lanes the keys.
#include "common/epilogue.cuh"
#include "common/live.cuh"

struct Target {
    int b, h, i, j; // of the mask
};

// Sum over this warp's source rows.
FFPA_DEVICE float rows_sum(const dmask_args &a, const Target &x, int lane, int warp)
{
    const k_chunk &c = a.chunk;
    const int tiles = (a.seq.nq + TILE - 1) / TILE;
    float sum = 0.0f;
    for (int h = a.mh > 1 ? x.h : c.h0; h < (a.mh > 1 ? x.h + 1 : c.h0 + c.nh); h++) {
        if (h < c.h0 || h >= c.h0 + c.nh) continue;
        for (int line = c.t0; line < c.t0 + c.nt; line++) {
            const int b = line / tiles, row = line % tiles * TILE;
            if ((a.mb > 1 && b != x.b) || (a.mq > 1 && (x.i < row || x.i >= row + TILE))) continue;
            const Sequence s = sequence_at(a.seq, b);
            const Live live = live_keys(a.left, a.right, a.top_left, s, row);
            const float *tile = a.dbias + ((i64)((h - c.h0) * c.nt + line - c.t0) * TILE) * c.ld;
            const int end = live.to * TILE < s.nk ? live.to * TILE : s.nk;
            const int first = a.mk > 1 ? x.j + lane : live.from * TILE + lane;
            const int r_end = a.mq > 1 ? x.i - row + 1 : TILE < s.nq - row ? TILE : s.nq - row;
            const int j_end = a.mk > 1 && first + 1 < end ? first + 1 : end;
            for (int r = a.mq > 1 ? x.i - row + warp : warp; r < r_end; r += 8)
                for (int j = first; j < j_end; j += 32)
                    if (j >= live.from * TILE) sum += tile[r * c.ld + j];
        }
    }
    return sum;
}

// Without partial sums a mask element belongs to one chunk: is it this one?
FFPA_DEVICE bool owned(const dmask_args &a, const Target &x)
{
    const k_chunk &c = a.chunk;
    const int line = x.b * ((a.seq.nq + TILE - 1) / TILE) + x.i / TILE;
    return (a.mh == 1 || (x.h >= c.h0 && x.h < c.h0 + c.nh)) && (a.mq == 1 || (line >= c.t0 && line < c.t0 + c.nt));
}

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ dmask_args a)
{
    __shared__ float sums[8][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = (a.mk + 31) / 32;
    Target x;
    i64 rest = blockIdx.x / blocks;
    x.j = blockIdx.x % blocks * 32;
    const i64 mask_row = rest;
    x.i = (int)(rest % a.mq), rest /= a.mq;
    x.h = (int)(rest % a.mh), x.b = (int)(rest / a.mh);
    sums[warp][lane] = rows_sum(a, x, lane, warp);
    __syncthreads();
    if (warp != 0) return;
    float sum = 0.0f;
    for (int i = 0; i < 8; i++) sum += sums[i][lane];
    if (a.mk == 1)
        for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (x.j + lane >= a.mk) return;
    const i64 at = mask_row * a.mk + x.j + lane;
    if (a.partial && !a.first) sum += a.partial[at];
    if (a.partial && !a.last)
        a.partial[at] = sum;
    else if (a.partial || owned(a, x))
        element_put(a.dmask.data, x.b * a.dmask.sb + x.h * a.dmask.sh + x.i * a.dmask.sn + (x.j + lane) * a.dmask.sd,
                    FFPA_O_DTYPE, sum);
}
