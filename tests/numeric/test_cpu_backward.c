/* test_cpu_backward.c - what is particular to the fast backward: chunks and parts of keys, its two ways to
 * dQ, rows gone over twice, and NaN in tiles that masks cut through. The options as such are judged in
 * test_options_grid, the edges of tiles in test_accept_edges. */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>

static sample *problem(const setting *s, int64_t n, int64_t hq, int64_t hk)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .hq = hq, .hk = hk, .nq = n, .nk = n, .d = s->d, .backward = true});
    t->f.flags = 0;
    return t;
}

/* Forward, then backward from its O and LSE. */
static void must_run(sample *t, const setting *s)
{
    must_forward(t, s);
    must_backward(t, s);
}

static bool fast(const setting *s) { return !s->path->slow; }

static void expect_gradients(const sample *a, const sample *b, const setting *s)
{
    for (role r = DQ; r <= DSINK; r++)
        if (a->t[r]) expect_same(a, b, r, s);
}

/* ---- chunks and parts ---- */

static void chunk_edges(const setting *s)
{
    static const int64_t chunk[] = {96, 288, 384, 480};
    for (size_t x = 0; fast(s) && x < COUNT(chunk); x++) {
        for (int64_t nk = chunk[x] - 1; nk <= chunk[x] + 1; nk += judge_quick() ? 2 : 1) {
            sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                                  .hq = 3,
                                                  .hk = 1,
                                                  .nq = 45,
                                                  .nk = nk,
                                                  .d = s->d,
                                                  .dv = s->d + 9,
                                                  .backward = true});
            t->f.flags = 0;
            t->f.causal = (int32_t)(x + (size_t)nk) % 3;
            judge_sample_on(t, s->path, "chunk edges");
            sample_free(t);
        }
    }
}
CASE(edges_of_chunks, ON_F32 | ON_F16, 24, chunk_edges)

static size_t workspace(sample *t, const setting *s, int32_t *splits)
{
    ffpa_report report = {.struct_size = sizeof report};
    sample_wire(t);
    assert_ok(ffpa_backward_supported(s->path->ctx, &t->g, &report));
    *splits = report.splits;
    return report.workspace_bytes;
}

/* A smaller workspace makes fewer parts, then units in turn, then passes of their own for dQ and for dK and
 * dV: always within the limit, always the right answer. */
static void workspace_limits(const setting *s)
{
    if (!fast(s)) return;
    sample *t = judge_quick() ? problem(s, 300, 2, 1) : problem(s, 600, 4, 2);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    int32_t most, splits = 0;
    size_t bytes = workspace(t, s, &most), least = bytes;
    assert_true(most > 1);
    for (size_t limit = bytes, before = 0; limit > bytes / 16; limit -= bytes / 16) {
        ffpa_report report = {.struct_size = sizeof report};
        t->g.workspace_limit_bytes = limit;
        sample_wire(t);
        if (ffpa_backward_supported(s->path->ctx, &t->g, &report) != FFPA_OK) break;
        least = workspace(t, s, &splits);
        assert_true(least <= limit);
        if (least != before) judge_sample_on(t, s->path, "workspace limits");
        before = least;
    }
    assert_true(least < bytes && splits < most);
    sample_free(t);
}
CASE(every_workspace_limit, ON_F32, 64, workspace_limits)

/* Asking for some gradients only changes the passes, and at most the rounding of dQ. */
static void some_gradients(const setting *s)
{
    static const role left_out[][2] = {{DQ, DQ}, {DK, DV}, {DQ, DK}, {DV, DV}};
    if (!fast(s)) return;
    sample *all = problem(s, 200, 4, 2);
    must_run(all, s);
    for (size_t x = 0; x < COUNT(left_out); x++) {
        sample *t = sample_copy(all, 0);
        sample_put(t, left_out[x][0], NULL);
        if (left_out[x][1] != left_out[x][0]) sample_put(t, left_out[x][1], NULL);
        must_run(t, s);
        for (role r = DQ; r <= DV; r++)
            if (t->t[r]) expect_close(t, all, r, 8, s);
        sample_free(t);
    }
    sample_free(all);
}
CASE(some_of_the_gradients, ON_ALL, 40, some_gradients)

/* ---- NaN ---- */

/* A NaN in one row of each input, under masks that cut through tiles: exactly the oracle's pattern. */
static void odd_rows(const setting *s)
{
    static const role where[] = {Q, K, V, DOUT};
    static const double what[] = {(double)NAN, (double)INFINITY};
    for (size_t x = 0; x < 2 * COUNT(where); x++) {
        sample *t = problem(s, 130, 2, 1);
        const role r = where[x / 2];
        t->f.causal = FFPA_BOTTOM_RIGHT;
        sample_use_window(t, 50, -1);
        tensor_put(t->t[r], 0, 0, 70, 3, what[x % 2]);
        tensor_put(t->t[r], 0, 0, 99, s->d - 1, what[x % 2]);
        judge_sample_on(t, s->path, "NaN and infinity behind masks");
        sample_free(t);
    }
}
CASE(odd_rows_behind_masks, ON_F32 | ON_BF16, 20, odd_rows)

/* NaN in dO of rows without keys. A sink gives these an LSE like any other; they give it nothing. */
static void only_a_sink(const setting *s)
{
    sample *t = problem(s, 40, 2, 1);
    tensor *mask = sample_put(t, MASK, tensor_new(FFPA_BOOL, 1, 1, 40, 1, NULL));
    tensor_all(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL)), .5);
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL));
    for (int64_t i = 0; i < 40; i++) {
        tensor_put(mask, 0, 0, i, 0, i % 5 != 3);
        if (i % 5 == 3) tensor_put(t->t[DOUT], 0, i % 2, i, 1, (double)NAN);
    }
    judge_sample_on(t, s->path, "rows with only a sink");
    sample_free(t);
}
CASE(rows_with_only_a_sink, ON_ALL, 24, only_a_sink)

/* A slope of infinity leaves keys with a score of -inf that are allowed all the same, and one, at distance 0,
 * with NaN. A sink of NaN makes every LSE NaN, without keys too, where O is 0. */
static void odd_biases(const setting *s)
{
    static const double what[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, 1e38};
    if (judge_on_device(s->path->ctx)) return; /* NaN there, too, but not in the same places */
    for (size_t x = 0; x < COUNT(what); x++)
        for (int causal = 0; causal < 3; causal++) {
            sample *t = sample_new(&(sample_spec){
                .dtype = s->dtype, .hq = 2, .nq = 7, .nk = 6, .d = s->d, .backward = true});
            t->f.causal = causal;
            tensor_all(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL)), what[x]);
            tensor_put(t->t[ALIBI], 0, 1, 0, 0, .5);
            judge_sample_on(t, s->path, "odd slopes");
            sample_put(t, ALIBI, NULL);
            tensor_all(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL)), what[x]);
            sample_put(t, DSINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL));
            tensor_put(t->t[SINK], 0, 1, 0, 0, .5);
            judge_sample_on(t, s->path, "odd sinks");
            sample_use_window(t, 1, 0);
            judge_sample_on(t, s->path, "odd sinks, windows");
            sample_free(t);
        }
}
CASE(odd_slopes_and_sinks, ON_F32 | ON_BF16, 20, odd_biases)

/* Where one key has all of the weight, dP - delta is 0, not what two orders of addition leave. */
static void one_key_a_row(const setting *s)
{
    sample *t = problem(s, 70, 2, 1);
    tensor *mask = sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 70, 70, NULL));
    tensor_all(mask, -(double)INFINITY);
    for (int64_t i = 0; i < 70; i++)
        tensor_put(mask, 0, 0, i, i * 11 % 70, 0);
    sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 70, 70, NULL));
    must_run(t, s);
    const role zero[] = {DQ, DK, DMASK};
    for (size_t x = 0; x < COUNT(zero); x++)
        expect_all(t, zero[x], 0, 0, s);
    sample_free(t);
}
CASE(one_key_a_row_gives_no_slope, ON_F32, 1000, one_key_a_row)

/* Masked keys may hold anything: the same bits as with zeros there. */
static void masked_keys(const setting *s)
{
    sample *a = problem(s, 150, 2, 2), *b;
    tensor *mask = sample_put(a, MASK, tensor_new(FFPA_BOOL, 1, 1, 1, 150, NULL));
    for (int64_t j = 0; j < 150; j++)
        tensor_put(mask, 0, 0, 0, j, j % 7 != 3 && j < 120);
    for (int64_t j = 0; j < 150; j++)
        for (int64_t d = 0; d < s->d && !(j % 7 != 3 && j < 120); d++)
            for (int64_t h = 0; h < 2; h++) {
                tensor_put(a->t[K], 0, h, j, d, 0);
                tensor_put(a->t[V], 0, h, j, d, 0);
            }
    b = sample_copy(a, 0);
    for (int64_t j = 0; j < 150; j++)
        for (int64_t h = 0; h < 2 && !(j % 7 != 3 && j < 120); h++) {
            tensor_put(b->t[K], 0, h, j, j % s->d, j % 2 ? (double)NAN : (double)INFINITY);
            tensor_put(b->t[V], 0, h, j, j % s->d, (double)NAN);
        }
    must_run(a, s);
    must_run(b, s);
    expect_gradients(a, b, s);
    sample_free(a);
    sample_free(b);
}
CASE(masked_keys_hold_anything, ON_ALL, 16, masked_keys)

/* ---- statistics ---- */

/* Large scores: lse has few digits left after the point, yet every row of P sums to 1. With dO = 1 and V = 1
 * all of dQ and dK vanish, and dV sums to the number of rows. */
static void large_scores(const setting *s)
{
    if (!fast(s)) return;
    sample *t = problem(s, 100, 1, 1);
    for (int64_t j = 0; j < 100; j++)
        for (int64_t d = 0; d < s->d; d++) {
            tensor_put(t->t[Q], 0, 0, j, d, 32);
            tensor_put(t->t[K], 0, 0, j, d, -128);
        }
    tensor_all(t->t[V], 1);
    tensor_all(t->t[DOUT], 1);
    must_run(t, s);
    for (int64_t j = 0; j < 100; j++)
        expect_row(t, DV, j, 1, 0, s);
    expect_all(t, DQ, 0, .01, s);
    expect_all(t, DK, 0, .01, s);
    sample_free(t);
}
CASE(large_scores_keep_their_sum, ON_F32, 64, large_scores)

/* dMask of one element a key, over 2000 rows that all pull it the same way: the sum has no part in its error, as
 * it has in the naive path's. */
static void long_mask_sums(const setting *s)
{
    if (!fast(s) || judge_on_device(s->path->ctx) || judge_quick()) return;
    sample *t = problem(s, 500, 4, 1);
    tensor_all(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 1, 500, NULL)), 0);
    sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 1, 500, NULL));
    tensor_all(t->t[DOUT], 1);
    sample *exact = sample_copy(t, FFPA_F64), *naive = sample_copy(t, 0);
    assert_ok(sample_forward(exact, judge_reference()));
    assert_ok(sample_backward(exact, judge_reference()));
    assert_ok(sample_forward(naive, judge_naive()));
    assert_ok(sample_backward(naive, judge_naive()));
    must_run(t, s);
    double off = 0, naive_off = 0;
    for (int64_t j = 0; j < 500; j++) {
        const double must = tensor_at(exact->t[DMASK], 0, 0, 0, j);
        off = fmax(off, fabs(tensor_at(t->t[DMASK], 0, 0, 0, j) - must));
        naive_off = fmax(naive_off, fabs(tensor_at(naive->t[DMASK], 0, 0, 0, j) - must));
    }
    if (!(off <= .5 * naive_off))
        fail_msg("%s: dmask off by %.3g, naive by %.3g", s->path->name, off, naive_off);
    sample_free(t);
    sample_free(exact);
    sample_free(naive);
}
CASE(long_mask_sums_are_exact, ON_F32, 64, long_mask_sums)

/* Whole numbers times a power of two: every score is exact, whatever its size, and P is too. */
static void any_score(const setting *s)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 4, 9}, {2, 1, 300}, {1, 40, 40}};
    static const int exponents[] = {22, 30, 100};
    if (judge_on_device(s->path->ctx)) return; /* takes LSE as it is: docs/limits.md */
    for (size_t x = 0; fast(s) && x < COUNT(shapes) * COUNT(exponents); x++) {
        const int64_t *shape = shapes[x % COUNT(shapes)];
        sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                              .hq = shape[0],
                                              .hk = 1,
                                              .nq = shape[1],
                                              .nk = shape[2],
                                              .d = s->d,
                                              .backward = true});
        t->f.scale = ldexpf(1, exponents[x / COUNT(shapes)]);
        for (role r = Q; r <= K; r++) {
            const int64_t *n = t->t[r]->view.shape;
            for (int64_t e = 0; e < n[1] * n[2] * n[3]; e++) {
                const int64_t at[3] = {e / n[3] / n[2], e / n[3] % n[2], e % n[3]};
                tensor_put(t->t[r], 0, at[0], at[1], at[2],
                           rint(8 * tensor_at(t->t[r], 0, at[0], at[1], at[2])));
            }
        }
        judge_sample_on(t, s->path, "scores of any size");
        sample_free(t);
    }
}
CASE(scores_of_any_size, ON_F32 | ON_BF16, 512, any_score)

/* Inputs anew for every seed but 0. */
static sample *large_sample(int64_t nq, int64_t nk, uint64_t seed)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = FFPA_F32, .hq = 4, .nq = nq, .nk = nk, .d = 512, .backward = true});
    for (role r = Q; seed > 0 && r <= DOUT; r++)
        if (r <= V || r == DOUT) tensor_random(t->t[r], &seed, -1, 1);
    return t;
}

/* Scores of tens to hundreds, as without 1/sqrt(D): rows where one key has nearly all of the weight, which must not
 * differ from 1 by what scores or their LSE were rounded by. Few rows, which forward adds up in another order
 * than backward, and tiles of them. Of one set of numbers chance makes a good one or a bad one: several. */
static void scores_of_some_tens(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 70}, {3, 129}, {8, 64},
                                        {8, 8},  {16, 64}, {16, 200}};
    if (judge_on_device(judge_paths()->ctx) || judge_quick())
        return; /* a GPU takes LSE as it is: docs/limits.md */
    for (size_t x = 0; x < COUNT(shapes); x++)
        for (uint64_t seed = 0; seed < 8; seed++) /* 0: as any sample is */
            for (float scale = 4; scale <= 8; scale *= 2) {
                sample *t = large_sample(shapes[x][0], shapes[x][1], seed);
                t->f.scale = scale;
                judge_sample(t, "scores of some tens");
                sample_free(t);
            }
}

/* The same where something is added to scores, caps them or leaves keys out. */
static void options_at_scores_of_some_tens(void **state)
{
    (void)state;
    if (judge_on_device(judge_paths()->ctx)) return;
    for (uint64_t x = 0; x < (judge_quick() ? 7u : 28u); x++) {
        sample *t = large_sample(x % 2 ? 9 : 33, 130, x + 1);
        t->f.scale = 8;
        t->f.causal = x % 3 == 0 ? FFPA_BOTTOM_RIGHT : 0;
        if (x % 7 == 1) sample_use_window(t, 40, 20);
        if (x % 7 == 2) t->f.softcap = 100;
        if (x % 7 == 3) sample_use_dropout(t, .3f, x, 1);
        if (x % 7 == 4)
            tensor_all(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL)), .7);
        if (x % 7 == 5) {
            tensor *mask = sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 1, 130, NULL));
            for (int64_t j = 0; j < 130; j++)
                tensor_put(mask, 0, 0, 0, j, j % 5 ? 3.3 * (double)(j % 7) : -(double)INFINITY);
            sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 1, 130, NULL));
        }
        if (x % 7 == 6) {
            tensor_all(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL)), 70.1);
            sample_put(t, DSINK, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL));
        }
        judge_sample(t, "options at scores of some tens");
        sample_free(t);
    }
}

/* An infinite value among keys whose scores have no digits left after the point: the other columns' gradients
 * are those of equal weights. */
static void odd_value_at_large_scores(const setting *s)
{
    static const role where[] = {V, DOUT};
    if (judge_on_device(s->path->ctx)) return; /* takes LSE as it is: docs/limits.md */
    for (size_t x = 0; x < COUNT(where); x++) {
        sample *t = problem(s, 97, 2, 1);
        tensor_all(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 97, 1, NULL)), -1e30);
        sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 97, 1, NULL));
        tensor_put(t->t[where[x]], 0, 0, 30, 3, (double)INFINITY);
        judge_sample_on(t, s->path, "infinity beside large scores");
        sample_free(t);
    }
}
CASE(odd_values_at_large_scores, ON_F32 | ON_BF16, 24, odd_value_at_large_scores)

/* One key to see, whose score forward and backward add up in different orders: its weight is 1 all the same. */
static void one_large_score(const setting *s)
{
    static const double scales[] = {1e3, 1e6, 1e10, 1e30, -1e30};
    if (judge_on_device(s->path->ctx)) return; /* takes LSE as it is: docs/limits.md */
    for (size_t x = 0; x < COUNT(scales); x++)
        for (int64_t key = 280; key < 300; key += 4) {
            sample *t = sample_new(&(sample_spec){
                .dtype = s->dtype, .nq = 1, .nk = 300, .d = s->d, .backward = true});
            t->f.scale = (float)scales[x];
            tensor *mask = sample_put(t, MASK, tensor_new(FFPA_BOOL, 1, 1, 1, 300, NULL));
            for (int64_t j = 0; j < 300; j++)
                tensor_put(mask, 0, 0, 0, j, j == key);
            must_run(t, s);
            for (int64_t d = 0; d < s->d; d++)
                expect_at(t, DV, (int64_t[]){0, 0, key, d}, tensor_at(t->t[DOUT], 0, 0, 0, d),
                          0, s);
            sample_free(t);
        }
}
CASE(one_large_score_has_all_the_weight, ON_ALL, 500, one_large_score)

/* O and LSE of more keys than are here: gradients of this part of the keys, as rings of devices need. */
static void keys_in_parts(const setting *s)
{
    if (!fast(s)) return;
    sample *all = problem(s, 90, 1, 1);
    must_run(all, s);
    for (int part = 0; part < 2; part++) {
        sample *t = sample_copy(all, 0);
        const int64_t first = part ? 30 : 0, n = part ? 60 : 30;
        const role sides[] = {K, V, DK, DV};
        sample_wire(t);
        ffpa_tensor *cut[] = {&t->f.k, &t->f.v, &t->g.dk, &t->g.dv};
        for (size_t x = 0; x < COUNT(cut); x++) {
            cut[x]->data = (char *)cut[x]->data +
                           first * cut[x]->stride[2] * (int64_t)dtype_bytes(cut[x]->dtype);
            cut[x]->shape[2] = n;
        }
        /* the copy's own o and lse are poison until they are filled from the whole */
        for (int64_t i = 0; i < 90; i++) {
            tensor_put(t->t[LSE], 0, 0, i, 0, tensor_at(all->t[LSE], 0, 0, i, 0));
            for (int64_t d = 0; d < s->d; d++)
                tensor_put(t->t[O], 0, 0, i, d, tensor_at(all->t[O], 0, 0, i, d));
        }
        assert_ok(judge_backward(s->path->ctx, &t->g));
        for (size_t x = 2; x < COUNT(sides); x++)
            for (int64_t j = first; j < first + n; j++)
                for (int64_t d = 0; d < s->d; d++)
                    assert_true(fabs(tensor_at(t->t[sides[x]], 0, 0, j, d) -
                                     tensor_at(all->t[sides[x]], 0, 0, j, d)) <
                                8 * tensor_ulp(s->dtype));
        sample_free(t);
    }
    sample_free(all);
}
CASE(keys_of_a_larger_whole, ON_ALL, 32, keys_in_parts)

/* ---- differences ---- */

/* Central differences of sum(dO O) against dQ, dK, dV, along one random direction each. */
static double value_along(sample *t, role r, const double *direction, double step,
                          const setting *s)
{
    sample *moved = sample_copy(t, 0);
    const ffpa_tensor *x = &moved->t[r]->view;
    double sum = 0;
    int64_t n = 0;
    for (int64_t h = 0; h < x->shape[1]; h++)
        for (int64_t i = 0; i < x->shape[2]; i++)
            for (int64_t d = 0; d < x->shape[3]; d++)
                tensor_put(moved->t[r], 0, h, i, d,
                           tensor_at(t->t[r], 0, h, i, d) + step * direction[n++]);
    must_forward(moved, s);
    const ffpa_tensor *o = &moved->t[O]->view;
    for (int64_t h = 0; h < o->shape[1]; h++)
        for (int64_t i = 0; i < o->shape[2]; i++)
            for (int64_t d = 0; d < o->shape[3]; d++)
                sum += tensor_at(moved->t[O], 0, h, i, d) * tensor_at(t->t[DOUT], 0, h, i, d);
    sample_free(moved);
    return sum;
}

static void differences(const setting *s)
{
    static const role input[] = {Q, K, V}, output[] = {DQ, DK, DV};
    enum { MOST = 4 * 40 * 16 };
    if (!fast(s)) return;
    sample *t = problem(s, 40, 4, 2);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    t->f.softcap = 3;
    sample_use_dropout(t, .2f, 7, 9);
    must_run(t, s);
    for (size_t x = 0; x < COUNT(input); x++) {
        double direction[MOST], along = 0;
        uint64_t rng = 11 + x;
        int64_t n = 0;
        const ffpa_tensor *g = &t->t[output[x]]->view;
        for (int64_t h = 0; h < g->shape[1]; h++)
            for (int64_t i = 0; i < g->shape[2]; i++)
                for (int64_t d = 0; d < g->shape[3]; d++, n++) {
                    direction[n] = tensor_unit(&rng) - .5;
                    along += direction[n] * tensor_at(t->t[output[x]], 0, h, i, d);
                }
        const double step = 1e-2;
        const double slope = (value_along(t, input[x], direction, step, s) -
                              value_along(t, input[x], direction, -step, s)) /
                             (2 * step);
        if (!(fabs(slope - along) < 2e-3 + 1e-3 * fabs(along)))
            fail_msg("%s: slope along %s is %.9g, gradient says %.9g", s->path->name,
                     role_name[input[x]], slope, along);
    }
    sample_free(t);
}
CASE(gradients_are_slopes, ON_F32, 16, differences)

/* ---- bits ---- */

static void same_bits_at(const setting *s, float scale)
{
    sample *first = problem(s, 330, 6, 2), *t = sample_copy(first, 0);
    first->f.causal = t->f.causal = FFPA_BOTTOM_RIGHT;
    first->f.scale = t->f.scale = scale;
    for (int threads = 1; threads <= 4; threads++) {
        ffpa_context *ctx = judge_context(s->path->backend, s->path->isa, threads);
        sample *to = threads == 1 ? first : t;
        assert_ok(sample_forward(to, ctx));
        assert_ok(sample_backward(to, ctx));
        expect_gradients(to, first, s);
        ffpa_context_destroy(ctx);
    }
    for (int n = 0; n < (judge_quick() ? 3 : 30); n++) {
        must_run(t, s);
        expect_gradients(t, first, s);
    }
    sample_free(first);
    sample_free(t);
}
/* Usual scores, and some that are added up in f64. */
static void same_bits(const setting *s)
{
    for (int large = 0; fast(s) && large < 2; large++)
        same_bits_at(s, large ? 40 : 1);
}
CASE(same_bits_at_any_thread_count, ON_F32 | ON_BF16, 72, same_bits)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_chunks),
        cmocka_unit_test(every_workspace_limit),
        cmocka_unit_test(some_of_the_gradients),
        cmocka_unit_test(odd_rows_behind_masks),
        cmocka_unit_test(rows_with_only_a_sink),
        cmocka_unit_test(odd_slopes_and_sinks),
        cmocka_unit_test(one_key_a_row_gives_no_slope),
        cmocka_unit_test(masked_keys_hold_anything),
        cmocka_unit_test(large_scores_keep_their_sum),
        cmocka_unit_test(long_mask_sums_are_exact),
        cmocka_unit_test(scores_of_any_size),
        cmocka_unit_test(scores_of_some_tens),
        cmocka_unit_test(options_at_scores_of_some_tens),
        cmocka_unit_test(odd_values_at_large_scores),
        cmocka_unit_test(one_large_score_has_all_the_weight),
        cmocka_unit_test(keys_of_a_larger_whole),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(same_bits_at_any_thread_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
