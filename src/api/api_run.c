/* api_run.c - forward and backward: read the params, get the plan, run it. No decisions are made
 * here. */
#include "api/api.h"

ffpa_status read_params(call *c, problem *p, ffpa_op op, const void *params, const char *fn)
{
    TRY(op == FFPA_FORWARD ? call_read_forward(c, params, fn)
                           : call_read_backward(c, params, fn));
    return problem_of_call(p, c, fn);
}

static ffpa_status run(ffpa_context *context, ffpa_op op, const void *params, const char *fn)
{
    call c;
    problem p;
    ffpa_plan *plan;
    CHECK_GIVEN(context, fn);
    TRY(read_params(&c, &p, op, params, fn));
    TRY(plan_get(context, &p, fn, &plan));
    const ffpa_status status = plan_run(plan, &c, fn);
    plan_release(plan);
    return status;
}

ffpa_status ffpa_forward(ffpa_context *context, const ffpa_forward_params *params)
{
    return run(context, FFPA_FORWARD, params, __func__);
}

ffpa_status ffpa_backward(ffpa_context *context, const ffpa_backward_params *params)
{
    return run(context, FFPA_BACKWARD, params, __func__);
}

static ffpa_status workspace(ffpa_context *context, ffpa_op op, const void *params,
                             size_t *bytes, const char *fn)
{
    call c;
    problem p;
    ffpa_plan *plan;
    CHECK_GIVEN(context, fn);
    CHECK_GIVEN(bytes, fn);
    TRY(read_params(&c, &p, op, params, fn));
    TRY(plan_get(context, &p, fn, &plan));
    *bytes = plan->report.workspace_bytes;
    plan_release(plan);
    return FFPA_OK;
}

ffpa_status ffpa_forward_workspace(ffpa_context *context, const ffpa_forward_params *params,
                                   size_t *bytes)
{
    return workspace(context, FFPA_FORWARD, params, bytes, __func__);
}

ffpa_status ffpa_backward_workspace(ffpa_context *context, const ffpa_backward_params *params,
                                    size_t *bytes)
{
    return workspace(context, FFPA_BACKWARD, params, bytes, __func__);
}
