/* api_merge.c - merging two partial results. */
#include "api/api.h"
#include "core/checks.h"
#include "cpu/merge.h"
#include "cuda/cuda_backend.h"

enum { MERGE_V01 = 496 };
_Static_assert(sizeof(ffpa_merge_params) == MERGE_V01, "ABI: ffpa_merge_params");

ffpa_status ffpa_merge(ffpa_context *context, const ffpa_merge_params *params)
{
    ffpa_merge_params m;
    CHECK_GIVEN(context, __func__);
    TRY(params_read(&m, sizeof m, MERGE_V01, params, __func__, "params"));
    TRY(merge_check(&m, __func__));
    if (m.o_a.device != FFPA_HOST) return fail_in(__func__, cuda_merge(context, &m));
    TRY(fail_in(__func__, cpu_merge(&m)));
    path_taken("cpu/merge");
    return FFPA_OK;
}
