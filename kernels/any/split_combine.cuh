// split_combine.cuh - one softmax over the key ranges of a split forward:
//     LSE = ln sum_s e^LSE_s,   O = sum_s e^(LSE_s - LSE) O_s
// A part without keys has LSE -inf and weight 0; its O is not read.
//
// A CTA has one row and every `slices`-th run of 64 columns. Its thread (g, c) adds column c of parts g, g + 4, ..: these
// loads do not wait for each other, so that many parts cost a few trips to memory, not one each.
//
// Barriers (all __syncthreads)
//   weights     warp 0 has written the weight of every part
//   sums        the four groups have written their sums; group 0 has read them
#include "common/epilogue.cuh"
#include "common/sequences.cuh"

static constexpr int COLUMNS = 64, GROUPS = 4, THREADS = COLUMNS * GROUPS;
static constexpr int BATCH = 8;                               // loads of a thread that are in flight together
static constexpr int WEIGHTS = K_MAX_SPLITS + BATCH * GROUPS; // zeros past the last part
static_assert(BATCH * GROUPS == 32, "the lanes of a warp write the zeros");

// What a row's parts weigh, all lanes of a warp. Returns the row's LSE.
FFPA_DEVICE float part_weights(const combine_args &a, i64 rows, i64 x, float *weight)
{
    const int lane = threadIdx.x & 31;
    float lse[K_MAX_SPLITS / 32], top = -FFPA_INF, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < K_MAX_SPLITS / 32; i++) {
        const int s = lane + 32 * i;
        lse[i] = s < a.splits ? a.lse_part[s * rows + x] : -FFPA_INF;
        top = fmaxf(top, lse[i]);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float base = top == -FFPA_INF ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < K_MAX_SPLITS / 32; i++) {
        lse[i] = ex2((lse[i] - base) * LOG2E);
        sum += lse[i];
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < K_MAX_SPLITS / 32; i++)
        weight[lane + 32 * i] = lse[i] * inverse;
    weight[K_MAX_SPLITS + lane] = 0.0f;
    return sum == 0.0f ? -FFPA_INF : base + logf(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) ffpa_kernel(const __grid_constant__ combine_args a)
{
    __shared__ float weight[WEIGHTS], sums[GROUPS][COLUMNS];
    const i64 rows = a.hq * a.seq.total_q, x = blockIdx.x / a.slices;
    const int slice = blockIdx.x % a.slices, g = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const i64 h = x / a.seq.total_q, row = x % a.seq.total_q;
    i64 batch = row / (a.seq.nq > 0 ? a.seq.nq : 1), i = row - batch * a.seq.nq;
    if (FFPA_VARLEN && a.seq.cu_q) { // rows outside all sequences stay as they are
        batch = 0, i = row;
        if (row < index_at(a.seq.cu_q, a.seq.index64, 0) || row >= index_at(a.seq.cu_q, a.seq.index64, a.seq.batch)) return;
    }
    if (threadIdx.x < 32) {
        const float lse = part_weights(a, rows, x, weight);
        if (threadIdx.x == 0 && slice == 0 && a.lse.data)
            ((float *)a.lse.data)[batch * a.lse.sb + h * a.lse.sh + i * a.lse.sn] = lse;
    }
    __syncthreads();
    const i64 out = batch * a.o.sb + h * a.o.sh + i * a.o.sn;
    for (int c = slice * COLUMNS + column; c - column < a.dv; c += a.slices * COLUMNS) {
        float o = 0.0f;
#pragma unroll 1
        for (int s = g; s < a.splits; s += BATCH * GROUPS) {
            float v[BATCH];
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                const int part = s + n * GROUPS;
                v[n] = c < a.dv && weight[part] != 0.0f ? a.o_part[(part * rows + x) * a.dv + c] : 0.0f;
            }
#pragma unroll
            for (int n = 0; n < BATCH; n++) o += weight[s + n * GROUPS] * v[n];
        }
        sums[g][column] = o;
        __syncthreads();
        if (g == 0 && c < a.dv)
            element_put(a.o.data, out + c * a.o.sd, FFPA_O_DTYPE,
                        sums[0][column] + sums[1][column] + sums[2][column] + sums[3][column]);
        __syncthreads();
    }
}
