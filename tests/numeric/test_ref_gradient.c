/* test_ref_gradient.c - every gradient of the reference against central differences of its forward,
 * element by element, under combined options and across the edges of panels and tiles. */
#include "support/ref_trial.h"
#include "support/unit.h"

#include <math.h>
#include <stdio.h>

/* One combination of options. */
typedef struct combination {
    trial_size size;
    const char *mask; /* full axes of an f32 mask, letters of "bhqk"; NULL = none */
    ffpa_causal causal;
    int64_t left, right; /* window, when left or right is not 0 */
    float softcap, dropout, scale;
    bool alibi, sink, dlse;
    int step; /* every step-th element is checked: sizes past one tile have many */
} combination;

static const combination combinations[] = {
    {.size = {2, 4, 2, 5, 7, 3, 2}, .scale = .7f, .step = 1},
    {.size = {1, 2, 1, 5, 7, 3, 4}, .scale = 1.5f, .dlse = true, .step = 1},
    {.size = {2, 4, 2, 5, 7, 3, 2}, .scale = 2, .mask = "bhqk", .dlse = true, .step = 1},
    {.size = {2, 4, 2, 5, 7, 3, 2},
     .scale = 2,
     .mask = "hk",
     .sink = true,
     .dlse = true,
     .step = 1},
    {.size = {2, 4, 1, 5, 7, 3, 2}, .scale = 2, .mask = "bq", .softcap = .8f, .step = 1},
    {.size = {2, 2, 2, 5, 7, 3, 2},
     .scale = 2,
     .mask = "",
     .sink = true,
     .causal = FFPA_TOP_LEFT,
     .step = 1},
    {.size = {1, 6, 2, 7, 4, 3, 5},
     .scale = -1,
     .mask = "k",
     .causal = FFPA_BOTTOM_RIGHT,
     .sink = true,
     .dlse = true,
     .alibi = true,
     .step = 1},
    {.size = {2, 2, 1, 6, 9, 4, 3},
     .scale = 1,
     .mask = "qk",
     .left = 3,
     .right = 1,
     .softcap = 2,
     .dropout = .3f,
     .alibi = true,
     .sink = true,
     .dlse = true,
     .step = 1},
    {.size = {1, 2, 2, 4, 6, 1, 1}, .scale = 3, .softcap = .5f, .dropout = .5f, .step = 1},
    {.size = {1, 2, 1, 37, 70, 9, 10},
     .scale = 1,
     .mask = "qk",
     .causal = FFPA_BOTTOM_RIGHT,
     .softcap = 1.5f,
     .dropout = .2f,
     .alibi = true,
     .sink = true,
     .dlse = true,
     .step = 97},
    {.size = {1, 1, 1, 70, 37, 9, 10},
     .scale = 1,
     .mask = "k",
     .left = 40,
     .right = -1,
     .sink = true,
     .step = 61},
};

static trial *trial_of(const combination *m)
{
    trial *t = trial_new(m->size, FFPA_F64);
    const trial_size z = m->size;
    t->c.f.scale = m->scale;
    t->c.f.softcap = m->softcap;
    t->c.f.causal = (int32_t)m->causal;
    if (m->left || m->right) {
        t->c.f.flags |= FFPA_WINDOW;
        t->c.f.window_left = m->left;
        t->c.f.window_right = m->right;
    }
    if (m->mask)
        trial_use_mask(t, FFPA_F32, strchr(m->mask, 'b') ? z.b : 1,
                       strchr(m->mask, 'h') ? z.hq : 1, strchr(m->mask, 'q') ? z.nq : 1,
                       strchr(m->mask, 'k') ? z.nk : 1);
    if (m->alibi) trial_use_alibi(t);
    if (m->sink) trial_use_sink(t);
    if (m->dlse) trial_use_dlse(t);
    if (m->dropout > 0) trial_use_dropout(t, m->dropout, 5, 6);
    return t;
}

/* <dO, O> + <dLSE, LSE>, what dQ and its kin are the gradient of. */
static double loss(trial *t)
{
    double sum = 0;
    trial_forward(t, &reference_backend);
    for (int64_t n = 0; n < tensor_count(&t->c.f.o); n++)
        sum += tensor_nth(&t->c.g.dout, n) * tensor_nth(&t->c.f.o, n);
    for (int64_t n = 0; t->c.g.dlse.data && n < tensor_count(&t->c.f.lse); n++)
        if (isfinite(tensor_nth(&t->c.f.lse, n)))
            sum += tensor_nth(&t->c.g.dlse, n) * tensor_nth(&t->c.f.lse, n);
    return sum;
}

static void check_gradient(trial *t, const char *name, const ffpa_tensor *x,
                           const ffpa_tensor *dx, int step)
{
    if (!x->data) return;
    const bool f32 = x->dtype == FFPA_F32;
    const double h = f32 ? 1.0 / 1024 : 1e-5, tolerance = f32 ? 2e-6 : 1e-8;
    double largest = 0;
    for (int64_t n = 0; n < tensor_count(x); n += step) {
        const double value = tensor_nth(x, n);
        tensor_set_nth(x, n, value + h);
        const double above = tensor_nth(x, n), more = loss(t);
        tensor_set_nth(x, n, value - h);
        const double below = tensor_nth(x, n), less = loss(t);
        tensor_set_nth(x, n, value);
        const double slope = (more - less) / (above - below), got = tensor_nth(dx, n);
        if (!(fabs(slope - got) <= tolerance * (1 + fabs(slope))))
            fail_msg("%s[%lld]=%.12g, central difference %.12g", name, (long long)n, got,
                     slope);
        largest = fmax(largest, fabs(got));
    }
    if (largest == 0) fail_msg("%s is 0 everywhere: nothing was checked", name);
}

static void gradients_match_central_differences(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(combinations); n++) {
        const combination *m = &combinations[n];
        trial *t = trial_of(m);
        trial_backward(t, &reference_backend);
        check_gradient(t, "dq", &t->c.f.q, &t->c.g.dq, m->step);
        check_gradient(t, "dk", &t->c.f.k, &t->c.g.dk, m->step);
        check_gradient(t, "dv", &t->c.f.v, &t->c.g.dv, m->step);
        if (m->mask) check_gradient(t, "dmask", &t->c.f.mask, &t->c.g.dmask, m->step);
        check_gradient(t, "dsink", &t->c.f.sink, &t->c.g.dsink, 1);
        trial_free(t);
    }
}

/* Beside f64 inputs every result may be f32, as the header says: the same numbers, rounded once. */
static void results_of_f64_may_be_f32(void **state)
{
    (void)state;
    trial *runs[2];
    for (int r = 0; r < 2; r++) {
        trial *t = runs[r] = trial_new((trial_size){1, 2, 1, 9, 11, 5, 7}, FFPA_F64);
        trial_use_mask(t, FFPA_F32, 1, 2, 9, 11);
        trial_use_sink(t);
        ffpa_backward_params *g = &t->c.g;
        ffpa_tensor *const results[] = {&t->c.f.o, &g->dq,    &g->dk,
                                        &g->dv,    &g->dmask, &g->dsink};
        for (size_t i = 0; r && i < COUNT(results); i++)
            *results[i] = trial_tensor(t, FFPA_F32, results[i]->shape, 0, (double)NAN);
        trial_forward(t, &reference_backend);
        trial_backward(t, &reference_backend);
    }
    const call *wide = &runs[0]->c, *narrow = &runs[1]->c;
    const ffpa_tensor *pairs[][2] = {
        {&wide->f.o, &narrow->f.o},         {&wide->g.dq, &narrow->g.dq},
        {&wide->g.dk, &narrow->g.dk},       {&wide->g.dv, &narrow->g.dv},
        {&wide->g.dmask, &narrow->g.dmask}, {&wide->g.dsink, &narrow->g.dsink}};
    for (size_t i = 0; i < COUNT(pairs); i++)
        for (int64_t n = 0; n < tensor_count(pairs[i][0]); n++)
            assert_true((float)tensor_nth(pairs[i][0], n) == (float)tensor_nth(pairs[i][1], n));
    trial_free(runs[0]);
    trial_free(runs[1]);
}

/* Naive is the same mathematics in f32, so it is near, but not equal: it is a yardstick of its own. */
static void naive_is_near_the_reference(void **state)
{
    (void)state;
    const ffpa_dtype dtypes[] = {FFPA_F32, FFPA_F16, FFPA_BF16};
    const double near[] = {1e-5, 4e-3, 4e-2};
    for (size_t n = 0; n < COUNT(dtypes); n++) {
        trial *runs[2];
        for (int r = 0; r < 2; r++) {
            trial *t = runs[r] = trial_new((trial_size){1, 4, 2, 40, 70, 33, 40}, dtypes[n]);
            trial_use_mask(t, FFPA_F32, 1, 1, 40, 70);
            trial_use_sink(t);
            trial_use_dlse(t);
            trial_forward(t, r ? &naive_backend : &reference_backend);
            trial_backward(t, r ? &naive_backend : &reference_backend);
        }
        const ffpa_tensor *pairs[][2] = {{&runs[0]->c.f.o, &runs[1]->c.f.o},
                                         {&runs[0]->c.g.dq, &runs[1]->c.g.dq},
                                         {&runs[0]->c.g.dk, &runs[1]->c.g.dk},
                                         {&runs[0]->c.g.dv, &runs[1]->c.g.dv},
                                         {&runs[0]->c.g.dmask, &runs[1]->c.g.dmask},
                                         {&runs[0]->c.g.dsink, &runs[1]->c.g.dsink}};
        for (size_t i = 0; i < COUNT(pairs); i++) {
            const double distance = tensor_distance(pairs[i][0], pairs[i][1]);
            if (!(distance > 0 && distance < near[n]))
                fail_msg("pair %zu at dtype %d: distance %g", i, dtypes[n], distance);
        }
        for (int r = 0; r < 2; r++)
            trial_free(runs[r]);
    }
}

/* bf16: P is rounded before it meets V. q = 0, three keys: P = 1/3, which bf16 cannot hold. */
static void naive_rounds_weights_to_the_dtype(void **state)
{
    (void)state;
    trial *t = trial_probe((trial_size){1, 1, 1, 1, 3, 1, 3}, FFPA_BF16);
    const int64_t shape[4] = {1, 1, 1, 3};
    t->c.f.o = trial_tensor(t, FFPA_F32, shape, 0, 1);
    trial_forward(t, &naive_backend);
    assert_elements("o", &t->c.f.o, (double[]){0.333984375, 0.333984375, 0.333984375}, 0);
    trial_forward(t, &reference_backend);
    const double third = (double)(1.0f / 3);
    assert_elements("o", &t->c.f.o, (double[]){third, third, third}, 0);
    trial_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_central_differences),
        cmocka_unit_test(results_of_f64_may_be_f32),
        cmocka_unit_test(naive_is_near_the_reference),
        cmocka_unit_test(naive_rounds_weights_to_the_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
