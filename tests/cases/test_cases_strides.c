/* test_cases_strides.c - memory layouts, alignment, mixed dtypes: cases B27 to B32. */
#include "support/judge_rule.h"

#include <math.h>

static const role gradients[] = {O, LSE, DQ, DK, DV};

/* The sample gives what it gives with contiguous copies of its tensors. */
static void expect_like_copies(sample *t, const setting *s)
{
    sample *copies = sample_copy(t, 0);
    must_forward(t, s);
    must_forward(copies, s);
    must_backward(t, s);
    must_backward(copies, s);
    for (size_t x = 0; x < COUNT(gradients); x++)
        expect_close(t, copies, gradients[x], 1, s);
    sample_free(copies);
}

static void layouts(const setting *s, const tensor_layout *l, int64_t nq)
{
    sample_spec spec = {.dtype = s->dtype,
                        .b = 2,
                        .hq = 4,
                        .hk = 2,
                        .nq = nq,
                        .nk = nq + 3,
                        .d = s->d,
                        .backward = true};
    for (int r = 0; r < ROLES; r++)
        spec.layout[r] = *l;
    sample *t = sample_new(&spec);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    expect_like_copies(t, s);
    judge_sample_on(t, s->path, "layouts");
    sample_free(t);
}

static void transposed(const setting *s)
{
    layouts(s, &(tensor_layout){.order = {0, 1, 3, 2}}, 5);
    layouts(s, &(tensor_layout){.order = {0, 1, 3, 2}, .pad = {0, 0, 3, 0}}, 70);
}
CASE(b27_columns_apart, ON_ALL, 64, transposed)

static void every_order(const setting *s)
{
    const tensor_layout list[] = {
        TENSOR_BNHD,
        {.order = {0, 2, 1, 3}, .pad = {7, 5, 3, 1}},
        {.order = {3, 2, 1, 0}},
        {.order = {2, 3, 0, 1}, .pad = {1, 1, 1, 1}},
        {.step = 2, .pad = {0, 0, 0, 1}},
        {.flip = 8},
        {.flip = 15, .pad = {0, 0, 2, 3}},
        {.order = {1, 0, 2, 3}, .flip = 4},
    };
    for (size_t i = 0; i < COUNT(list); i++)
        layouts(s, &list[i], 20);
}
CASE(b27_every_order_and_sign, ON_ALL, 40, every_order)

static void value_strides_of_their_own(const setting *s)
{
    sample_spec spec = {
        .dtype = s->dtype, .b = 2, .hq = 2, .nq = 19, .d = s->d, .backward = true};
    spec.layout[V] = (tensor_layout){.order = {0, 2, 1, 3}, .pad = {0, 0, 0, 8}};
    spec.layout[DV] = (tensor_layout){.order = {1, 0, 2, 3}, .pad = {0, 0, 0, 3}};
    sample *t = sample_new(&spec);
    expect_like_copies(t, s);
    judge_sample_on(t, s->path, "b28");
    sample_free(t);
}
CASE(b28_value_strides_of_their_own, ON_ALL, 64, value_strides_of_their_own)

static void element_alignment(const setting *s)
{
    for (int64_t d = 64; d <= 72; d += 8) {
        for (int64_t skew = 1; skew <= 3; skew += 2) {
            sample_spec spec = {
                .dtype = s->dtype, .nq = 17, .nk = 40, .d = d, .backward = true};
            for (int r = 0; r < ROLES; r++)
                spec.layout[r].skew = skew;
            sample *t = sample_new(&spec);
            expect_like_copies(t, s);
            sample_free(t);
        }
    }
}
CASE(b29_element_alignment, ON_ALL, 64, element_alignment)

static void mask_strides(const setting *s)
{
    const tensor_layout list[] = {{.skew = 0},
                                  {.pad = {0, 0, 0, 5}, .skew = 1},
                                  {.order = {0, 1, 3, 2}},
                                  {.step = 3},
                                  {.flip = 12},
                                  {.expand = 4},
                                  {.expand = 3}};
    const int32_t kinds[] = {FFPA_F32, FFPA_F16, FFPA_BF16, FFPA_BOOL};
    for (size_t i = 0; i < COUNT(list); i++) {
        for (size_t k = 0; k < COUNT(kinds); k++) {
            sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                                  .b = 2,
                                                  .hq = 2,
                                                  .nq = 9,
                                                  .nk = 43,
                                                  .d = s->d,
                                                  .backward = true});
            uint64_t rng = 30 + i;
            tensor *mask = sample_put(t, MASK, tensor_new(kinds[k], 2, 2, 9, 43, &list[i]));
            tensor_random(mask, &rng, kinds[k] == FFPA_BOOL ? 0.5 : -3, 3);
            judge_sample_on(t, s->path, "b30");
            sample_free(t);
        }
    }
}
CASE(b30_mask_strides, ON_ALL, 64, mask_strides)

static void f32_bias_on_small_floats(const setting *s)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .hq = 2, .nq = 21, .nk = 43, .d = s->d, .backward = true});
    t->f.flags = 0;
    tensor_hash(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 2, 21, 43, NULL)), 4000000, 8);
    judge_sample_on(t, s->path, "b31");
    sample_free(t);
    /* The LSE is f32 and shows whether the bias was rounded to the inputs' dtype. */
    t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = s->d});
    tensor_all(t->t[Q], 0);
    const double fine = (double)1.001f;
    tensor_values(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 1, 2, NULL)), 2,
                  (double[]){fine, 1});
    must_forward(t, s);
    expect_all(t, LSE, 1 + log(1 + exp(fine - 1)), 0, s);
    sample_free(t);
}
CASE(b31_f32_bias_on_small_floats, ON_ALL, 0, f32_bias_on_small_floats)

static void dout_layouts(const setting *s)
{
    const tensor_layout list[] = {
        {.expand = 15}, TENSOR_BNHD, {.order = {0, 1, 3, 2}}, {.expand = 8}, {.expand = 4}};
    for (size_t i = 0; i < COUNT(list); i++) {
        sample_spec spec = {.dtype = s->dtype, .hq = 2, .nq = 4, .d = s->d, .backward = true};
        spec.layout[DOUT] = list[i];
        sample *t = sample_new(&spec);
        if (i == 0) tensor_all(t->t[DOUT], 1);
        expect_like_copies(t, s);
        judge_sample_on(t, s->path, "b32");
        sample_free(t);
    }
}
CASE(b32_dout_layouts, ON_ALL, 64, dout_layouts)

static void f32_outputs(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                          .o_dtype = FFPA_F32,
                                          .hq = 2,
                                          .hk = 1,
                                          .nq = 23,
                                          .d = s->d,
                                          .backward = true});
    sample_put(t, DQ, tensor_copy(t->t[Q], FFPA_F32));
    sample_put(t, DK, tensor_copy(t->t[K], FFPA_F32));
    sample_put(t, DV, tensor_copy(t->t[V], FFPA_F32));
    judge_sample_on(t, s->path, "f32 outputs");
    sample_free(t);
}
CASE(b32_f32_outputs_of_small_floats, ON_ALL, 64, f32_outputs)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b27_columns_apart),
        cmocka_unit_test(b27_every_order_and_sign),
        cmocka_unit_test(b28_value_strides_of_their_own),
        cmocka_unit_test(b29_element_alignment),
        cmocka_unit_test(b30_mask_strides),
        cmocka_unit_test(b31_f32_bias_on_small_floats),
        cmocka_unit_test(b32_dout_layouts),
        cmocka_unit_test(b32_f32_outputs_of_small_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
