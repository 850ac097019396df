// dropout.cuh - which weights dropout keeps: the bits of core/dropout.h (Philox 4x32-10).
#pragma once
#include "common/args.h"
#include "common/types.cuh"

struct DropKey {
    u32 key0, key1, offset;
    u64 threshold;
};

FFPA_DEVICE DropKey drop_key(const k_dropout &d)
{
    const u64 seed = d.seed_ptr ? *d.seed_ptr : d.seed;
    const u64 offset = d.offset_ptr ? *d.offset_ptr : d.offset;
    return {(u32)seed, (u32)(seed >> 32) ^ (u32)(offset >> 32), (u32)offset, d.threshold};
}

// Are the weights of keys j and j + 1 (j even) kept? Both come from one counter.
FFPA_DEVICE void drop_keeps2(const DropKey &k, u32 bh, int i, int j, bool (&keeps)[2])
{
    u32 k0 = k.key0, k1 = k.key1, c0 = (u32)j >> 2, c1 = (u32)i, c2 = bh, c3 = k.offset;
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0, c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1, c3 = (u32)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    keeps[0] = (j & 2 ? c2 : c0) >= k.threshold;
    keeps[1] = (j & 2 ? c3 : c1) >= k.threshold;
}

// The four words of that counter, of keys j .. j + 3 (j a multiple of 4), and of keys j + 8 .. j + 11: word x keeps its key at
// the threshold or above. Two chains at once, for warps that have few beside them.
FFPA_DEVICE void drop_words8(const DropKey &k, u32 bh, int i, int j, u32 (&c)[8])
{
    u32 k0 = k.key0, k1 = k.key1;
#pragma unroll
    for (int x = 0; x < 8; x += 4) c[x] = ((u32)j + 2 * x) >> 2, c[x + 1] = (u32)i, c[x + 2] = bh, c[x + 3] = k.offset;
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
#pragma unroll
        for (int x = 0; x < 8; x += 4) {
            const u64 p0 = (u64)0xD2511F53u * c[x], p1 = (u64)0xCD9E8D57u * c[x + 2];
            c[x] = (u32)(p1 >> 32) ^ c[x + 1] ^ k0, c[x + 1] = (u32)p1;
            c[x + 2] = (u32)(p0 >> 32) ^ c[x + 3] ^ k1, c[x + 3] = (u32)p0;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}
