// guard_sm90.cuh - keys that a row does not see must not reach it through 0 x NaN or 0 x Inf of their V. One warp looks
// at a slot of V that the copy engine filled, before wgmma reads it, and takes such elements out; rows that do see the
// key get them back at the end of their tile.
#pragma once
#include "common/tiles.cuh"
#include "sm90/ptx_sm90.cuh"

// Take NaN and Inf out of BYTES of shared memory. Were there any? All lanes of a warp.
template <int BYTES> FFPA_DEVICE bool guard_clean(u32 data)
{
    const u32 mine = data + (threadIdx.x & 31) * 16;
    u32 sum = 0;
#pragma unroll 4
    for (int at = 0; at < BYTES; at += 512) {
        u32 x[4];
        lds128(x, mine + at);
#pragma unroll
        for (int i = 0; i < 4; i++) // NaN x 0 and Inf x 0 are NaN, and stay
            sum = DTYPE == F16 ? fma_f16(x[i], 0, sum) : fma_bf16(x[i], 0, sum);
    }
    const bool any = __any_sync(~0u, (sum & 0x7fff7fff) != 0); // else zeros of either sign
    if (any) {
#pragma unroll 1
        for (int at = 0; at < BYTES; at += 512) piece_clean(mine + at);
    }
    fence_async_proxy();
    __syncwarp();
    return any;
}
