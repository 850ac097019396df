/* merge.h - two partial results into one, on the host. */
#ifndef FFPA_CPU_MERGE_H
#define FFPA_CPU_MERGE_H

#include "base/status.h"

/* Params have been checked. Outputs may be one of the inputs. */
ffpa_status cpu_merge(const ffpa_merge_params *p);

#endif
