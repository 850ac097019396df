/* test_cases_gqa.c - grouped heads, Dv != D, V inside K: cases B22 to B26. */
#include "support/judge_rule.h"

#include <math.h>

static void head_map(const setting *s)
{
    sample *t =
        sample_new(&(sample_spec){.dtype = s->dtype, .hq = 6, .hk = 2, .nk = 1, .d = s->d});
    for (int64_t g = 0; g < 2; g++) {
        for (int64_t c = 0; c < s->d; c++)
            tensor_put(t->t[V], 0, g, 0, c, (double)g);
    }
    must_forward(t, s);
    for (int64_t h = 0; h < 6; h++) {
        for (int64_t c = 0; c < s->d; c++)
            expect_at(t, O, (int64_t[]){0, h, 0, c}, h / 3 ? 1 : 0, 0, s);
    }
    sample_free(t);
}
CASE(b22_head_map, ON_ALL, 0, head_map)

static void gradients_sum_over_the_group(const setting *s)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .hq = 4, .hk = 1, .nq = 2, .d = s->d, .backward = true});
    t->f.causal = FFPA_BOTTOM_RIGHT;
    tensor_all(t->t[Q], 0);
    tensor_identity(t->t[V]);
    tensor_all(t->t[DOUT], 1);
    must_forward(t, s);
    must_backward(t, s);
    expect_row(t, DV, 0, 6, 0, s);
    expect_row(t, DV, 1, 2, 0, s);
    sample_free(t);
}
CASE(b23_gradients_sum_over_the_group, ON_ALL, 0, gradients_sum_over_the_group)

static void group(const setting *s, int64_t hk, int64_t size)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .hq = hk * size, .hk = hk, .nq = 1, .nk = 100, .d = s->d});
    t->f.flags = 0;
    judge_sample_on(t, s->path, "b24");
    sample_free(t);
}

static void every_group(const setting *s)
{
    for (int64_t size = 1; size <= 64; size += judge_quick() ? 7 : 1)
        group(s, 1, size);
}
CASE(b24_every_group_size, ON_F32, 512, every_group)

static void some_groups(const setting *s)
{
    const int64_t sizes[] = {1, 2, 3, 5, 7, 12, 16, 32, 48};
    for (size_t i = 0; i < COUNT(sizes); i++)
        group(s, 2, sizes[i]);
}
CASE(b24_group_sizes_of_two_heads, ON_ALL, 512, some_groups)

static void unequal_dims(const setting *s)
{
    const int64_t dims[][2] = {{576, 512}, {64, 320}, {8, 1024}, {1024, 8}};
    for (size_t i = 0; i < COUNT(dims); i++) {
        sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                              .hq = 4,
                                              .hk = 2,
                                              .nq = 33,
                                              .d = dims[i][0],
                                              .dv = dims[i][1],
                                              .backward = true});
        t->f.flags = 0;
        judge_sample_on(t, s->path, "b25");
        sample_free(t);
    }
}
CASE(b25_unequal_dims, ON_ALL, 1, unequal_dims)

static void value_inside_key(const setting *s)
{
    sample_spec spec = {
        .dtype = s->dtype, .hq = 4, .hk = 1, .nq = 33, .d = 576, .dv = 512, .backward = true};
    sample *view = sample_new(&spec);
    view->f.flags = 0;
    sample_put(view, V, tensor_columns(view->t[K], 512));
    sample *copies = sample_copy(view, 0);
    must_forward(view, s);
    must_forward(copies, s);
    must_backward(view, s);
    must_backward(copies, s);
    const role outputs[] = {O, LSE, DQ, DK, DV};
    for (size_t x = 0; x < COUNT(outputs); x++)
        expect_close(view, copies, outputs[x], 1, s);
    judge_sample_on(view, s->path, "b26");
    sample_free(view);
    sample_free(copies);
}
CASE(b26_value_inside_key, ON_ALL, 576, value_inside_key)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b22_head_map),
        cmocka_unit_test(b23_gradients_sum_over_the_group),
        cmocka_unit_test(b24_every_group_size),
        cmocka_unit_test(b24_group_sizes_of_two_heads),
        cmocka_unit_test(b25_unequal_dims),
        cmocka_unit_test(b26_value_inside_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
