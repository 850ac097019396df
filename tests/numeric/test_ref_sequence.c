/* test_ref_sequence.c - packed, cached, paged and appended sequences give what the same rows give
 * dense; what is wrong with an index is said; nothing outside a sequence is touched. */
#include "support/ref_trial.h"
#include "support/unit.h"

#include "core/sequence.h"

#include <math.h>

static const double NONE = -(double)INFINITY;

static void copy_rows(const ffpa_tensor *to, int64_t to_b, int64_t to_row,
                      const ffpa_tensor *from, const int64_t at[2], int64_t rows)
{
    for (int64_t h = 0; h < to->shape[1]; h++)
        for (int64_t n = 0; n < rows; n++)
            for (int64_t d = 0; d < to->shape[3]; d++)
                tensor_set(to, to_b, h, to_row + n, d,
                           tensor_get(from, at[0], h, at[1] + n, d));
}

/* Rows of `got`, from at = {batch, row} on, are those of `wanted`'s batch entry 0, exactly. */
static void assert_rows(const char *name, const ffpa_tensor *got, const int64_t at[2],
                        const ffpa_tensor *wanted, int64_t rows)
{
    for (int64_t h = 0; h < got->shape[1]; h++)
        for (int64_t n = 0; n < rows; n++)
            for (int64_t d = 0; d < got->shape[3]; d++) {
                const double x = tensor_get(got, at[0], h, at[1] + n, d);
                const double y = tensor_get(wanted, 0, h, n, d);
                if (x != y)
                    fail_msg("%s row %lld column %lld: %g, dense %g", name, (long long)n,
                             (long long)d, x, y);
            }
}

static void use_offsets(trial *t, int64_t batch, const void *cu_q, const void *cu_k,
                        int32_t dtype)
{
    t->c.varlen = (ffpa_varlen){sizeof t->c.varlen, batch, cu_q, cu_k, dtype, 0, 0, 0};
    t->c.f.varlen = &t->c.varlen;
}

/* B36 to B38: sequences without queries, without keys, and rows past the last offset. */
static void packed_equals_dense(void **state)
{
    (void)state;
    enum { SEQUENCES = 5, TOTAL_Q = 51, TOTAL_K = 84 };
    const int64_t cu_q[] = {1, 1, 4, 41, 45, 48}, cu_k[] = {2, 5, 9, 70, 70, 80};
    int32_t narrow_q[SEQUENCES + 1], narrow_k[SEQUENCES + 1];
    for (int b = 0; b <= SEQUENCES; b++)
        narrow_q[b] = (int32_t)cu_q[b], narrow_k[b] = (int32_t)cu_k[b];
    for (int wide = 0; wide < 2; wide++) {
        trial *t = trial_new((trial_size){1, 4, 2, TOTAL_Q, TOTAL_K, 6, 5}, FFPA_F64);
        if (wide)
            use_offsets(t, SEQUENCES, cu_q, cu_k, FFPA_I64);
        else
            use_offsets(t, SEQUENCES, narrow_q, narrow_k, FFPA_I32);
        const ffpa_tensor *outputs[] = {&t->c.f.o, &t->c.f.lse, &t->c.g.dq, &t->c.g.dk,
                                        &t->c.g.dv};
        for (size_t n = 0; n < COUNT(outputs); n++)
            tensor_fill(outputs[n], 7);
        t->c.f.causal = FFPA_BOTTOM_RIGHT;
        trial_use_dlse(t);
        trial_forward(t, &reference_backend);
        trial_backward(t, &reference_backend);
        for (int64_t b = 0; b < SEQUENCES; b++) {
            const int64_t at_q[2] = {0, cu_q[b]}, at_k[2] = {0, cu_k[b]};
            const int64_t nq = cu_q[b + 1] - cu_q[b], nk = cu_k[b + 1] - cu_k[b];
            trial *s = trial_new((trial_size){1, 4, 2, nq, nk, 6, 5}, FFPA_F64);
            s->c.f.causal = FFPA_BOTTOM_RIGHT;
            trial_use_dlse(s);
            copy_rows(&s->c.f.q, 0, 0, &t->c.f.q, at_q, nq);
            copy_rows(&s->c.g.dout, 0, 0, &t->c.g.dout, at_q, nq);
            copy_rows(&s->c.g.dlse, 0, 0, &t->c.g.dlse, at_q, nq);
            copy_rows(&s->c.f.k, 0, 0, &t->c.f.k, at_k, nk);
            copy_rows(&s->c.f.v, 0, 0, &t->c.f.v, at_k, nk);
            trial_forward(s, &reference_backend);
            trial_backward(s, &reference_backend);
            assert_rows("o", &t->c.f.o, at_q, &s->c.f.o, nq);
            assert_rows("lse", &t->c.f.lse, at_q, &s->c.f.lse, nq);
            assert_rows("dq", &t->c.g.dq, at_q, &s->c.g.dq, nq);
            assert_rows("dk", &t->c.g.dk, at_k, &s->c.g.dk, nk);
            assert_rows("dv", &t->c.g.dv, at_k, &s->c.g.dv, nk);
            trial_free(s);
        }
        assert_true(tensor_get(&t->c.f.lse, 0, 0, 42, 0) == NONE); /* sequence 3 has no keys */
        assert_true(tensor_get(&t->c.g.dk, 0, 1, 3, 2) == 0); /* sequence 0 has no queries */
        for (size_t n = 0; n < COUNT(outputs); n++) {
            const ffpa_tensor *x = outputs[n];
            for (int64_t h = 0; h < x->shape[1]; h++)
                for (int64_t d = 0; d < x->shape[3]; d++) {
                    assert_true(tensor_get(x, 0, h, 0, d) == 7);
                    assert_true(tensor_get(x, 0, h, x->shape[2] - 1, d) == 7);
                }
        }
        trial_free(t);
    }
}

/* A cache in entries or pages, with rubbish wherever no key is. Length of sequence 0 and 1, entry or
 * pages of each, and one or two new keys. */
enum { SMAX = 48, PAGE = 16, NEW = 2 };
static const int32_t lengths[] = {35, 3}, entries[] = {2, 0};
static const int32_t table[] = {5, 1, 3, 0, -1, -1}; /* unused places are never looked at */

static trial *cached_trial(bool paged)
{
    trial *t = trial_new((trial_size){2, 4, 2, 3, SMAX, 8, 6}, FFPA_F64);
    const int64_t blocks = paged ? 6 : 4, rows = paged ? PAGE : SMAX;
    const int64_t k_shape[4] = {blocks, 2, rows, 8}, v_shape[4] = {blocks, 2, rows, 6};
    const int64_t k_new[4] = {2, 2, NEW, 8}, v_new[4] = {2, 2, NEW, 6};
    t->c.cache = (ffpa_kv_cache){.struct_size = sizeof t->c.cache,
                                 .lengths = lengths,
                                 .batch_index = paged ? NULL : entries,
                                 .block_table = paged ? table : NULL,
                                 .table_width = paged ? 3 : 0,
                                 .index_dtype = FFPA_I32};
    t->c.f.kv_cache = &t->c.cache;
    t->c.f.k = trial_tensor(t, FFPA_F64, k_shape, 0, (double)NAN);
    t->c.f.v = trial_tensor(t, FFPA_F64, v_shape, 0, (double)NAN);
    t->c.cache.k_new = trial_tensor(t, FFPA_F64, k_new, 100, 1);
    t->c.cache.v_new = trial_tensor(t, FFPA_F64, v_new, 200, 1);
    t->c.f.causal = FFPA_BOTTOM_RIGHT;
    return t;
}

/* Where key j of sequence b must be, by the definition of the cache. */
static void place(bool paged, int64_t b, int64_t j, int64_t at[2])
{
    at[0] = paged ? table[b * 3 + j / PAGE] : entries[b];
    at[1] = paged ? j % PAGE : j;
}

/* B56, B58 */
static void cached_equals_gathered(void **state)
{
    (void)state;
    for (int paged = 0; paged < 2; paged++) {
        trial *t = cached_trial(paged);
        trial *dense[2];
        for (int64_t b = 0; b < 2; b++) {
            trial *s = dense[b] =
                trial_new((trial_size){1, 4, 2, 3, lengths[b] + NEW, 8, 6}, FFPA_F64);
            s->c.f.causal = FFPA_BOTTOM_RIGHT;
            copy_rows(&s->c.f.q, 0, 0, &t->c.f.q, (int64_t[]){b, 0}, 3);
            for (int64_t j = 0; j < lengths[b]; j++) {
                int64_t at[2];
                place(paged, b, j, at);
                copy_rows(&t->c.f.k, at[0], at[1], &s->c.f.k, (int64_t[]){0, j}, 1);
                copy_rows(&t->c.f.v, at[0], at[1], &s->c.f.v, (int64_t[]){0, j}, 1);
            }
            copy_rows(&s->c.f.k, 0, lengths[b], &t->c.cache.k_new, (int64_t[]){b, 0}, NEW);
            copy_rows(&s->c.f.v, 0, lengths[b], &t->c.cache.v_new, (int64_t[]){b, 0}, NEW);
            trial_forward(s, &reference_backend);
        }
        trial_forward(t, &reference_backend);
        int64_t finite = 0;
        for (int64_t b = 0; b < 2; b++) {
            assert_rows("o", &t->c.f.o, (int64_t[]){b, 0}, &dense[b]->c.f.o, 3);
            assert_rows("lse", &t->c.f.lse, (int64_t[]){b, 0}, &dense[b]->c.f.lse, 3);
            for (int64_t n = 0; n < NEW; n++) { /* the cache now holds the new rows */
                int64_t at[2];
                place(paged, b, lengths[b] + n, at);
                for (int64_t h = 0; h < 2; h++)
                    assert_true(tensor_get(&t->c.f.k, at[0], h, at[1], 7) ==
                                tensor_get(&t->c.cache.k_new, b, h, n, 7));
            }
            trial_free(dense[b]);
        }
        for (int64_t n = 0; n < tensor_count(&t->c.f.v); n++)
            finite += isfinite(tensor_nth(&t->c.f.v, n));
        assert_int_equal(finite, (35 + 3 + 2 * NEW) * 2 * 6); /* and nothing else changed */
        trial_free(t);
    }
}

static void expect_refusal(trial *t, const char *words)
{
    assert_status(sequences_check(&t->c, &allocator_default, "f"), FFPA_E_INVALID, words);
}

static void bad_offsets_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t cu[3];
        const char *words;
    } bad[] = {{{-1, 2, 3}, "f: varlen.cu_q[0]=-1"},
               {{0, 3, 2}, "varlen.cu_q[2]=2 is below varlen.cu_q[1]=3"},
               {{0, 2, 9}, "varlen.cu_q[2]=9 is past the last row of q, which has 8"}};
    trial *t = trial_new((trial_size){1, 1, 1, 8, 8, 2, 2}, FFPA_F64);
    const int64_t good[3] = {0, 2, 8}, bad_k[3] = {0, 9, 9};
    for (size_t n = 0; n < COUNT(bad); n++) {
        use_offsets(t, 2, bad[n].cu, good, FFPA_I64);
        expect_refusal(t, bad[n].words);
    }
    use_offsets(t, 2, good, bad_k, FFPA_I64);
    expect_refusal(t, "varlen.cu_k[1]=9 is past the last row of k, which has 8");
    use_offsets(t, 2, good, good, FFPA_I64);
    assert_ok(sequences_check(&t->c, &allocator_default, "f"));
    trial_free(t);
}

/* B56, B57 and the rest of what can be wrong with a cache. */
static void bad_caches_are_refused(void **state)
{
    (void)state;
    const int32_t negative[] = {3, -1}, full[] = {3, SMAX - 1},
                  long_pages[] = {3 * PAGE - 1, 3};
    const int32_t outside[] = {4, 0}, same[] = {1, 1}, close[] = {3, 4}, apart[] = {3, 5};
    const int32_t bad_page[] = {5, 1, 6, 0, 0, 0}, shared[] = {5, 1, 0, 0, 1, 2};
    const int32_t none[] = {0, 0}, twice[] = {0, 1, 2, 3, 3, 4};
    trial *t = cached_trial(false);
    assert_ok(sequences_check(&t->c, &allocator_default, "f"));
    t->c.cache.lengths = negative;
    expect_refusal(t, "kv_cache.lengths[1]=-1");
    t->c.cache.lengths = full;
    expect_refusal(
        t, "kv_cache.lengths[1]=47 plus 2 new keys is more than the 48 that k.shape[2]");
    t->c.cache.lengths = close;
    t->c.cache.batch_index = outside;
    expect_refusal(t, "kv_cache.batch_index[0]=4; k has cache entries 0..3");
    t->c.cache.batch_index = same;
    expect_refusal(t, "kv_cache.batch_index makes sequences 0 and 1 append to the same row");
    t->c.cache.lengths = apart;
    assert_ok(sequences_check(&t->c, &allocator_default, "f"));
    trial_free(t);

    t = cached_trial(true);
    assert_ok(sequences_check(&t->c, &allocator_default, "f"));
    t->c.cache.lengths = long_pages;
    expect_refusal(t, "is more than the 48 that kv_cache.table_width pages hold");
    t->c.cache.lengths = lengths;
    t->c.cache.block_table = bad_page;
    expect_refusal(t, "kv_cache.block_table[0][2]=6; k has pages 0..5");
    t->c.cache.block_table = shared; /* sequence 0 appends to page 0 row 3, sequence 1 too */
    expect_refusal(t, "kv_cache.block_table makes sequences 0 and 1 append to the same row");
    t->c.f.k.shape[2] = t->c.f.v.shape[2] = 1; /* pages of one row */
    t->c.cache.lengths = none;
    t->c.cache.block_table = twice;
    expect_refusal(t, "kv_cache.block_table makes sequences 1 and 1 append to the same row");
    t->c.cache.k_new = t->c.cache.v_new = (ffpa_tensor){0};
    assert_ok(sequences_check(&t->c, &allocator_default,
                              "f")); /* only reading shared pages is fine */
    trial_free(t);
}

/* Many sequences that append to pages far apart, the last of which meets one in the middle. */
static void appends_of_many_sequences(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    static int64_t lengths_of_many[MANY], pages[MANY];
    for (int64_t b = 0; b < MANY; b++)
        pages[b] = b * 3;
    call c = {.f.q.shape = {MANY, 1, 1, 1}, .f.k.shape = {3 * MANY, 1, 4, 1}};
    c.cache = (ffpa_kv_cache){.lengths = lengths_of_many,
                              .block_table = pages,
                              .table_width = 1,
                              .index_dtype = FFPA_I64};
    c.cache.k_new = c.cache.v_new = (ffpa_tensor){.data = pages, .shape = {MANY, 1, 1, 1}};
    c.f.kv_cache = &c.cache;
    assert_ok(sequences_check(&c, &allocator_default, "f"));
    pages[MANY - 1] = pages[MANY / 2];
    assert_status(sequences_check(&c, &allocator_default, "f"), FFPA_E_INVALID,
                  "makes sequences 2500 and 4999 append to the same row");
    lengths_of_many[MANY - 1] = 1;
    assert_ok(sequences_check(&c, &allocator_default, "f"));
}

static void *no_memory(void *user, size_t bytes, size_t alignment)
{
    (void)user, (void)bytes, (void)alignment;
    return NULL;
}

static void free_nothing(void *user, void *memory) { (void)user, (void)memory; }

/* A block that all of them append to, and one with more pages than can be told apart at a glance: comparing each
 * with each would take minutes. */
static void appends_of_shared_blocks(void **state)
{
    (void)state;
    enum { MANY = 300000 };
    static int64_t lengths_of_many[MANY], numbers[MANY];
    static const int32_t zero = 0;
    const allocator none = {no_memory, free_nothing, NULL};
    for (int64_t b = 0; b < MANY; b++)
        lengths_of_many[b] = MANY - 1 - b;
    call c = {.f.q.shape = {MANY, 1, 1, 1}, .f.k.shape = {1, 1, MANY, 1}};
    c.cache = (ffpa_kv_cache){
        .lengths = lengths_of_many, .batch_index = numbers, .index_dtype = FFPA_I64};
    c.cache.k_new = c.cache.v_new = (ffpa_tensor){.data = numbers, .shape = {MANY, 1, 1, 1}};
    c.f.kv_cache = &c.cache;
    assert_ok(sequences_check(&c, &allocator_default, "f"));
    assert_status(sequences_check(&c, &none, "f"), FFPA_E_OUT_OF_MEMORY, "300000 runs of rows");
    lengths_of_many[7] = lengths_of_many[MANY - 2];
    assert_status(sequences_check(&c, &allocator_default, "f"), FFPA_E_INVALID,
                  "batch_index makes sequences 7 and 299998 append to the same row");

    static int32_t pages[MANY];
    for (int32_t i = 0; i < MANY; i++)
        pages[i] = MANY - 1 - i;
    call one = {.f.q.shape = {1, 1, 1, 1}, .f.k.shape = {MANY, 1, 1, 1}};
    one.cache = (ffpa_kv_cache){
        .lengths = &zero, .block_table = pages, .table_width = MANY, .index_dtype = FFPA_I32};
    one.cache.k_new = one.cache.v_new = (ffpa_tensor){.data = pages, .shape = {1, 1, MANY, 1}};
    one.f.kv_cache = &one.cache;
    assert_ok(sequences_check(&one, &allocator_default, "f"));
    pages[5] = pages[MANY - 1];
    assert_status(sequences_check(&one, &allocator_default, "f"), FFPA_E_INVALID,
                  "block_table makes sequences 0 and 0 append to the same row");
}

/* Only the asked rows are computed, bit for bit as in the whole; in backward only they count. */
static void row_subset_is_a_part_of_the_whole(void **state)
{
    (void)state;
    static const int64_t rows[] = {0, 3, 33, 34, 49, 50, 1000};
    trial *all = trial_new((trial_size){2, 2, 1, 50, 60, 5, 4}, FFPA_F64);
    trial *some = trial_new((trial_size){2, 2, 1, 50, 60, 5, 4}, FFPA_F64);
    trial_use_mask(all, FFPA_F32, 1, 2, 50, 1);
    trial_use_mask(some, FFPA_F32, 1, 2, 50, 1);
    trial_use_sink(all);
    trial_use_sink(some);
    some->c.rows = (ffpa_row_subset){sizeof some->c.rows, COUNT(rows), rows};
    some->c.f.rows = &some->c.rows;
    bool asked[50] = {0};
    for (size_t n = 0; n < COUNT(rows); n++)
        if (rows[n] < 50) asked[rows[n]] = true;
    for (int64_t n = 0; n < tensor_count(&all->c.g.dout);
         n++) /* the same gradients in the whole */
        if (!asked[n / 4 % 50]) tensor_set_nth(&all->c.g.dout, n, 0);
    trial *runs[] = {all, some};
    for (int r = 0; r < 2; r++) {
        trial_forward(runs[r], &reference_backend);
        trial_backward(runs[r], &reference_backend);
    }
    for (int64_t n = 0; n < tensor_count(&all->c.f.o); n++) {
        const double got = tensor_nth(&some->c.f.o, n);
        assert_true(asked[n / 4 % 50] ? got == tensor_nth(&all->c.f.o, n) : isnan(got));
    }
    for (int64_t n = 0; n < tensor_count(&all->c.g.dq); n++) {
        const double got = tensor_nth(&some->c.g.dq, n);
        assert_true(asked[n / 5 % 50] ? got == tensor_nth(&all->c.g.dq, n) : isnan(got));
    }
    assert_true(tensor_distance(&all->c.g.dk, &some->c.g.dk) < 1e-14);
    assert_true(tensor_distance(&all->c.g.dv, &some->c.g.dv) < 1e-14);
    assert_true(tensor_distance(&all->c.g.dmask, &some->c.g.dmask) < 1e-14);
    assert_true(tensor_distance(&all->c.g.dsink, &some->c.g.dsink) < 1e-14);
    trial_free(all);
    trial_free(some);
}

/* B26 to B28, B32: V inside K's rows, transposed, reversed and repeated views; outputs with gaps. */
static void strides_are_honoured(void **state)
{
    (void)state;
    trial *plain = trial_new((trial_size){1, 2, 2, 9, 11, 6, 4}, FFPA_F32);
    trial *t = trial_new((trial_size){1, 2, 2, 9, 11, 6, 4}, FFPA_F32);
    const int64_t wide[4] = {1, 2, 9, 40};
    for (int64_t n = 0; n < tensor_count(&plain->c.f.v); n++) /* V = columns 0..3 of K */
        tensor_set_nth(&plain->c.f.v, n,
                       tensor_get(&plain->c.f.k, 0, n / 44, n / 4 % 11, n % 4));
    t->c.f.v = t->c.f.k;
    t->c.f.v.shape[3] = 4;
    t->c.f.q.stride[2] = 1; /* rows next to each other, columns apart */
    t->c.f.q.stride[3] = 9;
    copy_rows(&t->c.f.q, 0, 0, &plain->c.f.q, (int64_t[]){0, 0}, 9);
    tensor_fill(&plain->c.g.dout, .25);
    tensor_fill(&t->c.g.dout, .25);
    memset(t->c.g.dout.stride, 0, sizeof t->c.g.dout.stride);
    t->c.f.o = trial_tensor(t, FFPA_F32, wide, 0, (double)NAN);
    t->c.f.o.shape[3] = 4;
    t->c.f.o.data = (float *)t->c.f.o.data + 30; /* backwards, two apart */
    t->c.f.o.stride[3] = -2;
    trial *runs[] = {plain, t};
    for (int r = 0; r < 2; r++) {
        trial_forward(runs[r], &reference_backend);
        trial_backward(runs[r], &reference_backend);
    }
    assert_true(tensor_distance(&plain->c.f.o, &t->c.f.o) == 0);
    assert_true(tensor_distance(&plain->c.g.dq, &t->c.g.dq) == 0);
    assert_true(tensor_distance(&plain->c.g.dk, &t->c.g.dk) == 0);
    assert_true(tensor_distance(&plain->c.g.dv, &t->c.g.dv) == 0);
    assert_true(isnan(((float *)t->c.f.o.data)[-1]));
    trial_free(plain);
    trial_free(t);
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    trial *runs[3];
    for (int r = 0; r < 3; r++) {
        trial *t = runs[r] = trial_new((trial_size){2, 4, 2, 70, 90, 9, 7}, FFPA_F32);
        t->threads = (int[]){1, 2, 5}[r];
        trial_use_mask(t, FFPA_BF16, 1, 1, 70, 90);
        trial_use_sink(t);
        trial_use_dropout(t, .1f, 1, 2);
        trial_forward(t, &reference_backend);
        trial_backward(t, &reference_backend);
    }
    for (int r = 1; r < 3; r++) {
        assert_true(tensor_distance(&runs[0]->c.f.o, &runs[r]->c.f.o) == 0);
        assert_true(tensor_distance(&runs[0]->c.f.lse, &runs[r]->c.f.lse) == 0);
        assert_true(tensor_distance(&runs[0]->c.g.dq, &runs[r]->c.g.dq) == 0);
        assert_true(tensor_distance(&runs[0]->c.g.dk, &runs[r]->c.g.dk) == 0);
        assert_true(tensor_distance(&runs[0]->c.g.dv, &runs[r]->c.g.dv) == 0);
        assert_true(tensor_distance(&runs[0]->c.g.dmask, &runs[r]->c.g.dmask) == 0);
        assert_true(tensor_distance(&runs[0]->c.g.dsink, &runs[r]->c.g.dsink) == 0);
    }
    for (int r = 0; r < 3; r++)
        trial_free(runs[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_equals_dense),
        cmocka_unit_test(cached_equals_gathered),
        cmocka_unit_test(bad_offsets_are_refused),
        cmocka_unit_test(bad_caches_are_refused),
        cmocka_unit_test(appends_of_many_sequences),
        cmocka_unit_test(appends_of_shared_blocks),
        cmocka_unit_test(row_subset_is_a_part_of_the_whole),
        cmocka_unit_test(strides_are_honoured),
        cmocka_unit_test(threads_do_not_change_a_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
