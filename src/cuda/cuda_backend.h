/* cuda_backend.h - the GPU backend as the API sees it. */
#ifndef FFPA_CUDA_BACKEND_H
#define FFPA_CUDA_BACKEND_H

#include "core/plan.h"
#include "cuda/cuda_context.h"

extern const backend cuda_backend;

/* Is there a family of kernels of this name ("sm80")? */
bool cuda_family_exists(const char *name);

/* Merge device tensors that merge_check has passed. */
ffpa_status cuda_merge(const ffpa_context *ctx, const ffpa_merge_params *m);

/* Compile the kernels that `p` would use on `arch` into a folder. */
ffpa_status cuda_prebuild(const ffpa_context *ctx, const problem *p, const char *arch,
                          const char *folder);

#endif
