/* api_run.c - forward and backward: read the params, get the plan, run it. No decisions are made
 * here. */
#include "api/api.h"

ffpa_status read_forward(const ffpa_forward_params *params, const char *fn, call *c, problem *p)
{
    TRY(call_read_forward(c, params, fn));
    return problem_of_call(p, c, fn);
}

ffpa_status read_backward(const ffpa_backward_params *params, const char *fn, call *c,
                          problem *p)
{
    TRY(call_read_backward(c, params, fn));
    return problem_of_call(p, c, fn);
}

static ffpa_status run(ffpa_context *context, const call *c, const problem *p, const char *fn)
{
    ffpa_plan *plan;
    TRY(plan_get(context, p, fn, &plan));
    const ffpa_status status = plan_run(plan, c, fn);
    plan_release(plan);
    return status;
}

ffpa_status ffpa_forward(ffpa_context *context, const ffpa_forward_params *params)
{
    call c;
    problem p;
    CHECK_GIVEN(context, __func__);
    TRY(read_forward(params, __func__, &c, &p));
    return run(context, &c, &p, __func__);
}

ffpa_status ffpa_backward(ffpa_context *context, const ffpa_backward_params *params)
{
    call c;
    problem p;
    CHECK_GIVEN(context, __func__);
    TRY(read_backward(params, __func__, &c, &p));
    return run(context, &c, &p, __func__);
}

static ffpa_status workspace(ffpa_context *context, const problem *p, size_t *bytes,
                             const char *fn)
{
    ffpa_plan *plan;
    TRY(plan_get(context, p, fn, &plan));
    *bytes = plan->report.workspace_bytes;
    plan_release(plan);
    return FFPA_OK;
}

ffpa_status ffpa_forward_workspace(ffpa_context *context, const ffpa_forward_params *params,
                                   size_t *bytes)
{
    call c;
    problem p;
    CHECK_GIVEN(context, __func__);
    CHECK_GIVEN(bytes, __func__);
    TRY(read_forward(params, __func__, &c, &p));
    return workspace(context, &p, bytes, __func__);
}

ffpa_status ffpa_backward_workspace(ffpa_context *context, const ffpa_backward_params *params,
                                    size_t *bytes)
{
    call c;
    problem p;
    CHECK_GIVEN(context, __func__);
    CHECK_GIVEN(bytes, __func__);
    TRY(read_backward(params, __func__, &c, &p));
    return workspace(context, &p, bytes, __func__);
}
