/* api_plan.c - asking before calling, and calling with planning hoisted out. */
#include "api/api.h"
#include "core/cost.h"
#include "cuda/cuda_backend.h"

#include <string.h>

/* ---- reports ------------------------------------------------------------------------------------- */

/* Copy a report to a caller whose struct may be older or newer than ours. */
static void give_report(ffpa_report *user, const ffpa_report *ours)
{
    const size_t user_bytes = user->struct_size;
    memcpy(user, ours, user_bytes < sizeof *ours ? user_bytes : sizeof *ours);
    user->struct_size = user_bytes;
}

static ffpa_status check_report(const ffpa_report *report, const char *fn)
{
    CHECK_GIVEN(report, fn);
    CHECK(report->struct_size >= sizeof report->struct_size, FFPA_E_INVALID,
          "%s: report.struct_size=%zu; set it to sizeof(ffpa_report)", fn, report->struct_size);
    return FFPA_OK;
}

/* What a problem would take. With a call, also whether it may run as it is, and what its lengths cost. */
static ffpa_status explain(ffpa_context *context, const problem *p, const call *c,
                           ffpa_report *report, const char *fn)
{
    ffpa_plan *plan;
    ffpa_report refusals = {.struct_size = sizeof refusals};
    ffpa_status status = plan_make(context, p, fn, &plan, &refusals);
    if (status == FFPA_OK && c) status = plan_check(plan, c, true, fn);
    if (status == FFPA_OK && c && p->device == FFPA_HOST) {
        const amounts n = call_amounts(p, c);
        plan->report.flop = cost_flop(p, &n);
        plan->report.bytes = cost_bytes(p, &n);
    }
    give_report(report, status == FFPA_OK ? &plan->report : &refusals);
    plan_release(plan);
    return status;
}

static ffpa_status supported(ffpa_context *context, ffpa_op op, const void *params,
                             ffpa_report *report, const char *fn)
{
    call c;
    problem p;
    CHECK_GIVEN(context, fn);
    TRY(check_report(report, fn));
    TRY(read_params(&c, &p, op, params, fn));
    return explain(context, &p, &c, report, fn);
}

ffpa_status ffpa_forward_supported(ffpa_context *context, const ffpa_forward_params *params,
                                   ffpa_report *report)
{
    return supported(context, FFPA_FORWARD, params, report, __func__);
}

ffpa_status ffpa_backward_supported(ffpa_context *context, const ffpa_backward_params *params,
                                    ffpa_report *report)
{
    return supported(context, FFPA_BACKWARD, params, report, __func__);
}

ffpa_status ffpa_explain(ffpa_context *context, const ffpa_problem *problem_asked,
                         ffpa_report *report)
{
    ffpa_problem ask;
    problem p;
    CHECK_GIVEN(context, __func__);
    TRY(check_report(report, __func__));
    TRY(params_read(&ask, sizeof ask, PROBLEM_V01, problem_asked, __func__, "problem"));
    TRY(problem_of_ask(&p, &ask, __func__));
    if (context->only && context->only->on_device) problem_move(&p, FFPA_CUDA(0));
    return explain(context, &p, NULL, report, __func__);
}

/* ---- plans --------------------------------------------------------------------------------------- */

static ffpa_status make_plan(ffpa_context *context, ffpa_op op, const void *params,
                             ffpa_plan **plan, const char *fn)
{
    call c;
    problem p;
    CHECK_GIVEN(plan, fn);
    *plan = NULL;
    CHECK_GIVEN(context, fn);
    TRY(read_params(&c, &p, op, params, fn));
    return plan_get(context, &p, fn, plan);
}

ffpa_status ffpa_plan_forward(ffpa_context *context, const ffpa_forward_params *params,
                              ffpa_plan **plan)
{
    return make_plan(context, FFPA_FORWARD, params, plan, __func__);
}

ffpa_status ffpa_plan_backward(ffpa_context *context, const ffpa_backward_params *params,
                               ffpa_plan **plan)
{
    return make_plan(context, FFPA_BACKWARD, params, plan, __func__);
}

void ffpa_plan_destroy(ffpa_plan *plan) { plan_release(plan); }

/* Strides may differ from the planned ones, and on a device they decide which kernel serves: then the
 * plan for the other kind of strides runs, from the cache or made now. */
static ffpa_status run_planned(const ffpa_plan *plan, ffpa_op op, const void *params,
                               const char *fn)
{
    call c;
    problem p;
    ffpa_plan *other;
    CHECK_GIVEN(plan, fn);
    TRY(read_params(&c, &p, op, params, fn));
    problem planned = plan->prob;
    planned.aligned = p.aligned;
    CHECK(memcmp(&planned, &p, sizeof p) == 0, FFPA_E_INVALID,
          "%s: params differ from the planned ones in more than pointers and strides", fn);
    if (plan->prob.aligned == p.aligned) return plan_run(plan, &c, fn);
    TRY(plan_get(plan->ctx, &p, fn, &other));
    const ffpa_status status = plan_run(other, &c, fn);
    plan_release(other);
    return status;
}

ffpa_status ffpa_plan_run_forward(const ffpa_plan *plan, const ffpa_forward_params *params)
{
    return run_planned(plan, FFPA_FORWARD, params, __func__);
}

ffpa_status ffpa_plan_run_backward(const ffpa_plan *plan, const ffpa_backward_params *params)
{
    return run_planned(plan, FFPA_BACKWARD, params, __func__);
}

ffpa_status ffpa_plan_report(const ffpa_plan *plan, ffpa_report *report)
{
    CHECK_GIVEN(plan, __func__);
    TRY(check_report(report, __func__));
    give_report(report, &plan->report);
    return FFPA_OK;
}

/* ---- prebuild ------------------------------------------------------------------------------------ */

ffpa_status ffpa_prebuild(ffpa_context *context, const ffpa_problem *problem_asked,
                          const char *arch, const char *directory)
{
    ffpa_problem ask;
    problem p;
    CHECK_GIVEN(context, __func__);
    CHECK_GIVEN(arch, __func__);
    CHECK_GIVEN(directory, __func__);
    CHECK(*directory, FFPA_E_INVALID, "%s: directory is empty", __func__);
    TRY(params_read(&ask, sizeof ask, PROBLEM_V01, problem_asked, __func__, "problem"));
    TRY(problem_of_ask(&p, &ask, __func__));
    problem_move(&p, FFPA_CUDA(0));
    return fail_in(__func__, cuda_prebuild(context, &p, arch, directory));
}
