/* test_accept_edges.c - sizes one below, at and one above every edge that a path reports: query rows,
 * keys and head-dimension columns of its tiles, alone and together with masks that cut tiles. */
#include "support/judge_rule.h"

#include <math.h>

typedef struct tiles {
    int64_t q, k, d;
} tiles;

static tiles tiles_of(sample *t, const setting *s)
{
    ffpa_report f = {.struct_size = sizeof f}, g = {.struct_size = sizeof g};
    sample_wire(t);
    assert_ok(ffpa_forward_supported(s->path->ctx, &t->f, &f));
    assert_ok(ffpa_backward_supported(s->path->ctx, &t->g, &g));
    const ffpa_report *r = t->spec.backward ? &g : &f;
    const tiles none = {32, 48, 64}; /* a path without tiles: any sizes will do */
    return (tiles){r->tile_q ? r->tile_q : none.q, r->tile_k ? r->tile_k : none.k,
                   r->tile_d ? r->tile_d : none.d};
}

static sample *problem(const setting *s, int64_t nq, int64_t nk, int64_t d)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                          .hq = 2,
                                          .hk = 1,
                                          .nq = nq,
                                          .nk = nk,
                                          .d = d,
                                          .dv = d,
                                          .backward = true});
    t->f.flags = 0;
    return t;
}

static void rows_and_keys(const setting *s)
{
    sample *probe = problem(s, 500, 500, s->d);
    const tiles tile = tiles_of(probe, s);
    sample_free(probe);
    const int64_t q[] = {1, tile.q - 1, tile.q, tile.q + 1, 2 * tile.q + 1};
    const int64_t k[] = {1, tile.k - 1, tile.k, tile.k + 1, 2 * tile.k + 1};
    for (size_t x = 0; x < COUNT(q); x++) {
        for (size_t y = 0; y < COUNT(k); y++) {
            if (q[x] < 1 || k[y] < 1) continue;
            if (judge_quick() && (x + y) % 2 != (s->dtype == FFPA_F32)) continue;
            sample *t = problem(s, q[x], k[y], s->d);
            t->f.causal = (int32_t)((x + y) % 3);
            judge_sample_on(t, s->path, "tile edges");
            sample_free(t);
        }
    }
}
CASE(edges_of_rows_and_keys, ON_F32 | ON_BF16, 64, rows_and_keys)

static sample *few_queries(const setting *s, int64_t nq, int64_t nk, int64_t d)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = 2, .hq = 4, .hk = 2, .nq = nq, .nk = nk, .d = d});
    t->f.flags = 0;
    return t;
}

/* Every small number of rows and keys: the register tile's own tails. */
static void small_rows_and_keys(const setting *s)
{
    for (int64_t nq = 1; nq <= 34; nq += judge_quick() ? 5 : 1) {
        sample *t = problem(s, nq, 35 - nq + nq % 3, s->d);
        judge_sample_on(t, s->path, "small edges");
        sample_free(t);
    }
}
CASE(edges_of_small_problems, ON_ALL, 33, small_rows_and_keys)

static void columns(const setting *s)
{
    const int64_t ends[] = {8, 16, 32, 64, 128, 256, 512, 768, 1024};
    for (size_t x = 0; x < COUNT(ends); x++) {
        if (judge_quick() && x % 2 != (s->dtype == FFPA_F32)) continue;
        for (int64_t d = ends[x] - 1; d <= ends[x] + 1 && d <= 1024; d++) {
            sample *t = problem(s, 18, 29, d);
            judge_sample_on(t, s->path, "column edges");
            sample_free(t);
            t = few_queries(s, 1, 75, d); /* as in decode */
            judge_sample_on(t, s->path, "column edges of few queries");
            sample_free(t);
        }
    }
    sample *probe = problem(s, 500, 500, 1024);
    const int64_t tile = tiles_of(probe, s).d;
    sample_free(probe);
    for (int64_t d = tile - 1; d <= tile + 1 && tile < 1024; d++) {
        sample *t = problem(s, 40, 70, d > 0 ? d : 1);
        judge_sample_on(t, s->path, "column tile edges");
        sample_free(t);
    }
}
CASE(edges_of_columns, ON_F32 | ON_BF16, 1, columns)

/* Windows whose ends fall on, before and behind a tile's edge. */
static void windows(const setting *s)
{
    sample *probe = problem(s, 500, 500, s->d);
    const tiles tile = tiles_of(probe, s);
    sample_free(probe);
    const int64_t n = tile.q + tile.k + 3;
    for (int64_t left = tile.k - 1; left <= tile.k + 1; left++) {
        for (int64_t right = 0; right <= 2; right++) {
            sample *t = problem(s, n, n + right, s->d);
            sample_use_window(t, left, right - 1);
            judge_sample_on(t, s->path, "window edges");
            sample_free(t);
        }
    }
}
CASE(edges_of_windows, ON_F32, 40, windows)

/* A mask that empties whole tiles, first, middle and last ones. */
static void empty_tiles(const setting *s)
{
    sample *probe = problem(s, 500, 500, s->d);
    const tiles tile = tiles_of(probe, s);
    sample_free(probe);
    for (int kind = 0; kind < 6; kind++) {
        sample *t = problem(s, tile.q + 5, 3 * tile.k + 2, s->d);
        tensor *mask = sample_put(
            t, MASK,
            tensor_new(kind < 3 ? FFPA_BOOL : FFPA_F32, 1, 1, 1, 3 * tile.k + 2, NULL));
        for (int64_t j = 0; j < 3 * tile.k + 2; j++) {
            const bool off = j / tile.k == kind % 3 || (kind % 3 == 2 && j / tile.k == 3);
            tensor_put(mask, 0, 0, 0, j, kind < 3 ? !off : off ? -(double)INFINITY : .5);
        }
        judge_sample_on(t, s->path, "empty tiles");
        sample_free(t);
    }
}
CASE(edges_of_empty_tiles, ON_F32 | ON_F16, 72, empty_tiles)

/* Few queries, so many keys that they are split: sizes around the parts' edges, parts without any key
 * that is seen, and every option that a part must carry. */
static void splits(const setting *s)
{
    const int64_t sizes[] = {1023, 1024, 1025, 2047, 2048, 2049, 3071, 3073, 5000};
    for (size_t x = 0; x < COUNT(sizes); x++) {
        sample *t = few_queries(s, x % 3 ? 1 : 7, sizes[x], s->d);
        t->f.causal = (int32_t)(x % 3);
        judge_sample_on(t, s->path, "splits");
        sample_free(t);
    }
}
CASE(edges_of_splits, ON_ALL, 24, splits)

static void splits_with_options(const setting *s)
{
    static const int32_t lengths[] = {4100, 30}, offsets[] = {0, 1, 3}, keys[] = {0, 200, 4200};
    for (int kind = 0; kind < 7; kind++) {
        sample *t = few_queries(s, 3, 4200, s->d);
        if (kind == 0) sample_use_window(t, 150, 0); /* the first parts see nothing */
        if (kind == 1) t->f.causal = FFPA_TOP_LEFT;  /* the last parts see nothing */
        if (kind == 2) sample_use_dropout(t, .4f, 11, 12);
        if (kind == 3) sample_use_cache(t, lengths);
        if (kind == 4) {
            tensor *mask = sample_put(t, MASK, tensor_new(FFPA_F32, 2, 1, 3, 4200, NULL));
            tensor_hash(mask, 8000000, 6);
            for (int64_t j = 0; j < 4200; j++)
                tensor_put(mask, 1, 0, 1, j, -(double)INFINITY);
        }
        if (kind == 5) {
            t->f.softcap = 2;
            tensor_values(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL)), 1,
                          (double[]){.01, .02, 0, .04});
            tensor_values(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL)), 1,
                          (double[]){9, 1, 2, 30});
        }
        if (kind == 6) {
            const role packed[] = {Q, K, V, O};
            for (size_t x = 0; x < COUNT(packed); x++) {
                const int64_t *n = t->t[packed[x]]->view.shape;
                sample_put(t, packed[x], tensor_new(s->dtype, 1, n[1], n[2], n[3], NULL));
                tensor_hash(t->t[packed[x]], 100000 * x, 1);
            }
            sample_put(t, LSE, tensor_new(FFPA_F32, 1, 4, 3, 1, NULL));
            sample_use_varlen(t, 2, offsets, keys);
        }
        judge_sample_on(t, s->path, "splits with options");
        sample_free(t);
    }
}
CASE(edges_of_splits_with_options, ON_F32 | ON_BF16, 40, splits_with_options)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_rows_and_keys),
        cmocka_unit_test(edges_of_small_problems),
        cmocka_unit_test(edges_of_columns),
        cmocka_unit_test(edges_of_windows),
        cmocka_unit_test(edges_of_empty_tiles),
        cmocka_unit_test(edges_of_splits),
        cmocka_unit_test(edges_of_splits_with_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
