/* jit.c - memory, then disk, then the compiler. */
#include "cuda/jit.h"

#include "cuda/jit_entry.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct slot {
    struct slot *next;
    jit_key key; /* with "any" for the compiler: within one process it does not change */
    void *cubin; /* NULL while some thread builds it */
    size_t bytes;
} slot;

struct jit {
    const ffpa_context *ctx;
    jit_options o;
    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t built;
    slot *slots;
    bool found;
    nvrtc_place place;
    nvrtc compiler;  /* opened at the first compilation */
    bool complained; /* the cache folder cannot be written, and that has been said */
};

jit *jit_new(const ffpa_context *ctx, const jit_options *options)
{
    jit *j = mem_new(&ctx->alloc, sizeof *j);
    if (!j) return NULL;
    j->ctx = ctx;
    j->o = *options;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->built, NULL);
    return j;
}

void jit_free(jit *j)
{
    if (!j) return;
    const allocator *a = &j->ctx->alloc;
    for (slot *s = j->slots, *next; s; s = next) {
        next = s->next;
        mem_free(a, s->cubin);
        mem_free(a, s);
    }
    if (j->compiler.library) nvrtc_close(&j->compiler);
    pthread_cond_destroy(&j->built);
    pthread_mutex_destroy(&j->lock);
    mem_free(a, j);
}

void jit_limit_version(jit *j, int max_major)
{
    pthread_mutex_lock(&j->lock);
    if (j->o.search.max_major != max_major && !j->compiler.library) j->found = false;
    j->o.search.max_major = max_major;
    pthread_mutex_unlock(&j->lock);
}

/* ---- compiler ----------------------------------------------------------------------------------- */

ffpa_status jit_compiler(jit *j, nvrtc_place *place)
{
    ffpa_status status = FFPA_OK;
    pthread_mutex_lock(&j->lock);
    if (!j->found) status = nvrtc_find(j->o.libs, &j->o.search, &j->place);
    j->found = status == FFPA_OK;
    if (j->found && place) *place = j->place;
    pthread_mutex_unlock(&j->lock);
    return status;
}

static ffpa_status open_compiler(jit *j)
{
    TRY(jit_compiler(j, NULL));
    ffpa_status status = FFPA_OK;
    pthread_mutex_lock(&j->lock);
    if (!j->compiler.library) status = nvrtc_open(&j->compiler, j->o.libs, &j->place);
    pthread_mutex_unlock(&j->lock);
    return status;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ffpa_status compile(jit *j, const variant *v, void **cubin, size_t *bytes)
{
    char arch_option[40];
    const char *options[JIT_OPTION_COUNT];
    const embedded_file *entry = j->o.files;
    nvrtc_result result;
    TRY(open_compiler(j));
    TRY(nvrtc_check_arch(&j->compiler, v->arch));
    while (entry->name && strcmp(entry->name, v->file) != 0)
        entry++;
    CHECK(entry->name, FFPA_E_INTERNAL, "cuda: kernel file %s is not in the library", v->file);
    jit_compile_options(v, arch_option, options);
    const nvrtc_job job = {v->name,    entry->text, v->config,
                           j->o.files, options,     JIT_OPTION_COUNT};
    context_log(j->ctx, FFPA_LOG_INFO,
                "compiling %s for %s with NVRTC %d.%d (first use on this machine)", v->name,
                v->arch, j->compiler.major, j->compiler.minor);
    const double begin = seconds_now();
    const ffpa_status status = nvrtc_compile(&j->compiler, &j->ctx->alloc, &job, &result);
    if (status == FFPA_OK)
        context_log(j->ctx, FFPA_LOG_INFO, "compiled %s: %.2f s, %zu bytes", v->name,
                    seconds_now() - begin, result.cubin_bytes);
    if (result.log && *result.log)
        context_log(j->ctx, FFPA_LOG_DEBUG, "%s: %.400s", v->name, result.log);
    mem_free(&j->ctx->alloc, result.log);
    *cubin = result.cubin;
    *bytes = result.cubin_bytes;
    return status;
}

/* ---- disk --------------------------------------------------------------------------------------- */

/* A good entry under this key. A damaged one is removed, so that the next writer replaces it. */
static bool read_entry(jit *j, const variant *v, const char *compiler, void **cubin,
                       size_t *bytes)
{
    char path[DISK_PATH];
    const jit_key key = jit_key_of(v, j->o.files, compiler);
    if (!jit_entry_path(path, j->o.folder, v, &key)) return false;
    const jit_found found = jit_entry_read(&j->ctx->alloc, path, &key, cubin, bytes);
    if (found == JIT_DAMAGED) {
        context_log(j->ctx, FFPA_LOG_ERROR, "cache entry %.400s is damaged; building it again",
                    path);
        if (j->o.mode == JIT_ON) unlink(path);
    }
    return found == JIT_GOOD;
}

static bool write_entry(const jit *j, const char *folder, const variant *v,
                        const char *compiler, const void *cubin, size_t bytes)
{
    char path[DISK_PATH];
    const jit_key key = jit_key_of(v, j->o.files, compiler);
    if (!jit_entry_path(path, folder, v, &key) || !jit_entry_write(path, &key, cubin, bytes))
        return false;
    disk_sweep(path, ".cubin"); /* beside a compilation it costs nothing */
    return true;
}

/* Not being able to store is no failure: say so once and go on. */
static void store(jit *j, const variant *v, const char *compiler, const void *cubin,
                  size_t bytes)
{
    const unsigned own = 0700; /* the cache is this user's alone */
    if (disk_make_folder(j->o.folder, own) &&
        write_entry(j, j->o.folder, v, compiler, cubin, bytes))
        return;
    const char *reason = strerror(errno);
    pthread_mutex_lock(&j->lock);
    const bool say = !j->complained;
    j->complained = true;
    pthread_mutex_unlock(&j->lock);
    if (say)
        context_log(j->ctx, FFPA_LOG_ERROR,
                    "cannot write to the kernel cache %.300s (%s); every process will compile",
                    j->o.folder, reason);
}

static ffpa_status build(jit *j, const variant *v, void **cubin, size_t *bytes)
{
    char version[32] = "any";
    nvrtc_place place;
    const bool disk = j->o.folder && j->o.mode != JIT_OFF;
    if (disk && read_entry(j, v, "any", cubin, bytes)) return FFPA_OK;
    TRY(jit_compiler(j, &place));
    snprintf(version, sizeof version, "%d.%d", place.major, place.minor);
    if (disk && read_entry(j, v, version, cubin, bytes)) return FFPA_OK;
    TRY(compile(j, v, cubin, bytes));
    if (disk && j->o.mode == JIT_ON) store(j, v, version, *cubin, *bytes);
    return FFPA_OK;
}

/* ---- memory ------------------------------------------------------------------------------------- */

static slot *find_slot(jit *j, const jit_key *key)
{
    slot *s = j->slots;
    while (s && memcmp(&s->key, key, sizeof *key) != 0)
        s = s->next;
    return s;
}

static void drop_slot(jit *j, slot *gone)
{
    slot **link = &j->slots;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
    mem_free(&j->ctx->alloc, gone);
}

/* A finished slot, or one that this thread has to build (its cubin is NULL); NULL = no memory. Waits
 * while another thread builds it; when that one fails, this one tries itself. */
static slot *claim_slot(jit *j, const jit_key *key)
{
    slot *s;
    pthread_mutex_lock(&j->lock);
    while ((s = find_slot(j, key)) && !s->cubin)
        pthread_cond_wait(&j->built, &j->lock);
    if (!s && (s = mem_new(&j->ctx->alloc, sizeof *s))) {
        s->key = *key;
        s->next = j->slots;
        j->slots = s;
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

/* The variant with the lines that every config has besides. */
static ffpa_status define(const jit *j, const variant *asked, variant *v)
{
    *v = *asked;
    const size_t used = strlen(v->config), more = strlen(j->o.defines);
    CHECK(used + more < sizeof v->config, FFPA_E_INVALID,
          "cuda: FFPA_KERNEL_DEFINES leaves no room in the config of %s", v->name);
    memcpy(v->config + used, j->o.defines, more + 1);
    return FFPA_OK;
}

static ffpa_status get_one(jit *j, const variant *asked, jit_code *code)
{
    void *cubin = NULL;
    size_t bytes = 0;
    variant defined, *v = &defined;
    TRY(define(j, asked, v));
    ffpa_status status = FFPA_OK;
    const jit_key key = jit_key_of(v, j->o.files, "any");
    slot *s = claim_slot(j, &key);
    CHECK(s, FFPA_E_OUT_OF_MEMORY, "cuda: no memory for a kernel's cache slot");
    if (!s->cubin) {
        status = build(j, v, &cubin, &bytes);
        pthread_mutex_lock(&j->lock);
        s->bytes = bytes;
        s->cubin = cubin;
        if (status != FFPA_OK) drop_slot(j, s);
        pthread_cond_broadcast(&j->built);
        pthread_mutex_unlock(&j->lock);
    }
    if (status == FFPA_OK) *code = (jit_code){s->cubin, s->bytes};
    return status;
}

/* ---- several at once ------------------------------------------------------------------------------ */

/* The sentence of a failure belongs to the thread that failed, so each piece carries its own. */
typedef struct piece {
    ffpa_status status;
    char sentence[1024];
} piece;

typedef struct batch {
    jit *j;
    const variant *const *variants;
    jit_code *codes;
    piece *pieces;
} batch;

static void get_piece(void *job, int64_t i, int worker)
{
    batch *b = job;
    (void)worker;
    b->pieces[i].status = get_one(b->j, b->variants[i], &b->codes[i]);
    if (b->pieces[i].status != FFPA_OK)
        snprintf(b->pieces[i].sentence, sizeof b->pieces[i].sentence, "%s", ffpa_last_error());
}

ffpa_status jit_get(jit *j, const variant *const *variants, int count, jit_code *codes)
{
    const allocator *a = &j->ctx->alloc;
    ffpa_status status = FFPA_OK;
    piece *pieces = mem_new(a, (size_t)count * sizeof *pieces);
    CHECK(pieces, FFPA_E_OUT_OF_MEMORY, "cuda: no memory to build %d kernels", count);
    batch b = {j, variants, codes, pieces};
    pool_run(j->ctx->pool, get_piece, &b, count);
    for (int i = 0; i < count && status == FFPA_OK; i++)
        if (pieces[i].status != FFPA_OK)
            status = fail(pieces[i].status, "%s", pieces[i].sentence);
    mem_free(a, pieces);
    return status;
}

ffpa_status jit_prebuild(jit *j, const variant *asked, const char *folder)
{
    variant defined, *v = &defined;
    TRY(define(j, asked, v));
    char path[DISK_PATH];
    void *cubin = NULL;
    size_t bytes = 0;
    const allocator *a = &j->ctx->alloc;
    const jit_key key = jit_key_of(v, j->o.files, "any");
    CHECK(jit_entry_path(path, folder, v, &key), FFPA_E_INVALID,
          "ffpa_prebuild: directory '%.200s' is too long", folder);
    CHECK(disk_make_folder(folder, 0777), FFPA_E_INVALID,
          "ffpa_prebuild: cannot make directory '%.400s': %s", folder, strerror(errno));
    if (jit_entry_read(a, path, &key, &cubin, &bytes) != JIT_GOOD) {
        TRY(compile(j, v, &cubin, &bytes));
        const bool written = write_entry(j, folder, v, "any", cubin, bytes);
        const int reason = errno;
        mem_free(a, cubin);
        CHECK(written, FFPA_E_INVALID, "ffpa_prebuild: cannot write %.400s: %s", path,
              strerror(reason));
        return FFPA_OK;
    }
    mem_free(a, cubin);
    return FFPA_OK;
}
