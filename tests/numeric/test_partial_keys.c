/* test_partial_keys.c - backward over parts of the keys, as rings of devices need it: forward over each part,
 * ffpa_merge, backward over each part from the merged O and LSE. The parts' dQ add up to that of the whole,
 * their dK and dV are its rows. The oracle of each is the reference over all keys at once. */
#include "support/judge_device.h"
#include "support/judge_rule.h"
#include "support/tensor_element.h"

#include <math.h>
#include <stdlib.h>

enum { HEADS = 2, ROWS = 40, SPLIT = 70, KEYS = 100 };

/* A sample over keys first .. first + n - 1 of `all`. */
static sample *part_of(const sample *all, int64_t first, int64_t n)
{
    static const role copied[] = {K, V, MASK};
    sample *t = sample_copy(all, 0);
    t->spec.nk = n;
    for (size_t x = 0; x < COUNT(copied); x++) {
        const tensor *from = all->t[copied[x]];
        const bool mask = copied[x] == MASK;
        int64_t shape[4];
        memcpy(shape, from->view.shape, sizeof shape);
        shape[mask ? 3 : 2] = n;
        tensor *to = sample_put(
            t, copied[x],
            tensor_new(from->view.dtype, shape[0], shape[1], shape[2], shape[3], NULL));
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t d = 0; d < shape[3]; d++)
                    tensor_put(
                        to, 0, h, i, d,
                        tensor_at(from, 0, h, mask ? i : first + i, mask ? first + d : d));
    }
    sample_put(t, DK, tensor_new(FFPA_F32, 1, t->spec.hk, n, t->spec.d, NULL));
    sample_put(t, DV, tensor_new(FFPA_F32, 1, t->spec.hk, n, t->spec.d, NULL));
    return t;
}

/* All keys, with a mask that gives those from SPLIT on the `share` of every row's weight. */
static sample *whole(const setting *s, int32_t o_dtype, double share)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                          .o_dtype = o_dtype,
                                          .hq = HEADS,
                                          .nq = ROWS,
                                          .nk = KEYS,
                                          .d = s->d,
                                          .backward = true});
    t->f.flags = 0;
    for (role r = DQ; r <= DV; r++)
        sample_put(t, r, tensor_new(FFPA_F32, 1, HEADS, t->t[r]->view.shape[2], s->d, NULL));
    tensor_hash(t->t[Q], 0, 4);
    tensor_hash(t->t[K], 1000000, 4);
    tensor *mask = sample_put(t, MASK, tensor_new(FFPA_F32, 1, HEADS, ROWS, KEYS, NULL));
    tensor_all(mask, 0);
    sample *a = part_of(t, 0, SPLIT), *b = part_of(t, SPLIT, KEYS - SPLIT);
    must_forward(a, s);
    must_forward(b, s);
    for (int64_t n = 0; n < HEADS * ROWS; n++) {
        const int64_t h = n / ROWS, i = n % ROWS;
        const double shift = tensor_at(a->t[LSE], 0, h, i, 0) -
                             tensor_at(b->t[LSE], 0, h, i, 0) + log(share / (1 - share));
        for (int64_t j = SPLIT; j < KEYS; j++)
            tensor_put(mask, 0, h, i, j, tensor_round(FFPA_F32, shift));
    }
    sample_free(a);
    sample_free(b);
    return t;
}

static void merge(sample *a, sample *b, const setting *s)
{
    ffpa_merge_params m = ffpa_merge_params_init();
    tensor *o = tensor_copy(a->t[O], a->t[O]->view.dtype);
    tensor *lse = tensor_copy(a->t[LSE], FFPA_F32);
    m.o_a = a->t[O]->view, m.lse_a = a->t[LSE]->view;
    m.o_b = b->t[O]->view, m.lse_b = b->t[LSE]->view;
    m.o = o->view, m.lse = lse->view;
    assert_ok(judge_merge(s->path->ctx, &m));
    sample_put(b, O, tensor_copy(o, o->view.dtype));
    sample_put(b, LSE, tensor_copy(lse, FFPA_F32));
    sample_put(a, O, o);
    sample_put(a, LSE, lse);
}

/* Element n of output r of the parts together, in the order of the whole. */
static double together(const sample *a, const sample *b, role r, int64_t n)
{
    const int64_t d = a->spec.d, rows = r == DQ ? ROWS : KEYS;
    const int64_t h = n / d / rows, i = n / d % rows, c = n % d;
    if (r == DQ) return tensor_at(a->t[r], 0, h, i, c) + tensor_at(b->t[r], 0, h, i, c);
    return i < SPLIT ? tensor_at(a->t[r], 0, h, i, c) : tensor_at(b->t[r], 0, h, i - SPLIT, c);
}

static void judge_parts(const sample *all, sample *const parts[2], role r, double share,
                        const setting *s)
{
    sample *oracle = sample_copy(all, FFPA_F64), *naive = sample_copy(all, 0);
    assert_ok(sample_forward(oracle, judge_reference()));
    assert_ok(sample_backward(oracle, judge_reference()));
    assert_ok(sample_forward(naive, judge_naive()));
    assert_ok(sample_backward(naive, judge_naive()));
    double *must = tensor_doubles(oracle->t[r]), *near = tensor_doubles(naive->t[r]);
    double worst = 0, yard = 0;
    for (int64_t n = 0; n < tensor_volume(oracle->t[r]); n++) {
        worst = fmax(worst, fabs(together(parts[0], parts[1], r, n) - must[n]));
        yard = fmax(yard, fabs(near[n] - must[n]));
    }
    if (!(worst <= 3 * yard + 1e-5))
        fail_msg("%s: %s over two parts, the second of weight %g, is off by %.3g; naive over "
                 "all keys by %.3g\n  %s",
                 s->path->name, role_name[r], share, worst, yard, sample_text(all));
    free(must);
    free(near);
    sample_free(oracle);
    sample_free(naive);
}

/* dV needs LSE alone; dQ and dK also O, whose 16 bits would show. */
static void parts_make_the_whole(const setting *s, int32_t o_dtype, role from)
{
    static const double shares[] = {.5, .02, .008, .003, 1e-4};
    for (size_t x = 0; x < COUNT(shares); x++) {
        sample *all = whole(s, o_dtype, shares[x]);
        sample *a = part_of(all, 0, SPLIT), *b = part_of(all, SPLIT, KEYS - SPLIT);
        must_forward(a, s);
        must_forward(b, s);
        merge(a, b, s);
        must_backward(a, s);
        must_backward(b, s);
        for (role r = from; r <= DV; r++)
            judge_parts(all, (sample *const[]){a, b}, r, shares[x], s);
        sample_free(a);
        sample_free(b);
        sample_free(all);
    }
}

static void with_o_in_f32(const setting *s) { parts_make_the_whole(s, FFPA_F32, DQ); }
CASE(parts_make_the_whole_with_o_in_f32, ON_ALL, 64, with_o_in_f32)

static void with_o_in_16_bits(const setting *s) { parts_make_the_whole(s, 0, DV); }
CASE(parts_make_the_whole_with_o_in_16_bits, ON_F16 | ON_BF16, 64, with_o_in_16_bits)

/* A part of which a row sees no key: that row gives zero here, though its LSE is a number. */
static void part_without_keys(const setting *s)
{
    sample *all = sample_new(
        &(sample_spec){.dtype = s->dtype, .nq = 3, .nk = 4, .d = s->d, .backward = true});
    sample_use_mask(all, (int64_t[]){1, 1, 3, 4},
                    (double[]){1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1});
    must_forward(all, s);
    sample *b = part_of(all, 2, 2);
    sample_put(b, O, tensor_copy(all->t[O], s->dtype));
    sample_put(b, LSE, tensor_copy(all->t[LSE], FFPA_F32));
    must_backward(b, s);
    expect_row(b, DQ, 0, 0, 0, s);
    sample_free(b);
    sample_free(all);
}
CASE(a_part_without_keys_gives_nothing, ON_ALL, 24, part_without_keys)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_the_whole_with_o_in_f32),
        cmocka_unit_test(parts_make_the_whole_with_o_in_16_bits),
        cmocka_unit_test(a_part_without_keys_gives_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
