// bwd_sink.cuh - dsink[h] = - sum over rows of e^(sink - LSE) delta, one CTA a head, one order of summation.
#include "common/sequences.cuh"

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ dsink_args a)
{
    __shared__ float sums[256];
    const i64 h = blockIdx.x;
    const float sink = a.sink[h * a.sink_sh];
    const bool packed = FFPA_VARLEN && a.seq.cu_q;
    const i64 from = packed ? index_at(a.seq.cu_q, a.seq.index64, 0) : 0;
    const i64 to = packed ? index_at(a.seq.cu_q, a.seq.index64, a.seq.batch) : a.seq.total_q;
    float sum = 0.0f;
    for (i64 row = from + threadIdx.x; row < to; row += 256) {
        const i64 b = packed ? 0 : row / a.seq.nq, i = packed ? row : row % a.seq.nq;
        const float lse = ((const float *)a.lse.data)[b * a.lse.sb + h * a.lse.sh + i * a.lse.sn];
        if (lse != -FFPA_INF) sum -= ex2((sink - lse) * LOG2E) * a.delta[h * a.seq.total_q + row];
    }
    sums[threadIdx.x] = sum;
    for (int s = 128; s > 0; s /= 2) {
        __syncthreads();
        if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
    }
    if (threadIdx.x == 0) a.dsink[h * a.dsink_sh] = sums[0];
}
