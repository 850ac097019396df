// fwd_combine_sm90.cuh - one softmax over the key ranges of tiles that were cut (parts_sm90.cuh):
//     LSE = ln sum_s e^LSE_s,   O = sum_s e^(LSE_s - LSE) O_s
// A part without keys has LSE -inf and weight 0; its O is not read. A sink, a key without a value, is none of the parts' keys: it counts
// here, once.
//
// Unlike any/split_combine.cuh, which has few rows of many parts, this one has many rows of few: a warp takes 128 columns of a row,
// a lane four of them in BATCH parts at once, and no warp waits for another.
#include "common/epilogue.cuh"
#include "common/partial.cuh"
#include "sm90/ptx_sm90.cuh"

static constexpr int COLUMNS = 128, WARPS = 8, BATCH = 8;
static_assert(K_MAX_PARTS == 32, "a lane has the weight of one part");

struct alignas(16) Four {
    float x[4];
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) ffpa_kernel(const __grid_constant__ join_args a)
{
    const int slices = (a.dv + COLUMNS - 1) / COLUMNS, lane = threadIdx.x & 31;
    const i64 rows = a.hq * a.seq.total_q - a.parts.first_row, unit = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const i64 x = unit / slices, h = (x + a.parts.first_row) / a.seq.total_q;
    const int slice = unit - x * slices, c = slice * COLUMNS + 4 * lane;
    grid_wait(); // the launch before writes the parts; this one may be set up meanwhile
    if (x >= rows) return;
    const OutPlace to = out_place(a.seq, x + a.parts.first_row - h * a.seq.total_q);
    if (!to.exists) return;
    float weight[1], o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const float sink = FFPA_SINK ? a.sink[h * a.sink_sh] : -FFPA_INF;
    const float lse = part_weights(a.parts.lse + x, rows, a.parts.splits, weight, sink);
    if (lane == 0 && slice == 0 && a.lse.data)
        ((float *)a.lse.data)[to.batch * a.lse.sb + h * a.lse.sh + to.i * a.lse.sn] = lse;
#pragma unroll 1
    for (int s = 0; s < a.parts.splits; s += BATCH) {
        float w[BATCH];
        Four v[BATCH];
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            w[n] = __shfl_sync(~0u, weight[0], s + n);
            v[n] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (w[n] != 0.0f && c < a.dv) v[n] = *(const Four *)(a.parts.o + ((s + n) * rows + x) * a.dv + c);
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) o[k] += w[n] * v[n].x[k];
    }
    const OutRow out = {a.o.data, to.batch * a.o.sb + h * a.o.sh + to.i * a.o.sn, a.o.sd, a.dv,
                        stores_pairs(a.o, FFPA_O_DTYPE, a.dv)};
    store2<FFPA_O_DTYPE>(out, c, o[0], o[1]);
    store2<FFPA_O_DTYPE>(out, c + 2, o[2], o[3]);
}
