/* dropout.c - Philox 4x32-10 and the keep decision. */
#include "core/dropout.h"

#include <math.h>

void philox_4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

dropout_key dropout_key_make(float p, uint64_t seed, uint64_t offset)
{
    dropout_key k = {{(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32)},
                     (uint32_t)offset,
                     (uint64_t)llround((double)p * 4294967296.0),
                     p < 1.0f ? (float)(1.0 / (1.0 - (double)p)) : 0.0f};
    return k;
}

bool dropout_keeps(const dropout_key *k, int64_t bh, int64_t i, int64_t j)
{
    const uint32_t counter[4] = {(uint32_t)(j >> 2), (uint32_t)i, (uint32_t)bh, k->offset};
    uint32_t word[4];
    philox_4x32(k->key, counter, word);
    return word[j & 3] >= k->threshold;
}
