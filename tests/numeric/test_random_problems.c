/* test_random_problems.c - random sizes, options and memory layouts, each judged on every path.
 * FFPA_TEST_SEED=<n> runs one problem; FFPA_TEST_SCALE=<n> runs n times as many. */
#include "support/judge_rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROBLEMS = 240, GROUPS = 6 };

static const int64_t dims[] = {1,   8,   40,  64,  72,  96,  128, 192,  256,
                               320, 384, 512, 513, 576, 640, 768, 1000, 1024};

/* The offsets, lengths and tables of one problem. */
static int32_t cu_q[9], cu_k[9], lengths[8], entries[8], table[8 * 64];

static bool chance(uint64_t *rng, int percent) { return tensor_below(rng, 100) < percent; }

static int64_t between(uint64_t *rng, int64_t low, int64_t high)
{
    return low + tensor_below(rng, high - low + 1);
}

static int64_t draw_rows(uint64_t *rng)
{
    const int64_t limits[] = {1, 8, 40, 130, 300};
    return between(rng, 1, limits[tensor_below(rng, 5)]);
}

static tensor_layout draw_layout(uint64_t *rng, bool input)
{
    tensor_layout l = {.skew = chance(rng, 20) ? between(rng, 1, 3) : 0};
    if (chance(rng, 40)) return l;
    for (int a = 0; a < 4; a++)
        l.order[a] = a;
    for (int a = 0; a < 3 && chance(rng, 60); a++) {
        const int b = a + (int)tensor_below(rng, 4 - a), kept = l.order[a];
        l.order[a] = l.order[b], l.order[b] = kept;
    }
    for (int a = 0; a < 4; a++)
        l.pad[a] = chance(rng, 30) ? between(rng, 1, 5) : 0;
    if (chance(rng, 10)) l.step = 2;
    if (chance(rng, 20)) l.flip = (unsigned)tensor_below(rng, 16);
    if (input && chance(rng, 5)) l.expand = 1u << tensor_below(rng, 4);
    return l;
}

static int32_t draw_dtype(uint64_t *rng)
{
    static const int32_t kinds[] = {FFPA_F32, FFPA_F16, FFPA_BF16};
    return kinds[tensor_below(rng, 3)];
}

/* Bounded work, since the oracle is slow, and bounded keys, since every path gets them anew. */
static bool too_large(const sample_spec *s)
{
    const double keys = (double)(s->b * s->hk * s->nk) * (double)(s->d + s->dv);
    return keys > 1e6 || keys * (double)(s->hq / s->hk * s->nq) > 2e7;
}

static sample_spec draw_spec(uint64_t *rng)
{
    static const int64_t group[] = {1, 1, 2, 3, 4, 5, 8};
    sample_spec s = {.dtype = draw_dtype(rng)};
    s.b = between(rng, 1, 3), s.hk = between(rng, 1, 3);
    s.hq = s.hk * group[tensor_below(rng, COUNT(group))];
    s.nq = draw_rows(rng);
    s.nk = chance(rng, 25) ? s.nq : draw_rows(rng);
    if (chance(rng, 15))
        s.nq = between(rng, 1, 4), s.nk = between(rng, 300, 2600); /* as in decode */
    s.d = dims[tensor_below(rng, COUNT(dims))];
    s.dv = chance(rng, 60) ? s.d : dims[tensor_below(rng, COUNT(dims))];
    s.backward = chance(rng, 55);
    /* dQ and dK of a single key are exactly 0; what rounding leaves of them has no yardstick. */
    if (s.backward && s.nk == 1) s.nk = 2;
    if (chance(rng, 20)) s.o_dtype = FFPA_F32;
    while (too_large(&s)) {
        if (s.hq > s.hk)
            s.hq = s.hk;
        else if (s.b > 1)
            s.b--;
        else if (s.hk > 1)
            s.hq = --s.hk;
        else if (s.nq > s.nk)
            s.nq /= 2;
        else
            s.nk /= 2;
    }
    for (int r = 0; r < ROLES; r++)
        s.layout[r] = draw_layout(rng, r < O);
    return s;
}

static void add_mask(sample *t, uint64_t *rng)
{
    const sample_spec *s = &t->spec;
    const bool boolean = chance(rng, 40);
    const int32_t kind = boolean ? FFPA_BOOL : draw_dtype(rng);
    const int64_t keys = t->f.kv_cache && t->cache.block_table
                             ? t->cache.table_width * t->t[K]->view.shape[2]
                             : t->t[K]->view.shape[2];
    const int64_t b = chance(rng, 50) ? s->b : 1, h = chance(rng, 50) ? s->hq : 1;
    const int64_t q = chance(rng, 60) ? s->nq : 1, k = chance(rng, 85) ? keys : 1;
    const tensor_layout in = draw_layout(rng, true), out = draw_layout(rng, false);
    tensor *mask = sample_put(t, MASK, tensor_new(kind, b, h, q, k, &in));
    const int off =
        chance(rng, 50) ? (int)between(rng, 0, 90) : 0; /* percent of pairs taken away */
    for (int64_t n = 0; n < b * h * q * k; n++) {
        const double on = boolean ? 1 : 4 * tensor_unit(rng) - 2;
        tensor_put(mask, n / k / q / h, n / k / q % h, n / k % q, n % k,
                   !chance(rng, off) ? on
                   : boolean         ? 0
                                     : -(double)INFINITY);
    }
    if (s->backward && !boolean && chance(rng, 75))
        sample_put(t, DMASK, tensor_new(chance(rng, 30) ? FFPA_F32 : kind, b, h, q, k, &out));
}

static void add_options(sample *t, uint64_t *rng)
{
    const sample_spec *s = &t->spec;
    t->f.flags = 0;
    if (chance(rng, 50)) {
        t->f.flags |= FFPA_SCALE;
        t->f.scale = (float)((3 * tensor_unit(rng) - 1) *
                             (chance(rng, 50) ? 1 : 1 / sqrt((double)s->d)));
    }
    t->f.causal = chance(rng, 45) ? 1 + (int32_t)tensor_below(rng, 2) : 0;
    if (chance(rng, 25))
        sample_use_window(t, between(rng, -1, s->nk), between(rng, -1, s->nk / 2));
    if (chance(rng, 20)) t->f.softcap = (float)(0.5 + 10 * tensor_unit(rng));
    if (chance(rng, 20)) {
        tensor *slopes =
            tensor_new(FFPA_F32, t->f.varlen || chance(rng, 60) ? 1 : s->b, s->hq, 1, 1, NULL);
        tensor_random(sample_put(t, ALIBI, slopes), rng, -.05, .3);
    }
    if (chance(rng, 20)) {
        tensor_random(sample_put(t, SINK, tensor_new(FFPA_F32, 1, s->hq, 1, 1, NULL)), rng, -3,
                      3);
        if (s->backward && chance(rng, 75))
            sample_put(t, DSINK, tensor_new(FFPA_F32, 1, s->hq, 1, 1, NULL));
    }
    if (chance(rng, 20))
        sample_use_dropout(t, chance(rng, 10) ? 1 : (float)tensor_unit(rng), tensor_next(rng),
                           tensor_next(rng));
    if (s->backward && chance(rng, 30)) {
        const int64_t *n = t->t[LSE]->view.shape;
        tensor_random(sample_put(t, DLSE, tensor_new(FFPA_F32, n[0], n[1], n[2], 1, NULL)), rng,
                      -1, 1);
    }
    if (!t->f.varlen && chance(rng, 40)) add_mask(t, rng);
}

/* Cut `total` rows into n sequences, some of them empty, some rows before and after all of them. */
static void cut(uint64_t *rng, int64_t total, int64_t n, int32_t *offsets)
{
    int64_t at = chance(rng, 20) ? tensor_below(rng, total + 1) : 0;
    const int64_t end = chance(rng, 20) ? between(rng, at, total) : total;
    offsets[0] = (int32_t)at;
    for (int64_t i = 1; i <= n; i++) {
        if (!chance(rng, 15)) at = i == n ? end : between(rng, at, end);
        offsets[i] = (int32_t)at;
    }
}

/* Both sides packed: the tensors become one batch entry. */
static void pack(sample *t, uint64_t *rng)
{
    const int64_t n = between(rng, 1, 8);
    cut(rng, t->spec.nq, n, cu_q);
    cut(rng, t->spec.nk, n, cu_k);
    sample_use_varlen(t, n, cu_q, cu_k);
    if (chance(rng, 30)) t->varlen.max_q = t->varlen.max_k = between(rng, 1, 400);
}

static void use_cache(sample *t, uint64_t *rng)
{
    const sample_spec *s = &t->spec;
    const bool paged = chance(rng, 60);
    const int64_t rows = between(rng, 1, 40), pages = (s->nk + rows - 1) / rows;
    const int64_t extra = between(rng, 0, 2),
                  fresh = chance(rng, 40) ? between(rng, 1, s->nk < 4 ? s->nk : 4) : 0;
    const int64_t entry_count = paged ? s->b * (pages > 32 ? 32 : pages) + extra : s->b + extra;
    const int64_t n = paged ? rows : s->nk,
                  capacity = paged ? (pages > 32 ? 32 : pages) * rows : s->nk;
    tensor_layout lk = s->layout[K], lv = s->layout[V];
    if (fresh) lk.expand = lv.expand = 0; /* written to */
    sample_use_cache(t, lengths);
    sample_put(t, K, tensor_new(s->dtype, entry_count, s->hk, n, s->d, &lk));
    sample_put(t, V, tensor_new(s->dtype, entry_count, s->hk, n, s->dv, &lv));
    for (int64_t b = 0; b < s->b; b++) {
        lengths[b] = (int32_t)between(rng, 0, capacity - (fresh < capacity ? fresh : capacity));
        entries[b] = (int32_t)(entry_count - 1 - b);
    }
    for (int64_t x = 0; paged && x < entry_count; x++)
        table[x] = (int32_t)((x * 7 + 3) % entry_count);
    /* 7 and the count may share a factor; then fall back to the plain order, each page once. */
    for (int64_t x = 0; paged && entry_count % 7 == 0 && x < entry_count; x++)
        table[x] = (int32_t)(entry_count - 1 - x);
    if (paged)
        t->cache.block_table = table, t->cache.table_width = capacity / rows;
    else if (chance(rng, 60))
        t->cache.batch_index = entries;
    if (fresh && fresh <= capacity) {
        tensor_random(
            sample_put(t, K_NEW, tensor_new(s->dtype, s->b, s->hk, fresh, s->d, NULL)), rng, -1,
            1);
        tensor_random(
            sample_put(t, V_NEW, tensor_new(s->dtype, s->b, s->hk, fresh, s->dv, NULL)), rng,
            -1, 1);
    }
}

static void fill(sample *t, uint64_t *rng)
{
    const role inputs[] = {Q, K, V, DOUT};
    for (size_t x = 0; x < COUNT(inputs); x++) {
        if (t->t[inputs[x]]) tensor_random(t->t[inputs[x]], rng, -1, 1);
    }
    if (!chance(rng, 8)) return;
    tensor *x = t->t[inputs[tensor_below(rng, 3)]];
    const int64_t *n = x->view.shape;
    tensor_put(x, tensor_below(rng, n[0]), tensor_below(rng, n[1]), tensor_below(rng, n[2]),
               tensor_below(rng, n[3]), (double)NAN);
}

static void run_seed(uint64_t seed)
{
    uint64_t rng = seed;
    char repro[80];
    snprintf(repro, sizeof repro, "repro: FFPA_TEST_SEED=%llu test_random_problems",
             (unsigned long long)seed);
    sample_spec spec = draw_spec(&rng);
    const int kind = (int)tensor_below(&rng, 100);
    const bool packed = kind < 20, cached = kind >= 20 && kind < 35;
    if (packed) spec.b = 1;
    if (cached) spec.backward = false;
    sample *t = sample_new(&spec);
    if (packed) pack(t, &rng);
    if (cached) use_cache(t, &rng);
    add_options(t, &rng);
    fill(t, &rng);
    if (spec.backward && chance(&rng, 20)) sample_put(t, DQ, tensor_copy(t->t[Q], FFPA_F32));
    judge_sample(t, repro);
    sample_free(t);
}

/* The seeds with seed % GROUPS == group, so that one failure does not hide the rest. */
static void random_problems(void **state)
{
    const int group = *(const int *)*state;
    const char *one = getenv("FFPA_TEST_SEED");
    if (one) {
        if (group == 0) run_seed(strtoull(one, NULL, 10));
        return;
    }
    const int last = (judge_quick() ? PROBLEMS / 4 : PROBLEMS) * judge_scale();
    for (int seed = 1 + group; seed <= last; seed += GROUPS)
        if (judge_in_shard((unsigned)seed)) run_seed((uint64_t)seed);
}

int main(void)
{
    static int group[GROUPS] = {0, 1, 2, 3, 4, 5};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(random_problems, &group[0]),
        cmocka_unit_test_prestate(random_problems, &group[1]),
        cmocka_unit_test_prestate(random_problems, &group[2]),
        cmocka_unit_test_prestate(random_problems, &group[3]),
        cmocka_unit_test_prestate(random_problems, &group[4]),
        cmocka_unit_test_prestate(random_problems, &group[5]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
