/* simd.h - what the vector code offers: one table of functions per instruction set. */
#ifndef FFPA_CPU_SIMD_SIMD_H
#define FFPA_CPU_SIMD_SIMD_H

#include "core/plan.h"

typedef struct cpu_kernels {
    const char *isa; /* as in paths: "avx2" */

    /* As the members of `backend`. */
    ffpa_status (*plan_forward)(ffpa_plan *plan);
    ffpa_status (*forward)(const ffpa_plan *plan, const call *c, void *workspace);
    ffpa_status (*plan_backward)(ffpa_plan *plan);
    ffpa_status (*backward)(const ffpa_plan *plan, const call *c, void *workspace);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_avx512_bf16, cpu_kernels_amx_bf16;

#endif
