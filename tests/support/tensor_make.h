/* tensor_make.h - test tensors of any dtype and memory layout, with poison around and between the
 * elements: a read outside the tensor gives NaN, a write outside it is found afterwards. */
#ifndef FFPA_TESTS_TENSOR_MAKE_H
#define FFPA_TESTS_TENSOR_MAKE_H

#include "core/dtype.h"
#include "ffpa/ffpa.h"

#include <stdbool.h>

/* Where the elements lie. Zero everywhere = contiguous [B, H, N, D]. */
typedef struct tensor_layout {
    int order[4];    /* logical axes from the outermost to the innermost; all zero = 0 1 2 3 */
    int64_t pad[4];  /* unused elements after each run of that (logical) axis */
    int64_t step;    /* elements between neighbours of the innermost axis; 0 = 1 */
    unsigned flip;   /* bit a: axis a runs backwards in memory */
    unsigned expand; /* bit a: stride 0, so every index of axis a is the same element */
    int64_t skew;    /* elements between a 64-byte boundary and the first element */
} tensor_layout;

extern const tensor_layout TENSOR_BNHD;

typedef struct tensor {
    ffpa_tensor view;      /* what the library gets */
    unsigned char *memory; /* everything, poison included */
    unsigned char *owned;  /* one flag per element of memory: part of the view */
    size_t elements, size; /* of memory; bytes of one */
    bool mapped;           /* memory is a sparse mapping without guards */
} tensor;

/* A tensor full of poison (every byte 0xff, a NaN in each floating dtype). Never fails: out of memory
 * ends the test program. */
tensor *tensor_new(int32_t dtype, int64_t b, int64_t h, int64_t n, int64_t d,
                   const tensor_layout *layout);

/* Zeroed, sparse and unguarded, for tensors whose untouched parts need no memory. */
tensor *tensor_map(int32_t dtype, const int64_t shape[4], const int64_t stride[4]);

/* A second view of `of`: its first `columns` columns. Shares the memory. */
tensor *tensor_columns(tensor *of, int64_t columns);

/* Contiguous copy of the values in another dtype; poison stays poison. */
tensor *tensor_copy(const tensor *t, int32_t dtype);

/* The values in logical order, tensor_blank where there is still poison. The caller frees them. */
double *tensor_doubles(const tensor *t);

extern const double tensor_blank;

void tensor_free(tensor *t); /* NULL is fine */

/* Poison the elements (not what lies around them). */
void tensor_poison(tensor *t);

/* Is this element still poison? */
bool tensor_poisoned(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d);

/* Fail the running test unless all memory outside the view is still poison. */
void tensor_check_guards(const tensor *t, const char *name);

/* A digest of the whole memory, to tell whether a call changed it. */
uint64_t tensor_digest(const tensor *t);

/* Same bits in every element? Both of one shape and dtype. */
bool tensor_same_bits(const tensor *a, const tensor *other);

int64_t tensor_volume(const tensor *t);

double tensor_at(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d);
void tensor_put(tensor *t, int64_t b, int64_t h, int64_t n, int64_t d, double value);

/* ---- contents ---- */

void tensor_all(tensor *t, double value);

/* H(n) = ((2654435761 (n + 1)) mod 2^32) / 2^32 - 1/2 times `factor`; n = flat logical index + stream. */
void tensor_hash(tensor *t, uint64_t stream, double factor);

/* Independent values in [low, high). */
void tensor_random(tensor *t, uint64_t *rng, double low, double high);

/* 1 where row n equals column d, in each matrix. */
void tensor_identity(tensor *t);

/* Rows in logical order, `columns` values each into the first columns; the rest of each row is 0. */
void tensor_values(tensor *t, int64_t columns, const double *values);

/* ---- numbers ---- */

/* One unit in the last place at 1.0: 2^-23, 2^-10, 2^-7, 2^-52. */
double tensor_ulp(int32_t dtype);

/* Next number of a 64-bit generator (splitmix64), and one below `bound`, and one in [0, 1). */
uint64_t tensor_next(uint64_t *rng);
int64_t tensor_below(uint64_t *rng, int64_t bound);
double tensor_unit(uint64_t *rng);

#endif
