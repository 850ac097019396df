/* test_ref_options.c - sinks, softcap, ALiBi, dropout and the gradients of LSE and mask: problems
 * whose answers are known in closed form, on both readable backends. */
#include "support/ref_trial.h"
#include "support/unit.h"

#include "core/dropout.h"

#include <math.h>

static const double NONE = -(double)INFINITY;
static const double EXACT = 0, TIGHT = 1e-6, LOOSE = 1e-5;

static void b46_gradient_through_lse(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 1, 2, 1, 1}, w->dtype);
        tensor_fill(&t->c.f.q, 1);
        tensor_set_all(&t->c.f.k, (double[]){log(3), 0});
        tensor_fill(&t->c.g.dout, 0);
        trial_use_dlse(t);
        tensor_fill(&t->c.g.dlse, 1);
        trial_backward(t, w->be);
        assert_elements("dq", &t->c.g.dq, (double[]){.823959}, TIGHT);
        assert_elements("dk", &t->c.g.dk, (double[]){.75, .25}, TIGHT);
        assert_elements("dv", &t->c.g.dv, (double[]){0, 0}, EXACT);
        trial_free(t);
    }
}

static void b47_sink(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 1, 1, 4, 1}, w->dtype);
        tensor_fill(&t->c.f.v, 6);
        trial_use_sink(t);
        tensor_fill(&t->c.f.sink, 0);
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){3}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){.693147}, TIGHT);
        assert_elements("dsink", &t->c.g.dsink, (double[]){-1.5}, TIGHT);
        assert_elements("dv", &t->c.g.dv, (double[]){.5}, TIGHT);
        trial_free(t);
    }
}

/* Without keys the row's LSE is the sink, and the sink's gradient is dLSE. */
static void sink_of_an_empty_row(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 2, 1, 3, 1, 4, 2}, w->dtype);
        trial_use_sink(t);
        tensor_set_all(&t->c.f.sink, (double[]){.5, NONE});
        trial_use_dlse(t);
        tensor_set_all(&t->c.g.dlse, (double[]){1, 2, 0, 3, 4, 0});
        tensor_fill(&t->c.g.dout, 0);
        t->c.f.causal = FFPA_BOTTOM_RIGHT; /* rows 0 and 1 see nothing */
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        for (int64_t i = 0; i < 2; i++) {
            assert_true(tensor_get(&t->c.f.lse, 0, 0, i, 0) == .5);
            assert_true(tensor_get(&t->c.f.lse, 0, 1, i, 0) == NONE);
            assert_true(tensor_get(&t->c.f.o, 0, 0, i, 1) == 0);
        }
        assert_elements("dsink", &t->c.g.dsink, (double[]){3, 0}, TIGHT);
        assert_constant("dq", &t->c.g.dq, 0);
        assert_constant("dk", &t->c.g.dk, 0);
        trial_free(t);
    }
}

/* Rows without keys give nothing to any gradient, even where dO is not a number. */
static void empty_rows_ignore_dout(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 3, 2, 4, 2}, w->dtype);
        t->c.f.causal = FFPA_BOTTOM_RIGHT; /* row 0 sees nothing */
        trial_use_sink(t);
        for (int64_t d = 0; d < 2; d++)
            tensor_set(&t->c.g.dout, 0, 0, 0, d, (double)NAN);
        trial_backward(t, w->be);
        for (int64_t d = 0; d < 4; d++)
            assert_true(tensor_get(&t->c.g.dq, 0, 0, 0, d) == 0);
        for (int64_t n = 0; n < 8; n++)
            assert_true(isfinite(tensor_nth(&t->c.g.dk, n)));
        for (int64_t n = 0; n < 4; n++)
            assert_true(isfinite(tensor_nth(&t->c.g.dv, n)));
        assert_true(isfinite(tensor_nth(&t->c.g.dsink, 0)));
        trial_free(t);
    }
}

static void b48_b49_softcap(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_new((trial_size){1, 1, 1, 1, 2, 1, 1}, w->dtype);
        t->c.f.softcap = 10;
        tensor_fill(&t->c.f.q, 30);
        tensor_set_all(&t->c.f.k, (double[]){1, 0});
        tensor_set_all(&t->c.f.v, (double[]){1, 0});
        tensor_fill(&t->c.g.dout, 1);
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){.9999523}, TIGHT);
        assert_elements("lse", &t->c.f.lse, (double[]){9.950595}, LOOSE);
        tensor_fill(&t->c.f.q, 5);
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){.990255}, TIGHT);
        assert_elements("dq", &t->c.g.dq, (double[]){.00758952},
                        w->dtype == FFPA_F64 ? 5e-9 : 1e-7); /* 1 - tanh^2 cancels in f32 */
        assert_true(fabs(tensor_nth(&t->c.g.dk, 0) - .0379476) <
                    (w->dtype == FFPA_F64 ? 5e-8 : 5e-7));
        trial_free(t);
    }
}

static void b50_alibi(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){1, 1, 1, 1, 3, 4, 3}, w->dtype);
        trial_use_alibi(t);
        tensor_fill(&t->c.f.alibi, log(2));
        trial_forward(t, w->be);
        assert_elements("o", &t->c.f.o, (double[]){1. / 7, 2. / 7, 4. / 7}, TIGHT);
        trial_free(t);
    }
}

/* B51, B52: O shows the kept weights; dV = O^T shows that backward keeps the same ones. */
static void b51_b52_dropout(void **state)
{
    (void)state;
    enum { N = 64 };
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){2, 2, 2, N, N, 4, N}, w->dtype);
        tensor_set_identity(&t->c.g.dout);
        trial_use_dropout(t, .5f, 3, 9);
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        const dropout_key key = dropout_key_make(.5f, 3, 9);
        for (int64_t bh = 0; bh < 4; bh++)
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < N; j++) {
                    const double weight = tensor_get(&t->c.f.o, bh / 2, bh % 2, i, j);
                    assert_true(weight * N / 2 == (dropout_keeps(&key, bh, i, j) ? 1 : 0));
                    assert_true(tensor_get(&t->c.g.dv, bh / 2, bh % 2, j, i) == weight);
                }
        assert_elements(
            "lse",
            &(ffpa_tensor){t->c.f.lse.data, {1, 1, 1, 1}, {1, 1, 1, 1}, t->c.f.lse.dtype, 0},
            (double[]){log(N)}, TIGHT);
        trial *off = trial_probe((trial_size){2, 2, 2, N, N, 4, N}, w->dtype);
        trial_use_dropout(t, 0, 3, 9);
        trial_forward(t, w->be);
        trial_forward(off, w->be);
        assert_true(tensor_distance(&t->c.f.o, &off->c.f.o) == 0);
        const uint64_t seed = 3, offset = 9;
        trial_use_dropout(t, .5f, 77, 88); /* the pointers win */
        t->c.dropout.seed_ptr = &seed;
        t->c.dropout.offset_ptr = &offset;
        trial_forward(t, w->be);
        for (int64_t j = 0; j < N; j++)
            assert_true((tensor_get(&t->c.f.o, 0, 0, 5, j) > 0) ==
                        dropout_keeps(&key, 0, 5, j));
        trial_use_dropout(t, 1, 3, 9);
        trial_forward(t, w->be);
        trial_backward(t, w->be);
        assert_constant("o", &t->c.f.o, 0);
        assert_constant("dq", &t->c.g.dq, 0);
        assert_constant("dv", &t->c.g.dv, 0);
        trial_free(t);
        trial_free(off);
    }
}

/* B65, B66 */
static void b65_gradient_of_a_broadcast_mask(void **state)
{
    (void)state;
    EACH_WAY(w)
    {
        trial *t = trial_probe((trial_size){2, 2, 2, 2, 2, 1, 1}, w->dtype);
        for (int64_t bh = 0; bh < 4; bh++)
            tensor_set(&t->c.f.v, bh / 2, bh % 2, 0, 0, 0);
        for (int64_t bh = 0; bh < 4; bh++)
            tensor_set(&t->c.f.v, bh / 2, bh % 2, 1, 0, 1);
        trial_use_mask(t, FFPA_F32, 1, 1, 1, 2);
        tensor_fill(&t->c.f.mask, 0);
        t->c.g.dq = t->c.g.dk = t->c.g.dv = (ffpa_tensor){0};
        trial_backward(t, w->be);
        assert_elements("dmask", &t->c.g.dmask, (double[]){-2, 2}, TIGHT);
        trial_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b46_gradient_through_lse),
        cmocka_unit_test(b47_sink),
        cmocka_unit_test(sink_of_an_empty_row),
        cmocka_unit_test(empty_rows_ignore_dout),
        cmocka_unit_test(b48_b49_softcap),
        cmocka_unit_test(b50_alibi),
        cmocka_unit_test(b51_b52_dropout),
        cmocka_unit_test(b65_gradient_of_a_broadcast_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
