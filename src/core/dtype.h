/* dtype.h - what elements are. */
#ifndef FFPA_CORE_DTYPE_H
#define FFPA_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of one element; 0 for an unknown dtype. */
size_t dtype_bytes(int32_t dtype);
const char *dtype_name(int32_t dtype); /* "bf16"; "?" when unknown */

#endif
