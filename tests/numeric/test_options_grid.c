/* test_options_grid.c - forward and backward, every dtype, every head dimension that is promised to be
 * checked, without options and with each of them. */
#include "support/judge_rule.h"

#include <math.h>

enum { B = 1, HQ = 2, HK = 1, NQ = 19, NK = 37 };

static const int64_t dims[] = {1,   8,   40,  64,  72,  96,  128, 192,  256,
                               320, 384, 512, 513, 576, 640, 768, 1000, 1024};

/* Judge one problem per dtype and head dimension, after `add` has put its option in. */
static void grid(void (*add)(sample *t), const tensor_layout *layout, bool backward)
{
    const int32_t dtypes[] = {FFPA_F32, FFPA_F16, FFPA_BF16};
    for (size_t x = 0; x < COUNT(dims); x += judge_quick() ? 3 : 1) {
        for (size_t y = 0; y < COUNT(dtypes); y++) {
            if (judge_quick() && x / 3 % COUNT(dtypes) != y) continue;
            if (!judge_in_shard((unsigned)(x / 3 * COUNT(dtypes) + y))) continue;
            sample_spec spec = {.dtype = dtypes[y],
                                .b = B,
                                .hq = HQ,
                                .hk = HK,
                                .nq = NQ,
                                .nk = NK,
                                .d = dims[x],
                                .backward = backward};
            for (int r = 0; layout && r < ROLES; r++)
                spec.layout[r] = *layout;
            sample *t = sample_new(&spec);
            t->f.flags = 0;
            if (add) add(t);
            judge_sample(t, "the options grid");
            sample_free(t);
        }
    }
}

#define GRID(name, add, layout, backward) \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        grid(add, layout, backward);      \
    }

static void add_causal(sample *t) { t->f.causal = FFPA_BOTTOM_RIGHT; }

static void add_causal_tl(sample *t) { t->f.causal = FFPA_TOP_LEFT; }

static void add_window(sample *t) { sample_use_window(t, 9, 3); }

static void add_bool_mask(sample *t)
{
    uint64_t rng = 1;
    tensor *mask = sample_put(t, MASK, tensor_new(FFPA_BOOL, B, HQ, NQ, NK, NULL));
    tensor_random(mask, &rng, 0, 3);
}

static void add_bias(sample *t)
{
    tensor_hash(sample_put(t, MASK, tensor_new(t->spec.dtype, 1, 1, NQ, NK, NULL)), 4000000, 4);
    sample_put(t, DMASK, tensor_new(t->spec.dtype, 1, 1, NQ, NK, NULL));
}

static void add_softcap(sample *t)
{
    t->f.softcap = 1.5f;
    t->f.flags = FFPA_SCALE;
    t->f.scale = 1.0f;
}

static void add_alibi(sample *t)
{
    tensor_values(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL)), 1,
                  (double[]){.25, .0625});
}

static void add_sink(sample *t)
{
    tensor_values(sample_put(t, SINK, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL)), 1,
                  (double[]){2, -1});
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, HQ, 1, 1, NULL));
}

static void add_dropout(sample *t) { sample_use_dropout(t, .3f, 42, 7); }

static void add_scale(sample *t)
{
    t->f.flags = FFPA_SCALE;
    t->f.scale = -.7f;
}

static void add_dlse(sample *t)
{
    tensor_hash(sample_put(t, DLSE, tensor_new(FFPA_F32, B, HQ, NQ, 1, NULL)), 5000000, 1);
}

static void add_varlen(sample *t)
{
    static const int32_t cu_q[] = {0, 8, 8, 19}, cu_k[] = {0, 20, 25, 37};
    sample_use_varlen(t, 3, cu_q, cu_k);
}

static void add_pages(sample *t)
{
    static const int32_t length[] = {NK}, table[] = {2, 0, 1};
    const sample_spec *s = &t->spec;
    tensor_hash(sample_put(t, K, tensor_new(s->dtype, 3, HK, 16, s->d, NULL)), 1000000, 1);
    tensor_hash(sample_put(t, V, tensor_new(s->dtype, 3, HK, 16, s->dv, NULL)), 2000000, 1);
    sample_use_cache(t, length);
    t->cache.block_table = table, t->cache.table_width = 3;
}

static void add_everything(sample *t)
{
    add_causal(t), add_window(t), add_bias(t), add_softcap(t), add_alibi(t), add_sink(t),
        add_dropout(t), add_dlse(t);
}

GRID(no_option, NULL, NULL, true)
GRID(causal, add_causal, NULL, true)
GRID(causal_tl, add_causal_tl, NULL, true)
GRID(window, add_window, NULL, true)
GRID(bool_mask, add_bool_mask, NULL, true)
GRID(added_mask, add_bias, NULL, true)
GRID(softcap, add_softcap, NULL, true)
GRID(alibi, add_alibi, NULL, true)
GRID(sink, add_sink, NULL, true)
GRID(dropout, add_dropout, NULL, true)
GRID(scale, add_scale, NULL, true)
GRID(dlse, add_dlse, NULL, true)
GRID(bnhd, NULL, &TENSOR_BNHD, true)
GRID(varlen, add_varlen, NULL, true)
GRID(pages, add_pages, NULL, false)
GRID(everything, add_everything, NULL, true)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_option),  cmocka_unit_test(causal),    cmocka_unit_test(causal_tl),
        cmocka_unit_test(window),     cmocka_unit_test(bool_mask), cmocka_unit_test(added_mask),
        cmocka_unit_test(softcap),    cmocka_unit_test(alibi),     cmocka_unit_test(sink),
        cmocka_unit_test(dropout),    cmocka_unit_test(scale),     cmocka_unit_test(dlse),
        cmocka_unit_test(bnhd),       cmocka_unit_test(varlen),    cmocka_unit_test(pages),
        cmocka_unit_test(everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
