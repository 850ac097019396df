/* api_context.c - contexts: the one place that names every backend and reads the environment. */
#include "core/call.h"
#include "core/plan.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cpu/ref.h"
#include "cuda/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const FN = "ffpa_context_create";
enum { OPTIONS_V01 = 96, MAX_THREADS = 1024 };
_Static_assert(sizeof(ffpa_context_options) == OPTIONS_V01, "ABI: ffpa_context_options");

static const backend *const BACKENDS[] = {&cuda_backend, &cpu_backend, &reference_backend,
                                          &naive_backend};
enum { BACKEND_COUNT = sizeof BACKENDS / sizeof BACKENDS[0] };

/* An option, or else an environment variable that is set and not empty. */
static const char *option_or_env(const char *option, const char *variable)
{
    const char *env = getenv(variable);
    return option ? option : env && *env ? env : NULL;
}

static ffpa_status read_threads(const ffpa_context_options *o, int *threads)
{
    const char *env = option_or_env(NULL, "FFPA_THREADS");
    CHECK(o->threads >= 0 && o->threads <= MAX_THREADS, FFPA_E_INVALID,
          "%s: threads=%d is not in 0..%d", FN, o->threads, MAX_THREADS);
    *threads = o->threads;
    if (*threads == 0 && env) {
        char *end;
        const long n = strtol(env, &end, 10);
        CHECK(!*end && n >= 1 && n <= MAX_THREADS, FFPA_E_INVALID,
              "%s: FFPA_THREADS=%.40s is not a number in 1..%d", FN, env, MAX_THREADS);
        *threads = (int)n;
    }
    if (*threads == 0) *threads = pool_processors();
    return FFPA_OK;
}

/* "cuda/FAMILY" allows one family of GPU kernels alone. NULL when `name` is no such thing. */
static const char *family_of(const char *name)
{
    return name && strncmp(name, "cuda/", 5) == 0 ? name + 5 : NULL;
}

static ffpa_status choose_backend(ffpa_context *ctx, const ffpa_context_options *o)
{
    const char *name = option_or_env(o->backend, "FFPA_BACKEND");
    const char *family = family_of(name);
    CHECK(!family || cuda_family_exists(family), FFPA_E_INVALID,
          "%s: backend=%.40s: this version has no such family of kernels", FN, name);
    if (family) name = "cuda";
    for (int i = 0; i < BACKEND_COUNT; i++)
        ctx->list[i] = BACKENDS[i];
    if (!name || strcmp(name, "auto") == 0) return FFPA_OK;
    for (int i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(name, BACKENDS[i]->name) == 0) ctx->only = BACKENDS[i];
    CHECK(ctx->only, FFPA_E_INVALID,
          "%s: backend=%.40s is none of auto, cuda, cpu, reference, naive", FN, name);
    return FFPA_OK;
}

static ffpa_status read_options(ffpa_context *ctx, const ffpa_context_options *o, int *threads)
{
    CHECK(o->policy == FFPA_STRICT || o->policy == FFPA_ALLOW_SLOW, FFPA_E_INVALID,
          "%s: policy=%d is neither FFPA_STRICT (0) nor FFPA_ALLOW_SLOW (1)", FN, o->policy);
    CHECK(!o->alloc == !o->free, FFPA_E_INVALID,
          "%s: %s is set without %s; give both or neither", FN, o->alloc ? "alloc" : "free",
          o->alloc ? "free" : "alloc");
    ctx->alloc = o->alloc ? (allocator){o->alloc, o->free, o->alloc_user} : allocator_default;
    ctx->policy = (ffpa_policy)o->policy;
    ctx->log = o->log;
    ctx->log_user = o->log_user;
    TRY(choose_backend(ctx, o));
    TRY(read_threads(o, threads));
    return isa_by_name(option_or_env(o->cpu_isa, "FFPA_CPU_ISA"), FN, &ctx->isa);
}

/* ---- CUDA: nothing is opened here unless that backend was asked for by name ------------------- */

static ffpa_status read_cache_mode(const ffpa_context_options *o, jit_mode *mode)
{
    const char *name = option_or_env(o->cache_mode, "FFPA_CACHE");
    *mode = JIT_ON;
    if (!name || strcmp(name, "on") == 0) return FFPA_OK;
    CHECK(strcmp(name, "read-only") == 0 || strcmp(name, "off") == 0, FFPA_E_INVALID,
          "%s: cache_mode (FFPA_CACHE) '%.40s' is none of on, read-only, off", FN, name);
    *mode = strcmp(name, "off") == 0 ? JIT_OFF : JIT_READ_ONLY;
    return FFPA_OK;
}

/* The cache's folder by option, environment or convention; "" when there is nowhere to put it. */
static void find_cache_folder(const ffpa_context_options *o, char out[DISK_PATH])
{
    const char *given = option_or_env(o->cache_dir, "FFPA_CACHE_DIR");
    const char *xdg = option_or_env(NULL, "XDG_CACHE_HOME"),
               *home = option_or_env(NULL, "HOME");
    int n = 0;
    if (given)
        n = snprintf(out, DISK_PATH, "%s", given);
    else if (xdg)
        n = snprintf(out, DISK_PATH, "%s/ffpa", xdg);
    else if (home)
        n = snprintf(out, DISK_PATH, "%s/.cache/ffpa", home);
    if (n <= 0 || n >= DISK_PATH) out[0] = 0;
}

/* One more element of a list separated by ':'. An empty one, or one that does not fit, is left out. */
static void add_prefix(char *out, size_t bytes, const char *prefix, int length,
                       const char *tail)
{
    const size_t used = strlen(out);
    if (length > 0 && used + (size_t)length + strlen(tail) + 2 < bytes)
        snprintf(out + used, bytes - used, "%s%.*s%s", used ? ":" : "", length, prefix, tail);
}

/* Python prefixes where pip may have put the compiler: the active environment's, the running program's
 * (an interpreter's, perhaps), those whose bin is in PATH, the user's, the system's. */
static void find_prefixes(char *out, size_t bytes)
{
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    char program[DISK_PATH] = "";
    const char *path = option_or_env(NULL, "PATH"), *home = option_or_env(NULL, "HOME");
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 2; up++) { /* PREFIX/bin/python3 -> PREFIX */
        char *slash = strrchr(program, '/');
        if (slash) *slash = 0;
    }
    out[0] = 0;
    for (int i = 0; i < 2; i++) {
        const char *value = option_or_env(NULL, variables[i]);
        if (value) add_prefix(out, bytes, value, (int)strlen(value), "");
    }
    add_prefix(out, bytes, program, (int)strlen(program), "");
    for (const char *p = path; p && *p;) {
        const int length = (int)strcspn(p, ":");
        if (length > 4 && strncmp(p + length - 4, "/bin", 4) == 0)
            add_prefix(out, bytes, p, length - 4, "");
        p += length + (p[length] == ':');
    }
    if (home) add_prefix(out, bytes, home, (int)strlen(home), "/.local");
}

static ffpa_status open_cuda(ffpa_context *ctx, const ffpa_context_options *o)
{
    char folder[DISK_PATH] = "", prefixes[3 * DISK_PATH];
    cuda_settings s = {.libs = &dynlib_system,
                       .files = EMBEDDED_KERNELS,
                       .cache_dir = folder,
                       .prefixes = prefixes,
                       .family = family_of(option_or_env(o->backend, "FFPA_BACKEND"))};
    TRY(read_cache_mode(o, &s.mode));
    find_cache_folder(o, folder);
    find_prefixes(prefixes, sizeof prefixes);
    s.nvrtc_path = option_or_env(o->nvrtc_path, "FFPA_NVRTC");
    s.defines = option_or_env(NULL, "FFPA_KERNEL_DEFINES");
    TRY(fail_in(FN, cuda_context_new(ctx, &s, &ctx->cuda)));
    return ctx->only == &cuda_backend ? fail_in(FN, cuda_open_driver(ctx->cuda)) : FFPA_OK;
}

ffpa_status ffpa_context_create(const ffpa_context_options *options, ffpa_context **context)
{
    ffpa_context_options o = {.struct_size = sizeof o};
    ffpa_context draft = {0};
    int threads = 1;
    CHECK(context, FFPA_E_INVALID, "%s: context is NULL", FN);
    *context = NULL;
    if (options) TRY(params_read(&o, sizeof o, OPTIONS_V01, options, FN, "options"));
    TRY(read_options(&draft, &o, &threads));
    ffpa_context *ctx = mem_new(&draft.alloc, sizeof *ctx);
    CHECK(ctx, FFPA_E_OUT_OF_MEMORY, "%s: no memory for a context (%zu bytes)", FN,
          sizeof *ctx);
    *ctx = draft;
    ctx->pool = pool_new(&ctx->alloc, threads);
    ctx->plans = plan_cache_new(&ctx->alloc);
    if (!ctx->pool || !ctx->plans) {
        ffpa_context_destroy(ctx);
        return fail(FFPA_E_OUT_OF_MEMORY, "%s: no memory for the thread pool or the plan cache",
                    FN);
    }
    const ffpa_status status = open_cuda(ctx, &o);
    if (status != FFPA_OK) {
        ffpa_context_destroy(ctx);
        return status;
    }
    snprintf(ctx->describe, sizeof ctx->describe,
             "ffpa %d.%d.%d backend=%s isa=%s threads=%d policy=%s cache=%s",
             FFPA_VERSION_MAJOR, FFPA_VERSION_MINOR, FFPA_VERSION_PATCH,
             ctx->only ? ctx->only->name : "auto", isa_name(ctx->isa), threads,
             ctx->policy == FFPA_ALLOW_SLOW ? "allow-slow" : "strict",
             cuda_cache_describe(ctx->cuda));
    context_log(ctx, FFPA_LOG_INFO, "%s", ctx->describe);
    *context = ctx;
    return FFPA_OK;
}

void ffpa_context_destroy(ffpa_context *context)
{
    if (!context) return;
    plan_cache_free(context->plans);
    cuda_context_free(context->cuda);
    pool_free(context->pool);
    const allocator a = context->alloc;
    mem_free(&a, context);
}

const char *ffpa_context_describe(const ffpa_context *context)
{
    return context ? context->describe : "no context";
}
