/* test_cpu_forward.c - the fast forward around every edge of its tiles and on each of its routes: tiles
 * of query rows as lanes, few rows, split keys, bf16 pairs; on every instruction set of this machine. */
#include "support/judge_paths.h"
#include "support/ref_trial.h"
#include "support/tensor_element.h"
#include "support/tensor_make.h"
#include "support/unit.h"

#include "core/plan.h"
#include "cpu/isa.h"
#include "cpu/simd/simd.h"

#include <math.h>
#include <stdlib.h>

/* The bf16 products of AVX-512, in plain C: see tests/CMakeLists.txt. */
extern const cpu_kernels cpu_kernels_emulated;
/* And those of a matrix unit, in plain C. */
extern const cpu_kernels cpu_kernels_modelled;

static bool any_problem(const ffpa_context *ctx, const problem *p, char *why, size_t why_bytes)
{
    (void)ctx, (void)p, (void)why, (void)why_bytes;
    return true;
}

/* A backend that runs one table of kernels. */
#define PATH(isa)                                                                       \
    static ffpa_status plan_##isa(ffpa_plan *plan)                                      \
    {                                                                                   \
        return cpu_kernels_##isa.plan_forward(plan);                                    \
    }                                                                                   \
    static ffpa_status run_##isa(const ffpa_plan *plan, const call *c, void *workspace) \
    {                                                                                   \
        return cpu_kernels_##isa.forward(plan, c, workspace);                           \
    }                                                                                   \
    static const backend backend_##isa = {                                              \
        .name = #isa, .supports = any_problem, .plan = plan_##isa, .forward = run_##isa};

PATH(portable)
PATH(emulated)
PATH(modelled)
#if defined(__x86_64__)
PATH(avx2)
PATH(avx512)
PATH(avx512_bf16)
PATH(amx_bf16)
#endif

/* The paths that this processor can run, ended by NULL. */
static const backend *const *all_paths(void)
{
    static const backend *list[8];
    int n = 0;
    list[n++] = &backend_portable;
    list[n++] = &backend_emulated;
    list[n++] = &backend_modelled;
#if defined(__x86_64__)
    if (isa_best() >= ISA_AVX2) list[n++] = &backend_avx2;
    if (isa_best() >= ISA_AVX512) list[n++] = &backend_avx512;
    if (isa_best() >= ISA_AVX512_BF16) list[n++] = &backend_avx512_bf16;
    if (isa_best() >= ISA_AMX_BF16) list[n++] = &backend_amx_bf16;
#endif
    return list;
}

typedef void change_fn(trial *t);

static void nothing(trial *t) { (void)t; }

static trial *make(trial_size z, ffpa_dtype dtype, change_fn *change)
{
    trial *t = trial_new(z, dtype);
    change(t);
    return t;
}

/* O and LSE of each path are at most twice as far from the oracle as naive's, + 1e-5. */
static void check_one(trial_size z, ffpa_dtype dtype, change_fn *change)
{
    trial *exact = make(z, dtype, change), *naive = make(z, dtype, change);
    trial_forward(exact, &reference_backend);
    trial_forward(naive, &naive_backend);
    const double o = 2 * tensor_distance(&naive->c.f.o, &exact->c.f.o) + 1e-5;
    const double lse = 2 * tensor_distance(&naive->c.f.lse, &exact->c.f.lse) + 1e-5;
    for (const backend *const *be = all_paths(); *be; be++) {
        trial *t = make(z, dtype, change);
        trial_forward(t, *be);
        const double got_o = tensor_distance(&t->c.f.o, &exact->c.f.o);
        const double got_lse = tensor_distance(&t->c.f.lse, &exact->c.f.lse);
        if (!(got_o <= o && got_lse <= lse))
            fail_msg("%s %s h%dk%d q%dk%d d%dv%d: o %.3g of %.3g, lse %.3g of %.3g",
                     (*be)->name, dtype_name((int32_t)dtype), (int)z.hq, (int)z.hk, (int)z.nq,
                     (int)z.nk, (int)z.d, (int)z.dv, got_o, o, got_lse, lse);
        trial_free(t);
    }
    trial_free(exact);
    trial_free(naive);
}

/* In f32 and in bf16; quick: in one of them, in turn. */
static void check(trial_size z, change_fn *change)
{
    static int turn;
    if (!judge_quick() || turn % 2) check_one(z, FFPA_F32, change);
    if (!judge_quick() || turn % 2 == 0) check_one(z, FFPA_BF16, change);
    turn++;
}

static void causal(trial *t) { t->c.f.causal = FFPA_BOTTOM_RIGHT; }

/* ---- edges: MR is 6 or 12, NR 8, 16 or 32, blocks 128 or (large problems) 256 rows, tiles 96, 256 or 24 keys ---- */

static void edges_of_rows(void **state)
{
    static const int rows[] = {1,  2,  3,  4,  5,  7,  8,   9,   11,  12, 13,
                               15, 16, 17, 31, 32, 33, 127, 128, 129, 257};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        check((trial_size){1, 1, 1, rows[i], 97, 24, 24}, causal);
        check((trial_size){1, 3, 1, rows[i], 70, 8, 9}, nothing);
    }
}

static void edges_of_keys(void **state)
{
    static const int keys[] = {1,   2,   5,   6,   7,   11,  12,  13,  23,  25, 31,
                               32,  33,  63,  64,  65,  66,  67,  95,  96,  97, 143,
                               144, 145, 191, 192, 193, 255, 256, 257, 289, 513};
    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        check((trial_size){1, 1, 1, 3, keys[i], 33, 20}, causal);
        check((trial_size){1, 1, 1, 20, keys[i], 33, 20}, nothing);
    }
}

static void edges_of_columns(void **state)
{
    static const int dims[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   11,  12,
                               13,  15,  16,  17,  23,  24,  25,  31,  32,  33,  47,
                               48,  49,  63,  64,  65,  71,  73,  95,  97,  127, 128,
                               129, 143, 145, 191, 193, 255, 256, 257, 511, 513};
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++) {
        const int other = dims[COUNT(dims) - 1 - i];
        check((trial_size){1, 1, 1, 2, 67, dims[i], other}, nothing);
        check((trial_size){1, 1, 1, 18, 67, dims[i], other}, nothing);
    }
}

static void edges_of_splits(void **state)
{
    static const int keys[] = {1023, 2047, 2048, 2049, 3071, 3072, 4133};
    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        check((trial_size){2, 4, 2, 1, keys[i], 16, 24}, nothing);
        check((trial_size){1, 1, 1, 128, keys[i], 8, 8}, causal);
        check((trial_size){1, 1, 1, 129, keys[i], 8, 8}, causal);
    }
}

/* ---- options, on tiles of each kind ---- */

static void window(trial *t)
{
    t->c.f.flags |= FFPA_WINDOW;
    t->c.f.window_left = 40, t->c.f.window_right = 9;
}

static void causal_top_left(trial *t) { t->c.f.causal = FFPA_TOP_LEFT; }
static void softcap(trial *t) { t->c.f.softcap = 1.5f; }
static void alibi(trial *t) { trial_use_alibi(t); }
static void sink(trial *t) { trial_use_sink(t); }
static void dropout(trial *t) { trial_use_dropout(t, .4f, 77, 5); }
static void drop_all(trial *t) { trial_use_dropout(t, 1, 77, 5); }
static void scale(trial *t) { t->c.f.scale = -.3f; }

static void mask_bool(trial *t)
{
    trial_use_mask(t, FFPA_BOOL, t->size.b, 1, t->size.nq, t->size.nk);
}
static void mask_f32(trial *t)
{
    trial_use_mask(t, FFPA_F32, 1, t->size.hq, t->size.nq, t->size.nk);
}
static void mask_row(trial *t) { trial_use_mask(t, FFPA_BF16, t->size.b, 1, 1, t->size.nk); }
static void mask_column(trial *t) { trial_use_mask(t, FFPA_F16, 1, 1, t->size.nq, 1); }

/* -inf in two keys of three: for some rows everywhere. */
static void mask_sparse(trial *t)
{
    mask_f32(t);
    for (int64_t n = 0; n < tensor_count(&t->c.f.mask); n++)
        if (n % 3 || n / t->size.nk % 7 == 2) tensor_set_nth(&t->c.f.mask, n, -INFINITY);
}

static void everything(trial *t)
{
    causal(t), window(t), softcap(t), alibi(t), sink(t), dropout(t), mask_sparse(t);
}

static void options(void **state)
{
    static change_fn *const changes[] = {
        causal,   causal_top_left, window,      softcap,     alibi,
        sink,     dropout,         drop_all,    scale,       mask_bool,
        mask_f32, mask_row,        mask_column, mask_sparse, everything};
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++) {
        check((trial_size){2, 6, 2, 57, 205, 20, 12}, changes[i]); /* two blocks, three tiles */
        check((trial_size){2, 6, 2, 4, 205, 20, 12}, changes[i]);  /* few rows */
        check((trial_size){1, 2, 1, 3, 2100, 9, 7}, changes[i]);   /* split */
        check((trial_size){1, 2, 1, 205, 57, 9, 7}, changes[i]);   /* more rows than keys */
    }
}

/* Thirty-two heads make a problem large: blocks of 256 rows. */
static void large_blocks(void **state)
{
    static const int rows[] = {255, 256, 257, 300, 513};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        check_one((trial_size){2, 32, 16, rows[i] / 2, 150, 5, 3}, FFPA_F32, causal);
        check_one((trial_size){4, 8, 8, rows[i], 97, 5, 3}, FFPA_BF16, window);
    }
    check((trial_size){4, 8, 8, 257, 205, 20, 12}, everything);
}

static void several_large_tiles(void **state)
{
    static change_fn *const changes[] = {nothing, causal,      window,
                                         dropout, mask_sparse, everything};
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++)
        check_one((trial_size){1, 2, 1, 150, 600, 40, 40}, FFPA_BF16, changes[i]);
}

/* ---- subnormal bf16, which some products take for 0 ---- */

static void fill_with(const ffpa_tensor *t, double size)
{
    for (int64_t n = 0; n < tensor_count(t); n++)
        tensor_set_nth(t, n, size * (double)(n % 7 - 3));
}
static void subnormal_keys(trial *t)
{
    fill_with(&t->c.f.q, 0x1p124);
    fill_with(&t->c.f.k, 0x1p-130);
    t->c.f.scale = 1;
}
static void subnormal_queries(trial *t)
{
    fill_with(&t->c.f.q, 0x1p-130);
    fill_with(&t->c.f.k, 0x1p124);
    t->c.f.scale = 1;
}
static void large_scale(trial *t)
{
    fill_with(&t->c.f.q, 0x1p-120);
    fill_with(&t->c.f.k, 0x1p-10);
    t->c.f.scale = 0x1p120f;
}
static void values_of_no_size(trial *t) { fill_with(&t->c.f.v, 0x1p-130); }

static void subnormal_numbers(void **state)
{
    static change_fn *const changes[] = {subnormal_keys, subnormal_queries, large_scale,
                                         values_of_no_size};
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++)
        check_one((trial_size){1, 2, 1, 40, 70, 18, 20}, FFPA_BF16, changes[i]);
}

/* ---- strides: the head dimension is the slow one ---- */

static ffpa_tensor apart(trial *t, const ffpa_tensor *of)
{
    const int64_t shape[4] = {of->shape[0], of->shape[1], of->shape[3], of->shape[2]};
    ffpa_tensor x = trial_tensor(t, (ffpa_dtype)of->dtype, shape, 0, 1);
    x.shape[2] = of->shape[2], x.shape[3] = of->shape[3];
    const int64_t column = x.stride[2];
    x.stride[2] = x.stride[3], x.stride[3] = column;
    for (int64_t n = 0; n < tensor_count(of); n++)
        tensor_set_nth(&x, n, tensor_nth(of, n));
    return x;
}

static void columns_apart(trial *t)
{
    t->c.f.q = apart(t, &t->c.f.q);
    t->c.f.k = apart(t, &t->c.f.k);
    t->c.f.v = apart(t, &t->c.f.v);
    t->c.f.o = apart(t, &t->c.f.o);
    causal(t);
}

static void rows_backwards(trial *t)
{
    ffpa_tensor *k = &t->c.f.k;
    k->data =
        (char *)k->data + (k->shape[2] - 1) * k->stride[2] * (int64_t)dtype_bytes(k->dtype);
    k->stride[2] = -k->stride[2];
}

static void strides(void **state)
{
    (void)state;
    for (int nq = 3; nq <= 39; nq += 36) {
        check((trial_size){1, 2, 1, nq, 131, 37, 19}, columns_apart);
        check((trial_size){1, 2, 1, nq, 131, 37, 19}, rows_backwards);
    }
}

/* ---- what is masked does not matter ---- */

static bool same_rows(const ffpa_tensor *a, const ffpa_tensor *b, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        for (int64_t d = 0; d < a->shape[3]; d++) {
            const double x = tensor_get(a, 0, 0, i, d), y = tensor_get(b, 0, 0, i, d);
            if (x != y) return false;
        }
    return true;
}

/* Under a causal mask key `j` is seen by rows i >= j only: the others must have the bits they would have
 * if its K and V were zeros, and the rest must be NaN. */
static void check_garbage(const backend *be, trial_size z, ffpa_dtype dtype, int64_t j)
{
    trial *zeros = make(z, dtype, causal_top_left), *garbage = make(z, dtype, causal_top_left);
    for (int64_t d = 0; d < z.d; d++) {
        tensor_set(&zeros->c.f.k, 0, 0, j, d, 0);
        tensor_set(&garbage->c.f.k, 0, 0, j, d, d % 2 ? NAN : -INFINITY);
    }
    for (int64_t d = 0; d < z.dv; d++) {
        tensor_set(&zeros->c.f.v, 0, 0, j, d, 0);
        tensor_set(&garbage->c.f.v, 0, 0, j, d, d % 2 ? NAN : INFINITY);
    }
    trial_forward(zeros, be);
    trial_forward(garbage, be);
    if (!same_rows(&zeros->c.f.o, &garbage->c.f.o, 0, j) ||
        !same_rows(&zeros->c.f.lse, &garbage->c.f.lse, 0, j))
        fail_msg("%s %s nq=%d: key %d leaks", be->name, dtype_name((int32_t)dtype), (int)z.nq,
                 (int)j);
    for (int64_t i = j; i < z.nq; i++) {
        assert_true(isnan(tensor_get(&garbage->c.f.lse, 0, 0, i, 0)));
        for (int64_t d = 0; d < z.dv; d++)
            assert_true(isnan(tensor_get(&garbage->c.f.o, 0, 0, i, d)));
    }
    trial_free(zeros);
    trial_free(garbage);
}

/* An infinite value alone makes infinite what sees it, and nothing else. */
static void check_infinite_value(const backend *be, trial_size z, ffpa_dtype dtype, int64_t j)
{
    trial *t = make(z, dtype, causal_top_left);
    tensor_set(&t->c.f.v, 0, 0, j, 0, INFINITY);
    trial_forward(t, be);
    for (int64_t i = 0; i < z.nq; i++) {
        assert_true(isfinite(tensor_get(&t->c.f.o, 0, 0, i, 0)) == (i < j));
        assert_true(isfinite(tensor_get(&t->c.f.o, 0, 0, i, 1)));
        assert_true(isfinite(tensor_get(&t->c.f.lse, 0, 0, i, 0)));
    }
    trial_free(t);
}

static void masked_garbage(void **state)
{
    (void)state;
    for (const backend *const *be = all_paths(); *be; be++)
        for (int dtype = FFPA_F32; dtype <= FFPA_BF16; dtype++)
            for (int64_t nq = 9; nq <= 149; nq += 70)
                for (int64_t j = 0; j < nq; j += nq / 4) {
                    const trial_size z = {1, 1, 1, nq, nq < 100 ? 150 : nq, 20, 13};
                    check_garbage(*be, z, (ffpa_dtype)dtype, j);
                    check_infinite_value(*be, z, (ffpa_dtype)dtype, j);
                }
}

/* A sink that leaves the keys weights too small for a float: NaN in V comes through all the same. */
static void sink_above_all(void **state)
{
    static const int rows[] = {3, 20}; /* few rows, tiles */
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const trial_size z = {1, 2, 1, rows[i], 70, 8, 9};
        trial *exact = make(z, FFPA_F32, sink);
        for (int64_t h = 0; h < z.hq; h++)
            tensor_set_nth(&exact->c.f.sink, h, 300);
        tensor_set(&exact->c.f.v, 0, 0, 40, 3, (double)NAN);
        trial_forward(exact, &reference_backend);
        for (const backend *const *be = all_paths(); *be; be++) {
            trial *t = make(z, FFPA_F32, sink);
            for (int64_t h = 0; h < z.hq; h++)
                tensor_set_nth(&t->c.f.sink, h, 300);
            tensor_set(&t->c.f.v, 0, 0, 40, 3, (double)NAN);
            trial_forward(t, *be);
            for (int64_t n = 0; n < tensor_count(&t->c.f.o); n++) {
                assert_int_equal(n % z.dv == 3, !!isnan(tensor_nth(&exact->c.f.o, n)));
                assert_int_equal(n % z.dv == 3, !!isnan(tensor_nth(&t->c.f.o, n)));
            }
            trial_free(t);
        }
        trial_free(exact);
    }
}

/* ---- the same bits for any number of threads, every time ---- */

static void same_bits(trial_size z, ffpa_dtype dtype, change_fn *change)
{
    for (const backend *const *be = all_paths(); *be; be++) {
        trial *first = make(z, dtype, change);
        first->threads = 1;
        trial_forward(first, *be);
        for (int threads = 1; threads <= 4; threads++) {
            trial *t = make(z, dtype, change);
            t->threads = threads;
            trial_forward(t, *be);
            const size_t o = (size_t)tensor_count(&t->c.f.o) * dtype_bytes(t->c.f.o.dtype);
            assert_memory_equal(t->c.f.o.data, first->c.f.o.data, o);
            assert_memory_equal(t->c.f.lse.data, first->c.f.lse.data,
                                (size_t)tensor_count(&t->c.f.lse) * sizeof(float));
            trial_free(t);
        }
        trial_free(first);
    }
}

/* A row's bits do not depend on who shares the batch, blocks of either size. */
static void any_batch(void **state)
{
    static change_fn *const changes[] = {nothing, causal, window, dropout};
    (void)state;
    for (const backend *const *be = all_paths(); *be; be++)
        for (size_t i = 0; i < COUNT(changes); i++) {
            trial *many = make((trial_size){32, 2, 1, 140, 205, 20, 12}, FFPA_F32, changes[i]);
            trial_forward(many, *be);
            const size_t o = 2 * 140 * 12 * sizeof(float), lse = 2 * 140 * sizeof(float);
            void *of_many = malloc(o), *lse_of_many = malloc(lse);
            assert_true(of_many && lse_of_many);
            memcpy(of_many, many->c.f.o.data, o);
            memcpy(lse_of_many, many->c.f.lse.data, lse);
            ffpa_tensor *batch[] = {&many->c.f.q, &many->c.f.k, &many->c.f.v, &many->c.f.o,
                                    &many->c.f.lse};
            for (size_t k = 0; k < COUNT(batch); k++)
                batch[k]->shape[0] = 1;
            memset(many->c.f.o.data, 0xff, o);
            memset(many->c.f.lse.data, 0xff, lse);
            trial_forward(many, *be);
            assert_memory_equal(many->c.f.o.data, of_many, o);
            assert_memory_equal(many->c.f.lse.data, lse_of_many, lse);
            free(of_many);
            free(lse_of_many);
            trial_free(many);
        }
}

/* ---- rounding ---- */

static void fill_random(const ffpa_tensor *t, ffpa_dtype dtype, uint64_t seed)
{
    for (int64_t n = 0; n < tensor_count(t); n++)
        tensor_set_nth(t, n, tensor_round((int32_t)dtype, tensor_unit(&seed) - .5));
}

/* Root mean square of what LSE of random Q and K is off by. With one key it is the score itself. */
static double lse_error(trial_size z, ffpa_dtype dtype, const backend *be)
{
    trial *runs[] = {trial_new(z, FFPA_F64), trial_new(z, dtype)};
    for (size_t r = 0; r < COUNT(runs); r++) {
        fill_random(&runs[r]->c.f.q, dtype, 1);
        fill_random(&runs[r]->c.f.k, dtype, 2);
        trial_forward(runs[r], r ? be : &reference_backend);
    }
    const ffpa_tensor *exact = &runs[0]->c.f.lse, *lse = &runs[1]->c.f.lse;
    double sum = 0;
    for (int64_t n = 0; n < tensor_count(lse); n++)
        sum += pow(tensor_nth(lse, n) - tensor_nth(exact, n), 2);
    sum /= (double)tensor_count(lse);
    trial_free(runs[0]);
    trial_free(runs[1]);
    return sqrt(sum);
}

/* A score's rounding is exponentiated, and grows with the chain of additions that made it. The accept rule looks
 * at the worst row and leaves room for luck; on the average a path is as good as naive, with its eight sums. */
static void scores_in_short_chains(void **state)
{
    static const int64_t columns[] = {16, 32, 64, 128, 256, 320, 512};
    (void)state;
    for (size_t x = 0; x < 2 * COUNT(columns); x++) {
        const trial_size z = {1, 4, 4, 200, 1, columns[x / 2], 1};
        const ffpa_dtype dtype = x % 2 ? FFPA_BF16 : FFPA_F32;
        const double naive = lse_error(z, dtype, &naive_backend);
        for (const backend *const *be = all_paths(); *be; be++) {
            const double error = lse_error(z, dtype, *be);
            if (!(error <= 1.5 * naive))
                fail_msg("%s %s d%d: lse off by %.3g, naive by %.3g", (*be)->name,
                         dtype_name((int32_t)dtype), (int)z.d, error, naive);
        }
    }
}

static void any_threads(void **state)
{
    (void)state;
    same_bits((trial_size){2, 4, 2, 150, 210, 40, 24}, FFPA_F32, causal);
    same_bits((trial_size){2, 4, 2, 150, 210, 40, 24}, FFPA_BF16, everything);
    same_bits((trial_size){3, 8, 2, 1, 5000, 16, 16}, FFPA_F32, nothing); /* split, few rows */
    same_bits((trial_size){1, 2, 1, 40, 5000, 8, 8}, FFPA_BF16, causal);  /* split, tiles */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_rows),
        cmocka_unit_test(edges_of_keys),
        cmocka_unit_test(edges_of_columns),
        cmocka_unit_test(edges_of_splits),
        cmocka_unit_test(options),
        cmocka_unit_test(large_blocks),
        cmocka_unit_test(several_large_tiles),
        cmocka_unit_test(subnormal_numbers),
        cmocka_unit_test(strides),
        cmocka_unit_test(any_batch),
        cmocka_unit_test(sink_above_all),
        cmocka_unit_test(masked_garbage),
        cmocka_unit_test(scores_in_short_chains),
        cmocka_unit_test(any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
