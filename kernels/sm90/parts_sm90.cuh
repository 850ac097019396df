// parts_sm90.cuh - tiles of query rows whose keys are cut into parts, each of them an item of its own, where whole tiles are too few
// or a last round of them would leave most processors idle.
//
// Item numbers: `whole` tiles that are not cut, then the parts of the others, those of a tile side by side. A part runs as if its
// keys were all there are, and leaves O (normalised, f32) and LSE where fwd_combine_sm90.cuh finds them. FFPA_SINK is 0: the sink is for
// that one to count.
#pragma once
#include "common/sequences.cuh"

static constexpr int ALL_KEYS = -1; // the part number of a whole tile

// Part of the keys that a tile is about; without parts a tile has no room for the number.
template <class Tile> FFPA_DEVICE int part_of(const Tile &t)
{
#if FFPA_SPLIT
    return t.part;
#else
    return ALL_KEYS;
#endif
}

struct PartItem {
    int tile, part;
};
FFPA_DEVICE PartItem part_item(const k_parts &p, int item)
{
    if (!FFPA_SPLIT || item < p.whole) return {item, ALL_KEYS};
    const u32 x = item - p.whole, splits = p.splits, tile = x / splits;
    return {(int)(p.whole + tile), (int)(x - tile * splits)};
}

// Blocks of keys [first, end).
struct Blocks {
    int first, end;
};

// Those of a part: equal shares, of at least `least` blocks where the tile has so many; the last parts may have none.
FFPA_DEVICE Blocks part_blocks(const k_parts &p, int part, const Blocks &all, int least)
{
    if (!FFPA_SPLIT || part == ALL_KEYS) return all;
    const u32 count = all.end - all.first, most = count / least, splits = p.splits; // count is below 2^25, splits at most 32
    const u32 shares = most < 1 ? 1 : most < splits ? most : splits;
    if (part >= (int)shares) return {all.end, all.end};
    return {all.first + (int)(count * part / shares), all.first + (int)(count * (part + 1) / shares)};
}

// Number of a row of partial results; `row` is within the sequence.
FFPA_DEVICE i64 part_row(const k_parts &p, const k_sequences &q, int hq, const Sequence &s, int head, int part, int row)
{
    const i64 rows = hq * q.total_q - p.first_row, dense = FFPA_VARLEN && q.cu_q ? 0 : (i64)s.s * q.nq;
    return part * rows + head * q.total_q + dense + s.q_row + row - p.first_row;
}
