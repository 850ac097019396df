/* own_keys.h - does a given LSE stand for the call's own keys, or for more keys than these?
 *
 * Backward over a part of the keys is given the O and LSE of all of them (ffpa_merge), and then uses them as
 * they are. An LSE of the call's own keys was rounded on the way, and so were the scores that made it: where
 * that explains the difference, backward does better with what it computes itself. Merged, LSE can only be
 * larger than that of a part. */
#ifndef FFPA_CPU_OWN_KEYS_H
#define FFPA_CPU_OWN_KEYS_H

#include "ffpa/ffpa.h"

#include <math.h>
#include <stdbool.h>

/* `own` is the LSE of the call's keys and sink; `reach` the largest |scale| |q| |k| of the row, of which the
 * rounding of a score is a fraction; `dtype` that of the given LSE. False where either LSE is NaN. */
static inline bool lse_is_own(double given, double own, double reach, int32_t dtype)
{
    const double unit = dtype == FFPA_F64 ? 0x1p-50 : 0x1p-21;
    return given <= own + unit * (32 + fabs(given) + reach);
}

#endif
