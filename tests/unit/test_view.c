/* test_view.c - reach and overlap of strided views, against an element-by-element count. */
#include "support/unit.h"

#include "core/problem.h"
#include "core/view.h"

#include <stdbool.h>
#include <stdlib.h>

enum { ARENA = 4096 };
static char arena[ARENA];

typedef struct coverage {
    unsigned char touched[ARENA];
    bool inside, folds;
} coverage;

/* Every byte that a view touches, found the slow way. */
static void cover(const ffpa_tensor *t, coverage *c)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    memset(c, 0, sizeof *c);
    c->inside = true;
    for (int64_t a = 0; a < t->shape[0]; a++)
        for (int64_t b = 0; b < t->shape[1]; b++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t j = 0; j < t->shape[3]; j++) {
                    const int64_t index = a * t->stride[0] + b * t->stride[1] +
                                          i * t->stride[2] + j * t->stride[3];
                    const int64_t at = ((char *)t->data - arena) + index * size;
                    if (at < 0 || at + size > ARENA) {
                        c->inside = false;
                        return;
                    }
                    c->folds |= c->touched[at];
                    for (int64_t k = 0; k < size; k++)
                        c->touched[at + k] = 1;
                }
}

static unsigned random_state = 12345;
static int64_t random_below(int64_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int64_t)(random_state >> 8) % n;
}

/* A slice of a contiguous array with its axes permuted: what programs have. */
static ffpa_tensor random_slice(void)
{
    static const int32_t dtypes[] = {FFPA_F32, FFPA_BF16, FFPA_BOOL, FFPA_F64};
    const int32_t dtype = dtypes[random_below(4)];
    const int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t full[4], step = 1;
    ffpa_tensor t = {.dtype = dtype};
    for (int i = 3; i >= 0; i--) {
        full[i] = 1 + random_below(4);
        t.stride[i] = step;
        step *= full[i];
    }
    int64_t offset = 0;
    for (int i = 0; i < 4; i++) {
        const int64_t first = random_below(full[i]);
        t.shape[i] = 1 + random_below(full[i] - first);
        offset += first * t.stride[i];
    }
    for (int i = 0; i < 3; i++) {
        const int j = i + (int)random_below(4 - i);
        const int64_t shape = t.shape[i], stride = t.stride[i];
        t.shape[i] = t.shape[j], t.stride[i] = t.stride[j];
        t.shape[j] = shape, t.stride[j] = stride;
    }
    t.data = arena + 512 + (random_below(2) ? 0 : random_below(64) * 8) + offset * size;
    return t;
}

static void overlap_of_slices_is_exact(void **state)
{
    (void)state;
    static coverage ca, cb;
    int met = 0, apart = 0;
    for (int round = 0; round < 20000; round++) {
        /* Two slices of one array: the same full shape and base, hence the same seed for both. */
        const unsigned seed = random_state;
        ffpa_tensor a = random_slice();
        random_state = seed;
        ffpa_tensor b = random_slice();
        random_state = seed + (unsigned)round * 7919u;
        for (int i = 0; i < 4; i++) { /* cut b differently along each axis */
            const int64_t cut = random_below(b.shape[i]);
            const bool head = random_below(2);
            b.shape[i] -= cut;
            if (head)
                b.data = (char *)b.data + cut * b.stride[i] * (int64_t)dtype_bytes(b.dtype);
            const int64_t cut_a = random_below(a.shape[i]);
            a.shape[i] -= cut_a;
        }
        cover(&a, &ca), cover(&b, &cb);
        assert_true(ca.inside && cb.inside && !ca.folds && !cb.folds);
        bool meet = false;
        for (int i = 0; i < ARENA; i++)
            meet |= ca.touched[i] && cb.touched[i];
        met += meet, apart += !meet;
        const view_share wanted = meet ? SHARE_YES : SHARE_NO;
        if (views_share(&a, &b) != wanted || views_share(&b, &a) != wanted)
            fail_msg("round %d: counting says %d, views_share something else", round, meet);
        assert_int_equal(view_folds(&a), SHARE_NO);
    }
    assert_true(met > 1000 && apart > 1000);
}

/* Any views: unrelated, folded, of any strides, negative and zero included. */
static void any_strides_are_exact(void **state)
{
    (void)state;
    static coverage ca, cb;
    int met = 0, apart = 0, folded = 0;
    for (int round = 0; round < 40000; round++) {
        ffpa_tensor a = random_slice(), b = random_slice();
        for (int i = 0; i < 4; i++) {
            a.stride[i] =
                random_below(2) ? a.stride[i] * (random_below(3) - 1) : random_below(23) - 11;
            b.stride[i] *= 1 + random_below(3);
        }
        cover(&a, &ca), cover(&b, &cb);
        if (ca.inside) {
            folded += ca.folds;
            assert_int_equal(view_folds(&a), ca.folds ? SHARE_YES : SHARE_NO);
        }
        if (!ca.inside || !cb.inside) continue;
        bool meet = false;
        for (int i = 0; i < ARENA; i++)
            meet |= ca.touched[i] && cb.touched[i];
        met += meet, apart += !meet;
        assert_int_equal(views_share(&a, &b), meet ? SHARE_YES : SHARE_NO);
        assert_int_equal(views_share(&b, &a), meet ? SHARE_YES : SHARE_NO);
    }
    assert_true(met > 2000 && apart > 2000 && folded > 2000);
}

/* Steps that neither nest nor divide, over millions of elements: an answer all the same, at once, and
 * never "no" where a byte is shared. */
static void large_views_are_answered_at_once(void **state)
{
    (void)state;
    const ffpa_tensor five = {arena, {1, 1, 1, 9000000}, {0, 0, 0, 5}, FFPA_F32, 0};
    const ffpa_tensor seven = {arena, {1, 1, 1, 7000000}, {0, 0, 0, 7}, FFPA_F32, 0};
    ffpa_tensor odd = {arena, {1, 1, 3000, 3000}, {0, 0, 100003, 2}, FFPA_F32, 0};
    ffpa_tensor even = odd;
    assert_int_equal(views_share(&five, &seven), SHARE_YES);
    assert_int_equal(view_folds(&five), SHARE_NO);
    assert_int_equal(view_folds(&odd), SHARE_NO);
    even.stride[2] = odd.stride[2] = 100002;
    odd.data = arena + 4;
    assert_int_equal(views_share(&odd, &even), SHARE_NO); /* columns of other parity */
    const ffpa_tensor primes = {
        arena, {1009, 1013, 1019, 1021}, {64951, 64937, 64927, 64921}, FFPA_F32, 0};
    ffpa_tensor single = ffpa_tensor_4d(arena, FFPA_F32, 1, 1, 1, 1);
    assert_int_not_equal(view_folds(&primes), SHARE_NO);
    single.data = primes.data;
    assert_int_equal(views_share(&primes, &single), SHARE_YES);
}

static void range_is_what_is_touched(void **state)
{
    (void)state;
    static coverage c;
    for (int round = 0; round < 5000; round++) {
        ffpa_tensor t = random_slice();
        for (int i = 0; i < 4; i++)
            t.stride[i] *= random_below(3) - 1;
        cover(&t, &c);
        if (!c.inside) continue;
        byte_range r;
        assert_ok(view_range(&t, "fn", "t", &r));
        const int64_t low = r.low - (int64_t)(intptr_t)arena,
                      high = r.high - (int64_t)(intptr_t)arena;
        assert_true(c.touched[low] && c.touched[high - 1]);
        assert_null(memchr(c.touched, 1, (size_t)low));
        assert_null(memchr(c.touched + high, 1, (size_t)(ARENA - high)));
    }
}

static void empty_views_touch_nothing(void **state)
{
    (void)state;
    byte_range r;
    const ffpa_tensor empty = {NULL, {2, 0, 3, 4}, {INT64_MAX, 1, 1, 1}, FFPA_F32, 0};
    const ffpa_tensor all = ffpa_tensor_4d(arena, FFPA_BOOL, 1, 1, 1, ARENA);
    assert_ok(view_range(&empty, "fn", "t", &r));
    assert_int_equal(r.low, r.high);
    assert_int_equal(views_share(&empty, &all), SHARE_NO);
    assert_int_equal(view_folds(&empty), SHARE_NO);
}

static void overflow_is_caught(void **state)
{
    (void)state;
    const int64_t big = INT64_MAX / 2;
    byte_range r;
    const ffpa_tensor views[] = {
        {arena, {big, 3, 1, 1}, {0, 0, 0, 0}, FFPA_F32, 0}, /* elements */
        {arena, {2, 1, 1, 1}, {big, 0, 0, 0}, FFPA_F32, 0}, /* stride in bytes */
        {arena, {4, 1, 1, 1}, {big / 4, 0, 0, 0}, FFPA_F64, 0},
        {arena, {3, 1, 1, 1}, {-big / 4, 0, 0, 0}, FFPA_F64, 0},
        {arena, {2, 2, 2, 2}, {big / 2, big / 2, big / 2, big / 2}, FFPA_BOOL, 0},
        {arena, {INT64_MAX, 1, 1, 1}, {1, 1, 1, 1}, FFPA_BOOL, 0}, /* past the last address */
        {arena,
         {INT64_MAX, INT64_MAX, 0, 5},
         {1, 1, 1, 1},
         FFPA_BOOL,
         0}, /* products of some sizes */
    };
    for (size_t i = 0; i < COUNT(views); i++)
        assert_status(view_range(&views[i], "fn", "t", &r), FFPA_E_INVALID, "fn: t.shape=");
    const ffpa_tensor negative = {arena, {1, 1, -1, 1}, {1, 1, 1, 1}, FFPA_F32, 0};
    assert_status(view_range(&negative, "fn", "t", &r), FFPA_E_INVALID,
                  "fn: t.shape[2]=-1 is negative");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_of_slices_is_exact),
        cmocka_unit_test(any_strides_are_exact),
        cmocka_unit_test(large_views_are_answered_at_once),
        cmocka_unit_test(range_is_what_is_touched),
        cmocka_unit_test(empty_views_touch_nothing),
        cmocka_unit_test(overflow_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
