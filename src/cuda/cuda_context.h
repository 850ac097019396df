/* cuda_context.h - what one library context knows of CUDA: the driver, its devices, their kernels.
 * Made with the context, but nothing is opened before the first use. */
#ifndef FFPA_CUDA_CONTEXT_H
#define FFPA_CUDA_CONTEXT_H

#include "cuda/driver.h"
#include "cuda/jit.h"

#include <pthread.h>

enum { MAX_DEVICES = 64 };

/* A loaded kernel. Lives as long as the context. */
typedef struct cuda_kernel {
    struct cuda_kernel *next;
    variant v;
    cu_module module;
    cu_function function;
    unsigned shared_bytes;
} cuda_kernel;

/* Blocks to enqueue. */
typedef struct cuda_grid {
    int64_t blocks;
    unsigned threads;
} cuda_grid;

typedef struct cuda_device {
    const driver *drv;
    bool ready;
    int index;
    cu_device handle;
    cu_context primary;
    int cc; /* compute capability, 90 = 9.0 */
    int sms;
    int shared_optin; /* most shared memory of a block, bytes */
    char name[96];
    char arch[16]; /* what kernels are compiled for: "sm_90a" */
    cuda_kernel *kernels;
} cuda_device;

/* Options of ffpa_context_options, environment applied. Strings are copied. */
typedef struct cuda_settings {
    const dynlib *libs;
    const embedded_file *files; /* the kernel sources */
    const char *cache_dir;      /* NULL = none */
    const char *nvrtc_path;     /* NULL = look around */
    const char *prefixes;       /* Python prefixes to look under */
    const char *family;         /* the only kernels allowed, NULL = all */
    jit_mode mode;
    const char *
        defines; /* macros of every kernel as words (config_words); NULL = none. For debugging */
} cuda_settings;

struct cuda_context {
    const ffpa_context *ctx;
    pthread_mutex_t
        lock; /* guards the driver's opening, devices and kernels; never taken by a run */
    driver drv;
    cuda_device devices[MAX_DEVICES];
    jit *jit;
    const dynlib *libs;
    jit_mode mode;
    char family[16];   /* the only one allowed, "" = all */
    char defines[512]; /* lines of config.cuh */
    char cache_dir[DISK_PATH], nvrtc_path[DISK_PATH], prefixes[4 * DISK_PATH];
};

ffpa_status cuda_context_new(const ffpa_context *ctx, const cuda_settings *s,
                             cuda_context **out);
void cuda_context_free(cuda_context *c); /* NULL is fine */

/* Where compiled kernels are kept: a folder, or "off" or "none" when they are not. */
const char *cuda_cache_describe(const cuda_context *c);

/* The kernel family that the caller asked for by name, or NULL. */
const char *cuda_only_family(const cuda_context *c);

/* Open the driver if it is not yet: E_NO_DEVICE says why it cannot be. */
ffpa_status cuda_open_driver(cuda_context *c);

/* Device `index`, its primary context retained. E_NO_DEVICE, E_INVALID (no such device), E_DRIVER. */
ffpa_status cuda_device_get(cuda_context *c, int index, const cuda_device **device);

/* What an architecture offers, for planning without a GPU: fills cc, arch, sms, shared_optin.
 * E_INVALID for a name we do not know. */
ffpa_status cuda_device_of_arch(const char *arch, cuda_device *device);

/* Kernels of a plan on a device: built, loaded, ready to launch, so that a run only enqueues. At most MAX_VARIANTS;
 * where all are loaded already it is a lookup.
 * shared[i] = dynamic shared memory that kernel i will be launched with. */
ffpa_status cuda_kernels_get(cuda_context *c, const cuda_device *device,
                             const variant *const *variants, const unsigned *shared, int count,
                             const cuda_kernel **kernels);

/* ---- running ---- */

/* Between these two the device's primary context is the thread's current one. `leave` restores what
 * was current before, and passes `status` on unless restoring fails. */
ffpa_status cuda_enter(const cuda_device *device);
ffpa_status cuda_leave(const cuda_device *device, ffpa_status status);

/* Do so many blocks fit a grid? Plans ask, so that no launch need be refused after another has run. */
ffpa_status cuda_check_blocks(const variant *v, int64_t blocks);

/* Enqueue one kernel on a stream; `args` is its only parameter. */
ffpa_status cuda_launch(const cuda_device *device, const cuda_kernel *kernel, void *stream,
                        cuda_grid grid, void *args);

/* The same of a kernel that may be set up before the launch before it is complete, because it waits itself
 * for what it reads. */
ffpa_status cuda_launch_early(const cuda_device *device, const cuda_kernel *kernel,
                              void *stream, cuda_grid grid, void *args);

#endif
