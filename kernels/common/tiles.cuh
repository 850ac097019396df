// tiles.cuh - tiles in shared memory, fragments in registers, and the matrix step between them.
//
// A tile in shared memory is a stack of panels: any number of rows of 128 bytes. The eight 16-byte pieces
// of row r lie at piece ^ (r % 8), so eight rows of one piece column touch all banks once.
//
// A step is 32 bytes of the inner dimension: 16 elements (f16, bf16: one mma m16n8k16) or 8 (f32: m16n8k8
// in tf32, three times, on the rounded value and the rest). g = lane / 4, t = lane % 4, "pair" = the two
// elements of a 32-bit register (f32: one element, so columns 2t, 2t+1 become t and 8 + 2t becomes 4 + t):
//
//   A 16 x step      a[0] (g, 2t..)   a[1] (g+8, 2t..)   a[2] (g, 8+2t..)   a[3] (g+8, 8+2t..)
//   B step x 16      b[0] (2t.., g)   b[1] (8+2t.., g)   b[2] (2t.., g+8)   b[3] (8+2t.., g+8)
//   C 16 x 16        c[0][0..1] (g, 2t..2t+1)   c[0][2..3] (g+8, 2t..)      c[1]: the same, 8 columns on
//
// Both operands of Q K^T have the inner dimension along their rows; that is ldmatrix as it comes, and the
// same bytes for every dtype. An operand whose inner dimension runs down the rows (V, and P^T in backward)
// takes ldmatrix.trans, or for f32 four plain loads.
#pragma once
#include "common/types.cuh"

static constexpr int PANEL_COLUMNS = 128 / ES; // elements of a panel row
static constexpr int STEP = 32 / ES;           // inner elements of a step
static constexpr int GROUPS_PER_PANEL = PANEL_COLUMNS / 16;

// How far loops over steps and over copies unroll. In f32 a step holds both halves of every operand, and the element
// path holds eight loads a piece: unrolled, they would push the accumulators out of the registers.
static constexpr int STEP_UNROLL = ES == 4 ? 1 : 4;
static constexpr int COPY_UNROLL = FFPA_ALIGNED && ES == 2 ? 8 : 1;

FFPA_DEVICE int lane_id() { return threadIdx.x & 31; }

// Byte offset of a piece within a panel.
FFPA_DEVICE u32 panel_at(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Byte offset of element (row, column) of a tile whose panels have `rows` rows.
FFPA_DEVICE u32 tile_at(int rows, int row, int column)
{
    const int bytes = column * ES;
    return (bytes >> 7) * rows * 128 + panel_at(row, (bytes >> 4) & 7) + (bytes & 15);
}

// A: 16 rows from `row` (a multiple of 8), step `s` (0..3) of a panel.
FFPA_DEVICE void frag_a(u32 (&a)[4], u32 panel, int row, int s)
{
    const int lane = lane_id();
    ldmatrix4(a, panel + (row + (lane & 15)) * 128 + (((2 * s) ^ ((lane >> 4) ^ (lane & 7))) << 4));
}

// B from rows of columns: 16 rows from `row` are B's columns.
FFPA_DEVICE void frag_b(u32 (&b)[4], u32 panel, int row, int s)
{
    const int lane = lane_id();
    ldmatrix4(b, panel + (row + (lane & 7) + ((lane >> 4) << 3)) * 128 +
                     (((2 * s) ^ (((lane >> 3) & 1) ^ (lane & 7))) << 4));
}

// Element (row + t + dt, 16-column group at `piece`, column n) of an f32 panel.
FFPA_DEVICE u32 f32_at(u32 panel, int row, int piece, int n)
{
    return lds32(panel + panel_at(row, piece + (n >> 2)) + (n & 3) * 4);
}

// B from its own rows: STEP rows from `row`, the 16 columns that start at `piece`.
FFPA_DEVICE void frag_b_rows(u32 (&b)[4], u32 panel, int row, int piece)
{
    const int lane = lane_id();
    if (ES == 4) {
        const int g = lane >> 2, t = lane & 3;
        b[0] = f32_at(panel, row + t, piece, g), b[1] = f32_at(panel, row + t + 4, piece, g);
        b[2] = f32_at(panel, row + t, piece, g + 8), b[3] = f32_at(panel, row + t + 4, piece, g + 8);
    } else {
        ldmatrix4_trans(b, panel + (row + (lane & 15)) * 128 + ((piece ^ ((lane >> 4) ^ (lane & 7))) << 4));
    }
}

// A transposed: STEP rows from `row` are A's inner dimension, the 16 columns at `piece` A's rows.
FFPA_DEVICE void frag_a_rows(u32 (&a)[4], u32 panel, int row, int piece)
{
    const int lane = lane_id();
    if (ES == 4) {
        const int g = lane >> 2, t = lane & 3;
        a[0] = f32_at(panel, row + t, piece, g), a[1] = f32_at(panel, row + t, piece, g + 8);
        a[2] = f32_at(panel, row + t + 4, piece, g), a[3] = f32_at(panel, row + t + 4, piece, g + 8);
    } else {
        ldmatrix4_trans(a, panel + (row + (lane & 7) + ((lane >> 4) << 3)) * 128 +
                               ((piece ^ (((lane >> 3) & 1) ^ (lane & 7))) << 4));
    }
}

// x = high + low, both tf32: their products carry f32's precision.
FFPA_DEVICE void tf32_split(u32 x, u32 &high, u32 &low)
{
    high = tf32_of(__uint_as_float(x));
    low = tf32_of(__uint_as_float(x) - __uint_as_float(high));
    if ((x & INF_BITS) == INF_BITS) low = 0; // Inf has no rest, and Inf - Inf would make it NaN
}

// c += a b over one step, 16 x 8. In f32 the step's own sum is added outside: the tensor cores cut their sums
// off, which over a thousand steps is ten times the error of rounding them.
FFPA_DEVICE void mma_step(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if (DTYPE == BF16) {
        mma_bf16(c, a, b0, b1);
    } else if (DTYPE == F16) {
        mma_f16(c, a, b0, b1);
    } else {
        u32 high[4], low[4], b_high[2], b_low[2];
        for (int i = 0; i < 4; i++) tf32_split(a[i], high[i], low[i]);
        tf32_split(b0, b_high[0], b_low[0]);
        tf32_split(b1, b_high[1], b_low[1]);
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_tf32(sum, low, b_high[0], b_high[1]);
        mma_tf32(sum, high, b_low[0], b_low[1]);
        mma_tf32(sum, high, b_high[0], b_high[1]);
        for (int i = 0; i < 4; i++) c[i] += sum[i];
    }
}

// c += a b over one step, 16 x 16.
FFPA_DEVICE void mma_step16(float (&c)[2][4], const u32 (&a)[4], const u32 (&b)[4])
{
    mma_step(c[0], a, b[0], b[1]);
    mma_step(c[1], a, b[2], b[3]);
}

// Store columns 2t, 2t+1 of a row of C in the input dtype.
FFPA_DEVICE void tile_put2(u32 tile, int rows, int row, int column, float x, float y)
{
    const u32 addr = tile + tile_at(rows, row, column);
    if (DTYPE == F32)
        sts64(addr, __float_as_uint(x), __float_as_uint(y));
    else
        sts32(addr, DTYPE == F16 ? pack_f16(x, y) : pack_bf16(x, y));
}

FFPA_DEVICE float tile_get(u32 tile, int rows, int row, int column)
{
    const u32 addr = tile + tile_at(rows, row, column);
    if (DTYPE == F32) return __uint_as_float(lds32(addr));
    const u32 bits = lds16(addr);
    return DTYPE == F16 ? f32_of_f16((u16)bits) : __uint_as_float(bits << 16);
}

// ---- filling a tile ----------------------------------------------------------------------------

// One 16-byte piece of a row: elements from column `c` of `columns`, zeros past the end. With ALIGNED the
// copy is asynchronous, else the elements are read one by one, from any stride `sd` and dtype.
template <bool ALIGNED, int SOURCE>
FFPA_DEVICE void piece_load(u32 dst, const char *row, i64 sd, int c, int columns)
{
    if (ALIGNED) {
        const int left = (columns - c) * ES;
        cp_async16(dst, left > 0 ? row + c * ES : row, left < 0 ? 0 : left > 16 ? 16 : left);
        return;
    }
    u32 x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < 16 / ES; e++) {
        const float v = c + e < columns ? element_get(row, (i64)(c + e) * sd, SOURCE) : 0.0f;
        if (DTYPE == F32)
            x[e] = __float_as_uint(v);
        else
            x[e / 2] |= ((DTYPE == F16 ? pack_f16(v, 0.0f) : pack_bf16(v, 0.0f)) & 0xffffu) << (16 * (e & 1));
    }
    sts128(dst, x);
}

// Does a piece hold NaN or Inf? Those elements become zero, so that a zero weight keeps them out.
FFPA_DEVICE bool piece_clean(u32 addr)
{
    u32 x[4];
    bool bad = false;
    lds128(x, addr);
    const u32 exponent = DTYPE == F32 ? 0x7f800000u : DTYPE == F16 ? 0x7c00u : 0x7f80u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if ((x[i] & exponent) == exponent) bad = true, x[i] &= DTYPE == F32 ? 0u : 0xffff0000u;
        if (DTYPE != F32 && (x[i] >> 16 & exponent) == exponent) bad = true, x[i] &= 0xffffu;
    }
    if (bad) sts128(addr, x);
    return bad;
}
