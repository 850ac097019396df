/* sequence.c - rows of dense, packed, cached and paged sequences, and the checks of their
 * indices. */
#include "core/sequence.h"

#include <stdlib.h>
#include <string.h>

int64_t index_at(const void *array, int32_t dtype, int64_t i)
{
    return dtype == FFPA_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static const void *index_address(const void *array, int32_t dtype, int64_t i)
{
    return (const char *)array + i * (int64_t)dtype_bytes(dtype);
}

static bool packed_q(const call *c) { return c->f.varlen && c->varlen.cu_q; }
static bool packed_k(const call *c) { return c->f.varlen && c->varlen.cu_k; }

static int64_t new_keys(const call *c)
{
    return c->cache.k_new.data ? c->cache.k_new.shape[2] : 0;
}

static int64_t table_stride(const ffpa_kv_cache *cache)
{
    return cache->table_stride ? cache->table_stride : cache->table_width;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t sequence_count(const call *c)
{
    return c->f.varlen ? c->varlen.batch : c->f.q.shape[0];
}

static void locate_queries(sequence *s, const call *c, int64_t b)
{
    if (packed_q(c)) {
        s->q_row = index_at(c->varlen.cu_q, c->varlen.index_dtype, b);
        s->nq = index_at(c->varlen.cu_q, c->varlen.index_dtype, b + 1) - s->q_row;
    } else {
        s->q_batch = b;
        s->nq = c->f.q.shape[2];
    }
}

static void locate_cached_keys(sequence *s, const call *c, int64_t b)
{
    const ffpa_kv_cache *cache = &c->cache;
    s->index_dtype = cache->index_dtype;
    s->new_keys = new_keys(c);
    s->nk = index_at(cache->lengths, cache->index_dtype, b) + s->new_keys;
    if (cache->block_table) {
        s->page_size = c->f.k.shape[2];
        s->pages =
            index_address(cache->block_table, cache->index_dtype, b * table_stride(cache));
    } else {
        s->k_batch =
            cache->batch_index ? index_at(cache->batch_index, cache->index_dtype, b) : b;
    }
}

static void locate_keys(sequence *s, const call *c, int64_t b)
{
    if (c->f.kv_cache) {
        locate_cached_keys(s, c, b);
    } else if (packed_k(c)) {
        s->k_row = index_at(c->varlen.cu_k, c->varlen.index_dtype, b);
        s->nk = index_at(c->varlen.cu_k, c->varlen.index_dtype, b + 1) - s->k_row;
    } else {
        s->k_batch = b;
        s->nk = c->f.k.shape[2];
    }
}

sequence sequence_get(const call *c, int64_t b)
{
    sequence s = {0};
    locate_queries(&s, c, b);
    locate_keys(&s, c, b);
    return s;
}

/* ---- checks ---------------------------------------------------------------------------- */

static ffpa_status check_offsets(const call *c, const void *cu, int64_t rows,
                                 const char *cu_name, const char *rows_name, const char *fn)
{
    int64_t before = 0;
    for (int64_t b = 0; b <= c->varlen.batch; b++) {
        const int64_t at = index_at(cu, c->varlen.index_dtype, b);
        CHECK(b > 0 || at >= 0, FFPA_E_INVALID,
              "%s: varlen.%s[0]=%lld; offsets start at 0 or above", fn, cu_name, (long long)at);
        CHECK(at >= before, FFPA_E_INVALID,
              "%s: varlen.%s[%lld]=%lld is below varlen.%s[%lld]=%lld; offsets never decrease",
              fn, cu_name, (long long)b, (long long)at, cu_name, (long long)(b - 1),
              (long long)before);
        CHECK(at <= rows, FFPA_E_INVALID,
              "%s: varlen.%s[%lld]=%lld is past the last row of %s, which has %lld", fn,
              cu_name, (long long)b, (long long)at, rows_name, (long long)rows);
        before = at;
    }
    return FFPA_OK;
}

static ffpa_status check_length(const call *c, int64_t b, int64_t capacity, const char *fn)
{
    const int64_t length = index_at(c->cache.lengths, c->cache.index_dtype, b);
    const int64_t added = new_keys(c);
    CHECK(length >= 0, FFPA_E_INVALID,
          "%s: kv_cache.lengths[%lld]=%lld; lengths are 0 or above", fn, (long long)b,
          (long long)length);
    CHECK(added <= capacity && length <= capacity - added, FFPA_E_INVALID,
          "%s: kv_cache.lengths[%lld]=%lld plus %lld new keys is more than the %lld that %s",
          fn, (long long)b, (long long)length, (long long)added, (long long)capacity,
          c->cache.block_table ? "kv_cache.table_width pages hold" : "k.shape[2] holds");
    return FFPA_OK;
}

static ffpa_status check_pages(const call *c, int64_t b, const char *fn)
{
    const sequence s = sequence_get(c, b);
    const int64_t used = s.page_size ? (s.nk + s.page_size - 1) / s.page_size : 0;
    for (int64_t i = 0; i < used; i++) {
        const int64_t page = index_at(s.pages, s.index_dtype, i);
        CHECK(page >= 0 && page < c->f.k.shape[0], FFPA_E_INVALID,
              "%s: kv_cache.block_table[%lld][%lld]=%lld; k has pages 0..%lld", fn,
              (long long)b, (long long)i, (long long)page, (long long)(c->f.k.shape[0] - 1));
    }
    return FFPA_OK;
}

/* Where appended key `n` of a sequence goes: a cache entry or page, and the row there. */
typedef struct cache_row {
    int64_t block, row;
} cache_row;

static cache_row cache_row_of(const sequence *s, int64_t j)
{
    if (!s->page_size) return (cache_row){s->k_batch, s->k_row + j};
    return (cache_row){index_at(s->pages, s->index_dtype, j / s->page_size), j % s->page_size};
}

/* How many appended keys from j on lie one after the other in one block; `at` is where j goes. */
static int64_t append_run(const sequence *s, cache_row at, int64_t j)
{
    return s->page_size ? smaller(s->page_size - at.row, s->nk - j) : s->nk - j;
}

/* Blocks by their number modulo SEEN_BITS: where no bit is wanted twice, no two rows meet, and nothing needs to be
 * sorted. */
enum { SEEN_BITS = 1 << 16 };

/* Mark the blocks that a sequence appends to. Was one of them marked before? */
static bool mark_appends(uint64_t seen[SEEN_BITS / 64], const sequence *s)
{
    bool before = false;
    int64_t run;
    for (int64_t j = s->nk - s->new_keys; j < s->nk; j += run) {
        const cache_row at = cache_row_of(s, j);
        const uint64_t bit = (uint64_t)at.block % SEEN_BITS, mask = (uint64_t)1 << bit % 64;
        before = before || (seen[bit / 64] & mask) != 0;
        seen[bit / 64] |= mask;
        run = append_run(s, at, j);
    }
    return before;
}

/* Rows of one block that a sequence appends, one after the other. */
typedef struct appended {
    cache_row at;
    int64_t rows, sequence;
} appended;

static int by_place(const void *a, const void *b)
{
    const appended *x = a, *y = b;
    const int64_t p[] = {x->at.block, x->at.row, x->sequence};
    const int64_t q[] = {y->at.block, y->at.row, y->sequence};
    for (int i = 0; i < 3; i++)
        if (p[i] != q[i]) return p[i] < q[i] ? -1 : 1;
    return 0;
}

/* What all sequences append, into `list` unless it is NULL; returns how many there are. */
static size_t list_appends(const call *c, appended *list)
{
    size_t n = 0;
    for (int64_t b = 0; b < sequence_count(c); b++) {
        const sequence s = sequence_get(c, b);
        int64_t run;
        for (int64_t j = s.nk - s.new_keys; j < s.nk; j += run, n++) {
            const cache_row at = cache_row_of(&s, j);
            run = append_run(&s, at, j);
            if (list) list[n] = (appended){at, run, b};
        }
    }
    return n;
}

/* Two that meet; NULL when there are none. In order, some neighbours do if any two do. */
static const appended *find_meeting(appended *list, size_t count)
{
    qsort(list, count, sizeof *list, by_place);
    for (size_t i = 0; i + 1 < count; i++)
        if (list[i].at.block == list[i + 1].at.block &&
            list[i + 1].at.row < list[i].at.row + list[i].rows)
            return &list[i];
    return NULL;
}

static ffpa_status check_appends(const call *c, const allocator *a, const char *fn)
{
    uint64_t seen[SEEN_BITS / 64] = {0};
    ffpa_status status = FFPA_OK;
    bool perhaps = false;
    if (!new_keys(c) || !(c->cache.block_table || c->cache.batch_index)) return FFPA_OK;
    for (int64_t b = 0; b < sequence_count(c) && !perhaps; b++) {
        const sequence s = sequence_get(c, b);
        perhaps = mark_appends(seen, &s);
    }
    if (!perhaps) return FFPA_OK;
    const size_t count = list_appends(c, NULL);
    appended *list = mem_raw(a, count * sizeof *list);
    CHECK(list, FFPA_E_OUT_OF_MEMORY,
          "%s: no memory to compare where %zu runs of rows are appended", fn, count);
    list_appends(c, list);
    const appended *two = find_meeting(list, count);
    if (two)
        status = fail(FFPA_E_INVALID,
                      "%s: kv_cache.%s makes sequences %lld and %lld append to the same row; "
                      "appended rows must be distinct",
                      fn, c->cache.block_table ? "block_table" : "batch_index",
                      (long long)smaller(two[0].sequence, two[1].sequence),
                      (long long)larger(two[0].sequence, two[1].sequence));
    mem_free(a, list);
    return status;
}

static ffpa_status check_cache(const call *c, const allocator *a, const char *fn)
{
    const ffpa_kv_cache *cache = &c->cache;
    const int64_t entries = c->f.k.shape[0], rows = c->f.k.shape[2];
    for (int64_t b = 0; b < sequence_count(c); b++) {
        if (cache->block_table) {
            const bool huge = rows > 0 && cache->table_width > INT64_MAX / rows;
            TRY(check_length(c, b, huge ? INT64_MAX : cache->table_width * rows, fn));
            TRY(check_pages(c, b, fn));
            continue;
        }
        const int64_t entry =
            cache->batch_index ? index_at(cache->batch_index, cache->index_dtype, b) : b;
        CHECK(entry >= 0 && entry < entries, FFPA_E_INVALID,
              "%s: %s[%lld]=%lld; k has cache entries 0..%lld", fn,
              cache->batch_index ? "kv_cache.batch_index" : "cache entry", (long long)b,
              (long long)entry, (long long)(entries - 1));
        TRY(check_length(c, b, rows, fn));
    }
    return check_appends(c, a, fn);
}

ffpa_status sequences_check(const call *c, const allocator *a, const char *fn)
{
    if (packed_q(c)) TRY(check_offsets(c, c->varlen.cu_q, c->f.q.shape[2], "cu_q", "q", fn));
    if (packed_k(c)) TRY(check_offsets(c, c->varlen.cu_k, c->f.k.shape[2], "cu_k", "k", fn));
    return c->f.kv_cache ? check_cache(c, a, fn) : FFPA_OK;
}

/* ---- rows ------------------------------------------------------------------------------ */

static char *row_address(const ffpa_tensor *t, int64_t batch, int64_t h, int64_t row)
{
    const int64_t offset = batch * t->stride[0] + h * t->stride[1] + row * t->stride[2];
    return (char *)t->data + offset * (int64_t)dtype_bytes(t->dtype);
}

const void *sequence_key(const sequence *s, const ffpa_tensor *t, int64_t h, int64_t j)
{
    const cache_row at = cache_row_of(s, j);
    return row_address(t, at.block, h, at.row);
}

void *sequence_query(const sequence *s, const ffpa_tensor *t, int64_t h, int64_t i)
{
    return row_address(t, s->q_batch, h, s->q_row + i);
}

static void append_rows(const sequence *s, int64_t b, const ffpa_tensor *cache,
                        const ffpa_tensor *added)
{
    const size_t bytes = dtype_bytes(cache->dtype);
    for (int64_t h = 0; h < added->shape[1]; h++) {
        for (int64_t n = 0; n < s->new_keys; n++) {
            const cache_row at = cache_row_of(s, s->nk - s->new_keys + n);
            char *to = row_address(cache, at.block, h, at.row);
            const char *from = row_address(added, b, h, n);
            for (int64_t d = 0; d < added->shape[3]; d++) {
                memcpy(to + d * cache->stride[3] * (int64_t)bytes,
                       from + d * added->stride[3] * (int64_t)bytes, bytes);
            }
        }
    }
}

void sequences_append(const call *c)
{
    if (!c->f.kv_cache || !new_keys(c)) return;
    for (int64_t b = 0; b < sequence_count(c); b++) {
        const sequence s = sequence_get(c, b);
        append_rows(&s, b, &c->f.k, &c->cache.k_new);
        append_rows(&s, b, &c->f.v, &c->cache.v_new);
    }
}
