/* tensor_make.c - allocation, layout and poison of test tensors. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support/tensor_make.h"

#include "support/tensor_element.h"
#include "support/unit.h"

#define XXH_INLINE_ALL
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { POISON = 0xff, GUARD = 64 /* elements before and after */ };

const double tensor_blank = 12345.6789e40;

const tensor_layout TENSOR_BNHD = {.order = {0, 2, 1, 3}};

static void *must(void *memory)
{
    if (!memory) abort();
    return memory;
}

/* Strides of a layout; returns the elements spanned, *first = offset of element [0,0,0,0]. */
static int64_t lay_out(ffpa_tensor *v, const tensor_layout *l, int64_t *first)
{
    static const int plain[4] = {0, 1, 2, 3};
    const int *order = l->order[0] == l->order[1] ? plain : l->order;
    int64_t run = l->step ? l->step : 1;
    *first = 0;
    for (int k = 3; k >= 0; k--) {
        const int a = order[k];
        const int64_t n = v->shape[a] > 0 ? v->shape[a] : 1;
        if (l->expand >> a & 1u) {
            v->stride[a] = 0;
            continue;
        }
        v->stride[a] = l->flip >> a & 1u ? -run : run;
        if (l->flip >> a & 1u) *first += run * (n - 1);
        run = run * n + l->pad[a];
    }
    return run;
}

static unsigned char *address(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const ffpa_tensor *v = &t->view;
    const int64_t at =
        b * v->stride[0] + h * v->stride[1] + n * v->stride[2] + d * v->stride[3];
    return (unsigned char *)v->data + at * (int64_t)t->size;
}

/* Walk over the rows in logical order: indices b, h, n, address at. */
#define FOR_EACH_ROW(t)                                      \
    for (int64_t b = 0; b < (t)->view.shape[0]; b++)         \
        for (int64_t h = 0; h < (t)->view.shape[1]; h++)     \
            for (int64_t n = 0; n < (t)->view.shape[2]; n++) \
                for (unsigned char *at = address(t, b, h, n, 0), *once = at; once; once = NULL)

/* The same over the elements, with d. */
#define FOR_EACH_ELEMENT(t)                     \
    FOR_EACH_ROW(t)                             \
    for (int64_t d = 0; d < (t)->view.shape[3]; \
         d++, at += (t)->view.stride[3] * (int64_t)(t)->size)

/* Elements that lie one after the other: those of a row, or one alone; and the same in bytes. */
static int64_t run_of(const tensor *t) { return t->view.stride[3] == 1 ? t->view.shape[3] : 1; }
static size_t run_bytes(const tensor *t) { return (size_t)run_of(t) * t->size; }

/* Walk over those runs. */
#define FOR_EACH_RUN(t)                         \
    FOR_EACH_ROW(t)                             \
    for (int64_t d = 0; d < (t)->view.shape[3]; \
         d += run_of(t), at += run_of(t) * (t)->view.stride[3] * (int64_t)(t)->size)

static void mark_owned(tensor *t)
{
    FOR_EACH_RUN(t) memset(t->owned + (size_t)(at - t->memory) / t->size, 1, (size_t)run_of(t));
}

tensor *tensor_new(int32_t dtype, int64_t b, int64_t h, int64_t n, int64_t d,
                   const tensor_layout *layout)
{
    static const tensor_layout plain = {0};
    const tensor_layout *l = layout ? layout : &plain;
    tensor *t = must(calloc(1, sizeof *t));
    t->size = dtype_bytes(dtype);
    t->view = ffpa_tensor_4d(NULL, (ffpa_dtype)dtype, b, h, n, d);
    int64_t first;
    const int64_t span = lay_out(&t->view, l, &first);
    t->elements = (size_t)(span + l->skew) + 2 * GUARD;
    const size_t bytes = (t->elements * t->size + 63) / 64 * 64;
    t->memory = must(aligned_alloc(64, bytes));
    memset(t->memory, POISON, bytes);
    t->owned = must(calloc(t->elements, 1));
    t->view.data = t->memory + (size_t)(GUARD + l->skew + first) * t->size;
    mark_owned(t);
    return t;
}

tensor *tensor_map(int32_t dtype, const int64_t shape[4], const int64_t stride[4])
{
    tensor *t = must(calloc(1, sizeof *t));
    t->view.dtype = dtype;
    t->size = dtype_bytes(dtype);
    t->elements = 1;
    for (int a = 0; a < 4; a++) {
        t->view.shape[a] = shape[a];
        t->view.stride[a] = stride[a];
        t->elements += (size_t)((shape[a] - 1) * stride[a]);
    }
    t->mapped = true;
    void *memory = mmap(NULL, t->elements * t->size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    t->memory = must(memory == MAP_FAILED ? NULL : memory);
    t->view.data = t->memory;
    return t;
}

tensor *tensor_columns(tensor *of, int64_t columns)
{
    tensor *t = must(calloc(1, sizeof *t));
    t->view = of->view;
    t->size = of->size;
    t->view.shape[3] = columns;
    return t;
}

static bool blank(const unsigned char *at, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (at[i] != POISON) return false;
    }
    return true;
}

tensor *tensor_copy(const tensor *t, int32_t dtype)
{
    const int64_t *s = t->view.shape;
    const int32_t from = t->view.dtype;
    tensor *c = tensor_new(dtype, s[0], s[1], s[2], s[3], NULL);
    unsigned char *to = c->view.data;
    if (from == dtype) {
        FOR_EACH_RUN(t)
        {
            memcpy(to, at, run_bytes(t));
            to += run_bytes(t);
        }
        return c;
    }
    FOR_EACH_ELEMENT(t)
    {
        if (!blank(at, t->size)) tensor_store(dtype, to, tensor_load(from, at));
        to += c->size;
    }
    return c;
}

double *tensor_doubles(const tensor *t)
{
    double *values = must(malloc(((size_t)tensor_volume(t) + 1) * sizeof *values)),
           *to = values;
    const int32_t dtype = t->view.dtype;
    FOR_EACH_ELEMENT(t) *to++ = blank(at, t->size) ? tensor_blank : tensor_load(dtype, at);
    return values;
}

void tensor_free(tensor *t)
{
    if (!t) return;
    if (t->mapped) {
        munmap(t->memory, t->elements * t->size);
    } else {
        free(t->memory);
        free(t->owned);
    }
    free(t);
}

void tensor_poison(tensor *t) { FOR_EACH_RUN(t) memset(at, POISON, run_bytes(t)); }

bool tensor_poisoned(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return blank(address(t, b, h, n, d), t->size) && t->view.dtype != FFPA_BOOL;
}

void tensor_check_guards(const tensor *t, const char *name)
{
    if (!t || !t->owned) return;
    const size_t size = t->size;
    const unsigned char *owned = t->owned;
    for (size_t e = 0; (owned = memchr(t->owned + e, 0, t->elements - e)); e++) {
        e = (size_t)(owned - t->owned);
        for (size_t i = 0; i < size; i++) {
            if (t->memory[e * size + i] != POISON) {
                const long long at =
                    (long long)(t->memory + e * size - (unsigned char *)t->view.data);
                fail_msg("%s: written outside the tensor, %lld bytes from its first element",
                         name, at);
            }
        }
    }
}

uint64_t tensor_digest(const tensor *t)
{
    if (!t || t->mapped || !t->memory) return 0;
    return XXH3_64bits(t->memory, t->elements * t->size);
}

bool tensor_same_bits(const tensor *a, const tensor *other)
{
    assert(a->view.dtype == other->view.dtype);
    const tensor *shorter = run_of(a) < run_of(other) ? a : other;
    FOR_EACH_ROW(a)
    {
        for (int64_t d = 0; d < a->view.shape[3]; d += run_of(shorter))
            if (memcmp(address(a, b, h, n, d), address(other, b, h, n, d), run_bytes(shorter)))
                return false;
    }
    return true;
}

int64_t tensor_volume(const tensor *t)
{
    const int64_t *s = t->view.shape;
    return s[0] * s[1] * s[2] * s[3];
}

double tensor_at(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return tensor_load(t->view.dtype, address(t, b, h, n, d));
}

void tensor_put(tensor *t, int64_t b, int64_t h, int64_t n, int64_t d, double value)
{
    tensor_store(t->view.dtype, address(t, b, h, n, d), value);
}

double tensor_ulp(int32_t dtype)
{
    switch (dtype) {
    case FFPA_F64: return ldexp(1.0, -52);
    case FFPA_F32: return ldexp(1.0, -23);
    case FFPA_F16: return ldexp(1.0, -10);
    default: return ldexp(1.0, -7);
    }
}

/* ---- contents ---- */

void tensor_all(tensor *t, double value)
{
    FOR_EACH_ELEMENT(t) tensor_store(t->view.dtype, at, value);
}

void tensor_hash(tensor *t, uint64_t stream, double factor)
{
    uint64_t flat = stream;
    FOR_EACH_ELEMENT(t)
    {
        const uint32_t mixed = (uint32_t)(2654435761u * (flat + 1));
        tensor_store(t->view.dtype, at, ((double)mixed / 4294967296.0 - 0.5) * factor);
        flat++;
    }
}

void tensor_random(tensor *t, uint64_t *rng, double low, double high)
{
    FOR_EACH_ELEMENT(t) tensor_store(t->view.dtype, at, low + (high - low) * tensor_unit(rng));
}

void tensor_identity(tensor *t)
{
    FOR_EACH_ELEMENT(t) tensor_store(t->view.dtype, at, n == d ? 1.0 : 0.0);
}

void tensor_values(tensor *t, int64_t columns, const double *values)
{
    FOR_EACH_ELEMENT(t) tensor_store(t->view.dtype, at, d < columns ? *values++ : 0.0);
}

uint64_t tensor_next(uint64_t *rng)
{
    uint64_t z = *rng += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int64_t tensor_below(uint64_t *rng, int64_t bound)
{
    return (int64_t)(tensor_next(rng) % (uint64_t)bound);
}

double tensor_unit(uint64_t *rng) { return (double)(tensor_next(rng) >> 11) * 0x1p-53; }
