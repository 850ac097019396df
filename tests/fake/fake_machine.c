/* fake_machine.c - a library context on the fake machine, its memory, log and folders. */
#include "fake/fake_cuda.h"

#include "core/plan.h"
#include "cuda/cuda_backend.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char fake_log[8192];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int made, alive, fail_at;

static void *counting_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    void *memory = NULL;
    if (atomic_fetch_add(&made, 1) + 1 == fail_at ||
        posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    alive++;
    return memory;
}

static void counting_free(void *user, void *memory)
{
    (void)user;
    alive--;
    free(memory);
}

void fake_allocations_fail_at(int n)
{
    made = 0;
    fail_at = n;
}

int fake_allocations(void) { return made; }
int fake_allocations_alive(void) { return alive; }

/* Names of the kernels' files; the fake compiler reads nothing in them. */
static const embedded_file FILES[] = {{"sm90/fwd_one_sm90.cuh", "one", 3},
                                      {"sm90/fwd_pair_sm90.cuh", "pair", 4},
                                      {"sm90/fwd_spill_p_sm90.cuh", "spill", 5},
                                      {"sm90/fwd_spill_pv_sm90.cuh", "values", 6},
                                      {"sm80/fwd_sm80.cuh", "forward", 7},
                                      {"any/split_combine.cuh", "combine", 7},
                                      {"any/append.cuh", "append", 6},
                                      {"any/merge.cuh", "merge", 5},
                                      {"any/bwd_delta.cuh", "delta", 5},
                                      {"sm80/bwd_pds_sm80.cuh", "pds", 3},
                                      {"sm80/bwd_gemm_sm80.cuh", "gemm", 4},
                                      {"sm90/bwd_pds_sm90.cuh", "pds90", 5},
                                      {"sm90/bwd_gemm_sm90.cuh", "products", 8},
                                      {"sm90/bwd_fused_sm90.cuh", "fused", 5},
                                      {"any/bwd_mask.cuh", "dmask", 5},
                                      {"any/bwd_sink.cuh", "dsink", 5},
                                      {"any/bwd_renorm.cuh", "renorm", 6},
                                      {"sm90/fwd_combine_sm90.cuh", "join", 4},
                                      {NULL, NULL, 0}};

static void gather(void *user, ffpa_log_level level, const char *line)
{
    (void)user, (void)level;
    pthread_mutex_lock(&log_lock);
    const size_t used = strlen(fake_log);
    snprintf(fake_log + used, sizeof fake_log - used, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}

ffpa_context *fake_context(const char *folder, jit_mode mode)
{
    const allocator a = {counting_alloc, counting_free, NULL};
    const cuda_settings s = {&fake_dynlib, FILES, folder, "libnvrtc.so.13",
                             NULL,         NULL,  mode,   FAKE.defines};
    ffpa_context *ctx = mem_new(&a, sizeof *ctx);
    if (!ctx) return NULL;
    ctx->alloc = a;
    ctx->log = gather;
    ctx->list[0] = ctx->only = &cuda_backend;
    ctx->pool = pool_new(&ctx->alloc, 2);
    ctx->plans = plan_cache_new(&ctx->alloc);
    if (!ctx->pool || !ctx->plans || cuda_context_new(ctx, &s, &ctx->cuda) != FFPA_OK) {
        fake_context_free(ctx);
        return NULL;
    }
    return ctx;
}

void fake_context_free(ffpa_context *ctx)
{
    if (!ctx) return;
    plan_cache_free(ctx->plans);
    cuda_context_free(ctx->cuda);
    pool_free(ctx->pool);
    const allocator a = ctx->alloc;
    mem_free(&a, ctx);
}

int fake_set_up(void **state)
{
    fake_reset();
    fake_allocations_fail_at(0);
    *state = fake_context(NULL, JIT_ON);
    return *state ? 0 : 1;
}

int fake_tear_down(void **state)
{
    fake_context_free(*state);
    return FAKE.depth || FAKE.retained || FAKE.modules || FAKE.libraries || FAKE.programs ||
           fake_allocations_alive();
}

void fake_folder_new(char folder[64])
{
    snprintf(folder, 64, "%s", "/tmp/ffpa_fake_XXXXXX");
    if (!mkdtemp(folder)) abort();
}

static int visit(const char *folder, const char *ending, bool remove_files)
{
    char path[DISK_PATH];
    int n = 0;
    DIR *d = opendir(folder);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        const size_t length = strlen(e->d_name), tail = strlen(ending);
        if (e->d_name[0] == '.' || length < tail ||
            strcmp(e->d_name + length - tail, ending) != 0)
            continue;
        n++;
        if (remove_files && disk_join(path, folder, e->d_name)) unlink(path);
    }
    closedir(d);
    return n;
}

int fake_folder_count(const char *folder, const char *ending)
{
    return visit(folder, ending, false);
}

void fake_folder_remove(const char *folder)
{
    visit(folder, "", true);
    rmdir(folder);
}
