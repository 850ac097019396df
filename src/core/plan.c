/* plan.c - choosing a backend, and running what it planned. */
#include "core/plan.h"

#include "core/checks.h"
#include "core/cost.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void context_log(const ffpa_context *ctx, ffpa_log_level level, const char *fmt, ...)
{
    char line[512];
    if (!ctx->log) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ctx->log(ctx->log_user, level, line);
}

/* Append "name: reason\n", as much as fits. */
static void add_refusal(ffpa_report *r, const char *name, const char *reason)
{
    const size_t used = strlen(r->refusals);
    snprintf(r->refusals + used, sizeof r->refusals - used, "%s: %s\n", name, reason);
}

static const char NOT_ASKED_FOR[] = "another backend was asked for by name";

/* May this backend be tried at all? */
static bool permitted(const ffpa_context *ctx, const backend *be, const char **reason)
{
    *reason = NOT_ASKED_FOR;
    if (ctx->only) return ctx->only == be;
    *reason = "slow path; ask for it by name or set policy FFPA_ALLOW_SLOW";
    return !be->slow || ctx->policy == FFPA_ALLOW_SLOW;
}

static const backend *choose(const ffpa_context *ctx, const problem *prob, ffpa_report *report)
{
    for (const backend *const *be = ctx->list; *be; be++) {
        char why[200] = "";
        const char *reason;
        /* Where the tensors are decides between host and device before anything else. */
        if (*be != ctx->only && (*be)->on_device != (prob->device != FFPA_HOST)) continue;
        if (!permitted(ctx, *be, &reason)) {
            add_refusal(report, (*be)->name, reason);
            continue;
        }
        if ((*be)->supports(ctx, prob, why, sizeof why)) return *be;
        add_refusal(report, (*be)->name, why);
    }
    return NULL;
}

/* The refusals as one line of a sentence, without those that go without saying. */
static void flatten(char *out, size_t bytes, const char *lines)
{
    const size_t unsaid = sizeof NOT_ASKED_FOR - 1;
    size_t used = 0;
    out[0] = 0;
    for (const char *line = lines; *line && used < bytes;) {
        const size_t n = strcspn(line, "\n");
        if (n < unsaid || strncmp(line + n - unsaid, NOT_ASKED_FOR, unsaid) != 0)
            used += (size_t)snprintf(out + used, bytes - used, "%s%.*s", used ? "; " : "",
                                     (int)n, line);
        line += n + (line[n] == '\n');
    }
}

ffpa_status plan_make(ffpa_context *ctx, const problem *prob, const char *fn, ffpa_plan **out,
                      ffpa_report *refusals)
{
    ffpa_report report = {.struct_size = sizeof report};
    *out = NULL;
    const backend *be = choose(ctx, prob, &report);
    if (refusals) memcpy(refusals->refusals, report.refusals, sizeof report.refusals);
    if (!be) {
        char reasons[800];
        flatten(reasons, sizeof reasons, report.refusals);
        return fail(FFPA_E_UNSUPPORTED, "%s: no permitted backend takes this problem (%s)", fn,
                    reasons);
    }
    ffpa_plan *plan = mem_new(&ctx->alloc, sizeof *plan);
    CHECK(plan, FFPA_E_OUT_OF_MEMORY, "%s: no memory for a plan (%zu bytes)", fn, sizeof *plan);
    const amounts n = problem_amounts(prob);
    report.flop = cost_flop(prob, &n);
    report.bytes = cost_bytes(prob, &n);
    report.splits = 1;
    *plan = (ffpa_plan){.ctx = ctx, .prob = *prob, .be = be, .report = report, .references = 1};
    const ffpa_status status = be->plan(plan);
    if (status != FFPA_OK) {
        plan_release(plan);
        return fail_in(fn, status);
    }
    context_log(ctx, FFPA_LOG_INFO, "plan %s workspace=%zu", plan->report.path,
                plan->report.workspace_bytes);
    *out = plan;
    return FFPA_OK;
}

void plan_release(ffpa_plan *plan)
{
    if (!plan || atomic_fetch_sub(&plan->references, 1) > 1) return;
    if (plan->be->unplan) plan->be->unplan(plan);
    mem_free(&plan->ctx->alloc, plan);
}

/* The caller's workspace if it will do; memory of our own where the caller gave none. */
static ffpa_status find_workspace(const ffpa_plan *plan, const call *c, const char *fn,
                                  void **use, void **own)
{
    const size_t need = plan->report.workspace_bytes;
    size_t given;
    *own = NULL;
    *use = call_workspace(c, &given);
    if (need == 0) return FFPA_OK;
    if (!*use && plan->prob.device == FFPA_HOST) {
        *use = *own = mem_raw(&plan->ctx->alloc, need);
        CHECK(*own, FFPA_E_OUT_OF_MEMORY, "%s: no memory for a workspace of %zu bytes", fn,
              need);
        return FFPA_OK;
    }
    CHECK(*use && given >= need, FFPA_E_WORKSPACE,
          "%s: workspace_bytes=%zu, this plan needs %zu", fn, given, need);
    CHECK((uintptr_t)*use % 64 == 0, FFPA_E_WORKSPACE,
          "%s: workspace=%p is not 64-byte aligned", fn, *use);
    return FFPA_OK;
}

ffpa_status plan_check(const ffpa_plan *plan, const call *c, bool asking, const char *fn)
{
    TRY(call_check_memory(c, plan->report.workspace_bytes, asking, fn));
    return plan->prob.device == FFPA_HOST ? sequences_check(c, &plan->ctx->alloc, fn) : FFPA_OK;
}

/* Has a call no element to write? Then even a loop over its sequences may be too much: there may be
 * 2^40 of them without memory behind any. */
static bool writes_nothing(const call *c)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_backward_params *g = &c->g;
    if (c->op == FFPA_FORWARD)
        return view_count(&f->o) == 0 && view_count(&f->lse) == 0 &&
               view_count(&c->cache.k_new) == 0 && view_count(&c->cache.v_new) == 0;
    return view_count(&g->dq) == 0 && view_count(&g->dk) == 0 && view_count(&g->dv) == 0 &&
           view_count(&g->dmask) == 0 && view_count(&g->dsink) == 0;
}

ffpa_status plan_run(const ffpa_plan *plan, const call *c, const char *fn)
{
    void *workspace, *own;
    TRY(plan_check(plan, c, false, fn));
    if (writes_nothing(c)) {
        path_taken(plan->report.path);
        return FFPA_OK;
    }
    TRY(find_workspace(plan, c, fn, &workspace, &own));
    const ffpa_status status = c->op == FFPA_BACKWARD ? plan->be->backward(plan, c, workspace)
                                                      : plan->be->forward(plan, c, workspace);
    mem_free(&plan->ctx->alloc, own);
    if (status == FFPA_OK) path_taken(plan->report.path);
    return fail_in(fn, status);
}
