/* view.c - reach and overlap of strided views. */
#include "core/view.h"

#include "core/problem.h"

#include <inttypes.h>
#include <stdlib.h>

int64_t view_count(const ffpa_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

ffpa_status view_range(const ffpa_tensor *t, const char *fn, const char *name,
                       byte_range *range)
{
    const int64_t bytes = (int64_t)dtype_bytes(t->dtype);
    int64_t count = 1, product = 1, low = 0, high = bytes, step;
    bool overflow = false;
    for (int i = 0; i < 4; i++) {
        CHECK(t->shape[i] >= 0, FFPA_E_INVALID, "%s: %s.shape[%d]=%" PRId64 " is negative", fn,
              name, i, t->shape[i]);
        count = t->shape[i] ? count : 0;
        /* zeros counted as ones, so that products of fewer sizes cannot overflow either */
        overflow |= __builtin_mul_overflow(product, t->shape[i] ? t->shape[i] : 1, &product);
    }
    if (!overflow && count == 0) {
        *range = (byte_range){0, 0};
        return FFPA_OK;
    }
    for (int i = 0; i < 4; i++) {
        overflow |= __builtin_mul_overflow(t->stride[i], bytes, &step);
        overflow |= __builtin_mul_overflow(step, t->shape[i] - 1, &step);
        overflow |=
            __builtin_add_overflow(step < 0 ? low : high, step, step < 0 ? &low : &high);
    }
    overflow |= __builtin_add_overflow(low, (int64_t)(intptr_t)t->data, &low);
    overflow |= __builtin_add_overflow(high, (int64_t)(intptr_t)t->data, &high);
    CHECK(!overflow, FFPA_E_INVALID,
          "%s: %s.shape=[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
          "] with its strides reaches past 2^63 bytes",
          fn, name, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    *range = (byte_range){low, high};
    return FFPA_OK;
}

/* One axis with more than one index; `bytes` is the distance between neighbours. */
typedef struct axis {
    int64_t count, bytes;
} axis;

static int axis_larger_first(const void *a, const void *b)
{
    const int64_t x = ((const axis *)a)->bytes, y = ((const axis *)b)->bytes;
    return (x < y) - (x > y);
}

/* Axes of a view sorted by stride, largest first, all strides made positive; returns how many, and
 * in *base the lowest address. */
static int sorted_axes(const ffpa_tensor *t, axis out[4], int64_t *base)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    int n = 0;
    *base = (int64_t)(intptr_t)t->data;
    for (int i = 0; i < 4; i++) {
        if (t->shape[i] <= 1) continue;
        const int64_t step = t->stride[i] * size;
        if (step < 0) *base += step * (t->shape[i] - 1);
        out[n++] = (axis){t->shape[i], step < 0 ? -step : step};
    }
    qsort(out, (size_t)n, sizeof out[0], axis_larger_first);
    return n;
}

bool view_folds(const ffpa_tensor *t)
{
    axis ax[4];
    int64_t base, inner = (int64_t)dtype_bytes(t->dtype);
    if (view_count(t) == 0) return false;
    const int n = sorted_axes(t, ax, &base);
    for (int i = n - 1; i >= 0; i--) { /* each step must clear all that lies inside it */
        if (ax[i].bytes < inner) return true;
        inner += ax[i].bytes * (ax[i].count - 1);
    }
    return false;
}

/* Does a view have an element in [low, high)? `base` is the address of its first one. */
static bool axes_hit_range(const axis *ax, int n, int64_t base, int64_t size, int64_t low,
                           int64_t high)
{
    if (n == 0) return base < high && base + size > low;
    int64_t span =
        size; /* bytes from the first to past the last element of one index of ax[0] */
    for (int i = 1; i < n; i++)
        span += ax[i].bytes * (ax[i].count - 1);
    const int64_t step = ax[0].bytes, last = ax[0].count - 1;
    int64_t from = base + span > low ? 0 : (low - base - span) / step + 1;
    int64_t to = base >= high ? -1 : (high - 1 - base) / step;
    if (to > last) to = last;
    if (from > to) return false;
    if (to - from >= 2) return true; /* the middle one lies inside the range as a whole */
    return axes_hit_range(ax + 1, n - 1, base + from * step, size, low, high) ||
           axes_hit_range(ax + 1, n - 1, base + to * step, size, low, high);
}

/* Is there an element of b at `delta` from one of a? Both have axes of the same byte steps, nested,
 * so at most two differences of the index of the largest step can do it. */
static bool nested_hit(const axis *a, const axis *b, int n, int64_t delta, int64_t size_a,
                       int64_t size_b)
{
    if (n == 0) return delta < size_a && -delta < size_b;
    const int64_t step = a[0].bytes;
    const int64_t floor = delta / step - (delta % step < 0);
    for (int64_t k = floor; k <= floor + 1; k++)
        if (k > -b[0].count && k < a[0].count &&
            nested_hit(a + 1, b + 1, n - 1, delta - k * step, size_a, size_b))
            return true;
    return false;
}

/* Give both axis lists the same steps, by adding axes of one index. Returns how many. */
static int align_axes(const axis *a, int na, const axis *b, int nb, axis *out_a, axis *out_b)
{
    int i = 0, j = 0, n = 0;
    for (; i < na || j < nb; n++) {
        const int64_t sa = i < na ? a[i].bytes : -1, sb = j < nb ? b[j].bytes : -1;
        const int64_t step = sa > sb ? sa : sb;
        out_a[n] = sa == step ? a[i++] : (axis){1, step};
        out_b[n] = sb == step ? b[j++] : (axis){1, step};
    }
    return n;
}

/* Does each step clear everything inside it, for both views together? */
static bool axes_nest(const axis *a, const axis *b, int n, int64_t size)
{
    int64_t inner = size;
    for (int i = n - 1; i >= 0; i--) {
        if (a[i].bytes < inner) return false;
        const int64_t count = a[i].count > b[i].count ? a[i].count : b[i].count;
        inner += a[i].bytes * (count - 1);
    }
    return true;
}

/* Does a view fill its range without gaps? */
static bool view_dense(const ffpa_tensor *t, byte_range r)
{
    return !view_folds(t) && r.high - r.low == view_count(t) * (int64_t)dtype_bytes(t->dtype);
}

/* Axes of step 0 add no address. */
static int drop_broadcast(const axis *ax, int n)
{
    while (n > 0 && ax[n - 1].bytes == 0)
        n--;
    return n;
}

bool views_overlap(const ffpa_tensor *a, const ffpa_tensor *b)
{
    byte_range ra, rb;
    axis xa[4], xb[4], ya[8], yb[8];
    int64_t base_a, base_b;
    if (view_range(a, "", "", &ra) != FFPA_OK || view_range(b, "", "", &rb) != FFPA_OK)
        return true;
    if (ra.low >= ra.high || rb.low >= rb.high) return false;
    if (ra.high <= rb.low || rb.high <= ra.low) return false;
    const int64_t size_a = (int64_t)dtype_bytes(a->dtype),
                  size_b = (int64_t)dtype_bytes(b->dtype);
    const int na = drop_broadcast(xa, sorted_axes(a, xa, &base_a));
    const int nb = drop_broadcast(xb, sorted_axes(b, xb, &base_b));
    if (view_dense(a, ra)) return axes_hit_range(xb, nb, base_b, size_b, ra.low, ra.high);
    if (view_dense(b, rb)) return axes_hit_range(xa, na, base_a, size_a, rb.low, rb.high);
    if (a->data == b->data) return true;
    const int n = align_axes(xa, na, xb, nb, ya, yb);
    if (!axes_nest(ya, yb, n, size_a > size_b ? size_a : size_b)) return false;
    return nested_hit(ya, yb, n, base_b - base_a, size_a, size_b);
}
