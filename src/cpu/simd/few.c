/* few.c - dot products and row sums for blocks of few rows; see few.h. */
#include "cpu/simd/few.h"

void few_load_q(float *q, const row_block *rb)
{
    const ffpa_tensor *t = &rb->c->f.q;
    const ptrdiff_t d = t->shape[3], ld = few_stride(d);
    for (int r = 0; r < rb->rows; r++) {
        const void *row = sequence_query(rb->s, t, rb->head[r], rb->query[r]);
        row_load(q + r * ld, row, t->dtype, t->stride[3], d);
        memset(q + r * ld + d, 0, (size_t)(ld - d) * sizeof *q);
    }
}

/* A few rows of K or V of one dtype, and the rows that are wanted next. */
enum { MAX_STEP = 4, DOT_KEYS = 2, SUM_KEYS = 4 };
typedef struct key_rows {
    const void *row[MAX_STEP];
    const char *next[MAX_STEP];
    int32_t dtype;
} key_rows;

/* Rows j .. j + count - 1 of the tile in k or v, or in scratch; those past the tile repeat the last. */
static key_rows rows_at(const few_tile *t, const ffpa_tensor *x, bool scratch, ptrdiff_t j,
                        int count)
{
    key_rows rows = {.dtype = scratch ? FFPA_F32 : x->dtype};
    for (int i = 0; i < count; i++) {
        const ptrdiff_t key = j + i < t->n ? j + i : t->n - 1;
        rows.row[i] = scratch ? t->scratch + key * t->ld
                              : sequence_key(t->rb->s, x, t->rb->hk, t->j0 + key);
    }
    return rows;
}

/* Set what is wanted next: rows from j0 + j of x on. */
static void rows_next(key_rows *rows, const few_tile *t, const ffpa_tensor *x, ptrdiff_t j,
                      int count)
{
    for (int i = 0; i < count; i++) {
        const int64_t key = t->j0 + j + i < t->end ? t->j0 + j + i : t->end - 1;
        rows->next[i] = sequence_key(t->rb->s, x, t->rb->hk, key);
    }
}

INLINE vf load_lanes(const void *p, const int32_t dtype, ptrdiff_t i)
{
    if (dtype == FFPA_F16) return vload_f16((const uint16_t *)p + i);
    if (dtype == FFPA_BF16) return vload_bf16((const uint16_t *)p + i);
    return vload((const float *)p + i);
}

INLINE vf load_first(const void *p, const int32_t dtype, ptrdiff_t i, ptrdiff_t n)
{
    float lanes[VL] = {0};
    const ptrdiff_t size = dtype == FFPA_F32 ? 4 : 2;
    if (n > 0) row_load(lanes, (const char *)p + i * size, dtype, 1, n);
    return vload(lanes);
}

/* ---- scores ---- */

enum { DOT_ROWS = 4 }; /* with two keys 8 accumulators: enough to hide the latency of one */

/* out[r][j] = <q row r, key j>; rows and dtype are constants wherever this is inlined. */
INLINE void dot_block(const int rows, const int32_t dtype, const key_rows *k, const float *q,
                      ptrdiff_t d, float out[DOT_ROWS][DOT_KEYS])
{
    const ptrdiff_t ld = few_stride(d), size = dtype == FFPA_F32 ? 4 : 2;
    const void *row0 = k->row[0], *row1 = k->row[1];
    const char *next0 = k->next[0], *next1 = k->next[1];
    vf acc[DOT_ROWS][DOT_KEYS];
    UNROLL for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vzero();
    ptrdiff_t i = 0;
    for (; i + VL <= d; i += VL) {
        prefetch(next0 + i * size);
        prefetch(next1 + i * size);
        const vf k0 = vkeep(load_lanes(row0, dtype, i)), k1 = vkeep(load_lanes(row1, dtype, i));
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vf x = vkeep(vload(q + r * ld + i));
            acc[r][0] = vfma(x, k0, acc[r][0]);
            acc[r][1] = vfma(x, k1, acc[r][1]);
        }
    }
    if (i < d) {
        const vf k0 = load_first(row0, dtype, i, d - i), k1 = load_first(row1, dtype, i, d - i);
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vf x = vload(q + r * ld + i);
            acc[r][0] = vfma(x, k0, acc[r][0]);
            acc[r][1] = vfma(x, k1, acc[r][1]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        out[r][0] = vsum(acc[r][0]);
        out[r][1] = vsum(acc[r][1]);
    }
}

typedef void dot_fn(const key_rows *k, const float *q, ptrdiff_t d,
                    float out[DOT_ROWS][DOT_KEYS]);

#define DOT(rows, dtype)                                                             \
    static void dot_##rows##_##dtype(const key_rows *k, const float *q, ptrdiff_t d, \
                                     float out[DOT_ROWS][DOT_KEYS])                  \
    {                                                                                \
        dot_block(rows, dtype, k, q, d, out);                                        \
    }
#define DOTS(rows)      \
    DOT(rows, FFPA_F32) \
    DOT(rows, FFPA_F16) \
    DOT(rows, FFPA_BF16)
#define DOT_NAMES(rows)                                                      \
    {                                                                        \
        dot_##rows##_FFPA_F32, dot_##rows##_FFPA_F16, dot_##rows##_FFPA_BF16 \
    }

DOTS(1)
DOTS(2)
DOTS(3)
DOTS(4)

static int dtype_column(int32_t dtype)
{
    return dtype == FFPA_F32 ? 0 : dtype == FFPA_F16 ? 1 : 2;
}

/* Scores of keys j and j + 1 of the tile for all rows; lanes past the last row become 0. */
static void score_pair(const few_tile *t, const float *q, ptrdiff_t j, const key_rows *k)
{
    static dot_fn *const dots[DOT_ROWS][3] = {DOT_NAMES(1), DOT_NAMES(2), DOT_NAMES(3),
                                              DOT_NAMES(4)};
    const row_block *rb = t->rb;
    const ptrdiff_t d = rb->c->f.q.shape[3];
    const int count = j + 1 < t->n ? 2 : 1;
    for (int p = 0; p < rb->lanes; p += VL)
        for (int i = 0; i < count; i++)
            vstore(t->s + p / NR * NR * t->panel_keys + (j + i) * NR + p % NR, vzero());
    for (int r0 = 0; r0 < rb->rows; r0 += DOT_ROWS) {
        const int rows = rb->rows - r0 < DOT_ROWS ? rb->rows - r0 : DOT_ROWS;
        float out[DOT_ROWS][DOT_KEYS];
        dots[rows - 1][dtype_column(k->dtype)](k, q + r0 * few_stride(d), d, out);
        for (int r = r0; r < r0 + rows; r++)
            for (int i = 0; i < count; i++)
                t->s[r / NR * NR * t->panel_keys + (j + i) * NR + r % NR] = out[r - r0][i];
    }
}

void few_scores(const few_tile *t, const float *q)
{
    const ffpa_tensor *k = &t->rb->c->f.k, *v = &t->rb->c->f.v;
    const bool scratch = !row_contiguous(k);
    if (scratch) rows_load_keys(t->scratch, t->ld, t->rb, k, t->j0, t->n);
    for (ptrdiff_t j = 0; j < t->n; j += DOT_KEYS) {
        const bool last = j + DOT_KEYS >= t->n; /* V comes next */
        key_rows rows = rows_at(t, k, scratch, j, DOT_KEYS);
        rows_next(&rows, t, last ? v : k, last ? 0 : j + DOT_KEYS, DOT_KEYS);
        score_pair(t, q, j, &rows);
    }
}

/* ---- output ---- */

/* o[r] += sum over `keys` rows of weight * value; keys and dtype are constants where inlined. */
INLINE void sum_block(const int keys, const int32_t dtype, const key_rows *v, const few_tile *t,
                      const float *weights, float *o)
{
    const ptrdiff_t dv = t->rb->c->f.v.shape[3], size = dtype == FFPA_F32 ? 4 : 2;
    const int rows = t->rb->rows;
    ptrdiff_t d = 0;
    for (; d + NR <= dv; d += NR) {
        vf x[SUM_KEYS][2];
        UNROLL for (int j = 0; j < keys; j++)
        {
            prefetch(v->next[j] + d * size);
            x[j][0] = load_lanes(v->row[j], dtype, d);
            x[j][1] = load_lanes(v->row[j], dtype, d + VL);
        }
        for (int r = 0; r < rows; r++) {
            const float *w = weights + r / NR * NR * t->panel_keys + r % NR;
            float *row = o + r * dv + d;
            vf o0 = vload(row), o1 = vload(row + VL);
            UNROLL for (int j = 0; j < keys; j++)
            {
                const vf p = vset(w[j * NR]);
                o0 = vfma(p, x[j][0], o0);
                o1 = vfma(p, x[j][1], o1);
            }
            vstore(row, o0);
            vstore(row + VL, o1);
        }
    }
    for (; d < dv; d += VL) {
        const ptrdiff_t n = dv - d < VL ? dv - d : VL;
        vf x[SUM_KEYS];
        UNROLL for (int j = 0; j < keys; j++) x[j] = load_first(v->row[j], dtype, d, n);
        for (int r = 0; r < rows; r++) {
            const float *w = weights + r / NR * NR * t->panel_keys + r % NR;
            vf sum = vload_first(o + r * dv + d, n);
            UNROLL for (int j = 0; j < keys; j++) sum = vfma(vset(w[j * NR]), x[j], sum);
            vstore_first(o + r * dv + d, sum, n);
        }
    }
}

typedef void sum_fn(const key_rows *v, const few_tile *t, const float *weights, float *o);

#define SUM(keys, dtype)                                                   \
    static void sum_##keys##_##dtype(const key_rows *v, const few_tile *t, \
                                     const float *weights, float *o)       \
    {                                                                      \
        sum_block(keys, dtype, v, t, weights, o);                          \
    }
#define SUMS(keys)      \
    SUM(keys, FFPA_F32) \
    SUM(keys, FFPA_F16) \
    SUM(keys, FFPA_BF16)
#define SUM_NAMES(keys)                                                      \
    {                                                                        \
        sum_##keys##_FFPA_F32, sum_##keys##_FFPA_F16, sum_##keys##_FFPA_BF16 \
    }

SUMS(1)
SUMS(2)
SUMS(3)
SUMS(4)

void few_copy_values(few_tile *t)
{
    t->copied = true;
    rows_load_keys(t->scratch, t->ld, t->rb, &t->rb->c->f.v, t->j0, t->n);
}

void few_output(const few_tile *t, float *o, bool fresh)
{
    static sum_fn *const sums[SUM_KEYS][3] = {SUM_NAMES(1), SUM_NAMES(2), SUM_NAMES(3),
                                              SUM_NAMES(4)};
    const ffpa_tensor *k = &t->rb->c->f.k, *v = &t->rb->c->f.v;
    if (fresh) memset(o, 0, (size_t)(t->rb->rows * v->shape[3]) * sizeof *o);
    for (ptrdiff_t j = 0; j < t->n; j += SUM_KEYS) {
        const int keys = t->n - j < SUM_KEYS ? (int)(t->n - j) : SUM_KEYS;
        const bool last = j + SUM_KEYS >= t->n; /* the next tile's K comes next */
        key_rows rows = rows_at(t, v, t->copied, j, keys);
        rows_next(&rows, t, last ? k : v, j + SUM_KEYS, SUM_KEYS);
        sums[keys - 1][dtype_column(rows.dtype)](&rows, t, t->s + j * NR, o);
    }
}
