/* api.h - how every public function begins. */
#ifndef FFPA_API_API_H
#define FFPA_API_API_H

#include "core/plan.h"

#define CHECK_GIVEN(pointer, fn) CHECK(pointer, FFPA_E_INVALID, "%s: " #pointer " is NULL", fn)

/* Read the params of an operation (ffpa_forward_params or ffpa_backward_params) into a call and its
 * problem: all rules but those about memory. */
ffpa_status read_params(call *c, problem *p, ffpa_op op, const void *params, const char *fn);

#endif
