/* test_every_kernel.c - the smallest problem that reaches each kernel and each way through it. Quick on every path;
 * on a GPU also what runs under the tools that watch memory, races and barriers.
 *
 * usage: test_every_kernel [TEST]    all of them, or those that match */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>

enum { HQ = 2, HK = 1 };

static sample *problem(int32_t dtype, int64_t nq, int64_t nk, int64_t d, bool backward)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = dtype, .hq = HQ, .hk = HK, .nq = nq, .nk = nk, .d = d, .backward = backward});
    t->f.flags = 0;
    return t;
}

static void judge_and_free(sample *t, const char *name)
{
    judge_sample(t, name);
    sample_free(t);
}

static void plain(void **state)
{
    (void)state;
    judge_and_free(problem(FFPA_BF16, 20, 40, 64, true), "plain");
    judge_and_free(problem(FFPA_BF16, 20, 40, 320, true), "plain");
    judge_and_free(problem(FFPA_F32, 20, 40, 64, true), "plain");
    judge_and_free(problem(FFPA_BF16, 40, 20, 1024, false), "plain");
}

/* Several tiles of rows and keys, some of them without a visible pair. */
static void causal(void **state)
{
    (void)state;
    const int64_t dims[] = {64, 512};
    for (size_t x = 0; x < COUNT(dims); x++) {
        sample *t = problem(FFPA_BF16, 140, 270, dims[x], true);
        t->f.causal = FFPA_BOTTOM_RIGHT;
        judge_and_free(t, "causal");
    }
}

static void any_stride(void **state)
{
    (void)state;
    judge_and_free(problem(FFPA_BF16, 20, 40, 65, true), "any stride");
}

static void options(void **state)
{
    (void)state;
    sample *t = problem(FFPA_BF16, 20, 140, 64, true);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    t->f.softcap = 1.5f;
    tensor_hash(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 20, 140, NULL)), 4000000, 4);
    sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 20, 140, NULL));
    tensor_values(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL)), 1,
                  (double[]){.25, .0625});
    tensor_values(sample_put(t, SINK, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL)), 1,
                  (double[]){2, -1});
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL));
    tensor_hash(sample_put(t, DLSE, tensor_new(FFPA_F32, 1, HQ, 20, 1, NULL)), 5000000, 1);
    sample_use_dropout(t, .3f, 42, 7);
    judge_and_free(t, "options");
}

/* Rows whose LSE is too coarse for the logarithm of their sum. */
static void coarse_lse(void **state)
{
    (void)state;
    sample *t = problem(FFPA_BF16, 20, 140, 64, true);
    tensor_all(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 20, 140, NULL)), -1e6);
    sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 20, 140, NULL));
    for (int64_t j = 0; j < 140; j++)
        tensor_put(t->t[MASK], 0, 0, 7, j, 0.25);
    judge_and_free(t, "coarse lse");
}

static void packed(void **state)
{
    (void)state;
    const int32_t cu_q[] = {0, 8, 8, 19}, cu_k[] = {0, 20, 25, 37};
    sample *t = problem(FFPA_BF16, 19, 37, 64, true);
    sample_use_varlen(t, 3, cu_q, cu_k);
    judge_and_free(t, "packed");
}

/* Keys split over blocks, partial results combined. */
static void split(void **state)
{
    (void)state;
    judge_and_free(problem(FFPA_BF16, 1, 3000, 64, false), "split");
}

static void pages(void **state)
{
    (void)state;
    const int32_t length[] = {37}, table[] = {2, 0, 1};
    sample *t = problem(FFPA_BF16, 1, 37, 512, false);
    tensor_hash(sample_put(t, K, tensor_new(FFPA_BF16, 3, HK, 16, 512, NULL)), 1000000, 1);
    tensor_hash(sample_put(t, V, tensor_new(FFPA_BF16, 3, HK, 16, 512, NULL)), 2000000, 1);
    sample_use_cache(t, length);
    t->cache.block_table = table, t->cache.table_width = 3;
    tensor_hash(sample_put(t, K_NEW, tensor_new(FFPA_BF16, 1, HK, 1, 512, NULL)), 5, 1);
    tensor_hash(sample_put(t, V_NEW, tensor_new(FFPA_BF16, 1, HK, 1, 512, NULL)), 6, 1);
    judge_and_free(t, "pages");
}

static void merge(void **state)
{
    (void)state;
    for (const judge_path *p = judge_paths(); p->ctx; p++) {
        tensor *o[2], *lse[2];
        for (int x = 0; x < 2; x++) {
            o[x] = tensor_new(FFPA_BF16, 1, 2, 3, 8, NULL);
            lse[x] = tensor_new(FFPA_F32, 1, 2, 3, 1, NULL);
            tensor_all(o[x], x ? 5 : 1);
            tensor_all(lse[x], x ? log(3) : 0);
        }
        ffpa_merge_params m = ffpa_merge_params_init();
        m.o_a = m.o = o[0]->view, m.lse_a = m.lse = lse[0]->view;
        m.o_b = o[1]->view, m.lse_b = lse[1]->view;
        assert_ok(judge_merge(p->ctx, &m));
        assert_true(tensor_at(o[0], 0, 1, 2, 7) == 4.0);
        for (int x = 0; x < 2; x++)
            tensor_free(o[x]), tensor_free(lse[x]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coarse_lse), cmocka_unit_test(plain),   cmocka_unit_test(causal),
        cmocka_unit_test(any_stride), cmocka_unit_test(options), cmocka_unit_test(packed),
        cmocka_unit_test(split),      cmocka_unit_test(pages),   cmocka_unit_test(merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
