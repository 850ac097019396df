/* cuda_merge.c - merging two partial results on a device: one small kernel, no workspace. */
#include "common/args.h"
#include "cuda/config.h"
#include "cuda/cuda_args.h"
#include "cuda/cuda_backend.h"

#include <stdio.h>

static ffpa_status merge_kernel(const ffpa_context *ctx, const cuda_device *device,
                                int32_t dtype, const cuda_kernel **kernel)
{
    char name[112];
    variant_list list;
    list.count = 0;
    snprintf(name, sizeof name, "merge_%s", dtype_name(dtype));
    variant *v = variant_add(&list, "any/merge.cuh", device->arch, 0, name);
    config_set(v, "DTYPE", dtype);
    config_set(v, "O_DTYPE", dtype);
    const variant *variants[] = {v};
    return cuda_kernels_get(ctx->cuda, device, variants, list.shared, 1, kernel);
}

ffpa_status cuda_merge(const ffpa_context *ctx, const ffpa_merge_params *m)
{
    const cuda_device *device;
    const cuda_kernel *kernel;
    CHECK(m->o_a.dtype != FFPA_F64, FFPA_E_UNSUPPORTED,
          "ffpa_merge: f64 is merged in host memory only");
    for (int i = 0; i < 4; i++)
        CHECK(m->o.shape[i] <= INT32_MAX, FFPA_E_UNSUPPORTED,
              "ffpa_merge: o.shape[%d] is above 2^31-1", i);
    TRY(cuda_device_get(ctx->cuda, m->o_a.device - 1, &device));
    TRY(merge_kernel(ctx, device, m->o_a.dtype, &kernel));
    merge_args args = {.o_a = args_tensor(&m->o_a),
                       .lse_a = args_tensor(&m->lse_a),
                       .o_b = args_tensor(&m->o_b),
                       .lse_b = args_tensor(&m->lse_b),
                       .o = args_tensor(&m->o),
                       .lse = args_tensor(&m->lse),
                       .b = (int)m->o.shape[0],
                       .h = (int)m->o.shape[1],
                       .n = (int)m->o.shape[2],
                       .dv = (int)m->o.shape[3]};
    const int64_t rows = m->o.shape[0] * m->o.shape[1] * m->o.shape[2];
    TRY(cuda_enter(device));
    const ffpa_status status =
        cuda_launch(device, kernel, m->stream, (cuda_grid){ceil_div(rows, 8), 256}, &args);
    TRY(cuda_leave(device, status));
    path_taken("cuda/any/merge");
    return FFPA_OK;
}
