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

// One row of an output.
struct OutRow {
    void *base;
    i64 at, sd; // element of column 0, elements between columns
    int columns;
    bool pairs; // stores_pairs
};

// Columns c, c + 1 (c even).
template <int TYPE> FFPA_DEVICE void store2(const OutRow &o, int c, float x, float y)
{
    if (o.pairs) {
        if (c < o.columns) element_put2(o.base, o.at + c, TYPE, x, y);
        return;
    }
    if (c < o.columns) element_put(o.base, o.at + c * o.sd, TYPE, x);
    if (c + 1 < o.columns) element_put(o.base, o.at + (c + 1) * o.sd, TYPE, y);
}
