/* cpu_backend.c - the fast CPU backend's vtable: picks the kernels of the context's instruction set. */
#include "cpu/cpu_backend.h"
#include "cpu/simd/simd.h"

#include <stdio.h>

static const cpu_kernels *kernels_of(const ffpa_context *ctx)
{
#if defined(__x86_64__)
    if (ctx->isa == ISA_AMX_BF16) return &cpu_kernels_amx_bf16;
    if (ctx->isa == ISA_AVX512_BF16) return &cpu_kernels_avx512_bf16;
    if (ctx->isa == ISA_AVX512) return &cpu_kernels_avx512;
    if (ctx->isa == ISA_AVX2) return &cpu_kernels_avx2;
#else
    (void)ctx;
#endif
    return &cpu_kernels_portable;
}

static bool supports(const ffpa_context *ctx, const problem *p, char *why, size_t why_bytes)
{
    const bool backward = p->ask.op == FFPA_BACKWARD;
    const char *reason = NULL;
    if (p->device != FFPA_HOST)
        reason = "tensors are not in host memory";
    else if (p->ask.dtype == FFPA_F64)
        reason = "f64 is for the reference backend";
    else if (p->row_subset)
        reason = "a row subset is for the reference backend";
    else if (backward && !kernels_of(ctx)->backward)
        reason = "it has no backward";
    if (reason) snprintf(why, why_bytes, "%s", reason);
    return !reason;
}

static ffpa_status plan_any(struct ffpa_plan *plan)
{
    const cpu_kernels *k = kernels_of(plan->ctx);
    const bool backward = plan->prob.ask.op == FFPA_BACKWARD;
    snprintf(plan->report.path, sizeof plan->report.path, "cpu/%s/%s", k->isa,
             backward ? "backward" : "forward");
    TRY(backward ? k->plan_backward(plan) : k->plan_forward(plan));
    const uint64_t limit = plan->prob.workspace_limit_bytes;
    CHECK(!limit || plan->report.workspace_bytes <= limit, FFPA_E_WORKSPACE,
          "cpu: workspace_limit_bytes=%llu, this problem needs %zu", (unsigned long long)limit,
          plan->report.workspace_bytes);
    return FFPA_OK;
}

static ffpa_status run_forward(const struct ffpa_plan *plan, const call *c, void *workspace)
{
    return kernels_of(plan->ctx)->forward(plan, c, workspace);
}

static ffpa_status run_backward(const struct ffpa_plan *plan, const call *c, void *workspace)
{
    return kernels_of(plan->ctx)->backward(plan, c, workspace);
}

const backend cpu_backend = {
    .name = "cpu",
    .slow = false,
    .supports = supports,
    .plan = plan_any,
    .forward = run_forward,
    .backward = run_backward,
};
