// epilogue.cuh - results to global memory, any stride and dtype.
#pragma once
#include "common/args.h"
#include "common/types.cuh"

// May elements 2n, 2n + 1 of every row be stored with one store?
FFPA_DEVICE bool stores_pairs(const k_tensor &t, int dtype, int columns)
{
    const int pair = 2 * dtype_size(dtype);
    return t.sd == 1 && columns % 2 == 0 && (((u64)t.data) & (pair - 1)) == 0 && ((t.sb | t.sh | t.sn) & 1) == 0;
}

// Columns c, c + 1 (c even) of the row that starts at element `row`.
FFPA_DEVICE void store2(void *base, int dtype, i64 row, i64 sd, int c, int columns, bool pairs, float x, float y)
{
    if (pairs) {
        if (c < columns) element_put2(base, row + c, dtype, x, y);
        return;
    }
    if (c < columns) element_put(base, row + c * sd, dtype, x);
    if (c + 1 < columns) element_put(base, row + (c + 1) * sd, dtype, y);
}
