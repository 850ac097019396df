/* nvrtc.c - opening the run-time compiler and compiling with it. Finding it is in nvrtc_find.c. */
#include "cuda/nvrtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADERS = 64, MAX_ARCHS = 64 };

void nvrtc_close(nvrtc *n)
{
    if (n->library) n->libs->close(n->library);
    if (n->builtins) n->libs->close(n->builtins);
    *n = (nvrtc){.libs = n->libs};
}

static ffpa_status fill_table(nvrtc *n, const char *path)
{
    dynlib_store(&n->nvrtcGetErrorString, n->libs->symbol(n->library, "nvrtcGetErrorString"));
#define FFPA_X(name, parameters) dynlib_store(&n->name, n->libs->symbol(n->library, #name));
    NVRTC_FUNCTIONS(FFPA_X)
#undef FFPA_X
    CHECK(n->nvrtcGetErrorString, FFPA_E_COMPILE, "nvrtc: %s lacks nvrtcGetErrorString", path);
#define FFPA_X(name, parameters)                                                              \
    CHECK(n->name, FFPA_E_COMPILE, "nvrtc: %s lacks " #name "; CUDA 12.0 or newer is needed", \
          path);
    NVRTC_FUNCTIONS(FFPA_X)
#undef FFPA_X
    return FFPA_OK;
}

static ffpa_status nvrtc_check(const nvrtc *n, int result, const char *what)
{
    if (result == 0) return FFPA_OK;
    const char *text = n->nvrtcGetErrorString(result);
    return fail(FFPA_E_COMPILE, "nvrtc: %s: %s (%d)", what, text ? text : "error", result);
}

ffpa_status nvrtc_open(nvrtc *n, const dynlib *libs, const nvrtc_place *place)
{
    char why[256] = "";
    *n = (nvrtc){.libs = libs};
    /* The compiler asks for its companion by bare name at its first use and finds it only when it is
     * already there. */
    if (*place->builtins) n->builtins = libs->open(place->builtins, true, why, sizeof why);
    n->library = libs->open(place->path, true, why, sizeof why);
    ffpa_status status =
        n->library ? fill_table(n, place->path)
                   : fail(FFPA_E_COMPILE, "nvrtc: cannot open %s: %s", place->path, why);
    if (status == FFPA_OK)
        status = nvrtc_check(n, n->nvrtcVersion(&n->major, &n->minor), "nvrtcVersion");
    if (status != FFPA_OK) nvrtc_close(n);
    return status;
}

ffpa_status nvrtc_check_arch(const nvrtc *n, const char *arch)
{
    int count = 0, archs[MAX_ARCHS];
    char known[256] = "";
    TRY(nvrtc_check(n, n->nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs"));
    CHECK(count > 0 && count <= MAX_ARCHS, FFPA_E_COMPILE,
          "nvrtc: it claims to know %d architectures", count);
    TRY(nvrtc_check(n, n->nvrtcGetSupportedArchs(archs), "nvrtcGetSupportedArchs"));
    const int wanted = strncmp(arch, "sm_", 3) == 0 ? atoi(arch + 3) : 0;
    for (int i = 0; i < count; i++) {
        if (archs[i] == wanted) return FFPA_OK;
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, " sm_%d", archs[i]);
    }
    return fail(FFPA_E_COMPILE, "nvrtc: NVRTC %d.%d cannot compile for %.20s; it knows%s",
                n->major, n->minor, arch, known);
}

/* The log as a string; NULL when it cannot be had. */
static char *read_log(const nvrtc *n, const allocator *a, nvrtc_program program)
{
    size_t bytes = 0;
    if (n->nvrtcGetProgramLogSize(program, &bytes) != 0) return NULL;
    char *log = mem_new(a, bytes + 1);
    if (log && bytes && n->nvrtcGetProgramLog(program, log) != 0) log[0] = 0;
    return log;
}

static ffpa_status create(const nvrtc *n, const nvrtc_job *job, nvrtc_program *program)
{
    const char *texts[MAX_HEADERS] = {job->config}, *names[MAX_HEADERS] = {"config.cuh"};
    int count = 1;
    for (const embedded_file *f = job->files; f->name; f++, count++) {
        CHECK(count < MAX_HEADERS, FFPA_E_INTERNAL, "nvrtc: more than %d kernel files",
              MAX_HEADERS - 1);
        texts[count] = f->text;
        names[count] = f->name;
    }
    return nvrtc_check(
        n, n->nvrtcCreateProgram(program, job->source, job->name, count, texts, names),
        "nvrtcCreateProgram");
}

static ffpa_status compile(const nvrtc *n, const allocator *a, const nvrtc_job *job,
                           nvrtc_program program, nvrtc_result *result)
{
    const int code = n->nvrtcCompileProgram(program, job->option_count, job->options);
    result->log = read_log(n, a, program);
    if (code != 0) {
        const char *text = n->nvrtcGetErrorString(code);
        return fail(FFPA_E_COMPILE, "nvrtc: %s: %s (%d): %.700s", job->name,
                    text ? text : "error", code, result->log ? result->log : "no log");
    }
    TRY(nvrtc_check(n, n->nvrtcGetCUBINSize(program, &result->cubin_bytes),
                    "nvrtcGetCUBINSize"));
    CHECK(result->cubin_bytes > 0, FFPA_E_COMPILE, "nvrtc: %s: the compiler gave no code",
          job->name);
    result->cubin = mem_raw(a, result->cubin_bytes);
    CHECK(result->cubin, FFPA_E_OUT_OF_MEMORY, "nvrtc: no memory for %zu bytes of code",
          result->cubin_bytes);
    return nvrtc_check(n, n->nvrtcGetCUBIN(program, result->cubin), "nvrtcGetCUBIN");
}

ffpa_status nvrtc_compile(const nvrtc *n, const allocator *a, const nvrtc_job *job,
                          nvrtc_result *result)
{
    nvrtc_program program = NULL;
    *result = (nvrtc_result){0};
    TRY(create(n, job, &program));
    const ffpa_status status = compile(n, a, job, program, result);
    n->nvrtcDestroyProgram(&program);
    if (status != FFPA_OK) {
        mem_free(a, result->cubin);
        result->cubin = NULL;
        result->cubin_bytes = 0;
    }
    return status;
}
