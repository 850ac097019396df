/* array.c - sizes and strides of an array in a file. */
#include "array.h"

bool array_bytes(const int64_t *shape, int rank, size_t item_bytes, size_t *bytes)
{
    size_t span = item_bytes;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0) return false;
        empty = empty || shape[i] == 0;
        if (shape[i] > 0 && span > (size_t)INT64_MAX / (size_t)shape[i]) return false;
        span *= shape[i] > 0 ? (size_t)shape[i] : 1;
    }
    *bytes = empty ? 0 : span;
    return true;
}

void array_strides(array *a, bool column_major)
{
    int64_t step = 1;
    for (int i = 0; i < a->rank; i++) {
        int axis = column_major ? i : a->rank - 1 - i;
        a->stride[axis] = step;
        step *= a->shape[axis] > 0 ? a->shape[axis] : 1;
    }
}
