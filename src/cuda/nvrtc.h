/* nvrtc.h - NVIDIA's run-time compiler: finding it, opening it, compiling one kernel. */
#ifndef FFPA_CUDA_NVRTC_H
#define FFPA_CUDA_NVRTC_H

#include "base/disk.h"
#include "base/dynlib.h"
#include "cuda/embedded.h"

/* Where to look, in this order: `given` alone if set; the packages nvidia-cuda-nvrtc and torch under
 * each Python prefix; the system's library search; /usr/local/cuda. */
typedef struct nvrtc_search {
    const char
        *given; /* a library file, its folder, or a Python or CUDA prefix; NULL = look around */
    const char *prefixes; /* Python prefixes separated by ':' */
    int max_major;        /* newest CUDA major version whose cubins the driver loads; 0 = any */
} nvrtc_search;

/* A compiler that was found but not opened: finding takes microseconds, opening milliseconds. */
typedef struct nvrtc_place {
    char path[DISK_PATH];
    char builtins[DISK_PATH]; /* the companion library to open first; "" = none found */
    int major, minor;
} nvrtc_place;

typedef struct nvrtc_program_object *nvrtc_program;

#define NVRTC_FUNCTIONS(X)                                                                 \
    X(nvrtcVersion, (int *major, int *minor))                                              \
    X(nvrtcGetNumSupportedArchs, (int *count))                                             \
    X(nvrtcGetSupportedArchs, (int *archs))                                                \
    X(nvrtcCreateProgram,                                                                  \
      (nvrtc_program * program, const char *source, const char *name, int header_count,    \
       const char *const *headers, const char *const *names))                              \
    X(nvrtcCompileProgram, (nvrtc_program program, int count, const char *const *options)) \
    X(nvrtcGetProgramLogSize, (nvrtc_program program, size_t * bytes))                     \
    X(nvrtcGetProgramLog, (nvrtc_program program, char *log))                              \
    X(nvrtcGetCUBINSize, (nvrtc_program program, size_t * bytes))                          \
    X(nvrtcGetCUBIN, (nvrtc_program program, char *cubin))                                 \
    X(nvrtcDestroyProgram, (nvrtc_program * program))

typedef struct nvrtc {
    const dynlib *libs;
    void *library, *builtins; /* NULL = not open */
    int major, minor;
    const char *(*nvrtcGetErrorString)(int result);
#define FFPA_X(name, parameters) int(*name) parameters;
    NVRTC_FUNCTIONS(FFPA_X)
#undef FFPA_X
} nvrtc;

/* What to compile. Headers come from memory only. */
typedef struct nvrtc_job {
    const char *name; /* of the program, in messages */
    const char *source;
    const char *config; /* text of "config.cuh" */
    const embedded_file *files;
    const char *const *options;
    int option_count;
} nvrtc_job;

typedef struct nvrtc_result {
    void *cubin; /* free with mem_free */
    size_t cubin_bytes;
    char *log; /* "" when the compiler had nothing to say; free with mem_free */
} nvrtc_result;

/* Find a compiler. E_COMPILE with a sentence that says where it was looked for. */
ffpa_status nvrtc_find(const dynlib *libs, const nvrtc_search *search, nvrtc_place *place);

/* Open it; *n is closed again on failure (E_COMPILE). */
ffpa_status nvrtc_open(nvrtc *n, const dynlib *libs, const nvrtc_place *place);
void nvrtc_close(nvrtc *n); /* not open is fine */

/* Can it compile for "sm_90a"? E_COMPILE with the ones it knows. */
ffpa_status nvrtc_check_arch(const nvrtc *n, const char *arch);

/* Compile. E_COMPILE with the first lines of the log; result->log is filled in either case (or NULL).
 * Any number of threads. */
ffpa_status nvrtc_compile(const nvrtc *n, const allocator *a, const nvrtc_job *job,
                          nvrtc_result *result);

#endif
