/* scalar.h - single elements of every dtype as doubles. For checks, conversion and generated data:
 * plain, not fast. */
#ifndef FFPA_CLI_SCALAR_H
#define FFPA_CLI_SCALAR_H

#include "ffpa/ffpa.h"

size_t scalar_bytes(int32_t dtype);     /* 0 for dtypes that the program cannot read */
const char *scalar_name(int32_t dtype); /* "bf16"; "?" when unknown */

/* FFPA_F32, FFPA_F16, FFPA_BF16 by name; 0 when it is none of them. */
int32_t scalar_float_named(const char *name);

/* Element `index` of `data`, which may lie at any alignment. */
double scalar_get(const void *data, int32_t dtype, int64_t index);

/* Store `value` rounded to nearest even. */
void scalar_set(void *data, int32_t dtype, int64_t index, double value);

#endif
