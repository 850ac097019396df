/* config.h - the config.cuh of a variant: one #define a line, in the order they are set, under a comment
 * that says what the kernel is for. The text is the cache key, so it is the same for the same kernel. */
#ifndef FFPA_CUDA_CONFIG_H
#define FFPA_CUDA_CONFIG_H

#include "cuda/jit.h"

/* Kernels of one plan, with the dynamic shared memory each is launched with. */
enum { MAX_VARIANTS = 12 };
typedef struct variant_list {
    variant v[MAX_VARIANTS];
    unsigned shared[MAX_VARIANTS];
    int count;
} variant_list;

/* A new last entry of the list. `name` becomes its name and the comment. */
variant *variant_add(variant_list *list, const char *file, const char *arch, unsigned shared,
                     const char *name);

/* "#define FFPA_<macro> <value>"; zero is what a kernel assumes of a macro it is not told. */
void config_set(variant *v, const char *macro, int64_t value);

/* As config_set, for macros that have no such default. */
void config_set_always(variant *v, const char *macro, int64_t value);

/* The lines of config.cuh for macros given as words, "FFPA_WATCHDOG=100000 FFPA_EVERY_LANE=1". E_INVALID names what is no such
 * word. NULL is none. */
ffpa_status config_words(const char *words, char *lines, size_t bytes);

/* Is the text whole? False when it was cut for length. */
bool config_whole(const variant *v);

#endif
