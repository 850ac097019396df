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

/* Addresses of the rows of n keys from `first` on, n > 0; those past the last key are the last one's. */
static void locate(const few_tile *t, const ffpa_tensor *x, int64_t first, const char **row)
{
    const sequence *s = t->rb->s;
    const int64_t last = t->end - 1, step = x->stride[2] * (int64_t)dtype_bytes(x->dtype);
    const int64_t most = first + t->n - 1 < last ? first + t->n - 1 : last;
    const char *p = sequence_key(s, x, t->rb->hk, first < last ? first : last);
    for (int64_t j = first; j < first + FEW_KEYS; j++) {
        *row++ = p;
        if (j >= most) continue;
        p = s->page_size ? sequence_key(s, x, t->rb->hk, j + 1) : p + step;
    }
}

void few_locate(few_tile *t)
{
    const ffpa_forward_params *f = &t->rb->c->f;
    t->k_dtype = f->k.dtype;
    t->v_dtype = f->v.dtype;
    locate(t, &f->k, t->j0, t->row);
    locate(t, &f->v, t->j0, t->row + FEW_KEYS);
    locate(t, &f->k, t->j0 + t->n, t->row + 2 * FEW_KEYS);
}

/* Bring the tile's keys of x into scratch as f32: `row` are theirs from now on. */
static void copy_rows(few_tile *t, const ffpa_tensor *x, const char **row)
{
    rows_load_keys(t->scratch, t->ld, t->rb, x, t->j0, t->n);
    for (ptrdiff_t j = 0; j < FEW_KEYS; j++)
        row[j] = (const char *)(t->scratch + (j < t->n ? j : t->n - 1) * t->ld);
}

/* Bring `n` elements from column i on of a row that is wanted next into cache. */
INLINE void fetch(const char *row, const ptrdiff_t size, ptrdiff_t i, const ptrdiff_t n)
{
    UNROLL for (ptrdiff_t byte = 0; byte < n * size; byte += 64)
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

enum {
    PASS_ROWS = 8, /* most rows of a pass over the keys: of 1, 2, 3, 4 or 8 */
    DOT_KEYS = 3,  /* keys of a step */
    DOT_STEP =
        4 * VL /* columns of a step: few enough steps for the end of the loop to be foreseen */
};

/* Rows of a register tile, by keys of it or vectors of columns: 8 by 1 loads and widens each vector of K or V once, with a
 * load of Q for each multiply-add; 4 by 3 has fewer loads and 12 accumulators, which is the better one with the
 * loads and latencies of AVX2. Fewer rows take the 3 as well, for as many chains of additions. */
enum { TILE_ROWS = VL == 16 ? 8 : 4, TILE_BY = 3 };
INLINE int tile_by(const int rows) { return rows == 8 ? 1 : TILE_BY; }

/* Add the products of VL columns of `rows` rows, ld apart, and of the keys. */
INLINE void dot_add(const int rows, const int keys, const vf x[TILE_BY], const float *q,
                    ptrdiff_t ld, vf acc[TILE_ROWS][TILE_BY])
{
    UNROLL for (int r = 0; r < rows; r++)
    {
        const vf y = keys > 1 ? vkeep(vload(q + r * ld)) : vload(q + r * ld);
        UNROLL for (int j = 0; j < keys; j++) acc[r][j] = vfma(y, x[j], acc[r][j]);
    }
}

/* Rows of K, those that are fetched meanwhile, and rows of Q, few_stride(d) apart. */
typedef struct dot_rows {
    const char *key[DOT_KEYS], *next[DOT_KEYS];
    const float *q;
    ptrdiff_t d;
} dot_rows;

/* The same for columns i .. i + VL - 1. */
INLINE void dot_lanes(const int rows, const int32_t dtype, const dot_rows *k, ptrdiff_t i,
                      vf acc[TILE_ROWS][TILE_BY])
{
    const int keys = tile_by(rows);
    vf x[TILE_BY];
    UNROLL for (int j = 0; j < keys; j++) x[j] = vkeep(load_lanes(k->key[j], dtype, i));
    dot_add(rows, keys, x, k->q + i, few_stride(k->d), acc);
}

/* s[j][r] = <q row r, key j>, 0 for r >= rows up to a multiple of 4, for the first tile_by(rows) keys, in chains of
 * TILE_CHAIN additions as in tile_dots; rows and dtype are constants wherever this is inlined. */
INLINE void dot_block(const int rows, const int32_t dtype, const dot_rows *of, float *s)
{
    const dot_rows k = *of;
    const int keys = tile_by(rows);
    const ptrdiff_t d = k.d, size = dtype == FFPA_F32 ? 4 : 2;
    ptrdiff_t i = 0;
    UNROLL for (int j = 0; j < keys; j++) UNROLL for (int r = 0; r < rows; r += 4)
    {
        *(vf4 *)(s + j * NR + r) = (vf4){0};
    }
    do {
        const ptrdiff_t end = d - i < TILE_CHAIN * VL ? d : i + TILE_CHAIN * VL;
        vf acc[TILE_ROWS][TILE_BY], x[TILE_BY];
        UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int j = 0; j < keys; j++)
        {
            acc[r][j] = vzero();
        }
        for (; i + DOT_STEP <= end; i += DOT_STEP) {
            UNROLL for (int j = 0; j < keys; j++) fetch(k.next[j], size, i, DOT_STEP);
            UNROLL for (int n = 0; n < DOT_STEP; n += VL)
                dot_lanes(rows, dtype, &k, i + n, acc);
        }
        for (; i + VL <= end; i += VL)
            dot_lanes(rows, dtype, &k, i, acc);
        if (i < end) { /* only at the last columns; q has zeros past them */
            UNROLL for (int j = 0; j < keys; j++) x[j] =
                load_first(k.key[j], dtype, i, end - i);
            dot_add(rows, keys, x, k.q + i, few_stride(d), acc);
        }
        UNROLL for (int j = 0; j < keys; j++) UNROLL for (int r = 0; r < rows; r += 4)
        {
            *(vf4 *)(s + j * NR + r) +=
                vsum4(acc[r][j], acc[r + 1][j], acc[r + 2][j], acc[r + 3][j]);
        }
        i = end;
    } while (i < d);
}

/* The same for any rows of a pass and all keys of the step; of several tiles of rows, each fetches some. */
INLINE void dot_pass(const int rows, const int32_t dtype, const dot_rows *of, float *s)
{
    const int tile = rows < TILE_ROWS ? rows : TILE_ROWS, keys = tile_by(tile);
    UNROLL for (int r = 0; r < rows; r += tile)
        UNROLL for (int j0 = 0; j0 < DOT_KEYS; j0 += keys)
    {
        dot_rows k = {.q = of->q + r * few_stride(of->d), .d = of->d};
        UNROLL for (int j = 0; j < keys; j++)
        {
            k.key[j] = of->key[j0 + j];
            k.next[j] = (j0 + j) % (rows / tile) == r / tile ? of->next[j0 + j] : k.key[j];
        }
        dot_block(tile, dtype, &k, s + j0 * NR + r);
    }
}

typedef void dot_fn(const dot_rows *k, float *s);

#define DOT(rows, dtype)                                          \
    static void dot_##rows##_##dtype(const dot_rows *k, float *s) \
    {                                                             \
        dot_pass(rows, dtype, k, s);                              \
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
DOTS(8)

static int dtype_column(int32_t dtype)
{
    return dtype == FFPA_F32 ? 0 : dtype == FFPA_F16 ? 1 : 2;
}

/* Rows of the next pass over `left` rows, how many passes there are, and where the code of one is in a table. */
static int pass_rows(int left) { return left >= PASS_ROWS ? PASS_ROWS : left < 4 ? left : 4; }
static int pass_count(int rows) { return rows / PASS_ROWS + (rows % PASS_ROWS + 3) / 4; }
static int pass_column(int rows) { return rows == PASS_ROWS ? 4 : rows - 1; }

/* Scores of keys j .. j + DOT_KEYS - 1 of the tile, for all rows. */
static void score_keys(const few_tile *t, const float *q, ptrdiff_t j)
{
    static dot_fn *const dots[][3] = {DOT_NAMES(1), DOT_NAMES(2), DOT_NAMES(3), DOT_NAMES(4),
                                      DOT_NAMES(8)};
    const ptrdiff_t d = t->rb->c->f.q.shape[3];
    const int all = t->rb->rows, passes = pass_count(all);
    for (int pass = 0, r0 = 0, rows; pass < passes; pass++, r0 += rows) {
        rows = pass_rows(all - r0);
        dot_rows k = {.q = q + r0 * few_stride(d), .d = d};
        for (int i = 0; i < DOT_KEYS; i++) { /* each pass fetches some rows of V */
            k.key[i] = t->row[j + i];
            k.next[i] = i % passes == pass ? t->row[FEW_KEYS + j + i] : k.key[i];
        }
        dots[pass_column(rows)][dtype_column(t->k_dtype)](
            &k, t->s + r0 / NR * NR * t->panel_keys + j * NR + r0 % NR);
    }
}

/* Lanes that no pass reaches. */
static void clear_lanes(const few_tile *t)
{
    const int first = (t->rb->rows + 3) / 4 * 4;
    for (int lane = first; lane < t->rb->lanes; lane += 4)
        for (ptrdiff_t j = 0; j < t->n; j++)
            *(vf4 *)(t->s + lane / NR * NR * t->panel_keys + j * NR + lane % NR) = (vf4){0};
}

void few_scores(few_tile *t, const float *q)
{
    const ffpa_tensor *k = &t->rb->c->f.k;
    if (!row_contiguous(k)) {
        copy_rows(t, k, t->row);
        t->k_dtype = FFPA_F32;
    }
    clear_lanes(t);
    for (ptrdiff_t j = 0; j < t->n; j += DOT_KEYS)
        score_keys(t, q, j);
}

/* ---- output ---- */

/* Rows to fetch meanwhile, one after the other as memory likes it, `step` bytes at a time, two lines at most. */
typedef struct rows_ahead {
    const char *const *row;
    const char *at, *end; /* of the present row */
    ptrdiff_t bytes, step, left;
} rows_ahead;

static rows_ahead ahead_of(const few_tile *t, ptrdiff_t steps)
{
    const ffpa_tensor *k = &t->rb->c->f.k;
    const char *const *row = t->row + 2 * FEW_KEYS;
    const ptrdiff_t bytes = k->shape[3] * (ptrdiff_t)dtype_bytes(k->dtype);
    const ptrdiff_t even = steps > 0 ? t->n * bytes / steps + 1 : 0, most = 128;
    return (rows_ahead){row, *row, *row + bytes, bytes, even < most ? even : most, t->n - 1};
}

INLINE void fetch_ahead(rows_ahead *a)
{
    prefetch(a->at);
    prefetch(a->at + 64);
    a->at += a->step;
    if (a->at < a->end || a->left == 0) return;
    a->left--;
    a->at = *++a->row;
    a->end = a->at + a->bytes;
}

/* Rows of V and their weights, NR apart, to be added to rows of O, dv apart. */
typedef struct value_rows {
    const char *const *row;
    const float *weights;
    ptrdiff_t keys;
    float *o;
    ptrdiff_t dv;
    rows_ahead next;
} value_rows;

/* Add to columns from d on, `vectors` vectors or the first `part` columns of one, the sum of weight * value. It stays in
 * registers for all keys. */
INLINE void sum_columns(const int rows, const int vectors, const int32_t dtype, value_rows *v,
                        ptrdiff_t d, ptrdiff_t part)
{
    vf acc[TILE_ROWS][TILE_BY];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vectors; i++)
    {
        const float *p = v->o + r * v->dv + d + i * VL;
        acc[r][i] = part ? vload_first(p, part) : vload(p);
    }
    for (ptrdiff_t j = 0; j < v->keys; j++) {
        vf x[TILE_BY];
        fetch_ahead(&v->next);
        UNROLL for (int i = 0; i < vectors; i++)
        {
            x[i] = vkeep(part ? load_first(v->row[j], dtype, d, part)
                              : load_lanes(v->row[j], dtype, d + i * VL));
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vf weight = vkeep(vset(v->weights[j * NR + r]));
            UNROLL for (int i = 0; i < vectors; i++) acc[r][i] = vfma(weight, x[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vectors; i++)
    {
        float *p = v->o + r * v->dv + d + i * VL;
        if (part)
            vstore_first(p, acc[r][i], part);
        else
            vstore(p, acc[r][i]);
    }
}

/* o[r] += sum over the keys of weight * value; rows and dtype are constants wherever this is inlined. */
INLINE void sum_block(const int rows, const int32_t dtype, value_rows *of)
{
    const int tile = rows < TILE_ROWS ? rows : TILE_ROWS, by = tile_by(tile);
    value_rows v = *of;
    UNROLL for (int r = 0; r < rows; r += tile)
    {
        ptrdiff_t d = 0;
        for (; d + by * VL <= v.dv; d += by * VL)
            sum_columns(tile, by, dtype, &v, d, 0);
        for (; by > 1 && d + VL <= v.dv; d += VL)
            sum_columns(tile, 1, dtype, &v, d, 0);
        if (d < v.dv) sum_columns(tile, 1, dtype, &v, d, v.dv - d);
        v.weights += tile;
        v.o += tile * v.dv;
    }
    of->next = v.next;
}

typedef void sum_fn(value_rows *v);

#define SUM(rows, dtype) \
    static void sum_##rows##_##dtype(value_rows *v) { sum_block(rows, dtype, v); }
#define SUMS(rows)      \
    SUM(rows, FFPA_F32) \
    SUM(rows, FFPA_F16) \
    SUM(rows, FFPA_BF16)
#define SUM_NAMES(rows)                                                      \
    {                                                                        \
        sum_##rows##_FFPA_F32, sum_##rows##_FFPA_F16, sum_##rows##_FFPA_BF16 \
    }

SUMS(1)
SUMS(2)
SUMS(3)
SUMS(4)
SUMS(8)

void few_copy_values(few_tile *t)
{
    copy_rows(t, &t->rb->c->f.v, t->row + FEW_KEYS);
    t->v_dtype = FFPA_F32;
}

void few_output(const few_tile *t, float *o, bool fresh)
{
    static sum_fn *const sums[][3] = {SUM_NAMES(1), SUM_NAMES(2), SUM_NAMES(3), SUM_NAMES(4),
                                      SUM_NAMES(8)};
    const ptrdiff_t dv = t->rb->c->f.v.shape[3];
    const int all = t->rb->rows, tiles = (all + TILE_ROWS - 1) / TILE_ROWS;
    if (fresh) memset(o, 0, (size_t)(all * dv) * sizeof *o);
    value_rows v = {.row = t->row + FEW_KEYS, .keys = t->n, .dv = dv};
    const ptrdiff_t columns = tile_by(all < TILE_ROWS ? all : TILE_ROWS) * VL;
    v.next = ahead_of(t, tiles * (dv / columns) * t->n);
    for (int r0 = 0, rows; r0 < all; r0 += rows) {
        rows = pass_rows(all - r0);
        v.weights = t->s + r0 / NR * NR * t->panel_keys + r0 % NR;
        v.o = o + r0 * dv;
        sums[pass_column(rows)][dtype_column(t->v_dtype)](&v);
    }
}
