/* jit.h - the code of a variant: from memory, else from the cache folder, else compiled and stored.
 *
 * An entry's key covers the config text, all kernel sources, the options, the architecture and the
 * compiler's version; a prebuilt entry (ffpa_prebuild) has "any" for the version and serves machines
 * with any compiler or none. An entry is one file, written whole and renamed, with a checksum; a damaged
 * one is built again. There is no lock between processes: several that meet at a cold cache each
 * compile, and the last rename wins. */
#ifndef FFPA_CUDA_JIT_H
#define FFPA_CUDA_JIT_H

#include "core/context.h"
#include "cuda/nvrtc.h"

/* One kernel with its constants. */
typedef struct variant {
    char name[112];    /* as in logs and file names: fwd_sm80_bf16_d512v512_m64n128 */
    char arch[16];     /* "sm_90a" */
    const char *file;  /* entry file under kernels/ */
    char config[1536]; /* text of its config.cuh */
} variant;

typedef enum jit_mode { JIT_ON = 0, JIT_READ_ONLY = 1, JIT_OFF = 2 } jit_mode;

/* Strings are borrowed and must outlive the cache. */
typedef struct jit_options {
    const dynlib *libs;
    const embedded_file *files; /* the kernel sources */
    const char *folder;         /* NULL = memory only */
    jit_mode mode;
    nvrtc_search search;
    const char *defines; /* further lines of every config.cuh */
} jit_options;

typedef struct jit_code {
    const void *cubin;
    size_t bytes;
} jit_code;

typedef struct jit jit;

jit *jit_new(const ffpa_context *ctx, const jit_options *options); /* NULL = no memory */
void jit_free(jit *j);                                             /* NULL is fine */

/* Cubins newer than this CUDA major version will not load; 0 = unknown. */
void jit_limit_version(jit *j, int max_major);

/* The code of `count` variants, missing ones compiled side by side on the context's threads. Code is
 * owned by the cache. Any thread. E_COMPILE, E_OUT_OF_MEMORY. */
ffpa_status jit_get(jit *j, const variant *const *variants, int count, jit_code *codes);

/* Store a variant in `folder` as a prebuilt entry, unless a good one is there. */
ffpa_status jit_prebuild(jit *j, const variant *v, const char *folder);

/* Where the compiler is, or why there is none (for reports). */
ffpa_status jit_compiler(jit *j, nvrtc_place *place);

/* Length of the file head; and is this the text of a good entry with this key? */
enum { JIT_HEAD_BYTES = 48 };
bool jit_entry_good(const void *file, size_t bytes, const unsigned char key[16]);

#endif
