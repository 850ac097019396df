// bwd_work_sm90.cuh - the tiles of the backward products: which there are, in what order, and what each one sums.
#pragma once
#include "common/scores.cuh"
#include "common/shapes.h"
#include "sm90/ptx_sm90.cuh"
#include "sm90/stairs_sm90.cuh"

static constexpr int COLUMNS = FFPA_COLUMNS, SLIM = slim_columns(COLUMNS), WIDES = wide_tiles(COLUMNS),
                     SLIMS = slim_tiles(COLUMNS), UNIT = unit_rows(COLUMNS), UNIT_TILES = unit_tiles(COLUMNS);
static constexpr int LINE = 128; // rows of a line of the workspace
static constexpr u32 BLOCK = 8192;
static_assert(256 * WIDES + SLIM * SLIMS == COLUMNS && COLUMNS % 64 == 0, "no tiles for this many columns");

enum { DV, DK, DQ, NONE };

// A kind of tile, by its columns.
template <int WIDTH> struct Tile {
    static constexpr bool TURNED = WIDTH == 256;                // columns are wgmma's M
    static constexpr int CHUNKS = (WIDTH + 63) / 64, ROWS64 = TURNED ? 3 : 4, ROWS = ROWS64 * 64;
    static constexpr int ACC = TURNED ? 96 : WIDTH / 2;         // registers of one accumulator
    static constexpr int PIECES = TURNED ? ROWS64 : CHUNKS;     // 64 x 64 blocks that one accumulator is stored as
    static constexpr u32 BYTES = (CHUNKS + ROWS64) * BLOCK;
    static_assert(CHUNKS + ROWS64 <= products_slot_blocks(COLUMNS) && PIECES <= products_staging_blocks(COLUMNS), "shared budget");
};

// Numbers [from, to).
struct Span {
    int from, to;
};

// One tile of one product, and what it sums: heads of the chunk, and of each blocks of rows (dV, dK) or of keys (dQ).
struct Item {
    int product, wide, column;
    int seq, line0;             // sequence, line of its first query row
    int head, batch, first_row; // of the tensor it is a tile of: head, batch entry, first row of the sequence
    int row, begin, end;        // first row within the sequence; rows to store
    Span heads, blocks;
    Span clear;                 // blocks whose pairs with the tile are all seen, and of this sequence
    int steps;                  // at least one, of zeros
    int part;                   // place in the partial sums
    bool opens, closes;         // is no chunk before, behind this one of those that add to the tile?
    int found;                  // NaN or Inf, by the guards
};

// ---- which tiles there are

FFPA_DEVICE int units_of(const products_args &a, int product) { return product == DQ ? a.query_units : a.key_units; }
FFPA_DEVICE int heads_of(const products_args &a, int product)
{
    return product == DQ ? a.chunk.nh : (a.chunk.nh + a.group - 1) / a.group;
}

// Tile i of a unit, in the order of first rows: wide tiles start every 192 rows, slim ones every 256.
FFPA_DEVICE void place_in_unit(int i, Item &it)
{
    int wide_row = 0, slim_row = 0;
    for (;;) {
        const bool wide = SLIMS == 0 || (WIDES > 0 && wide_row <= slim_row);
        const int n = wide ? WIDES : SLIMS;
        if (i < n) {
            it.wide = wide;
            it.row += wide ? wide_row : slim_row;
            it.column = wide ? i * 256 : WIDES * 256 + i * SLIM;
            return;
        }
        i -= n;
        if (wide) wide_row += 192; else slim_row += 256;
    }
}

// The unit that is `rank`th in order: its sequence and first row. Under a range the first keys and the last queries
// have the longest sums: they start first, all sequences together.
FFPA_DEVICE int place_unit(const products_args &a, int product, int rank, Item &it)
{
    const bool queries = product == DQ;
    const void *cu = queries ? a.seq.cu_q : a.seq.cu_k;
    const int n = queries ? a.seq.nq : a.seq.nk, units = units_of(a, product);
    int line = rank;
    if (FFPA_VARLEN && cu) {
        if (FFPA_RANGE && queries) line = units - 1 - rank;
    } else if (FFPA_RANGE) {
        const int each = units / a.seq.batch, at = rank / a.seq.batch;
        line = rank % a.seq.batch * each + (queries ? each - 1 - at : at);
    }
    it.seq = line_owner(cu, a.seq, line, n, 1, UNIT);
    it.row = (line - line_first(cu, a.seq, it.seq, n, 1, UNIT)) * UNIT;
    return line;
}

// Ticket x: product, head within the chunk, unit and tile of the unit. False when there are no more.
FFPA_DEVICE bool place_ticket(const products_args &a, int x, Item &it, int &head, int &rank, int &tile)
{
    int count = 1;
    while (count < 3 && a.order[count] >= 0) count++;
    tile = x % UNIT_TILES, x /= UNIT_TILES;
    if (FFPA_RANGE && a.group == 1) { // all products of a head together: their operands stay in L2
        const int ranks = max(a.key_units, a.query_units);
        it.product = a.order[x % count], x /= count;
        rank = x % ranks, head = x / ranks;
        return head < a.chunk.nh;
    }
    for (int k = 0; k < count; k++) {
        it.product = a.order[k];
        const int units = units_of(a, it.product), heads = heads_of(a, it.product);
        if (x < units * heads) {
            head = FFPA_RANGE ? x % heads : x / units, rank = FFPA_RANGE ? x / heads : x % units;
            return true;
        }
        x -= units * heads;
    }
    return false;
}

// ---- what a tile sums

// Blocks of keys that rows [row, end) see.
FFPA_DEVICE Span keys_seen(const products_args &a, const Sequence &s, int row, int end)
{
    const int lo = key_range(a.left, a.right, a.top_left, row, s.nq, s.nk).lo;
    const int hi = key_range(a.left, a.right, a.top_left, end - 1, s.nq, s.nk).hi;
    return {lo / 64, lo < hi ? (hi + 63) / 64 : lo / 64};
}

// Whole blocks of keys that all rows [row, end) see.
FFPA_DEVICE Span keys_clear(const products_args &a, const Sequence &s, int row, int end)
{
    const int lo = key_range(a.left, a.right, a.top_left, end - 1, s.nq, s.nk).lo;
    const int hi = key_range(a.left, a.right, a.top_left, row, s.nq, s.nk).hi;
    return {(lo + 63) / 64, (hi == s.nk && !FFPA_VARLEN ? hi + 63 : hi) / 64};
}

// Blocks of rows that see one of the keys [key, end).
FFPA_DEVICE Span rows_seeing(const products_args &a, const Sequence &s, int key, int end)
{
    const i64 shift = a.top_left ? 0 : (i64)s.nk - s.nq;
    int from = 0, to = s.nq;
    if (FFPA_RANGE && a.right >= 0) from = clamp_int(key - a.right - shift, 0, s.nq);
    if (FFPA_RANGE && a.left >= 0) to = clamp_int(end + a.left - shift, from, s.nq);
    return {from / 64, from < to ? (to + 63) / 64 : from / 64};
}

// Whole blocks of rows that see all keys [key, end).
FFPA_DEVICE Span rows_clear(const products_args &a, const Sequence &s, int key, int end)
{
    const i64 shift = a.top_left ? 0 : (i64)s.nk - s.nq;
    const int from = FFPA_RANGE && a.right >= 0 ? clamp_int(end - 1 - a.right - shift, 0, s.nq) : 0;
    const int to = FFPA_RANGE && a.left >= 0 ? clamp_int(key + a.left + 1 - shift, 0, s.nq) : s.nq;
    return {(from + 63) / 64, (to == s.nq && !FFPA_VARLEN ? to + 63 : to) / 64};
}

// Keep the blocks of rows that belong to the chunk. False when another chunk makes the tile: of those that add to it, or, where no row
// sees its keys, the last of all.
FFPA_DEVICE bool clip_to_chunk(const products_args &a, const Span &rows, Item &it)
{
    const Span here = {rows.from / 64, (rows.to + 63) / 64}, all = it.blocks;
    const bool seen = all.from < all.to;
    const int h0 = it.heads.from + a.chunk.h0, h1 = it.heads.to + a.chunk.h0; // of the group
    it.opens = !seen || (h0 % a.group == 0 && all.from >= here.from);
    it.closes = !seen || (h1 % a.group == 0 && all.to <= here.to);
    it.blocks.from = max(all.from, here.from);
    it.blocks.to = max(min(all.to, here.to), it.blocks.from);
    return seen ? it.blocks.from < it.blocks.to : a.last != 0;
}

// The rows of the tile that are there and belong to the chunk, and what they sum. False when there are none.
FFPA_DEVICE bool place_sum(const products_args &a, const Sequence &s, int head, Item &it)
{
    const k_chunk &c = a.chunk;
    const int rows = it.wide ? 192 : 256;
    it.line0 = line_first(a.seq.cu_q, a.seq, it.seq, a.seq.nq, 1, LINE);
    const Span here = {max((c.t0 - it.line0) * LINE, 0), min((c.t0 + c.nt - it.line0) * LINE, s.nq)};
    if (it.product == DQ) {
        it.head = c.h0 + head, it.batch = (int)s.q_batch, it.first_row = (int)s.q_row;
        it.begin = max(it.row, here.from), it.end = min(it.row + rows, here.to);
        if (it.begin >= it.end) return false;
        it.heads = {head, head + 1};
        it.blocks = keys_seen(a, s, it.begin, it.end);
        it.clear = keys_clear(a, s, it.begin, it.end);
        it.opens = it.closes = true;
    } else {
        it.head = c.h0 / a.group + head, it.batch = (int)s.k_batch, it.first_row = (int)s.k_row;
        it.begin = it.row, it.end = min(it.row + rows, s.nk);
        if (it.begin >= it.end) return false;
        it.heads = {max(it.head * a.group - c.h0, 0), min((it.head + 1) * a.group - c.h0, c.nh)};
        it.blocks = rows_seeing(a, s, it.begin, it.end);
        it.clear = rows_clear(a, s, it.begin, it.end);
        if (!clip_to_chunk(a, here, it)) return false;
    }
    it.steps = max((it.heads.to - it.heads.from) * (it.blocks.to - it.blocks.from), 1);
    return true;
}

// Blocks of a row of blocks of P or dS.
FFPA_DEVICE int width_at(const products_args &a, const Item &it, int row_block)
{
    return stairs_width(a.stairs, stairs_line(a.stairs, row_block / 2, it.line0));
}

// The block of P or dS (head of the chunk, blocks of rows and of keys within the sequence), in blocks.
FFPA_DEVICE i64 block_at(const products_args &a, const Item &it, int head, int row_block, int key_block)
{
    const int line = stairs_line(a.stairs, row_block / 2, it.line0);
    return stairs_block(a.stairs, head, it.seq, line) + (row_block & 1) * width_at(a, it, row_block) + key_block;
}
