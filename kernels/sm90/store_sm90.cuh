// store_sm90.cuh - a warpgroup's accumulator to the output: 16 bytes a lane where rows allow it.
#pragma once
#include "common/epilogue.cuh"
#include "sm90/ptx_sm90.cuh"

FFPA_DEVICE u32 pack2(float x, float y) { return DTYPE == F16 ? pack_f16(x, y) : pack_bf16(x, y); }

FFPA_DEVICE float low_of(u32 pair)
{
    return DTYPE == F16 ? f32_of_f16((u16)pair) : __uint_as_float(pair << 16);
}
FFPA_DEVICE float high_of(u32 pair)
{
    return DTYPE == F16 ? f32_of_f16((u16)(pair >> 16)) : __uint_as_float(pair & 0xffff0000u);
}

// Lane q of four holds word q of four 16-byte groups; afterwards it holds the four words of group q.
FFPA_DEVICE void quad_transpose(u32 (&x)[4], int q)
{
    u32 y = __shfl_xor_sync(~0u, q & 1 ? x[0] : x[1], 1);
    if (q & 1)
        x[0] = y;
    else
        x[1] = y;
    y = __shfl_xor_sync(~0u, q & 1 ? x[2] : x[3], 1);
    if (q & 1)
        x[2] = y;
    else
        x[3] = y;
    y = __shfl_xor_sync(~0u, q & 2 ? x[0] : x[2], 2);
    if (q & 2)
        x[0] = y;
    else
        x[2] = y;
    y = __shfl_xor_sync(~0u, q & 2 ? x[1] : x[3], 2);
    if (q & 2)
        x[1] = y;
    else
        x[3] = y;
}

// One of a thread's two rows (elements 4 n + 2 half of the accumulator), times `factor`, COLUMNS of it. `wide`: the row
// starts at 16 bytes and COLUMNS is a multiple of 8. All lanes of the warp take part; `inside`: there is such a row.
template <int TYPE, int COLUMNS, int N>
FFPA_DEVICE void store_row(const OutRow &out, const float (&o)[N], int half, float factor, bool wide, bool inside)
{
    const int q = threadIdx.x & 3;
    if (TYPE != F32 && wide) {
#pragma unroll
        for (int n = 0; n < N / 16; n++) { // 32 columns
            u32 x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *pair = o + 16 * n + 4 * k + 2 * half;
                x[k] = pack2(pair[0] * factor, pair[1] * factor);
            }
            quad_transpose(x, q);
            if (inside && 32 * n + 8 * q < COLUMNS) stg128((u16 *)out.base + out.at + 32 * n + 8 * q, x);
        }
    } else if (inside) {
#pragma unroll
        for (int n = 0; n < N / 4; n++)
            store2<TYPE>(out, 8 * n + 2 * q, o[4 * n + 2 * half] * factor, o[4 * n + 2 * half + 1] * factor);
    }
}
