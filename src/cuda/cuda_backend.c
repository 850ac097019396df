/* cuda_backend.c - the backend's table: find a family, let it choose, load its kernels, run. */
#include "cuda/cuda_backend.h"

#include "cuda/config.h"
#include "cuda/families.h"

#include <stdio.h>
#include <string.h>

static bool cuda_supports(const ffpa_context *ctx, const problem *p, char *why,
                          size_t why_bytes)
{
    const cuda_device *device;
    if (p->device == FFPA_HOST) {
        snprintf(why, why_bytes, "the tensors are in host memory");
        return false;
    }
    /* What is wrong with the device is an error of its own, which planning reports. */
    if (cuda_device_get(ctx->cuda, p->device - 1, &device) != FFPA_OK) return true;
    return family_for(p, device, cuda_only_family(ctx->cuda), why, why_bytes) != NULL;
}

/* The family's choice and its kernels. */
static ffpa_status choose(const problem *p, const cuda_device *device, const char *only,
                          cuda_plan *own, variant_list *list, ffpa_report *report)
{
    char why[300];
    own->device = device;
    own->family = family_for(p, device, only, why, sizeof why);
    CHECK(own->family, FFPA_E_UNSUPPORTED, "cuda: %s", why);
    TRY(own->family->choose(p, device, own->choice, list, report));
    for (int i = 0; i < list->count; i++)
        CHECK(config_whole(&list->v[i]), FFPA_E_INTERNAL, "cuda: the config of %s is too long",
              list->v[i].name);
    snprintf(report->path, sizeof report->path, "cuda/%s/%s", own->family->name,
             p->ask.op == FFPA_BACKWARD ? "backward" : "forward");
    return FFPA_OK;
}

/* Plan and choice in one piece of memory, large enough for every family. */
static cuda_plan *new_plan(const allocator *a)
{
    size_t bytes = 0;
    for (const family *f = FAMILIES; f->name; f++)
        if (f->choice_bytes > bytes) bytes = f->choice_bytes;
    cuda_plan *own = mem_new(a, sizeof *own + bytes);
    if (own) own->choice = own + 1;
    return own;
}

static void free_plan(const allocator *a, cuda_plan *own)
{
    if (own) map_cache_free(own->maps);
    mem_free(a, own);
}

static ffpa_status load(const ffpa_context *ctx, cuda_plan *own, const variant_list *list)
{
    const variant *variants[MAX_VARIANTS];
    for (int i = 0; i < list->count; i++)
        variants[i] = &list->v[i];
    return cuda_kernels_get(ctx->cuda, own->device, variants, list->shared, list->count,
                            own->kernels);
}

static ffpa_status cuda_plan_make(ffpa_plan *plan)
{
    const allocator *a = &plan->ctx->alloc;
    const cuda_device *device;
    TRY(cuda_device_get(plan->ctx->cuda, plan->prob.device - 1, &device));
    cuda_plan *own = new_plan(a);
    variant_list *list = mem_new(a, sizeof *list);
    ffpa_status status =
        own && list ? FFPA_OK : fail(FFPA_E_OUT_OF_MEMORY, "cuda: no memory for a plan");
    if (status == FFPA_OK)
        status = choose(&plan->prob, device, cuda_only_family(plan->ctx->cuda), own, list,
                        &plan->report);
    if (status == FFPA_OK) status = load(plan->ctx, own, list);
    if (status == FFPA_OK && own->family->maps) {
        own->maps = map_cache_new(a);
        if (!own->maps) status = fail(FFPA_E_OUT_OF_MEMORY, "cuda: no memory for tensor maps");
    }
    mem_free(a, list);
    if (status == FFPA_OK)
        plan->impl = own;
    else
        free_plan(a, own);
    return status;
}

static ffpa_status cuda_run(const ffpa_plan *plan, const call *c, void *workspace)
{
    const cuda_plan *own = plan->impl;
    TRY(cuda_enter(own->device));
    return cuda_leave(own->device, own->family->run(plan, own, c, workspace));
}

static void cuda_unplan(ffpa_plan *plan) { free_plan(&plan->ctx->alloc, plan->impl); }

const backend cuda_backend = {.name = "cuda",
                              .on_device = true,
                              .supports = cuda_supports,
                              .plan = cuda_plan_make,
                              .forward = cuda_run,
                              .backward = cuda_run,
                              .unplan = cuda_unplan};

/* ---- prebuild ---------------------------------------------------------------------------------------- */

ffpa_status cuda_prebuild(const ffpa_context *ctx, const problem *p, const char *arch,
                          const char *folder)
{
    const allocator *a = &ctx->alloc;
    cuda_device device;
    ffpa_report report = {.struct_size = sizeof report};
    TRY(cuda_device_of_arch(arch, &device));
    cuda_plan *own = new_plan(a);
    variant_list *list = mem_new(a, sizeof *list);
    ffpa_status status =
        own && list ? FFPA_OK
                    : fail(FFPA_E_OUT_OF_MEMORY, "ffpa_prebuild: no memory for a plan");
    if (status == FFPA_OK)
        status = choose(p, &device, cuda_only_family(ctx->cuda), own, list, &report);
    for (int i = 0; status == FFPA_OK && i < list->count; i++)
        status = jit_prebuild(ctx->cuda->jit, &list->v[i], folder);
    mem_free(a, list);
    mem_free(a, own);
    return status;
}
