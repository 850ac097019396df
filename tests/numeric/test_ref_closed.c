/* test_ref_closed.c - masks, extreme numbers, sizes, scales, causal and windows: problems whose
 * answers are known in closed form, on both readable backends.
 * The names Bnn are those of the case table in docs/numerics.md. */
#include "support/ref_trial.h"
#include "support/unit.h"

#include <float.h>
#include <math.h>

static const double NONE = -(double)INFINITY;
static const double EXACT = 0, TIGHT = 1e-6;

static void b01_masked_row(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 2, 3, 2, 1}, w->dtype);
        tensor_set_all(&t->c.f.q, (double[]){1, 0, .5, 1});
        tensor_set_all(&t->c.f.k, (double[]){1, 0, 0, 1, 1, 1});
        tensor_set_all(&t->c.f.v, (double[]){1, 2, 3});
        tensor_fill(&t->c.g.dout, 1);
        trial_use_mask(t, FFPA_BOOL, 1, 1, 2, 3);
        tensor_set_all(&t->c.f.mask, (double[]){1, 1, 0, 0, 0, 0});
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){1.268941, 0}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){1.313262, NONE}, TIGHT);
        trial_backward(t, w->be);
        const double g = .196612;
        assert_elements("dq", &t->c.g.dq, (double[]){-g, g, 0, 0}, TIGHT);
        assert_elements("dk", &t->c.g.dk, (double[]){-g, 0, g, 0, 0, 0}, TIGHT);
        assert_elements("dv", &t->c.g.dv, (double[]){.731059, .268941, 0}, TIGHT);
        trial_free(t);
    }
}

static void b02_lowest_finite_bias_is_no_mask(void **state)
{
    (void)state;
    const struct {
        ffpa_dtype dtype;
        double lowest;
    } masks[] = {
        {FFPA_F32, -(double)FLT_MAX}, {FFPA_F16, -65504}, {FFPA_BF16, -3.3895313892515355e38}};
    EACH_WAY(w)
    for (size_t n = 0; n < COUNT(masks); n++) {
        trial *t = trial_probe((trial_size){1, 1, 1, 1, 3, 4, 3}, w->dtype);
        trial_use_mask(t, masks[n].dtype, 1, 1, 1, 3);
        tensor_fill(&t->c.f.mask, masks[n].lowest);
        trial_forward(t, w->be);
        const double third = 1.0 / 3, lse = masks[n].lowest + log(3);
        assert_elements("o", &t->c.f.o, (double[]){third, third, third}, TIGHT);
        assert_elements("lse", &t->c.f.lse, &lse, w->dtype == FFPA_F64 ? 0 : fabs(lse) * 1e-7);
        trial_free(t);
    }
}

/* Two heads of huge scores: every key equal, V = 1..4. */
static void b04_b05_large_scores(void **state)
{
    (void)state;
    const double ks[] = {-30, 16}, lses[] = {-10859.7739, 5794.0050};
    EACH_WAY(w)
    for (int n = 0; n < 2; n++) {
        trial *t = trial_new((trial_size){1, 1, 1, 1, 4, 512, 1}, w->dtype);
        tensor_fill(&t->c.f.q, 16);
        tensor_fill(&t->c.f.k, ks[n]);
        tensor_set_all(&t->c.f.v, (double[]){1, 2, 3, 4});
        t->c.f.flags = 0; /* the default scale, 1/sqrt(512) */
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){2.5}, TIGHT);
        assert_elements("lse", &t->c.f.lse, &lses[n], w->dtype == FFPA_F64 ? 1e-4 : 2e-3);
        trial_free(t);
    }
}

static void b06_two_equal_huge_scores(void **state)
{
    (void)state;
    const way both[] = {{&reference_backend, FFPA_BF16}, {&naive_backend, FFPA_BF16}};
    for (size_t n = 0; n < COUNT(both); n++) {
        trial *t = trial_new((trial_size){1, 1, 1, 1, 2, 16, 1}, both[n].dtype);
        tensor_fill(&t->c.f.q, 0);
        tensor_fill(&t->c.f.k, 0);
        tensor_set(&t->c.f.q, 0, 0, 0, 0, 133120);
        for (int64_t j = 0; j < 2; j++)
            tensor_set(&t->c.f.k, 0, 0, j, 0, 133120);
        tensor_set_all(&t->c.f.v, (double[]){1, 3});
        t->c.f.scale = .25f;
        trial_forward(t, both[n].be);
        trial_backward(t, both[n].be);
        assert_elements("o", &t->c.f.o, (double[]){2}, EXACT);
        assert_elements("lse", &t->c.f.lse, (double[]){4.4302336e9}, 512);
        const double half = .5 * tensor_get(&t->c.g.dout, 0, 0, 0, 0);
        assert_elements("dv", &t->c.g.dv, (double[]){half, half}, TIGHT);
        trial_free(t);
    }
}

/* B08: what is not allowed has no influence, whatever its bits; its own gradients are 0. */
static void b08_masked_rubbish(void **state)
{
    (void)state;
    const double rubbish[] = {(double)NAN, (double)INFINITY, 0};
    EACH_WAY(w)
    for (int additive = 0; additive < 2; additive++) {
        trial *runs[3];
        for (int n = 0; n < 3; n++) {
            trial *t = runs[n] = trial_new((trial_size){1, 2, 1, 5, 3, 8, 8}, w->dtype);
            for (int64_t d = 0; d < 8; d++) {
                tensor_set(&t->c.f.k, 0, 0, 2, d, rubbish[n]);
                tensor_set(&t->c.f.v, 0, 0, 2, d, rubbish[n] - 1);
            }
            trial_use_mask(t, additive ? FFPA_F16 : FFPA_BOOL, 1, 1, 1, 3);
            tensor_set_all(&t->c.f.mask,
                           additive ? (double[]){.5, 0, NONE} : (double[]){1, 1, 0});
            trial_forward(t, w->be);
            trial_backward(t, w->be);
            assert_true(tensor_get(&t->c.g.dk, 0, 0, 2, 0) == 0);
            assert_true(tensor_get(&t->c.g.dv, 0, 0, 2, 7) == 0);
            if (additive) assert_true(tensor_get(&t->c.g.dmask, 0, 0, 0, 2) == 0);
        }
        for (int n = 0; n < 2; n++) {
            assert_true(tensor_distance(&runs[n]->c.f.o, &runs[2]->c.f.o) == 0);
            assert_true(tensor_distance(&runs[n]->c.f.lse, &runs[2]->c.f.lse) == 0);
            assert_true(tensor_distance(&runs[n]->c.g.dq, &runs[2]->c.g.dq) == 0);
            assert_true(tensor_distance(&runs[n]->c.g.dk, &runs[2]->c.g.dk) == 0);
            assert_true(tensor_distance(&runs[n]->c.g.dv, &runs[2]->c.g.dv) == 0);
        }
        assert_true(isfinite(tensor_get(&runs[0]->c.f.o, 0, 0, 0, 0)));
        for (int n = 0; n < 3; n++)
            trial_free(runs[n]);
    }
}

static void b09_nan_query_stays_in_its_row(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 2, 4, 8, 4}, w->dtype);
        trial *clean = trial_new((trial_size){1, 1, 1, 2, 4, 8, 4}, w->dtype);
        tensor_set(&t->c.f.q, 0, 0, 1, 3, (double)NAN);
        trial_forward(t, w->be);
        trial_forward(clean, w->be);
        for (int64_t d = 0; d < 4; d++) {
            assert_true(tensor_get(&t->c.f.o, 0, 0, 0, d) ==
                        tensor_get(&clean->c.f.o, 0, 0, 0, d));
            assert_true(isnan(tensor_get(&t->c.f.o, 0, 0, 1, d)));
        }
        assert_true(tensor_get(&t->c.f.lse, 0, 0, 0, 0) ==
                    tensor_get(&clean->c.f.lse, 0, 0, 0, 0));
        assert_true(isnan(tensor_get(&t->c.f.lse, 0, 0, 1, 0)));
        trial_free(t);
        trial_free(clean);
    }
}

/* A score of +inf is inf - inf: the row is NaN. One of -inf is a weight of 0, not a mask; a row of
 * nothing else is empty. */
static void infinite_scores(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 3, 2, 1, 1}, w->dtype);
        const double inf = (double)INFINITY;
        tensor_set_all(&t->c.f.q, (double[]){1, -1, 0.5});
        tensor_set_all(&t->c.f.k, (double[]){inf, 0});
        tensor_set_all(&t->c.f.v, (double[]){3, 5});
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){(double)NAN, 5, (double)NAN}, EXACT);
        assert_elements("lse", &t->c.f.lse, (double[]){(double)NAN, 0, (double)NAN}, EXACT);
        tensor_set_all(&t->c.f.k, (double[]){-inf, -inf});
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){0, (double)NAN, 0}, EXACT);
        assert_elements("lse", &t->c.f.lse, (double[]){NONE, (double)NAN, NONE}, EXACT);
        assert_elements("dq", &t->c.g.dq, (double[]){0, (double)NAN, 0}, EXACT);
        tensor_set(&t->c.f.q, 0, 0, 1, 0, 2); /* now every row is empty */
        trial_backward(t, w->be);
        assert_constant("dq", &t->c.g.dq, 0);
        assert_constant("dk", &t->c.g.dk, 0);
        assert_constant("dv", &t->c.g.dv, 0);
        trial_free(t);
    }
}

static void b10_zero_sizes(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 1, 3, 0, 3}, w->dtype); /* D = 0 */
        t->c.f.flags = 0;
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        const double third = 1.0 / 3;
        assert_elements("o", &t->c.f.o, (double[]){third, third, third}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){log(3)}, TIGHT);
        trial_free(t);

        t = trial_new((trial_size){0, 2, 1, 3, 3, 4, 4}, w->dtype); /* B = 0 */
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        trial_free(t);

        t = trial_new((trial_size){2, 2, 1, 0, 3, 4, 4}, w->dtype); /* Nq = 0 */
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_constant("dk", &t->c.g.dk, 0);
        assert_constant("dv", &t->c.g.dv, 0);
        trial_free(t);

        t = trial_new((trial_size){2, 2, 1, 3, 0, 4, 4}, w->dtype); /* Nk = 0 */
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_constant("o", &t->c.f.o, 0);
        assert_constant("lse", &t->c.f.lse, NONE);
        assert_constant("dq", &t->c.g.dq, 0);
        trial_free(t);

        t = trial_new((trial_size){1, 2, 1, 3, 5, 4, 0}, w->dtype); /* Dv = 0 */
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_constant("dq", &t->c.g.dq, 0);
        assert_constant("dk", &t->c.g.dk, 0);
        trial_free(t);
    }
}

static void b12_explicit_scales(void **state)
{
    (void)state;
    const int64_t d = 320;
    const double raw = sqrt((double)d) * log(3);
    const float root = (float)(1 / sqrt((double)d));
    const struct {
        uint32_t flags;
        float scale;
        double p0;
    } scales[] = {{0, 0, .75},         /* unset: 1/sqrt(D), B11 */
                  {0, 7, .75},         /* without the flag the field means nothing */
                  {FFPA_SCALE, 0, .5}, /* 0 is a scale */
                  {FFPA_SCALE, -root, .25},
                  {FFPA_SCALE, 1, 1 / (1 + exp(-raw))}};
    EACH_WAY(w)
    for (size_t n = 0; n < COUNT(scales); n++) {
        trial *t = trial_probe((trial_size){1, 1, 1, 1, 2, d, 2}, w->dtype);
        tensor_fill(&t->c.f.k, 0);
        tensor_set(&t->c.f.q, 0, 0, 0, d - 1, 1);
        tensor_set(&t->c.f.k, 0, 0, 0, d - 1, raw);
        t->c.f.flags = scales[n].flags;
        t->c.f.scale = scales[n].scale;
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){scales[n].p0, 1 - scales[n].p0}, TIGHT);
        trial_free(t);
    }
}

static void b15_causal_alignment(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 2, 5, 4, 5}, w->dtype);
        t->c.f.causal = FFPA_BOTTOM_RIGHT;
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){.25, .25, .25, .25, 0, .2, .2, .2, .2, .2},
                        TIGHT);
        t->c.f.causal = FFPA_TOP_LEFT;
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){1, 0, 0, 0, 0, .5, .5, 0, 0, 0}, TIGHT);
        trial_free(t);
    }
}

static void b16_more_queries_than_keys(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 5, 2, 4, 2}, w->dtype);
        t->c.f.causal = FFPA_BOTTOM_RIGHT;
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){0, 0, 0, 0, 0, 0, 1, 0, .5, .5}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){NONE, NONE, NONE, 0, log(2)}, TIGHT);
        assert_elements("dv", &t->c.g.dv, (double[]){1.5, 1.5, .5, .5}, TIGHT);
        t->c.f.causal = FFPA_TOP_LEFT;
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){1, 0, .5, .5, .5, .5, .5, .5, .5, .5},
                        TIGHT);
        trial_free(t);
    }
}

static void b18_mask_and_causal(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 3, 3, 4, 3}, w->dtype);
        t->c.f.causal = FFPA_BOTTOM_RIGHT;
        trial_use_mask(t, FFPA_BOOL, 1, 1, 1, 3);
        tensor_set_all(&t->c.f.mask, (double[]){0, 1, 1});
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){0, 0, 0, 0, 1, 0, 0, .5, .5}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){NONE, 0, log(2)}, TIGHT);
        trial_free(t);
    }
}

/* The keys that each row sees, as text: "345" for row 0, a bar between rows. */
static void assert_keys(trial *t, const backend *be, const char *wanted)
{
    char seen[256];
    size_t n = 0;
    trial_forward(t, be);
    for (int64_t i = 0; i < t->size.nq; i++) {
        if (i) seen[n++] = '|';
        for (int64_t j = 0; j < t->size.nk; j++)
            if (tensor_get(&t->c.f.o, 0, 0, i, j) > 0) seen[n++] = (char)('0' + j);
    }
    seen[n] = 0;
    assert_string_equal(seen, wanted);
}

static void set_window(trial *t, int64_t left, int64_t right)
{
    t->c.f.flags |= FFPA_WINDOW;
    t->c.f.window_left = left;
    t->c.f.window_right = right;
}

static void b19_to_b21_windows(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 8, 8, 4, 8}, w->dtype);
        set_window(t, 2, 0);
        assert_keys(t, w->be, "0|01|012|123|234|345|456|567"); /* B20: row 5 is 345 */
        set_window(t, 1, 2);
        assert_keys(t, w->be, "012|0123|1234|2345|3456|4567|567|67");
        set_window(t, -1, 0);
        assert_keys(t, w->be, "0|01|012|0123|01234|012345|0123456|01234567");
        set_window(t, 0, INT64_MAX);
        assert_keys(t, w->be, "01234567|1234567|234567|34567|4567|567|67|7");
        set_window(t, INT64_MAX, 0); /* B19: as causal */
        assert_keys(t, w->be, "0|01|012|0123|01234|012345|0123456|01234567");
        trial_free(t);
        t = trial_probe((trial_size){1, 1, 1, 3, 10, 4, 10}, w->dtype);
        set_window(t, 4, 0);
        assert_keys(t, w->be, "34567|45678|56789"); /* B21 */
        t->c.f.causal = FFPA_TOP_LEFT;
        set_window(t, 1, 1);
        assert_keys(t, w->be, "0|01|12");
        t->c.f.flags &= ~FFPA_WINDOW;
        assert_keys(t, w->be, "0|01|012");
        trial_free(t);
        t = trial_probe((trial_size){1, 1, 1, 4, 2, 4, 2}, w->dtype);
        set_window(t, 0, 0);
        assert_keys(t, w->be, "||0|1");
        trial_free(t);
    }
}

static void b22_b23_groups(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 6, 2, 1, 1, 4, 1}, w->dtype);
        tensor_set_all(&t->c.f.v, (double[]){0, 1});
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){0, 0, 0, 1, 1, 1}, EXACT);
        trial_free(t);
        t = trial_probe((trial_size){1, 4, 1, 2, 2, 4, 2}, w->dtype);
        t->c.f.causal = FFPA_BOTTOM_RIGHT;
        trial_backward(t, w->be);
        assert_elements("dv", &t->c.g.dv, (double[]){6, 6, 2, 2}, TIGHT);
        trial_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b01_masked_row),
        cmocka_unit_test(b02_lowest_finite_bias_is_no_mask),
        cmocka_unit_test(b04_b05_large_scores),
        cmocka_unit_test(b06_two_equal_huge_scores),
        cmocka_unit_test(b08_masked_rubbish),
        cmocka_unit_test(b09_nan_query_stays_in_its_row),
        cmocka_unit_test(infinite_scores),
        cmocka_unit_test(b10_zero_sizes),
        cmocka_unit_test(b12_explicit_scales),
        cmocka_unit_test(b15_causal_alignment),
        cmocka_unit_test(b16_more_queries_than_keys),
        cmocka_unit_test(b18_mask_and_causal),
        cmocka_unit_test(b19_to_b21_windows),
        cmocka_unit_test(b22_b23_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
