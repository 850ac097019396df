// bwd_delta.cuh - delta[h][row] = sum_c dO[c] O[c] - dLSE, one warp a row.
#include "common/sequences.cuh"

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ delta_args a)
{
    const i64 x = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (x >= a.hq * a.seq.total_q) return;
    const i64 h = x / a.seq.total_q, row = x % a.seq.total_q;
    const bool packed = FFPA_VARLEN && a.seq.cu_q;
    if (packed && (row < index_at(a.seq.cu_q, a.seq.index64, 0) || row >= index_at(a.seq.cu_q, a.seq.index64, a.seq.batch)))
        return; // outside all sequences: not read
    const i64 b = packed ? 0 : row / a.seq.nq, i = packed ? row : row % a.seq.nq;
    const i64 o = b * a.o.sb + h * a.o.sh + i * a.o.sn, d = b * a.dout.sb + h * a.dout.sh + i * a.dout.sn;
    float sum = 0.0f;
    for (int c = threadIdx.x & 31; c < a.dv; c += 32)
        sum += element_get(a.dout.data, d + c * a.dout.sd, FFPA_DO_DTYPE) * element_get(a.o.data, o + c * a.o.sd, FFPA_O_DTYPE);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if ((threadIdx.x & 31) != 0) return;
    if (a.dlse.data) sum -= ((const float *)a.dlse.data)[b * a.dlse.sb + h * a.dlse.sh + i * a.dlse.sn];
    a.delta[x] = sum;
}
