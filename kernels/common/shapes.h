/* shapes.h - shared memory of the kernels as functions of their config, for the launch (C) and for the
 * kernels' own checks (NVRTC). All tiles are stacks of panels: rows of 128 bytes, swizzled. */
#ifndef FFPA_KERNELS_SHAPES_H
#define FFPA_KERNELS_SHAPES_H

#ifdef __CUDACC__
#    define FFPA_SHAPE static __host__ __device__ constexpr
#else
#    define FFPA_SHAPE static inline
#endif

/* Panels of a row of `columns` elements; at least one, so that D = 0 has an address. */
FFPA_SHAPE int shape_panels(int columns, int element_bytes)
{
    return columns > 0 ? (columns * element_bytes + 127) / 128 : 1;
}

/* Forward: Q, P, the ring of K and V slots, row statistics of each column of warps, the work item. */
FFPA_SHAPE int fwd_shared_bytes(int d, int element_bytes, int bm, int bn, int wn, int ring_panels)
{
    return bm * 128 * shape_panels(d, element_bytes) + bm * bn * element_bytes + bn * 128 * ring_panels +
           bm * wn * 8 + 192;
}

/* sm90/fwd_one_sm90.cuh: Q, rings of K and of V, barriers and tile records. */
FFPA_SHAPE int fwd_one_shared_bytes(int d, int dv, int bm, int bn, int stages, int v_stages)
{
    const int k = shape_panels(d, 2), v = shape_panels(dv, 2);
    return 128 * (bm * k + bn * (stages * k + v_stages * v)) + 512;
}

/* Backward, P and dS: a ring of slots, each a 128-byte panel of `rows` queries and one of 128 keys. */
FFPA_SHAPE int pds_shared_bytes(int rows, int stages) { return stages * (rows + 128) * 128; }

/* Backward, GEMM: a ring of slots: 128 rows of A (128 bytes deep), and as deep a piece of B. */
FFPA_SHAPE int gemm_shared_bytes(int bn, int stages)
{
    return stages * (128 * 128 + 128 * bn);
}

/* Forward on pairs of CTAs: a ring slot holds 64 keys x 64 columns of K, or vrows keys of a CTA's columns of V. */
FFPA_SHAPE int pair_slot_bytes(int dv, int vrows)
{
    const int half = (shape_panels(dv, 2) + 1) / 2, v = (half > 4 ? half - 1 : half) * vrows * 128;
    return v > 64 * 128 ? v : 64 * 128;
}

/* Two teams' Q, P in and P out; the ring; barriers, bases and sums. */
FFPA_SHAPE int pair_shared_bytes(int d, int dv, int vrows, int stages)
{
    return 2 * (shape_panels(d, 2) * 8192 + 2 * 8192 + 1024) + stages * pair_slot_bytes(dv, vrows) + 1024;
}

/* Forward with P spilled: four slots of 320 rows of a chunk (P V: three of 448) and two staging tiles; barriers, items. */
#define SPILL_SHARED_BYTES (4 * 5 * 8192 + 6 * 8192 + 1024)
#define SPILL_PV_SHARED_BYTES (3 * 7 * 8192 + 6 * 8192 + 2048)

/* ---- backward on sm_90. Workspace blocks are 64 x 64 elements of 2 bytes. ---- */

/* Blocks of the lines before line `l`, of which line 0 is `first` blocks wide and each next one `growth` wider (k_stairs of
 * args.h); a line is two rows of blocks. */
FFPA_SHAPE long long stairs_before(int first, int growth, long long l)
{
    return l * (2 * first + growth * (l - 1));
}

/* P and dS: for each of two warpgroups `tiles` staging tiles of 64 rows x `bn` keys; a ring of 128 + bn rows of 128 bytes, as long as
 * there is room for; work items and barriers. */
FFPA_SHAPE int pds90_staging_bytes(int bn, int tiles) { return 2 * tiles * bn * 128; }
FFPA_SHAPE int pds90_stages(int bn, int tiles)
{
    return (226 * 1024 - pds90_staging_bytes(bn, tiles)) / ((128 + bn) * 128);
}
FFPA_SHAPE int pds90_shared_bytes(int bn, int tiles)
{
    return pds90_stages(bn, tiles) * (128 + bn) * 128 + pds90_staging_bytes(bn, tiles) + 1280;
}

/* Products: their columns (a multiple of 64) are cut into wide tiles, 256 columns x 192 rows, and slim ones, 192 (64,
 * 128, 160) columns x 256 rows. Both take equal time a step and no column is computed twice. */
FFPA_SHAPE int slim_columns(int columns)
{
    return columns == 64 ? 64 : columns == 128 ? 128 : columns == 320 ? 160 : 192;
}
FFPA_SHAPE int slim_tiles(int columns)
{
    return columns <= 128 ? 1 : columns == 320 ? 2 : (4 - columns / 64 % 4) % 4;
}
FFPA_SHAPE int wide_tiles(int columns) { return (columns - slim_tiles(columns) * slim_columns(columns)) / 256; }

/* A unit of rows holds whole tiles of each kind that there is. */
FFPA_SHAPE int unit_rows(int columns) { return slim_tiles(columns) == 0 ? 192 : wide_tiles(columns) == 0 ? 256 : 768; }
FFPA_SHAPE int unit_tiles(int columns)
{
    const int mixed = slim_tiles(columns) > 0 && wide_tiles(columns) > 0;
    return mixed ? 4 * wide_tiles(columns) + 3 * slim_tiles(columns) : wide_tiles(columns) + slim_tiles(columns);
}

/* Elements of a tile. */
FFPA_SHAPE int part_elements(int columns) { return 256 * slim_columns(columns); }

/* Blocks of a ring slot: of the operand and of P or dS. */
FFPA_SHAPE int products_slot_blocks(int columns) { return columns == 64 ? 5 : columns == 128 ? 6 : 7; }
FFPA_SHAPE int products_stages(int columns) { return columns <= 128 ? 4 : 3; }
FFPA_SHAPE int products_staging_blocks(int columns) { return columns == 64 ? 1 : columns == 128 ? 2 : 3; }
FFPA_SHAPE int products_shared_bytes(int columns)
{
    return (products_stages(columns) * products_slot_blocks(columns) + 2 * products_staging_blocks(columns)) * 8192 + 1024;
}

/* Fused: 128 own rows and a ring of `bn` walked rows, each with two operands; two numbers a walked row; barriers. */
FFPA_SHAPE int fused_shared_bytes(int d, int dv, int bn, int stages)
{
    return 128 * (128 + stages * bn) * (shape_panels(d, 2) + shape_panels(dv, 2)) + stages * bn * 8 + 256;
}

#endif
