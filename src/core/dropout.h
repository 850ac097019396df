/* dropout.h - which attention weights dropout keeps, as a pure function, so that forward, backward
 * and every backend agree bit for bit. Philox 4x32-10 (Salmon et al., SC'11):
 *   key     = seed, with the high half of `offset` xored into its high half
 *   counter = { j / 4, i, b * Hq + h, low half of offset };  word j % 4 decides pair (i, j)
 * The weight is kept when the word >= round(p * 2^32). i and j count within the sequence. */
#ifndef FFPA_CORE_DROPOUT_H
#define FFPA_CORE_DROPOUT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dropout_key {
    uint32_t key[2];
    uint32_t offset;
    uint64_t threshold; /* of 2^32: 0 keeps all, 2^32 drops all */
    float keep_scale;   /* 1 / (1 - p), 0 when p = 1 */
} dropout_key;

dropout_key dropout_key_make(float p, uint64_t seed, uint64_t offset);

/* The four Philox words of one counter. */
void philox_4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Is the weight of (head bh = b * Hq + h, query i, key j) kept? */
bool dropout_keeps(const dropout_key *k, int64_t bh, int64_t i, int64_t j);

#endif
