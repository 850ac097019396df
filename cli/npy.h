/* npy.h - reader and header writer of NumPy's .npy, versions 1 to 3. */
#ifndef FFPA_CLI_NPY_H
#define FFPA_CLI_NPY_H

#include "array.h"

/* Bytes of the header at the beginning of a file of `length` bytes; its first NPY_PREFIX, or all, tell. */
enum { NPY_PREFIX = 12 };
bool npy_header_bytes(const unsigned char *bytes, size_t length, size_t *header, char *why,
                      size_t why_bytes);

/* Read the header of a file of `length` bytes; of `bytes` no more than the header is looked at.
 * Little-endian f2 f4 f8 i4 i8 and b1, either memory order. False with a clause in `why`. */
bool npy_read(array *a, const unsigned char *bytes, size_t length, char *why, size_t why_bytes);

enum { NPY_HEADER_MAX = 512 };

/* Version 1 header of a row-major array, to be followed by its data; returns its bytes. The format
 * has no bf16: the caller writes that as f32. */
size_t npy_header(const array *a, unsigned char header[NPY_HEADER_MAX]);

#endif
