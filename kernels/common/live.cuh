// live.cuh - which 128 x 128 tiles of P and dS hold a visible pair: pds writes exactly those, the products and
// the mask gradient read no other.
#pragma once
#include "common/scores.cuh"

static constexpr int TILE = 128; // rows and keys of a tile of the backward workspace

struct Live {
    int from, to;             // key tiles [from, to)
    int clear_from, clear_to; // keys that every row of the tile sees
};

// For the tile of query rows that starts at `row`.
FFPA_DEVICE Live live_keys(int left, int right, int top_left, const Sequence &s, int row)
{
    const int last = row + TILE < s.nq ? row + TILE - 1 : s.nq - 1;
    const KeyRange a = key_range(left, right, top_left, row, s.nq, s.nk);
    const KeyRange b = key_range(left, right, top_left, last, s.nq, s.nk);
    return {a.lo / TILE, (b.hi + TILE - 1) / TILE, b.lo, a.hi};
}

// Query tiles [from, to) that see a key of the tile that starts at `key`.
struct LiveRows {
    int from, to;
};
FFPA_DEVICE LiveRows live_rows(int left, int right, int top_left, const Sequence &s, int key)
{
    const int last = key + TILE < s.nk ? key + TILE - 1 : s.nk - 1;
    const i64 shift = top_left ? 0 : (i64)s.nk - s.nq;
    int from = 0, to = s.nq;
    if (FFPA_RANGE && right >= 0) from = clamp_int((i64)key - right - shift, 0, s.nq);
    if (FFPA_RANGE && left >= 0) to = clamp_int((i64)last + left - shift + 1, from, s.nq);
    return {from / TILE, from < to ? (to + TILE - 1) / TILE : from / TILE};
}
