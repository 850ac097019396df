/* fake_cuda.c - the functions behind the fake libraries. */
#include "fake/fake_cuda.h"

#include "common/args.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

fake_state FAKE;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int depth;

enum { CALL_FAILS = 999 };

/* Count a call; true when it is the one that shall fail. */
static bool fails(const char *name)
{
    pthread_mutex_lock(&lock);
    const bool now = ++FAKE.calls == FAKE.fail_at;
    if (now) snprintf(FAKE.failed, sizeof FAKE.failed, "%s", name);
    pthread_mutex_unlock(&lock);
    return now;
}

#define FAIL_IF_ASKED                               \
    do {                                            \
        if (fails(__func__ + 5)) return CALL_FAILS; \
    } while (0)

static void count(int *counter, int by)
{
    pthread_mutex_lock(&lock);
    *counter += by;
    pthread_mutex_unlock(&lock);
}

/* ---- driver --------------------------------------------------------------------------------------- */

/* The names of these functions are the driver's behind "fake_", for __func__. */
static cu_result fake_cuInit(unsigned flags)
{
    (void)flags;
    FAIL_IF_ASKED;
    return 0;
}

static cu_result fake_cuDriverGetVersion(int *version)
{
    FAIL_IF_ASKED;
    *version = FAKE.driver_version;
    return 0;
}

static cu_result fake_cuGetErrorName(cu_result error, const char **name)
{
    *name = error == CALL_FAILS ? "CUDA_ERROR_ON_DEMAND" : "CUDA_ERROR_OTHER";
    return 0;
}

static cu_result fake_cuGetErrorString(cu_result error, const char **text)
{
    (void)error;
    *text = "made to fail";
    return 0;
}

static cu_result fake_cuDeviceGetCount(int *devices)
{
    FAIL_IF_ASKED;
    *devices = FAKE.devices;
    return 0;
}

static cu_result fake_cuDeviceGet(cu_device *device, int ordinal)
{
    FAIL_IF_ASKED;
    *device = ordinal + 100;
    return 0;
}

static cu_result fake_cuDeviceGetName(char *name, int bytes, cu_device device)
{
    (void)device;
    FAIL_IF_ASKED;
    snprintf(name, (size_t)bytes, "Fake GPU");
    return 0;
}

static cu_result fake_cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    (void)device;
    FAIL_IF_ASKED;
    switch (attribute) {
    case CU_DEVICE_CC_MAJOR: *value = FAKE.cc / 10; break;
    case CU_DEVICE_CC_MINOR: *value = FAKE.cc % 10; break;
    case CU_DEVICE_SM_COUNT: *value = FAKE.sms; break;
    case CU_DEVICE_SHARED_OPTIN: *value = FAKE.shared_optin; break;
    default: return 1;
    }
    return 0;
}

static char primary_contexts[200];

static cu_result fake_cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    FAIL_IF_ASKED;
    count(&FAKE.retained, 1);
    *context = (cu_context)(void *)&primary_contexts[device];
    return 0;
}

static cu_result fake_cuDevicePrimaryCtxRelease(cu_device device)
{
    (void)device;
    FAIL_IF_ASKED;
    count(&FAKE.retained, -1);
    return 0;
}

static _Thread_local cu_context stack[16];

static cu_result fake_cuCtxPushCurrent(cu_context context)
{
    FAIL_IF_ASKED;
    stack[depth++] = context;
    count(&FAKE.depth, 1);
    return 0;
}

static cu_result fake_cuCtxPopCurrent(cu_context *context)
{
    const bool now = fails("cuCtxPopCurrent"); /* pops all the same: tests go on counting */
    if (depth == 0) return 1;
    *context = stack[--depth];
    count(&FAKE.depth, -1);
    return now ? CALL_FAILS : 0;
}

/* A module is its code, which holds the variant's name. */
struct cu_module_object {
    char kernel[112];
};

static cu_result fake_cuModuleLoadData(cu_module *module, const void *image)
{
    FAIL_IF_ASKED;
    if (depth == 0 || strncmp(image, "code of ", 8) != 0) return 1;
    *module = calloc(1, sizeof **module);
    snprintf((*module)->kernel, sizeof(*module)->kernel, "%s", (const char *)image + 8);
    count(&FAKE.modules, 1);
    count(&FAKE.loads, 1);
    return 0;
}

static cu_result fake_cuModuleUnload(cu_module module)
{
    FAIL_IF_ASKED;
    free(module);
    count(&FAKE.modules, -1);
    return 0;
}

static cu_result fake_cuModuleGetFunction(cu_function *function, cu_module module,
                                          const char *name)
{
    FAIL_IF_ASKED;
    if (strcmp(name, "ffpa_kernel") != 0) return 1;
    *function = (cu_function)(void *)module;
    return 0;
}

static cu_result fake_cuFuncGetAttribute(int *value, int attribute, cu_function function)
{
    (void)attribute, (void)function;
    FAIL_IF_ASKED;
    *value = 128;
    return 0;
}

static cu_result fake_cuFuncSetAttribute(cu_function function, int attribute, int value)
{
    (void)attribute, (void)function;
    FAIL_IF_ASKED;
    return value > FAKE.shared_optin ? 1 : 0;
}

static cu_result fake_cuFuncLoad(cu_function function)
{
    (void)function;
    FAIL_IF_ASKED;
    return 0;
}

/* The argument struct of a kernel, by the beginning of its name. */
static size_t args_bytes(const char *kernel)
{
    static const struct {
        const char *begin;
        size_t bytes;
    } structs[] = {{"fwd_one", sizeof(fwd_one_args)},
                   {"fwd_pair", sizeof(fwd_pair_args)},
                   {"fwd_spill", sizeof(fwd_spill_args)},
                   {"fwd_combine", sizeof(join_args)},
                   {"fwd", sizeof(fwd_args)},
                   {"combine", sizeof(combine_args)},
                   {"append", sizeof(append_args)},
                   {"merge", sizeof(merge_args)},
                   {"delta", sizeof(delta_args)},
                   {"pds_sm90", sizeof(pds90_args)},
                   {"products", sizeof(products_args)},
                   {"bwd_fused", sizeof(fused_args)},
                   {"pds", sizeof(pds_args)},
                   {"gemm", sizeof(gemm_args)},
                   {"dmask", sizeof(dmask_args)},
                   {"dsink", sizeof(dsink_args)}};
    for (size_t i = 0; i < sizeof structs / sizeof structs[0]; i++)
        if (strncmp(kernel, structs[i].begin, strlen(structs[i].begin)) == 0)
            return structs[i].bytes;
    return 0;
}

static cu_result fake_cuLaunchKernelEx(const cu_launch_config *config, cu_function function,
                                       void **args, void **extra)
{
    (void)extra;
    FAIL_IF_ASKED;
    pthread_mutex_lock(&lock);
    if (!FAKE.launches_off && FAKE.launch_count < FAKE_LAUNCHES) {
        fake_launch *l = &FAKE.launches[FAKE.launch_count];
        memset(l, 0, sizeof *l);
        snprintf(l->kernel, sizeof l->kernel, "%s", ((cu_module)(void *)function)->kernel);
        l->grid = config->grid[0];
        l->block = config->block[0];
        l->shared = config->shared_bytes;
        l->stream = config->stream;
        l->overlaps = config->attribute_count == 1 && config->attributes->id == 6;
        l->context = depth ? (void *)stack[depth - 1] : NULL;
        memcpy(l->args, args[0], args_bytes(l->kernel));
    }
    FAKE.launch_count++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static cu_result fake_cuMemsetD32Async(uint64_t address, unsigned value, size_t words,
                                       cu_stream stream)
{
    (void)value, (void)stream;
    FAIL_IF_ASKED;
    count(&FAKE.memsets, 1);
    return address % 4 == 0 && words > 0 && depth > 0 ? 0 : 1;
}

/* What the real one insists on, with 128-byte swizzle; a map holds its address and its box. */
static cu_result fake_cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                                             const uint64_t *extents, const uint64_t *strides,
                                             const uint32_t *box, const uint32_t *steps,
                                             int interleave, int swizzle, int promotion,
                                             int fill)
{
    FAIL_IF_ASKED;
    const uint32_t size = type == 7 ? 4 : 2;
    bool sound = (type == 6 || type == 7 || type == 9) && rank >= 3 && rank <= 5 &&
                 (uintptr_t)map % 64 == 0 && (uintptr_t)address % 16 == 0 && address &&
                 box[0] * size <= 128 && interleave == 0 && swizzle == 3 && promotion == 3 &&
                 fill == 0;
    for (uint32_t i = 0; i < rank && sound; i++) {
        sound = extents[i] > 0 && extents[i] <= (uint64_t)1 << 32 && box[i] > 0 &&
                box[i] <= 256 && steps[i] == 1;
        if (i > 0)
            sound = sound && strides[i - 1] > 0 && strides[i - 1] % 16 == 0 &&
                    strides[i - 1] < (uint64_t)1 << 40;
    }
    if (!sound) return 1;
    memset(map, 0, 128);
    memcpy(map, &address, sizeof address);
    memcpy((char *)map + 8, box, rank * sizeof *box);
    count(&FAKE.maps, 1);
    return 0;
}

/* ---- compiler ------------------------------------------------------------------------------------- */

struct nvrtc_program_object {
    char name[112];
};

static const char *fake_nvrtcGetErrorString(int result)
{
    return result == CALL_FAILS ? "NVRTC_ERROR_ON_DEMAND" : "NVRTC_ERROR_OTHER";
}

static int fake_nvrtcVersion(int *major, int *minor)
{
    FAIL_IF_ASKED;
    *major = 13, *minor = 0;
    return 0;
}

static int fake_nvrtcGetNumSupportedArchs(int *n)
{
    FAIL_IF_ASKED;
    *n = 3;
    return 0;
}

static int fake_nvrtcGetSupportedArchs(int *archs)
{
    FAIL_IF_ASKED;
    archs[0] = 80, archs[1] = 89, archs[2] = 90;
    return 0;
}

static int fake_nvrtcCreateProgram(nvrtc_program *program, const char *source, const char *name,
                                   int header_count, const char *const *headers,
                                   const char *const *names)
{
    FAIL_IF_ASKED;
    if (!*source || header_count < 1 || strcmp(names[0], "config.cuh") != 0 ||
        !strstr(headers[0], name))
        return 1;
    *program = calloc(1, sizeof **program);
    snprintf((*program)->name, sizeof(*program)->name, "%s", name);
    snprintf(FAKE.config, sizeof FAKE.config, "%s", headers[0]);
    count(&FAKE.programs, 1);
    return 0;
}

static int fake_nvrtcCompileProgram(nvrtc_program program, int n, const char *const *options)
{
    (void)program;
    FAIL_IF_ASKED;
    if (n < 1 || strncmp(options[0], "--gpu-architecture=sm_", 22) != 0) return 1;
    count(&FAKE.compiles, 1);
    const struct timespec wait = {0, FAKE.compile_ms * 1000000L};
    nanosleep(&wait, NULL);
    return 0;
}

static int fake_nvrtcGetProgramLogSize(nvrtc_program program, size_t *bytes)
{
    (void)program;
    FAIL_IF_ASKED;
    *bytes = strlen(FAKE.log) + 1;
    return 0;
}

static int fake_nvrtcGetProgramLog(nvrtc_program program, char *log)
{
    (void)program;
    FAIL_IF_ASKED;
    memcpy(log, FAKE.log, strlen(FAKE.log) + 1);
    return 0;
}

static int fake_nvrtcGetCUBINSize(nvrtc_program program, size_t *bytes)
{
    FAIL_IF_ASKED;
    *bytes = strlen(program->name) + 9;
    return 0;
}

static int fake_nvrtcGetCUBIN(nvrtc_program program, char *cubin)
{
    FAIL_IF_ASKED;
    memcpy(cubin, "code of ", 8);
    memcpy(cubin + 8, program->name, strlen(program->name) + 1);
    return 0;
}

static int fake_nvrtcDestroyProgram(nvrtc_program *program)
{
    free(*program);
    count(&FAKE.programs, -1);
    return 0;
}

/* ---- the libraries --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    dynlib_fn fn;
} SYMBOLS[] = {
#define FFPA_X(name, since, parameters) {#name, (dynlib_fn)fake_##name},
    DRIVER_FUNCTIONS(FFPA_X) DRIVER_OPTIONAL(FFPA_X)
#undef FFPA_X
#define FFPA_X(name, parameters) {#name, (dynlib_fn)fake_##name},
        NVRTC_FUNCTIONS(FFPA_X)
#undef FFPA_X
            {"nvrtcGetErrorString", (dynlib_fn)fake_nvrtcGetErrorString},
};

static dynlib_fn find_symbol(const char *name)
{
    for (size_t i = 0; i < sizeof SYMBOLS / sizeof SYMBOLS[0]; i++)
        if (strcmp(SYMBOLS[i].name, name) == 0) return SYMBOLS[i].fn;
    return NULL;
}

static cu_result fake_cuGetProcAddress_v2(const char *name, void **address, int version,
                                          uint64_t flags, int *status)
{
    (void)version, (void)flags;
    FAIL_IF_ASKED;
    const dynlib_fn fn =
        FAKE.no_func_load && strcmp(name, "cuFuncLoad") == 0 ? NULL : find_symbol(name);
    memcpy(address, &fn, sizeof fn);
    *status = fn == NULL;
    return fn ? 0 : 500;
}

static char driver_handle, compiler_handle;

static void *fake_open(const char *path, bool global, char *why, size_t why_bytes)
{
    (void)global;
    const bool is_driver = strcmp(path, "libcuda.so.1") == 0;
    if (is_driver ? FAKE.no_driver : FAKE.no_compiler || !strstr(path, "libnvrtc")) {
        snprintf(why, why_bytes, "%s: cannot open shared object file", path);
        return NULL;
    }
    count(&FAKE.libraries, 1);
    return is_driver ? &driver_handle : &compiler_handle;
}

static dynlib_fn fake_symbol(void *library, const char *name)
{
    if (library == &compiler_handle) return find_symbol(name);
    return FAKE.old_driver || strcmp(name, "cuGetProcAddress_v2") != 0
               ? NULL
               : (dynlib_fn)fake_cuGetProcAddress_v2;
}

static void fake_close(void *library)
{
    (void)library;
    count(&FAKE.libraries, -1);
}

const dynlib fake_dynlib = {fake_open, fake_symbol, fake_close};

void fake_reset(void)
{
    FAKE = (fake_state){.driver_version = 13000,
                        .devices = 2,
                        .cc = 90,
                        .shared_optin = 232448,
                        .sms = 132,
                        .log = ""};
}
