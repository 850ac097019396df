// split_combine.cuh - one softmax over the key ranges of a split forward, one warp a row:
//     LSE = ln sum_s e^LSE_s,   O = sum_s e^(LSE_s - LSE) O_s
// A part without keys has LSE -inf and weight 0; its O is not read.
#include "common/epilogue.cuh"
#include "common/sequences.cuh"

static constexpr int O_DTYPE = FFPA_O_DTYPE;

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ combine_args a)
{
    const i64 rows = a.hq * a.seq.total_q, x = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (x >= rows) return;
    const int lane = threadIdx.x & 31;
    const i64 h = x / a.seq.total_q, row = x % a.seq.total_q;
    i64 batch = row / (a.seq.nq > 0 ? a.seq.nq : 1), i = row - batch * a.seq.nq;
    if (FFPA_VARLEN && a.seq.cu_q) { // rows outside all sequences stay as they are
        batch = 0, i = row;
        if (row < index_at(a.seq.cu_q, a.seq.index64, 0) || row >= index_at(a.seq.cu_q, a.seq.index64, a.seq.batch)) return;
    }
    float top = -FFPA_INF, sum = 0.0f;
    for (int s = 0; s < a.splits; s++) top = fmaxf(top, a.lse_part[s * rows + x]);
    const float base = top == -FFPA_INF ? 0.0f : top;
    for (int s = 0; s < a.splits; s++) sum += ex2((a.lse_part[s * rows + x] - base) * LOG2E);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (lane == 0 && a.lse.data)
        ((float *)a.lse.data)[batch * a.lse.sb + h * a.lse.sh + i * a.lse.sn] = sum == 0.0f ? -FFPA_INF : base + logf(sum);
    const i64 out = batch * a.o.sb + h * a.o.sh + i * a.o.sn;
    for (int c = lane; c < a.dv; c += 32) {
        float o = 0.0f;
        for (int s = 0; s < a.splits; s++) {
            const float w = ex2((a.lse_part[s * rows + x] - base) * LOG2E) * inverse;
            if (w != 0.0f) o += w * a.o_part[(s * rows + x) * a.dv + c];
        }
        element_put(a.o.data, out + c * a.o.sd, O_DTYPE, o);
    }
}
