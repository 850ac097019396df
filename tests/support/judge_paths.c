/* judge_paths.c - contexts made once per test program and given back at exit. */
#include "support/judge_paths.h"
#include "support/poison_alloc.h"
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>

static judge_path paths[] = {
    {"reference", "reference", NULL, NULL, true},
    {"cpu/portable", "cpu", "portable", NULL, false},
    {"cpu/avx2", "cpu", "avx2", NULL, false},
    {"cpu/avx512", "cpu", "avx512", NULL, false},
    {"cpu/avx512_bf16", "cpu", "avx512_bf16", NULL, false},
    {"cpu/amx_bf16", "cpu", "amx_bf16", NULL, false},
    {"cuda", "cuda", NULL, NULL, false},
    {NULL, NULL, NULL, NULL, false},
};
enum { PATHS = sizeof paths / sizeof *paths - 1 };

static judge_path usable[PATHS + 1];
static ffpa_context *reference, *naive;

static ffpa_status create(const char *backend, const char *isa, int threads, ffpa_context **ctx)
{
    ffpa_context_options options = {0};
    options.struct_size = sizeof options;
    options.backend = backend;
    options.cpu_isa = isa;
    options.threads = threads;
    options.alloc = poison_alloc;
    options.free = poison_free;
    return ffpa_context_create(&options, ctx);
}

ffpa_context *judge_context(const char *backend, const char *isa, int threads)
{
    ffpa_context *ctx = NULL;
    if (create(backend, isa, threads, &ctx) != FFPA_OK)
        fail_msg("context %s %s: %s", backend, isa ? isa : "", ffpa_last_error());
    return ctx;
}

static void destroy_all(void)
{
    for (int i = 0; i < PATHS; i++)
        ffpa_context_destroy(paths[i].ctx);
    ffpa_context_destroy(reference);
    ffpa_context_destroy(naive);
}

/* The GPU runs where it is asked for: FFPA_TEST_PATH=cuda, or cuda/FAMILY for one family of kernels. */
static bool wanted(judge_path *p, const char *only, bool spare)
{
    if (strcmp(p->name, "cuda") == 0) {
        if (!only || strncmp(only, "cuda", 4) != 0) return false;
        p->backend = only;
        return true;
    }
    if (only) return strstr(p->name, only) != NULL;
    return !spare || !(p->slow || strstr(p->name, "portable"));
}

/* Make the paths usable that are called like `only`, or all but those that are spared; returns how many. */
static int create_paths(const char *only, bool spare)
{
    int n = 0;
    for (int i = 0; i < PATHS; i++) {
        judge_path *p = &paths[i];
        if (!wanted(p, only, spare)) continue;
        const ffpa_status status = create(p->backend, p->isa, 2, &p->ctx);
        /* Only an instruction set that this processor lacks may be passed over. */
        if (status == FFPA_E_UNSUPPORTED && p->isa && strcmp(p->isa, "portable") != 0) continue;
        if (status != FFPA_OK) fail_msg("context %s: %s", p->name, ffpa_last_error());
        usable[n++] = *p;
    }
    return n;
}

static void create_all(void)
{
    const char *only = getenv("FFPA_TEST_PATH");
    reference = judge_context("reference", NULL, 2);
    naive = judge_context("naive", NULL, 2);
    atexit(destroy_all);
    if (create_paths(only, judge_quick()) == 0 && create_paths(only, false) == 0)
        fail_msg("no path is called like FFPA_TEST_PATH=%s", only);
}

const judge_path *judge_paths(void)
{
    if (!reference) create_all();
    return usable;
}

ffpa_context *judge_reference(void)
{
    judge_paths();
    return reference;
}

ffpa_context *judge_naive(void)
{
    judge_paths();
    return naive;
}

int judge_scale(void)
{
    const char *text = getenv("FFPA_TEST_SCALE");
    const int scale = text ? atoi(text) : 1;
    return scale > 1 ? scale : 1;
}

bool judge_quick(void)
{
    const char *effort = getenv("FFPA_TEST_EFFORT");
    return effort && strcmp(effort, "quick") == 0;
}

bool judge_in_shard(unsigned n)
{
    unsigned mine = 1, all = 1;
    const char *text = getenv("FFPA_TEST_SHARD");
    if (text && (sscanf(text, "%u/%u", &mine, &all) != 2 || mine < 1 || mine > all))
        fail_msg("FFPA_TEST_SHARD=%s is not like 2/5", text);
    return n % all == mine - 1;
}
