/* judge_plain.h - attention by its definition, one loop per sum, in double: what the oracle is held
 * against. Shares no code with the library. */
#ifndef FFPA_TESTS_JUDGE_PLAIN_H
#define FFPA_TESTS_JUDGE_PLAIN_H

#include "support/judge_sample.h"

/* The outputs of a sample as contiguous double arrays in the shape of its tensors; NULL where the sample
 * has no such output. Elements that the definition leaves unwritten hold tensor_blank. */
typedef struct plain {
    double *out[ROLES];
} plain;

plain plain_attention(const sample *t);
void plain_free(plain *p);

/* Multiplications that plain_attention would do, about. */
double plain_cost(const sample *t);

/* Is (i, j) of head bh = b * Hq + h kept? Philox 4x32-10 as documented. */
bool plain_keeps(const ffpa_dropout *d, int64_t bh, int64_t i, int64_t j);

#endif
