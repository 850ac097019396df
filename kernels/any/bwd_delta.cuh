// bwd_delta.cuh - delta[h][row] = sum_c dO[c] O[c] - dLSE, a warp's lanes or eight of them a row. Memory bound.
// FFPA_ALIGNED: rows of 16-bit elements, dense from a multiple of 16 bytes, are read 16 bytes at a time, 128 by eight lanes.
#include "common/sequences.cuh"

static constexpr int THREADS = 256, LANES = FFPA_ALIGNED ? 8 : 32, ROWS = THREADS / LANES;

FFPA_DEVICE float pairs_dot(u32 x, u32 y)
{
    if (DTYPE == F16) return f32_of_f16((u16)x) * f32_of_f16((u16)y) + f32_of_f16((u16)(x >> 16)) * f32_of_f16((u16)(y >> 16));
    return __uint_as_float(x << 16) * __uint_as_float(y << 16) + __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
}

// This lane's part of <dO, O> from elements `d` and `o` on.
FFPA_DEVICE float row_dot(const delta_args &a, i64 d, i64 o, int lane)
{
    float sum = 0.0f;
    int done = 0;
    if (FFPA_ALIGNED) {
        const uint4 *x = (const uint4 *)((const u16 *)a.dout.data + d), *y = (const uint4 *)((const u16 *)a.o.data + o);
        done = a.dv & ~7;
#pragma unroll 4
        for (int c = lane; c < done / 8; c += LANES) {
            const uint4 p = x[c], q = y[c];
            sum += pairs_dot(p.x, q.x) + pairs_dot(p.y, q.y) + pairs_dot(p.z, q.z) + pairs_dot(p.w, q.w);
        }
    }
    for (int c = done + lane; c < a.dv; c += LANES)
        sum += element_get(a.dout.data, d + c * a.dout.sd, FFPA_DO_DTYPE) * element_get(a.o.data, o + c * a.o.sd, FFPA_O_DTYPE);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) ffpa_kernel(const __grid_constant__ delta_args a)
{
    const int blocks = (int)((a.seq.total_q + ROWS - 1) / ROWS), h = blockIdx.x / blocks, lane = threadIdx.x % LANES;
    const int row = blockIdx.x % blocks * ROWS + threadIdx.x / LANES;
    const bool packed = FFPA_VARLEN && a.seq.cu_q;
    bool there = row < a.seq.total_q; // and within a sequence, if they are packed
    if (packed && there)
        there = row >= index_at(a.seq.cu_q, a.seq.index64, 0) && row < index_at(a.seq.cu_q, a.seq.index64, a.seq.batch);
    const int b = packed ? 0 : row / a.seq.nq, i = packed ? row : row % a.seq.nq;
    float sum = 0.0f;
    if (there)
        sum = row_dot(a, b * a.dout.sb + h * a.dout.sh + i * a.dout.sn, b * a.o.sb + h * a.o.sh + i * a.o.sn, lane);
#pragma unroll
    for (int s = LANES / 2; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (!there || lane != 0) return;
    if (a.dlse.data) sum -= ((const float *)a.dlse.data)[b * a.dlse.sb + h * a.dlse.sh + i * a.dlse.sn];
    a.delta[h * a.seq.total_q + row] = sum;
}
