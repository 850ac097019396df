/* tensor_make.c - allocation, layout and poison of test tensors. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support/tensor_element.h"
#include "support/unit.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

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

/* Walk over the elements in logical order: indices b, h, n, d, address at. */
#define FOR_EACH_ELEMENT(t)                                                        \
    for (int64_t b = 0; b < (t)->view.shape[0]; b++)                               \
        for (int64_t h = 0; h < (t)->view.shape[1]; h++)                           \
            for (int64_t n = 0; n < (t)->view.shape[2]; n++)                       \
                for (unsigned char *at = address(t, b, h, n, 0), *once = at; once; \
                     once = NULL)                                                  \
                    for (int64_t d = 0; d < (t)->view.shape[3];                    \
                         d++, at += (t)->view.stride[3] * (int64_t)(t)->size)

static void mark_owned(tensor *t)
{
    FOR_EACH_ELEMENT(t) t->owned[(size_t)(at - t->memory) / t->size] = 1;
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
    FOR_EACH_ELEMENT(t)
    {
        if (from == dtype)
            memcpy(to, at, t->size);
        else if (!blank(at, t->size))
            tensor_store(dtype, to, tensor_load(from, at));
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

void tensor_poison(tensor *t) { FOR_EACH_ELEMENT(t) memset(at, POISON, t->size); }

bool tensor_poisoned(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return blank(address(t, b, h, n, d), t->size) && t->view.dtype != FFPA_BOOL;
}

void tensor_check_guards(const tensor *t, const char *name)
{
    if (!t || !t->owned) return;
    const size_t size = t->size;
    for (size_t e = 0; e < t->elements; e++) {
        if (t->owned[e]) continue;
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
    uint64_t digest = 1469598103934665603u;
    if (!t || t->mapped || !t->memory) return digest;
    const size_t bytes = t->elements * t->size, words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, t->memory + 8 * i, 8);
        digest = (digest ^ word) * 1099511628211u;
        digest ^= digest >> 29;
    }
    for (size_t i = 8 * words; i < bytes; i++)
        digest = (digest ^ t->memory[i]) * 1099511628211u;
    return digest;
}

bool tensor_same_bits(const tensor *a, const tensor *other)
{
    assert(a->view.dtype == other->view.dtype);
    FOR_EACH_ELEMENT(a)
    {
        if (memcmp(at, address(other, b, h, n, d), a->size)) return false;
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
