/* bwd_sm90.h - backward on Hopper, D and Dv up to 1024: the stages of cuda_backward.h with tensor maps and
 * wgmma; P and dS in blocks, all products of equal width in one launch. */
#ifndef FFPA_CUDA_BWD_SM90_H
#define FFPA_CUDA_BWD_SM90_H

#include "cuda/cuda_backward.h"

bool backward_sm90_supports(const problem *p, const cuda_device *device, char *why,
                            size_t why_bytes);
ffpa_status backward_sm90_choose(const problem *p, const cuda_device *device, void *choice,
                                 variant_list *kernels, ffpa_report *report);
ffpa_status backward_sm90_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                              char *workspace);

#endif
