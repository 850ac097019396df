/* compare.c - how far a tensor is from what it should be. */
#include "compare.h"

#include <math.h>
#include <string.h>

static bool same_kind(double x, double y)
{
    if (isnan(x) || isnan(y)) return isnan(x) && isnan(y);
    return isinf(x) || isinf(y) ? x == y : true;
}

difference compare_tensors(const ffpa_tensor *got, const ffpa_tensor *expected,
                           const unsigned char *keep)
{
    difference d = {0};
    double error2 = 0, expected2 = 0;
    int64_t at[4] = {0};
    if (tensor_elements(got) == 0) return d;
    do {
        if (keep && !keep[at[2]]) continue;
        double x = tensor_get(got, at), y = tensor_get(expected, at);
        d.compared++;
        if (!same_kind(x, y)) {
            if (d.pattern++ == 0) memcpy(d.first, at, sizeof d.first);
        } else if (isfinite(y)) {
            d.max_error = fmax(d.max_error, fabs(x - y));
            d.max_expected = fmax(d.max_expected, fabs(y));
            error2 += (x - y) * (x - y);
            expected2 += y * y;
        }
    } while (tensor_next(got, at));
    d.relative_l2 = error2 > 0 ? sqrt(error2 / expected2) : 0; /* inf when 0 was expected */
    return d;
}

bool difference_accept(const difference *ours, const difference *naive, bool gradient,
                       double *bound)
{
    *bound = (gradient ? 3 : 2) * naive->max_error + 1e-5;
    return ours->pattern == 0 && ours->max_error <= *bound;
}
