/* test_cases_cache.c - keys and values in a cache, paged or not: cases B56 to B58, B64. */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>

static void put_new_keys(sample *t, int64_t rows, const setting *s)
{
    const int64_t b = t->t[Q]->view.shape[0], h = t->t[K]->view.shape[1];
    tensor_hash(sample_put(t, K_NEW, tensor_new(s->dtype, b, h, rows, s->d, NULL)), 6000000, 1);
    tensor_hash(sample_put(t, V_NEW, tensor_new(s->dtype, b, h, rows, s->d, NULL)), 7000000, 1);
}

/* A cache of 4 entries of 8 rows; two sequences in entries 2 and 0. */
static sample *small_cache(const setting *s, const int32_t *lengths, const int32_t *entries)
{
    sample *t = sample_new(
        &(sample_spec){.dtype = s->dtype, .b = 2, .hq = 2, .hk = 1, .nq = 1, .d = s->d});
    tensor_hash(sample_put(t, K, tensor_new(s->dtype, 4, 1, 8, s->d, NULL)), 1000000, 1);
    tensor_hash(sample_put(t, V, tensor_new(s->dtype, 4, 1, 8, s->d, NULL)), 2000000, 1);
    sample_use_cache(t, lengths);
    t->cache.batch_index = entries;
    put_new_keys(t, 1, s);
    return t;
}

static void appended_rows(const setting *s)
{
    const int32_t lengths[] = {7, 3}, full[] = {8, 3}, entries[] = {2, 0};
    sample *t = small_cache(s, lengths, entries);
    sample *before = sample_copy(t, 0);
    judge_sample_on(t, s->path, "b56");
    for (int r = K; r <= (int)V; r++) {
        const role fresh = r == K ? K_NEW : V_NEW;
        for (int64_t e = 0; e < 4; e++) {
            for (int64_t j = 0; j < 8; j++) {
                const bool first = e == 2 && j == 7, second = e == 0 && j == 3;
                for (int64_t c = 0; c < s->d; c++) {
                    const double is = tensor_at(t->t[r], e, 0, j, c);
                    assert_true(is == (first || second ? tensor_at(t->t[fresh], second, 0, 0, c)
                                                       : tensor_at(before->t[r], e, 0, j, c)));
                }
            }
        }
    }
    sample_free(t);
    sample_free(before);
    t = small_cache(s, full, entries);
    expect_bad_contents(t, s, "lengths"); /* and nothing changed */
    sample_free(t);
}
CASE(b56_appended_rows, ON_ALL, 64, appended_rows)

static void bad_entries(const setting *s)
{
    const int32_t lengths[] = {7, 3}, negative[] = {-1, 3};
    const int32_t bad[][2] = {
        {2, 4}, {-1, 0}, {INT32_MAX, 0}, {2, 2}}; /* the last: appending to one entry twice */
    for (size_t x = 0; x < COUNT(bad); x++) {
        sample *t = small_cache(s, x == 3 ? (const int32_t[]){3, 3} : lengths, bad[x]);
        expect_bad_contents(t, s, "batch_index");
        sample_free(t);
    }
    sample *t = small_cache(s, negative, (const int32_t[]){2, 0});
    expect_bad_contents(t, s, "lengths");
    sample_free(t);
}
CASE(b56_bad_entries_are_refused, ON_F32, 64, bad_entries)

/* Sequences of unequal length with NaN in the unused rows, many queries, and appended rows. */
static void cache_with_options(const setting *s)
{
    const int32_t lengths[] = {0, 37, 70, 5};
    for (int64_t nq = 1; nq <= 33; nq += 16) {
        for (int64_t appended = 0; appended <= 2; appended += 2) {
            sample *t = sample_new(&(sample_spec){
                .dtype = s->dtype, .b = 4, .hq = 6, .hk = 2, .nq = nq, .nk = 80, .d = s->d});
            for (int64_t b = 0; b < 4; b++) {
                for (int64_t j = lengths[b]; j < 80; j++) {
                    for (int64_t c = 0; c < s->d; c++) {
                        tensor_put(t->t[K], b, 1, j, c, (double)NAN);
                        tensor_put(t->t[V], b, 1, j, c, (double)INFINITY);
                    }
                }
            }
            t->f.causal = FFPA_BOTTOM_RIGHT;
            sample_use_cache(t, lengths);
            if (appended) put_new_keys(t, appended, s);
            judge_sample_on(t, s->path, "b56 options");
            sample_free(t);
        }
    }
}
CASE(b56_unequal_lengths, ON_ALL, 72, cache_with_options)

/* ---- pages ---- */

static sample *paged(const setting *s, int64_t page, const int32_t *table, int64_t width,
                     const int32_t *length)
{
    sample *t =
        sample_new(&(sample_spec){.dtype = s->dtype, .hq = 4, .hk = 2, .nq = 3, .d = s->d});
    sample_put(t, K, tensor_new(s->dtype, 6, 2, page, s->d, NULL));
    sample_put(t, V, tensor_new(s->dtype, 6, 2, page, s->d, &TENSOR_BNHD));
    sample_use_cache(t, length);
    t->cache.block_table = table;
    t->cache.table_width = width;
    return t;
}

static void short_table(const setting *s)
{
    const int32_t table[] = {0, 1}, length[] = {33}, fits[] = {32};
    sample *t = paged(s, 16, table, 2, length);
    expect_bad_contents(t, s, "lengths");
    sample_use_cache(t, fits);
    t->cache.block_table = table, t->cache.table_width = 2;
    put_new_keys(t, 1, s); /* the appended key needs a third page */
    expect_bad_contents(t, s, "lengths");
    sample_free(t);
    const int32_t bad[][2] = {{0, 6}, {-1, 0}, {0, INT32_MIN}};
    for (size_t x = 0; x < COUNT(bad); x++) {
        t = paged(s, 16, bad[x], 2, fits);
        expect_bad_contents(t, s, "block_table");
        sample_free(t);
    }
}
CASE(b57_short_block_table, ON_F32, 64, short_table)

static void pages_out_of_order(const setting *s)
{
    enum { LENGTH = 37 };
    const int32_t table[] = {5, 1, 3}, length[] = {LENGTH};
    for (int64_t page = 16; page <= 64; page += 48) {
        sample *t = paged(s, page, table, 3, length); /* all NaN so far */
        sample *gathered = sample_new(&(sample_spec){
            .dtype = s->dtype, .hq = 4, .hk = 2, .nq = 3, .nk = LENGTH, .d = s->d});
        t->f.causal = gathered->f.causal = FFPA_BOTTOM_RIGHT;
        for (int64_t h = 0; h < 2; h++) {
            for (int64_t j = 0; j < LENGTH; j++) {
                for (int64_t c = 0; c < s->d; c++) {
                    const int64_t at = table[j / page];
                    tensor_put(t->t[K], at, h, j % page, c,
                               tensor_at(gathered->t[K], 0, h, j, c));
                    tensor_put(t->t[V], at, h, j % page, c,
                               tensor_at(gathered->t[V], 0, h, j, c));
                }
            }
        }
        must_forward(t, s);
        must_forward(gathered, s);
        expect_close(t, gathered, O, 1, s);
        expect_close(t, gathered, LSE, 1, s);
        judge_sample_on(t, s->path, "b58");
        sample_free(t);
        sample_free(gathered);
    }
}
CASE(b58_pages_out_of_order, ON_ALL, 64, pages_out_of_order)
CASE(b58_pages_out_of_order_d512, ON_ALL, 512, pages_out_of_order)

/* Several sequences, a table wider than its rows, 64-bit numbers, and appended rows across a page edge. */
static void pages_of_many(const setting *s)
{
    const int64_t table[] = {4, 0, 2, -9, -9, 5, 1, 3, -9, -9}, lengths[] = {15, 9};
    for (int appended = 0; appended < 2; appended++) {
        sample *t = paged(s, 8, NULL, 3, NULL);
        sample_put(t, Q, tensor_new(s->dtype, 2, 4, 3, s->d, NULL));
        sample_put(t, O, tensor_new(s->dtype, 2, 4, 3, s->d, NULL));
        sample_put(t, LSE, tensor_new(FFPA_F32, 2, 4, 3, 1, NULL));
        for (int r = Q; r <= (int)V; r++)
            tensor_hash(t->t[r], 1000 * (uint64_t)r, 1);
        t->cache.lengths = lengths, t->cache.block_table = table;
        t->cache.table_stride = 5, t->cache.index_dtype = FFPA_I64;
        if (appended) put_new_keys(t, 3, s);
        judge_sample_on(t, s->path, "b58 many");
        sample_free(t);
    }
}
CASE(b58_pages_of_many_sequences, ON_ALL, 40, pages_of_many)

static void decode_step(const setting *s)
{
    sample *t = sample_new(
        &(sample_spec){.dtype = s->dtype, .hq = 32, .hk = 4, .nq = 1, .nk = 1000, .d = s->d});
    t->f.flags = 0;
    judge_sample_on(t, s->path, "b64");
    ffpa_report report = {.struct_size = sizeof report};
    judge_say_device(s->path->ctx, &t->f, &t->g);
    assert_ok(ffpa_forward_supported(s->path->ctx, &t->f, &report));
    assert_string_equal(report.path, ffpa_last_path());
    if (!s->path->slow && !judge_on_device(s->path->ctx) && !strstr(report.path, "decode"))
        fail_msg("one query row takes the path %s", report.path);
    sample_free(t);
}
CASE(b64_decode_step, ON_ALL, 512, decode_step)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b56_appended_rows),
        cmocka_unit_test(b56_bad_entries_are_refused),
        cmocka_unit_test(b56_unequal_lengths),
        cmocka_unit_test(b57_short_block_table),
        cmocka_unit_test(b58_pages_out_of_order),
        cmocka_unit_test(b58_pages_out_of_order_d512),
        cmocka_unit_test(b58_pages_of_many_sequences),
        cmocka_unit_test(b64_decode_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
