// merge.cuh - attention over two disjoint key sets from the results over each, one warp a row. In place is fine.
#include "common/epilogue.cuh"
#include "common/partial.cuh"

FFPA_DEVICE i64 row_at(const k_tensor &t, i64 b, i64 h, i64 i) { return b * t.sb + h * t.sh + i * t.sn; }

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ merge_args a)
{
    const i64 x = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (x >= (i64)a.b * a.h * a.n) return;
    const i64 i = x % a.n, h = x / a.n % a.h, b = x / a.n / a.h;
    const float la = ((const float *)a.lse_a.data)[row_at(a.lse_a, b, h, i)];
    const float lb = ((const float *)a.lse_b.data)[row_at(a.lse_b, b, h, i)];
    const float top = fmaxf(la, lb), base = top == -FFPA_INF ? 0.0f : top;
    const float ea = ex2((la - base) * LOG2E), eb = ex2((lb - base) * LOG2E), sum = ea + eb;
    const float wa = sum == 0.0f ? 0.0f : some_weight(ea / sum, la), wb = sum == 0.0f ? 0.0f : some_weight(eb / sum, lb);
    const i64 oa = row_at(a.o_a, b, h, i), ob = row_at(a.o_b, b, h, i), o = row_at(a.o, b, h, i);
    for (int c = threadIdx.x & 31; c < a.dv; c += 32) {
        float v = 0.0f; // a part of weight 0 has no influence, whatever its bits
        if (wa != 0.0f) v += wa * element_get(a.o_a.data, oa + c * a.o_a.sd, FFPA_O_DTYPE);
        if (wb != 0.0f) v += wb * element_get(a.o_b.data, ob + c * a.o_b.sd, FFPA_O_DTYPE);
        element_put(a.o.data, o + c * a.o.sd, FFPA_O_DTYPE, v);
    }
    __syncwarp(); // lse may lie over lse_a or lse_b, which every lane has read by now
    if ((threadIdx.x & 31) == 0 && a.lse.data)
        ((float *)a.lse.data)[row_at(a.lse, b, h, i)] = sum == 0.0f ? -FFPA_INF : base + logf(sum);
}
