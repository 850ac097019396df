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
#include "common/partial.cuh"

static constexpr int COLUMNS = 64, GROUPS = 4, THREADS = COLUMNS * GROUPS;
static constexpr int BATCH = 8;                               // loads of a thread that are in flight together
static constexpr int WEIGHTS = K_MAX_SPLITS + BATCH * GROUPS; // zeros past the last part
static_assert(BATCH * GROUPS == 32, "the lanes of a warp write the zeros");

extern "C" __global__ void __launch_bounds__(THREADS) ffpa_kernel(const __grid_constant__ combine_args a)
{
    __shared__ float weight[WEIGHTS], sums[GROUPS][COLUMNS];
    const i64 rows = a.hq * a.seq.total_q, x = blockIdx.x / a.slices;
    const int slice = blockIdx.x % a.slices, g = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const i64 h = x / a.seq.total_q, row = x % a.seq.total_q;
    const OutPlace to = out_place(a.seq, row);
    if (!to.exists) return;
    if (threadIdx.x < 32) {
        float own[K_MAX_SPLITS / 32];
        const float lse = part_weights(a.lse_part + x, rows, a.splits, own);
#pragma unroll
        for (int i = 0; i < K_MAX_SPLITS / 32; i++) weight[threadIdx.x + 32 * i] = own[i];
        weight[K_MAX_SPLITS + threadIdx.x] = 0.0f;
        if (threadIdx.x == 0 && slice == 0 && a.lse.data)
            ((float *)a.lse.data)[to.batch * a.lse.sb + h * a.lse.sh + to.i * a.lse.sn] = lse;
    }
    __syncthreads();
    const i64 out = to.batch * a.o.sb + h * a.o.sh + to.i * a.o.sn;
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
