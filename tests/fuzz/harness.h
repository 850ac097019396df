/* harness.h - what libFuzzer and the replay program call. */
#ifndef FFPA_FUZZ_HARNESS_H
#define FFPA_FUZZ_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Abort, which both drivers report as a finding. */
#define MUST(rule)                                                                   \
    do {                                                                             \
        if (!(rule)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #rule); \
            abort();                                                                 \
        }                                                                            \
    } while (0)

/* The input, taken from the front; zeros once it has run out. */
typedef struct taker {
    const uint8_t *at;
    size_t left;
} taker;

static inline void take(taker *t, void *to, size_t bytes)
{
    const size_t n = bytes < t->left ? bytes : t->left;
    memset(to, 0, bytes);
    if (n) memcpy(to, t->at, n);
    t->at += n;
    t->left -= n;
}

static inline uint8_t take_byte(taker *t)
{
    uint8_t value;
    take(t, &value, 1);
    return value;
}

#endif
