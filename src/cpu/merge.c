/* merge.c - O and LSE over two disjoint key sets, from those over each, by the weights e^LSE.
 */
#include "cpu/merge.h"

#include "cpu/element.h"

#include <float.h>

static void *element_at(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const int64_t offset =
        b * t->stride[0] + h * t->stride[1] + n * t->stride[2] + d * t->stride[3];
    return (char *)t->data + offset * element_bytes(t->dtype);
}

static double load_at(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return element_load(element_at(t, b, h, n, d), t->dtype);
}

/* The shares of both parts, and the LSE of the union. */
typedef struct shares {
    double a, b, lse;
} shares;

/* However small a share with keys is, NaN and infinity of its O come through. */
static double some(double share) { return share < DBL_MIN ? DBL_MIN : share; }

/* A part with LSE = -inf has no keys. Without this case two of them would give -inf - -inf =
 * NaN, and one of them 0 * O with an O that must not matter. NaN, and +inf through inf - inf,
 * make NaN. */
static shares shares_of(double lse_a, double lse_b)
{
    const double none = (double)-INFINITY;
    if (lse_b == none) return (shares){lse_a == none ? 0.0 : 1.0, 0.0, lse_a};
    if (lse_a == none) return (shares){0.0, 1.0, lse_b};
    const double top = lse_a > lse_b ? lse_a : lse_b;
    const double a = exp(lse_a - top), b = exp(lse_b - top);
    return (shares){some(a / (a + b)), some(b / (a + b)), top + log(a + b)};
}

static void merge_row(const ffpa_merge_params *p, int64_t b, int64_t h, int64_t n)
{
    const shares w = shares_of(load_at(&p->lse_a, b, h, n, 0), load_at(&p->lse_b, b, h, n, 0));
    for (int64_t d = 0; d < p->o.shape[3]; d++) {
        const double from_a = w.a != 0.0 ? w.a * load_at(&p->o_a, b, h, n, d) : 0.0;
        const double from_b = w.b != 0.0 ? w.b * load_at(&p->o_b, b, h, n, d) : 0.0;
        element_store(element_at(&p->o, b, h, n, d), p->o.dtype, from_a + from_b);
    }
    if (p->lse.data) element_store(element_at(&p->lse, b, h, n, 0), p->lse.dtype, w.lse);
}

ffpa_status cpu_merge(const ffpa_merge_params *p)
{
    for (int64_t b = 0; b < p->o.shape[0]; b++)
        for (int64_t h = 0; h < p->o.shape[1]; h++)
            for (int64_t n = 0; n < p->o.shape[2]; n++)
                merge_row(p, b, h, n);
    return FFPA_OK;
}
