/* safetensors.h - reader and header writer of .safetensors: 8 bytes of header length, a JSON header,
 * then the tensors' bytes. */
#ifndef FFPA_CLI_SAFETENSORS_H
#define FFPA_CLI_SAFETENSORS_H

#include "array.h"

typedef struct safetensors {
    array *arrays; /* sorted by position in the file */
    int count;
    void *json; /* owns the names */
} safetensors;

/* Bytes of the header, length field included, of a file of `length` bytes; its first SAFETENSORS_PREFIX,
 * or all, tell. */
enum { SAFETENSORS_PREFIX = 8 };
bool safetensors_header_bytes(const unsigned char *bytes, size_t length, size_t *header,
                              char *why, size_t why_bytes);

/* Read the header of a file of `length` bytes; of `bytes` no more than the header is looked at, and not
 * after the return. Everything that it says is checked against `length`: offsets, sizes, overlap, holes,
 * duplicate names. A dtype that is not known here counts as one without use. False with a clause in
 * `why`. */
bool safetensors_read(safetensors *file, const unsigned char *bytes, size_t length, char *why,
                      size_t why_bytes);

void safetensors_free(safetensors *file);

/* NULL when there is none of that name. */
const array *safetensors_find(const safetensors *file, const char *name);

/* Length field and JSON header for these arrays, to be followed by their data in this order.
 * malloc'd, a multiple of 8 bytes; NULL without memory. `count` > 0. */
unsigned char *safetensors_header(const array *arrays, int count, size_t *bytes);

#endif
