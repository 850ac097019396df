/* embedded.h - the files of kernels/ inside the library, written at build time by
 * tools/embed_kernels.py. */
#ifndef FFPA_CUDA_EMBEDDED_H
#define FFPA_CUDA_EMBEDDED_H

#include <stddef.h>

typedef struct embedded_file {
    const char *name; /* relative to kernels/, as in #include; NULL ends the list */
    const char *text;
    size_t bytes;
} embedded_file;

extern const embedded_file EMBEDDED_KERNELS[];

#endif
