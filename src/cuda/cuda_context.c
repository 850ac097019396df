/* cuda_context.c - driver, devices and kernels of a library context. */
#include "cuda/cuda_context.h"

#include "cuda/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool copy(char *out, size_t bytes, const char *text)
{
    const int n = snprintf(out, bytes, "%s", text ? text : "");
    return n >= 0 && (size_t)n < bytes;
}

ffpa_status cuda_context_new(const ffpa_context *ctx, const cuda_settings *s,
                             cuda_context **out)
{
    *out = NULL;
    cuda_context *c = mem_new(&ctx->alloc, sizeof *c);
    CHECK(c, FFPA_E_OUT_OF_MEMORY,
          "ffpa_context_create: no memory for CUDA's state (%zu bytes)", sizeof *c);
    const bool fits = copy(c->cache_dir, sizeof c->cache_dir, s->cache_dir) &&
                      copy(c->nvrtc_path, sizeof c->nvrtc_path, s->nvrtc_path) &&
                      copy(c->prefixes, sizeof c->prefixes, s->prefixes) &&
                      copy(c->family, sizeof c->family, s->family);
    const jit_options options = {s->libs,
                                 s->files,
                                 s->cache_dir && *s->cache_dir ? c->cache_dir : NULL,
                                 s->mode,
                                 {s->nvrtc_path ? c->nvrtc_path : NULL, c->prefixes, 0},
                                 c->defines};
    const ffpa_status words = config_words(s->defines, c->defines, sizeof c->defines);
    c->ctx = ctx;
    c->libs = s->libs;
    c->mode = s->mode;
    if (fits && words == FFPA_OK) c->jit = jit_new(ctx, &options);
    if (!c->jit) {
        mem_free(&ctx->alloc, c);
        if (words != FFPA_OK) return words;
        return fits ? fail(FFPA_E_OUT_OF_MEMORY,
                           "ffpa_context_create: no memory for the kernel cache")
                    : fail(FFPA_E_INVALID,
                           "ffpa_context_create: cache_dir or nvrtc_path has more than %d "
                           "characters",
                           DISK_PATH - 1);
    }
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return FFPA_OK;
}

const char *cuda_cache_describe(const cuda_context *c)
{
    if (c->mode == JIT_OFF) return "off";
    return *c->cache_dir ? c->cache_dir : "none";
}

const char *cuda_only_family(const cuda_context *c) { return *c->family ? c->family : NULL; }

/* Nothing can be done about failures here: after a fork or at exit the driver may be gone already. */
static void release_device(cuda_context *c, cuda_device *d)
{
    const bool entered = d->ready && c->drv.cuCtxPushCurrent(d->primary) == 0;
    for (cuda_kernel *k = d->kernels, *next; k; k = next) {
        next = k->next;
        if (entered) c->drv.cuModuleUnload(k->module);
        mem_free(&c->ctx->alloc, k);
    }
    cu_context popped;
    if (entered) c->drv.cuCtxPopCurrent(&popped);
    if (d->ready) c->drv.cuDevicePrimaryCtxRelease(d->handle);
}

void cuda_context_free(cuda_context *c)
{
    if (!c) return;
    for (int i = 0; i < MAX_DEVICES; i++)
        release_device(c, &c->devices[i]);
    if (c->drv.library) driver_close(&c->drv);
    jit_free(c->jit);
    pthread_mutex_destroy(&c->lock);
    mem_free(&c->ctx->alloc, c);
}

static ffpa_status open_driver_locked(cuda_context *c)
{
    if (c->drv.library) return FFPA_OK;
    driver opened;
    TRY(driver_open(&opened, c->libs));
    c->drv = opened;
    jit_limit_version(c->jit, opened.version / 1000);
    return FFPA_OK;
}

ffpa_status cuda_open_driver(cuda_context *c)
{
    pthread_mutex_lock(&c->lock);
    const ffpa_status status = open_driver_locked(c);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- devices -------------------------------------------------------------------------------------- */

/* From compute capability 9.0 on, the code for exactly this chip ("a") may use all of it. */
static void name_arch(cuda_device *d)
{
    snprintf(d->arch, sizeof d->arch, d->cc >= 90 ? "sm_%da" : "sm_%d", d->cc);
}

static ffpa_status read_device(const driver *drv, cuda_device *d)
{
    int major = 0, minor = 0;
    TRY(driver_check(drv, drv->cuDeviceGet(&d->handle, d->index), "cuDeviceGet"));
    TRY(driver_check(drv, drv->cuDeviceGetName(d->name, (int)sizeof d->name, d->handle),
                     "cuDeviceGetName"));
    const struct {
        int *value, attribute;
    } wanted[] = {{&major, CU_DEVICE_CC_MAJOR},
                  {&minor, CU_DEVICE_CC_MINOR},
                  {&d->sms, CU_DEVICE_SM_COUNT},
                  {&d->shared_optin, CU_DEVICE_SHARED_OPTIN}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        TRY(driver_check(
            drv, drv->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, d->handle),
            "cuDeviceGetAttribute"));
    d->cc = major * 10 + minor;
    name_arch(d);
    CHECK(d->cc >= 80, FFPA_E_NO_DEVICE,
          "cuda: device %d (%s) has compute capability %d.%d; 8.0 or newer is needed", d->index,
          d->name, major, minor);
    return driver_check(drv, drv->cuDevicePrimaryCtxRetain(&d->primary, d->handle),
                        "cuDevicePrimaryCtxRetain");
}

static ffpa_status device_get_locked(cuda_context *c, int index)
{
    int count = 0;
    if (index >= 0 && index < MAX_DEVICES && c->devices[index].ready) return FFPA_OK;
    TRY(open_driver_locked(c));
    TRY(driver_check(&c->drv, c->drv.cuDeviceGetCount(&count), "cuDeviceGetCount"));
    CHECK(index >= 0 && index < count && index < MAX_DEVICES, FFPA_E_INVALID,
          "cuda: the tensors are on FFPA_CUDA(%d), but this process sees %d device%s", index,
          count, count == 1 ? "" : "s");
    cuda_device found = {.drv = &c->drv, .index = index};
    TRY(read_device(&c->drv, &found));
    found.ready = true;
    c->devices[index] = found;
    return FFPA_OK;
}

ffpa_status cuda_device_get(cuda_context *c, int index, const cuda_device **device)
{
    pthread_mutex_lock(&c->lock);
    const ffpa_status status = device_get_locked(c, index);
    pthread_mutex_unlock(&c->lock);
    if (status == FFPA_OK) *device = &c->devices[index];
    return status;
}

ffpa_status cuda_device_of_arch(const char *arch, cuda_device *device)
{
    static const struct {
        int cc, shared_optin, sms;
    } known[] = {{80, 166912, 108},  {86, 101376, 84},   {87, 166912, 16},
                 {89, 101376, 142},  {90, 232448, 132},  {100, 232448, 148},
                 {103, 232448, 148}, {120, 101376, 170}, {121, 101376, 48}};
    char *end = NULL;
    const long cc = strncmp(arch, "sm_", 3) == 0 ? strtol(arch + 3, &end, 10) : 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].cc != cc) continue;
        *device = (cuda_device){
            .cc = known[i].cc, .sms = known[i].sms, .shared_optin = known[i].shared_optin};
        name_arch(device);
        if (strcmp(arch, device->arch) == 0) return FFPA_OK;
        return fail(FFPA_E_INVALID, "cuda: arch '%.20s': kernels for this chip are built as %s",
                    arch, device->arch);
    }
    return fail(FFPA_E_INVALID,
                "cuda: arch '%.20s' is none of sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a, "
                "sm_103a, sm_120a, sm_121a",
                arch);
}

/* ---- kernels -------------------------------------------------------------------------------------- */

static cuda_kernel *find_kernel(const cuda_device *d, const variant *v, unsigned shared_bytes)
{
    cuda_kernel *k = d->kernels;
    while (k && (k->shared_bytes != shared_bytes || strcmp(k->v.file, v->file) != 0 ||
                 strcmp(k->v.config, v->config) != 0))
        k = k->next;
    return k;
}

/* Everything the first launch would otherwise do lazily, which a stream under capture forbids. */
static ffpa_status ready_kernel(const driver *drv, const jit_code *code, cuda_kernel *k)
{
    int registers;
    TRY(driver_check(drv, drv->cuModuleLoadData(&k->module, code->cubin), "cuModuleLoadData"));
    TRY(driver_check(drv, drv->cuModuleGetFunction(&k->function, k->module, "ffpa_kernel"),
                     "cuModuleGetFunction"));
    if (k->shared_bytes > 0)
        TRY(driver_check(
            drv,
            drv->cuFuncSetAttribute(k->function, CU_FUNC_DYNAMIC_SHARED, (int)k->shared_bytes),
            "cuFuncSetAttribute"));
    if (drv->cuFuncLoad) return driver_check(drv, drv->cuFuncLoad(k->function), "cuFuncLoad");
    return driver_check(drv,
                        drv->cuFuncGetAttribute(&registers, CU_FUNC_REGISTERS, k->function),
                        "cuFuncGetAttribute");
}

static ffpa_status load_kernel(cuda_context *c, cuda_device *d, const variant *v,
                               unsigned shared_bytes, const jit_code *code)
{
    cuda_kernel *k = mem_new(&c->ctx->alloc, sizeof *k);
    CHECK(k, FFPA_E_OUT_OF_MEMORY, "cuda: no memory for a kernel's record");
    k->v = *v;
    k->shared_bytes = shared_bytes;
    const ffpa_status status = ready_kernel(&c->drv, code, k);
    if (status != FFPA_OK) {
        if (k->module) c->drv.cuModuleUnload(k->module);
        mem_free(&c->ctx->alloc, k);
        return status;
    }
    k->next = d->kernels;
    d->kernels = k;
    return FFPA_OK;
}

static ffpa_status load_missing(cuda_context *c, cuda_device *d, const variant *const *variants,
                                const unsigned *shared, int count, const jit_code *codes)
{
    TRY(cuda_enter(d));
    ffpa_status status = FFPA_OK;
    for (int i = 0; i < count && status == FFPA_OK; i++)
        if (!find_kernel(d, variants[i], shared[i]))
            status = load_kernel(c, d, variants[i], shared[i], &codes[i]);
    return cuda_leave(d, status);
}

/* Are they all loaded? kernels[i] is NULL for one that is not. */
static bool find_kernels(const cuda_device *d, const variant *const *variants,
                         const unsigned *shared, int count, const cuda_kernel **kernels)
{
    bool all = true;
    for (int i = 0; i < count; i++) {
        kernels[i] = find_kernel(d, variants[i], shared[i]);
        all = all && kernels[i];
    }
    return all;
}

ffpa_status cuda_kernels_get(cuda_context *c, const cuda_device *device,
                             const variant *const *variants, const unsigned *shared, int count,
                             const cuda_kernel **kernels)
{
    jit_code codes[MAX_VARIANTS];
    cuda_device *d = &c->devices[device->index];
    CHECK(count <= MAX_VARIANTS, FFPA_E_INTERNAL, "cuda: a plan of %d kernels", count);
    pthread_mutex_lock(&c->lock);
    const bool loaded = find_kernels(d, variants, shared, count, kernels);
    pthread_mutex_unlock(&c->lock);
    if (loaded) return FFPA_OK;
    TRY(jit_get(c->jit, variants, count, codes));
    pthread_mutex_lock(&c->lock);
    const ffpa_status status = load_missing(c, d, variants, shared, count, codes);
    if (status == FFPA_OK) find_kernels(d, variants, shared, count, kernels);
    pthread_mutex_unlock(&c->lock);
    return status;
}
