/* jit_entry.h - cache entries as files: their keys, names and heads. */
#ifndef FFPA_CUDA_JIT_ENTRY_H
#define FFPA_CUDA_JIT_ENTRY_H

#include "cuda/jit.h"

typedef struct jit_key {
    unsigned char bytes[16];
} jit_key;

/* Compiler options of a variant: architecture first. */
enum { JIT_OPTION_COUNT = 3 };
void jit_compile_options(const variant *v, char arch_option[40],
                         const char *options[JIT_OPTION_COUNT]);

/* `compiler` is its version such as "13.0", or "any" for prebuilt entries. */
jit_key jit_key_of(const variant *v, const embedded_file *files, const char *compiler);

/* "folder/name.arch.key.cubin"; false when too long. */
bool jit_entry_path(char path[DISK_PATH], const char *folder, const variant *v,
                    const jit_key *key);

typedef enum jit_found { JIT_ABSENT, JIT_GOOD, JIT_DAMAGED } jit_found;

/* Read an entry. JIT_GOOD fills *cubin (free with mem_free) and *bytes. */
jit_found jit_entry_read(const allocator *a, const char *path, const jit_key *key, void **cubin,
                         size_t *bytes);

/* Write an entry; false with errno. */
bool jit_entry_write(const char *path, const jit_key *key, const void *cubin, size_t bytes);

#endif
