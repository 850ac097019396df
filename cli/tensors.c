/* tensors.c - tensors that the program owns. */
#include "tensors.h"

#include "scalar.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory of this machine; malloc promises more, and taking the promise at its word ends programs. */
static size_t machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : SIZE_MAX / 2;
}

void *arena_alloc(arena *a, size_t bytes)
{
    const size_t most = machine_bytes();
    if (bytes > most || a->bytes > most - bytes) return NULL;
    void **blocks = realloc(a->blocks, ((size_t)a->count + 1) * sizeof *blocks);
    if (!blocks) return NULL;
    a->blocks = blocks;
    void *block = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (!block) return NULL;
    a->blocks[a->count++] = block;
    a->bytes += bytes;
    return block;
}

void arena_free(arena *a)
{
    for (int i = 0; i < a->count; i++)
        free(a->blocks[i]);
    free(a->blocks);
    *a = (arena){0};
}

int64_t tensor_elements(const ffpa_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Elements to allocate for a tensor, at least one. 0 when they, or with zero dimensions counted as one
 * the strides, overflow. */
static size_t span_of(const int64_t shape[4], size_t item_bytes)
{
    size_t span = 1;
    bool empty = false;
    for (int i = 0; i < 4; i++) {
        size_t n = shape[i] > 0 ? (size_t)shape[i] : 1;
        if (span > (size_t)INT64_MAX / item_bytes / n) return 0;
        span *= n;
        empty |= shape[i] == 0;
    }
    return empty ? 1 : span;
}

bool tensor_new(arena *a, ffpa_tensor *t, int32_t dtype, const int64_t shape[4], bool bnhd)
{
    size_t span = span_of(shape, scalar_bytes(dtype));
    size_t bytes = span * scalar_bytes(dtype);
    void *data = span ? arena_alloc(a, bytes) : NULL;
    if (!data) return false;
    memset(data, 0xff, bytes);
    *t = ffpa_tensor_4d(data, (ffpa_dtype)dtype, shape[0], shape[1], shape[2], shape[3]);
    if (bnhd) {
        t->stride[1] = shape[3];
        t->stride[2] = shape[1] * shape[3];
    }
    return true;
}

static int64_t offset_of(const ffpa_tensor *t, const int64_t at[4])
{
    int64_t offset = 0;
    for (int i = 0; i < 4; i++)
        offset += at[i] * t->stride[i];
    return offset;
}

double tensor_get(const ffpa_tensor *t, const int64_t at[4])
{
    return scalar_get(t->data, t->dtype, offset_of(t, at));
}

void tensor_set(const ffpa_tensor *t, const int64_t at[4], double value)
{
    scalar_set(t->data, t->dtype, offset_of(t, at), value);
}

bool tensor_next(const ffpa_tensor *t, int64_t at[4])
{
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < t->shape[i]) return true;
        at[i] = 0;
    }
    return false;
}

bool tensor_convert(arena *a, ffpa_tensor *to, const ffpa_tensor *from, int32_t dtype)
{
    int64_t at[4] = {0};
    bool bnhd = from->stride[1] < from->stride[2];
    if (!tensor_new(a, to, dtype, from->shape, bnhd)) return false;
    if (tensor_elements(from) > 0) do
            tensor_set(to, at, tensor_get(from, at));
        while (tensor_next(from, at));
    return true;
}
