/* isa.h - vector instruction sets: names, and what this processor has. */
#ifndef FFPA_CPU_ISA_H
#define FFPA_CPU_ISA_H

#include "core/context.h"

/* The best set that this processor and operating system offer. */
cpu_isa isa_best(void);

const char *isa_name(cpu_isa isa); /* "avx2" */

/* "auto" or NULL: the fastest one. E_INVALID for an unknown name, E_UNSUPPORTED for one this processor
 * lacks. */
ffpa_status isa_by_name(const char *name, const char *fn, cpu_isa *isa);

#endif
