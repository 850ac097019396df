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
enum { MAX_STEP = 6, DOT_KEYS = 3, SUM_KEYS = 6 };
typedef struct key_rows {
    const void *row[MAX_STEP];
    const char *next[MAX_STEP]; /* NULL: none */
    int32_t dtype;
} key_rows;

/* Addresses of the rows of n keys from `first` on; those past the last key are the last one's. */
static void locate(const few_tile *t, const ffpa_tensor *x, int64_t first, const char **row)
{
    const sequence *s = t->rb->s;
    const int64_t last = t->end - 1, step = x->stride[2] * (int64_t)dtype_bytes(x->dtype);
    const char *p = sequence_key(s, x, t->rb->hk, first < last ? first : last);
    for (int64_t j = first; j < first + t->n; j++) {
        *row++ = p;
        if (j >= last) continue;
        p = s->page_size ? sequence_key(s, x, t->rb->hk, j + 1) : p + step;
    }
}

void few_locate(few_tile *t)
{
    const ffpa_forward_params *f = &t->rb->c->f;
    locate(t, &f->k, t->j0, t->row);
    locate(t, &f->v, t->j0, t->row + t->n);
    locate(t, &f->k, t->j0 + t->n, t->row + 2 * t->n);
}

/* Bytes from a row to the one that is fetched meanwhile: memory takes longer than a few rows of work. */
enum { AHEAD_BYTES = 32768 };

/* Rows j .. j + count - 1 of the tile in k or v, or in scratch; those past the tile repeat the last. Next
 * come those some rows on. */
static key_rows rows_at(const few_tile *t, bool values, bool scratch, ptrdiff_t j, int count)
{
    const ffpa_tensor *x = values ? &t->rb->c->f.v : &t->rb->c->f.k;
    const char *const *row = t->row + (values ? t->n : 0);
    const ptrdiff_t bytes = x->shape[3] * (x->dtype == FFPA_F32 ? 4 : 2);
    const ptrdiff_t near = bytes > 0 ? AHEAD_BYTES / bytes : t->n;
    const ptrdiff_t far = near > count ? near : count, ahead = far < t->n ? far : t->n;
    key_rows rows = {.dtype = scratch ? FFPA_F32 : x->dtype};
    for (int i = 0; i < count; i++) {
        const ptrdiff_t key = j + i < t->n ? j + i : t->n - 1;
        rows.row[i] = scratch ? (const void *)(t->scratch + key * t->ld) : row[key];
        rows.next[i] = row[key + ahead];
    }
    return rows;
}

/* Bring `n` elements from column i on of a row that is wanted next into cache, NULL being none. */
INLINE void prefetch_row(const char *row, const ptrdiff_t size, ptrdiff_t i, const ptrdiff_t n)
{
    for (ptrdiff_t byte = 0; row && byte < n * size; byte += 64)
        prefetch(row + i * size + byte);
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

enum { DOT_ROWS = 4 }; /* with three keys 12 accumulators: more than hide the latency of one */

/* Add the products of VL columns of `rows` rows, ld apart, and of the keys. */
INLINE void dot_add(const int rows, const vf x[DOT_KEYS], const float *q, ptrdiff_t ld,
                    vf acc[DOT_ROWS][DOT_KEYS])
{
    UNROLL for (int r = 0; r < rows; r++)
    {
        const vf y = vkeep(vload(q + r * ld));
        UNROLL for (int j = 0; j < DOT_KEYS; j++) acc[r][j] = vfma(y, x[j], acc[r][j]);
    }
}

/* s[j][r] = <q row r, key j>, 0 for r >= rows, in chains of TILE_CHAIN additions as in tile_dots; rows and dtype
 * are constants wherever this is inlined. */
INLINE void dot_block(const int rows, const int32_t dtype, const key_rows *keys, const float *q,
                      ptrdiff_t d, float *s)
{
    const ptrdiff_t ld = few_stride(d), size = dtype == FFPA_F32 ? 4 : 2;
    const key_rows k = *keys;
    ptrdiff_t i = 0;
    UNROLL for (int j = 0; j < DOT_KEYS; j++) * (vf4 *)(s + j * NR) = (vf4){0};
    do {
        const ptrdiff_t end = d - i < TILE_CHAIN * VL ? d : i + TILE_CHAIN * VL;
        vf acc[DOT_ROWS][DOT_KEYS], x[DOT_KEYS];
        UNROLL for (int n = 0; n < DOT_ROWS * DOT_KEYS; n++)
        {
            acc[n / DOT_KEYS][n % DOT_KEYS] = vzero();
        }
        for (; i + VL <= end; i += VL) {
            if (i % NR == 0)
                UNROLL for (int j = 0; j < DOT_KEYS; j++) prefetch_row(k.next[j], size, i, NR);
            UNROLL for (int j = 0; j < DOT_KEYS; j++) x[j] =
                vkeep(load_lanes(k.row[j], dtype, i));
            dot_add(rows, x, q + i, ld, acc);
        }
        if (i < end) { /* only at the last columns; q has zeros past them */
            UNROLL for (int j = 0; j < DOT_KEYS; j++) x[j] =
                load_first(k.row[j], dtype, i, end - i);
            dot_add(rows, x, q + i, ld, acc);
        }
        UNROLL for (int j = 0; j < DOT_KEYS; j++)
        {
            *(vf4 *)(s + j * NR) += vsum4(acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
        }
        i = end;
    } while (i < d);
}

typedef void dot_fn(const key_rows *k, const float *q, ptrdiff_t d, float *s);

#define DOT(rows, dtype)                                                                       \
    static void dot_##rows##_##dtype(const key_rows *k, const float *q, ptrdiff_t d, float *s) \
    {                                                                                          \
        dot_block(rows, dtype, k, q, d, s);                                                    \
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

/* Scores of keys j .. j + DOT_KEYS - 1 of the tile, for all rows. Each pass over the keys fetches some of the
 * rows that are wanted next. */
static void score_keys(const few_tile *t, const float *q, ptrdiff_t j, const key_rows *k)
{
    static dot_fn *const dots[DOT_ROWS][3] = {DOT_NAMES(1), DOT_NAMES(2), DOT_NAMES(3),
                                              DOT_NAMES(4)};
    const row_block *rb = t->rb;
    const ptrdiff_t d = rb->c->f.q.shape[3];
    const int passes = (rb->rows + DOT_ROWS - 1) / DOT_ROWS;
    for (int pass = 0; pass < passes; pass++) {
        const int r0 = pass * DOT_ROWS;
        const int rows = rb->rows - r0 < DOT_ROWS ? rb->rows - r0 : DOT_ROWS;
        key_rows turn = *k;
        for (int i = 0; i < DOT_KEYS; i++)
            if (i % passes != pass) turn.next[i] = NULL;
        dots[rows - 1][dtype_column(k->dtype)](&turn, q + r0 * few_stride(d), d,
                                               t->s + r0 / NR * NR * t->panel_keys + j * NR +
                                                   r0 % NR);
    }
}

/* Lanes that no pass reaches. */
static void clear_lanes(const few_tile *t)
{
    const int first = (t->rb->rows + DOT_ROWS - 1) / DOT_ROWS * DOT_ROWS;
    for (int lane = first; lane < t->rb->lanes; lane += DOT_ROWS)
        for (ptrdiff_t j = 0; j < t->n; j++)
            *(vf4 *)(t->s + lane / NR * NR * t->panel_keys + j * NR + lane % NR) = (vf4){0};
}

void few_scores(const few_tile *t, const float *q)
{
    const ffpa_tensor *k = &t->rb->c->f.k;
    const bool scratch = !row_contiguous(k);
    if (scratch) rows_load_keys(t->scratch, t->ld, t->rb, k, t->j0, t->n);
    clear_lanes(t);
    for (ptrdiff_t j = 0; j < t->n; j += DOT_KEYS) {
        const key_rows rows = rows_at(t, false, scratch, j, DOT_KEYS);
        score_keys(t, q, j, &rows);
    }
}

/* ---- output ---- */

/* o[r] += sum over `keys` rows of weight * value; keys and dtype are constants where inlined. */
INLINE void sum_block(const int keys, const int32_t dtype, const key_rows *v, const few_tile *t,
                      const float *weights, float *o)
{
    const ptrdiff_t dv = t->rb->c->f.v.shape[3], size = dtype == FFPA_F32 ? 4 : 2;
    const int rows = t->rb->rows;
    const float *w[FEW_ROWS]; /* of each row, NR apart */
    ptrdiff_t d = 0;
    for (int r = 0; r < rows; r++)
        w[r] = weights + r / NR * NR * t->panel_keys + r % NR;
    for (; d + NR <= dv; d += NR) {
        vf x[SUM_KEYS][2];
        UNROLL for (int j = 0; j < keys; j++)
        {
            prefetch_row(v->next[j], size, d, NR);
            x[j][0] = load_lanes(v->row[j], dtype, d);
            x[j][1] = load_lanes(v->row[j], dtype, d + VL);
        }
        for (int r = 0; r < rows; r++) {
            float *row = o + r * dv + d;
            vf o0 = vload(row), o1 = vload(row + VL);
            UNROLL for (int j = 0; j < keys; j++)
            {
                const vf p = vset(w[r][j * NR]);
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
            vf sum = vload_first(o + r * dv + d, n);
            UNROLL for (int j = 0; j < keys; j++) sum = vfma(vset(w[r][j * NR]), x[j], sum);
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
SUMS(5)
SUMS(6)

void few_copy_values(few_tile *t)
{
    t->copied = true;
    rows_load_keys(t->scratch, t->ld, t->rb, &t->rb->c->f.v, t->j0, t->n);
}

void few_output(const few_tile *t, float *o, bool fresh)
{
    static sum_fn *const sums[SUM_KEYS][3] = {SUM_NAMES(1), SUM_NAMES(2), SUM_NAMES(3),
                                              SUM_NAMES(4), SUM_NAMES(5), SUM_NAMES(6)};
    const ffpa_tensor *v = &t->rb->c->f.v;
    if (fresh) memset(o, 0, (size_t)(t->rb->rows * v->shape[3]) * sizeof *o);
    for (ptrdiff_t j = 0; j < t->n; j += SUM_KEYS) {
        const int keys = t->n - j < SUM_KEYS ? (int)(t->n - j) : SUM_KEYS;
        const key_rows rows = rows_at(t, true, t->copied, j, keys);
        sums[keys - 1][dtype_column(rows.dtype)](&rows, t, t->s + j * NR, o);
    }
}
