/* view.c - reach and overlap of strided views. */
#include "core/view.h"

#include "core/problem.h"

#include <inttypes.h>

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

/* ---- which addresses are reached ----------------------------------------------------------------
 * Both questions are one: has the sum of step[i] * x[i] a value that is given, for whole x[i] in
 * 0..most[i]? All steps are positive, so a search from the largest step down finds few choices where
 * strides nest, as in slices and permutations of arrays, and the common divisor of the steps that are
 * left rules out most of the others. Strides made to be difficult run out of tries. */

typedef struct axis {
    uint64_t step, most; /* most > 0 */
} axis;

/* Two views of 4 axes and the bytes of an element of each. */
enum { MAX_AXES = 10, MAX_TRIES = 20000 };

typedef struct axis_list {
    int n;
    axis axis[MAX_AXES]; /* by step, largest first, no step twice */
} axis_list;

static void add_axis(axis_list *list, uint64_t step, uint64_t most)
{
    int i = 0;
    if (step == 0 || most == 0) return;
    while (i < list->n && list->axis[i].step > step)
        i++;
    if (i < list->n && list->axis[i].step == step) {
        list->axis[i].most += most;
        return;
    }
    for (int j = list->n++; j > i; j--)
        list->axis[j] = list->axis[j - 1];
    list->axis[i] = (axis){step, most};
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Is `sum` reached by axes[0..n)? SHARE_MAYBE when the tries are used up. */
static view_share reached(const axis *axes, int n, uint64_t sum, int *tries)
{
    uint64_t inner = 0, divisor = 0;
    if (sum == 0) return SHARE_YES;
    if (n == 0) return SHARE_NO;
    for (int i = 1; i < n; i++) {
        inner += axes[i].step * axes[i].most;
        divisor = common_divisor(divisor, axes[i].step);
    }
    const uint64_t step = axes[0].step, fits = sum / step;
    const uint64_t last = fits < axes[0].most ? fits : axes[0].most;
    uint64_t x = sum > inner ? (sum - inner - 1) / step + 1 : 0, stride = 1;
    if (divisor == 0) return sum % step == 0 && fits <= axes[0].most ? SHARE_YES : SHARE_NO;
    if (sum % common_divisor(divisor, step) != 0) return SHARE_NO;
    for (; x <= last; x += stride) {
        if ((*tries)-- <= 0) return SHARE_MAYBE;
        const uint64_t rest = sum - step * x;
        if (rest % divisor != 0) continue;
        stride = divisor / common_divisor(divisor, step); /* to the next one that it divides */
        const view_share share = reached(axes + 1, n - 1, rest, tries);
        if (share != SHARE_NO) return share;
    }
    return SHARE_NO;
}

/* Add the axes of a view; steps and sizes in bytes. */
static void add_view(axis_list *list, const ffpa_tensor *t)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    for (int i = 0; i < 4; i++) {
        const int64_t step = t->shape[i] > 1 ? t->stride[i] * size : 0;
        add_axis(list, (uint64_t)(step < 0 ? -step : step), (uint64_t)(t->shape[i] - 1));
    }
}

view_share views_share(const ffpa_tensor *a, const ffpa_tensor *b)
{
    byte_range ra, rb;
    axis_list list = {0};
    int tries = MAX_TRIES;
    if (view_range(a, "", "", &ra) != FFPA_OK || view_range(b, "", "", &rb) != FFPA_OK)
        return SHARE_MAYBE;
    if (ra.low >= ra.high || rb.low >= rb.high) return SHARE_NO;
    if (ra.high <= rb.low || rb.high <= ra.low) return SHARE_NO;
    /* low_a + bytes into a = high_b - 1 - bytes back into b */
    const uint64_t size_a = dtype_bytes(a->dtype), size_b = dtype_bytes(b->dtype);
    const uint64_t distance = (uint64_t)rb.high - 1 - (uint64_t)ra.low;
    /* In units of the smaller element, unless the views lie between each other's elements. */
    const uint64_t unit = size_a < size_b ? size_a : size_b;
    const bool whole = (distance + 1) % unit == 0;
    add_view(&list, a);
    add_view(&list, b);
    add_axis(&list, whole ? unit : 1, whole ? size_a / unit - 1 : size_a - 1);
    add_axis(&list, whole ? unit : 1, whole ? size_b / unit - 1 : size_b - 1);
    return reached(list.axis, list.n, whole ? distance + 1 - unit : distance, &tries);
}

/* Does each step clear all that lies inside it? Then no two elements meet. */
static bool nests(const axis_list *list, uint64_t size)
{
    uint64_t inner = size;
    for (int i = list->n - 1; i >= 0; i--) {
        if (list->axis[i].step < inner) return false;
        inner += list->axis[i].step * list->axis[i].most;
    }
    return true;
}

view_share view_folds(const ffpa_tensor *t)
{
    axis_list once = {0};
    int axes = 0, tries = MAX_TRIES;
    if (view_count(t) == 0) return SHARE_NO;
    for (int i = 0; i < 4; i++) {
        if (t->shape[i] > 1 && t->stride[i] == 0) return SHARE_YES;
        axes += t->shape[i] > 1;
    }
    add_view(&once, t);
    if (once.n < axes) return SHARE_YES; /* two axes of one step */
    if (nests(&once, dtype_bytes(t->dtype))) return SHARE_NO;
    /* Two elements meet when differences d[i] in -most..most, not all 0, sum to 0; some axis then has
     * d >= 1, or the same with the two elements swapped. All d[i] are counted up from their least. */
    for (int a = 0; a < once.n; a++) {
        axis_list list = {0};
        uint64_t sum = 0;
        for (int i = 0; i < once.n; i++) {
            const uint64_t step = once.axis[i].step, most = once.axis[i].most;
            add_axis(&list, step, i == a ? most - 1 : 2 * most);
            if (i != a) sum += step * most;
        }
        if (sum < once.axis[a].step) continue;
        const view_share share = reached(list.axis, list.n, sum - once.axis[a].step, &tries);
        if (share != SHARE_NO) return share;
    }
    return SHARE_NO;
}
