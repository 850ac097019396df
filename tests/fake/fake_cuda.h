/* fake_cuda.h - a driver and a compiler without a GPU: they count what is alive, record launches, and fail
 * on demand. Reached the way the real ones are, through a dynlib. */
#ifndef FFPA_TESTS_FAKE_CUDA_H
#define FFPA_TESTS_FAKE_CUDA_H

#include "base/dynlib.h"
#include "core/context.h"
#include "cuda/cuda_context.h"

enum { FAKE_LAUNCHES = 512, FAKE_ARGS = 1536 };

typedef struct fake_launch {
    char kernel[112]; /* the variant's name, which travels inside the fake code */
    unsigned grid, block, shared;
    void *stream;
    void *context; /* current at the launch */
    bool overlaps; /* may start before the launch before it is complete */
    unsigned char args[FAKE_ARGS];
} fake_launch;

typedef struct fake_state {
    /* what the machine is like */
    bool no_driver, old_driver, no_compiler, no_func_load;
    int driver_version, devices, cc, shared_optin, sms;
    int compile_ms;
    const char *log;     /* what the compiler says */
    const char *defines; /* FFPA_KERNEL_DEFINES */
    char config[1536];   /* config.cuh of the kernel compiled last */
    /* fail the n-th call of any driver or compiler function, counted from 1; 0 = none */
    int fail_at;
    char failed[40]; /* its name */
    /* counted */
    int calls, compiles, loads, maps, memsets;
    int libraries, modules, retained, programs; /* alive now */
    int depth; /* contexts pushed by this thread and not popped */
    int launch_count;
    bool launches_off; /* count only */
    fake_launch launches[FAKE_LAUNCHES];
} fake_state;

extern fake_state FAKE;
extern const dynlib fake_dynlib;

/* An H200 with a current driver and compiler; everything counted is zero. */
void fake_reset(void);

/* A library context on the fake machine, with the CUDA backend alone. `folder` may be NULL. Lines of
 * the log are gathered in fake_log. */
ffpa_context *fake_context(const char *folder, jit_mode mode);
void fake_context_free(ffpa_context *ctx);

extern char fake_log[8192];

/* Before and after a test: *state is such a context, on a machine as good as new. Afterwards nothing may be
 * left of it, in the driver or in memory. */
int fake_set_up(void **state);
int fake_tear_down(void **state);

/* Make the n-th allocation of contexts made from now on fail, counted from 1; 0 = none. */
void fake_allocations_fail_at(int n);
int fake_allocations(void); /* so far */
int fake_allocations_alive(void);

/* A new empty folder, and removing it with all in it. */
void fake_folder_new(char folder[64]);
void fake_folder_remove(const char *folder);
int fake_folder_count(const char *folder, const char *ending); /* files whose names end so */

#endif
