/* host_time.c - host microseconds of warm calls on the real driver, and what they consist of. Small problems, so
 * that the GPU keeps up; median of batches, each followed by a wait that is not counted. Then what a process waits for
 * a problem's kernels at first, compiled or from the disk.
 *
 * usage: host_time    (a GPU, NVRTC; prints one line a measurement) */
#include "base/dynlib.h"
#include "ffpa/ffpa.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 41, CALLS = 50, BYTES = 64 << 20, WORK = 256 << 20 };

static struct {
    int (*cuInit)(unsigned);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxPushCurrent_v2)(void *);
    int (*cuCtxPopCurrent_v2)(void **);
    int (*cuCtxSynchronize)(void);
    int (*cuMemAlloc_v2)(unsigned long long *, size_t);
    int (*cuMemsetD8_v2)(unsigned long long, unsigned char, size_t);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void *, void **, void **);
} cu;
static void *primary, *empty_kernel;

/* As many bytes of arguments as the forward kernel has. */
static const char EMPTY[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                            ".visible .entry empty(.param .align 8 .b8 args[496]) { ret; }\n";

static void stop(const char *what)
{
    fprintf(stderr, "host_time: %s: %s\n", what, ffpa_last_error());
    exit(1);
}

static void open_driver(void)
{
    char why[200] = "";
    void *library = dynlib_system.open("libcuda.so.1", false, why, sizeof why);
    if (!library) stop(why);
#define FIND(name) dynlib_store(&cu.name, dynlib_system.symbol(library, #name))
    FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent), FIND(cuCtxSynchronize);
    FIND(cuCtxPushCurrent_v2), FIND(cuCtxPopCurrent_v2), FIND(cuMemAlloc_v2),
        FIND(cuMemsetD8_v2);
    FIND(cuModuleLoadData), FIND(cuModuleGetFunction), FIND(cuLaunchKernel);
#undef FIND
    if (cu.cuInit(0) || cu.cuDevicePrimaryCtxRetain(&primary, 0) || cu.cuCtxSetCurrent(primary))
        stop("no context");
    void *module;
    if (cu.cuModuleLoadData(&module, EMPTY) ||
        cu.cuModuleGetFunction(&empty_kernel, module, "empty"))
        stop("no kernel");
}

static void *device_memory(size_t bytes)
{
    unsigned long long at;
    if (cu.cuMemAlloc_v2(&at, bytes) || cu.cuMemsetD8_v2(at, 0, bytes)) stop("no memory");
    return (void *)(uintptr_t)at; // NOLINT: device memory
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, void (*once)(void *), void *what)
{
    double times[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        cu.cuCtxSynchronize();
        const double start = now_us();
        for (int n = 0; n < CALLS; n++)
            once(what);
        times[i] = (now_us() - start) / CALLS;
    }
    qsort(times, BATCHES, sizeof *times, ascending);
    printf("%-50s %6.2f us (fastest batch %.2f)\n", name, times[BATCHES / 2], times[0]);
}

/* ---- what is measured -------------------------------------------------------------------------------- */

typedef struct subject {
    ffpa_context *ctx;
    ffpa_forward_params f;
    ffpa_backward_params g;
    ffpa_plan *plan;
} subject;

static void forward(void *s)
{
    if (ffpa_forward(((subject *)s)->ctx, &((subject *)s)->f)) stop("forward");
}

static void planned(void *s)
{
    if (ffpa_plan_run_forward(((subject *)s)->plan, &((subject *)s)->f))
        stop("planned forward");
}

static void backward(void *s)
{
    if (ffpa_backward(((subject *)s)->ctx, &((subject *)s)->g)) stop("backward");
}

static void query(void *s)
{
    size_t bytes;
    if (ffpa_forward_workspace(((subject *)s)->ctx, &((subject *)s)->f, &bytes))
        stop("workspace");
}

static void enter_leave(void *s)
{
    void *popped;
    (void)s;
    cu.cuCtxPushCurrent_v2(primary);
    cu.cuCtxPopCurrent_v2(&popped);
}

static void launch_alone(void *s)
{
    static char args[496];
    void *list[] = {args};
    (void)s;
    if (cu.cuLaunchKernel(empty_kernel, 1, 1, 1, 256, 1, 1, 0, NULL, list, NULL))
        stop("launch");
}

static ffpa_tensor tensor(ffpa_dtype dtype, const int64_t shape[4])
{
    ffpa_tensor t =
        ffpa_tensor_4d(device_memory(BYTES), dtype, shape[0], shape[1], shape[2], shape[3]);
    t.device = FFPA_CUDA(0);
    return t;
}

static void make(subject *s, int64_t heads, int64_t kv_heads, int64_t nq, int64_t nk, int64_t d)
{
    const int64_t q[] = {1, heads, nq, d}, k[] = {1, kv_heads, nk, d},
                  rows[] = {1, heads, nq, 1};
    s->f = ffpa_forward_params_init();
    s->f.q = tensor(FFPA_BF16, q), s->f.o = tensor(FFPA_BF16, q),
    s->f.lse = tensor(FFPA_F32, rows);
    s->f.k = tensor(FFPA_BF16, k), s->f.v = tensor(FFPA_BF16, k);
    s->f.workspace = device_memory(WORK);
    s->f.workspace_bytes = WORK;
    s->g = ffpa_backward_params_init();
    s->g.forward = &s->f;
    s->g.dout = tensor(FFPA_BF16, q), s->g.dq = tensor(FFPA_BF16, q);
    s->g.dk = tensor(FFPA_BF16, k), s->g.dv = tensor(FFPA_BF16, k);
    s->g.workspace = s->f.workspace;
    s->g.workspace_bytes = s->g.workspace_limit_bytes = WORK;
}

/* ---- first use --------------------------------------------------------------------------------------- */

/* Milliseconds that a fresh context takes to plan the problem, its kernels loaded on the GPU. */
static double first_plan(const char *folder, const char *text)
{
    const ffpa_context_options options = {.struct_size = sizeof options,
                                          .backend = "cuda",
                                          .cache_dir = folder,
                                          .cache_mode = "on"};
    ffpa_problem problem = {.struct_size = sizeof problem};
    ffpa_report report = {.struct_size = sizeof report};
    ffpa_context *ctx;
    if (ffpa_context_create(&options, &ctx) || ffpa_problem_parse(text, &problem)) stop(text);
    const double start = now_us();
    if (ffpa_explain(ctx, &problem, &report)) stop(text);
    const double end = now_us();
    ffpa_context_destroy(ctx);
    return (end - start) * 1e-3;
}

static void measure_first(const char *text)
{
    char folder[] = "/tmp/ffpa_host_time_XXXXXX", path[400];
    int kernels = 0;
    if (!mkdtemp(folder)) stop(folder);
    const double compiled = first_plan(folder, text), loaded = first_plan(folder, text);
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        kernels += unlink(path) == 0;
    }
    if (entries) closedir(entries);
    rmdir(folder);
    printf("first plan of %s (kernels: %d): %.2f s compiled, %.2f ms from the disk\n", text,
           kernels, compiled * 1e-3, loaded);
}

int main(void)
{
    static const char *const first[] = {
        "fwd,bf16,b1h1,q64k64,d64",
        "fwd,bf16,b1h32,q8192k8192,d128,causal",
        "fwd,bf16,b1h32,q8192k8192,d512",
        "fwd,bf16,b1h32,q8192k8192,d1024",
        "fwd,bf16,b8h32k4,q1k32768,d512",
        "fwd,f32,b1h8,q4096k4096,d512,causal",
        "fwd,bf16,b1h8,q4096k4096,d512,causal,softcap30,alibi,sink,dropout0.1",
        "bwd,bf16,b1h32,q8192k8192,d64,causal",
        "bwd,bf16,b1h32,q8192k8192,d512"};
    ffpa_context_options options = {.struct_size = sizeof options, .backend = "cuda"};
    static subject small, decode;
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* NVRTC keeps answers of its own: with them a first use would not be one. */
    setenv("CUDA_CACHE_DISABLE", "1", 1);
    open_driver();
    if (ffpa_context_create(&options, &small.ctx)) stop("context");
    decode.ctx = small.ctx;
    make(&small, 1, 1, 64, 64, 64);
    make(&decode, 8, 1, 1, 8192, 512);
    forward(&small), backward(&small), forward(&decode);
    if (ffpa_plan_forward(small.ctx, &small.f, &small.plan)) stop("plan");
    measure("push and pop of the driver's context", enter_leave, NULL);
    measure("launch of an empty kernel, 496 bytes of arguments", launch_alone, NULL);
    measure("workspace query: reading and the plan cache", query, &small);
    measure("planned forward d64, 1 kernel", planned, &small);
    measure("forward d64, 1 kernel", forward, &small);
    measure("forward decode d512, split, 2 kernels", forward, &decode);
    measure("backward d64, 5 kernels", backward, &small);
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        measure_first(first[i]);
    ffpa_plan_destroy(small.plan);
    ffpa_context_destroy(small.ctx);
    return 0;
}
