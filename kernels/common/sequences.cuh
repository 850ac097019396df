// sequences.cuh - where the rows and keys of a sequence are, from arrays on the device: dense, packed, in
// a cache or in pages. The device's core/sequence.h.
#pragma once
#include "common/args.h"
#include "common/types.cuh"

struct Sequence {
    int s;              // which
    int nq, nk;         // rows, keys
    i64 q_batch, q_row; // batch entry and first row in q, o, lse, dout, dq
    i64 k_batch, k_row; // the same in k, v, dk, dv
};

FFPA_DEVICE i64 index_at(const void *array, int index64, i64 i)
{
    return index64 ? ((const i64 *)array)[i] : ((const int *)array)[i];
}

FFPA_DEVICE int clamp_int(i64 x, i64 low, i64 high) { return (int)(x < low ? low : x > high ? high : x); }

FFPA_DEVICE Sequence sequence_at(const k_sequences &q, int s)
{
    Sequence r = {s, q.nq, q.nk, s, 0, s, 0};
    if (FFPA_VARLEN && q.cu_q) {
        const i64 from = clamp_int(index_at(q.cu_q, q.index64, s), 0, q.nq);
        r.q_batch = 0, r.q_row = from;
        r.nq = clamp_int(index_at(q.cu_q, q.index64, s + 1) - from, 0, q.nq - from);
    }
    if (FFPA_VARLEN && q.cu_k) {
        const i64 from = clamp_int(index_at(q.cu_k, q.index64, s), 0, q.nk);
        r.k_batch = 0, r.k_row = from;
        r.nk = clamp_int(index_at(q.cu_k, q.index64, s + 1) - from, 0, q.nk - from);
    }
    if (FFPA_CACHE) {
        r.nk = clamp_int(index_at(q.lengths, q.index64, s) + q.new_keys, 0, q.nk);
        if (q.batch_index) r.k_batch = clamp_int(index_at(q.batch_index, q.index64, s), 0, q.entries - 1);
    }
    return r;
}

// First line of sequence s, and the sequence that owns a line (kernels/README.md: tile lines).
FFPA_DEVICE int line_first(const void *cu, const k_sequences &q, int s, int n, int rows, int tile)
{
    if (FFPA_VARLEN && cu) return (int)(index_at(cu, q.index64, s) * rows / tile) + s;
    return s * (int)(((i64)n * rows + tile - 1) / tile);
}

// `n` is the dense length, `rows` the tile rows that one row of the tensor makes.
FFPA_DEVICE int line_owner(const void *cu, const k_sequences &q, int line, int n, int rows, int tile)
{
    if (!(FFPA_VARLEN && cu)) return line / (int)(((i64)n * rows + tile - 1) / tile);
    int low = 0, high = q.batch - 1;
    while (low < high) {
        const int mid = (low + high + 1) >> 1;
        if (line_first(cu, q, mid, n, rows, tile) <= line)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

// First row of a line within its sequence; past every row where no sequence owns it (before cu[0]).
FFPA_DEVICE int line_row(const void *cu, const k_sequences &q, int s, int line, int n, int rows, int tile)
{
    const int first = line_first(cu, q, s, n, rows, tile);
    return FFPA_VARLEN && line < first ? 0x7fffffff : (line - first) * tile;
}

// Rows of k or v of one sequence and head.
struct KeyRows {
    const char *base;
    i64 sn, sd;        // bytes between rows, elements within a row
    i64 page_bytes;    // bytes between pages
    const void *table; // this sequence's pages
};

FFPA_DEVICE KeyRows key_rows(const k_tensor &t, const k_sequences &q, const Sequence &s, int head, int size)
{
    KeyRows r = {(const char *)t.data + head * t.sh * size, t.sn * size, t.sd, t.sb * size, 0};
    if (FFPA_CACHE == 2)
        r.table = (const char *)q.block_table + s.s * q.table_stride * (q.index64 ? 8 : 4);
    else
        r.base += (s.k_batch * t.sb + s.k_row * t.sn) * size;
    return r;
}

FFPA_DEVICE const char *key_row(const KeyRows &r, const k_sequences &q, int j)
{
    if (FFPA_CACHE != 2) return r.base + j * r.sn;
    const int page = j / q.page_size;
    return r.base + clamp_int(index_at(r.table, q.index64, page), 0, q.entries - 1) * r.page_bytes +
           (j - page * q.page_size) * r.sn;
}
