/* api.h - how every public function begins. */
#ifndef FFPA_API_API_H
#define FFPA_API_API_H

#include "core/plan.h"

#define CHECK_GIVEN(pointer, fn) CHECK(pointer, FFPA_E_INVALID, "%s: " #pointer " is NULL", fn)

/* Read params of either operation into a call and its problem; all rules but those about memory. */
ffpa_status read_forward(const ffpa_forward_params *params, const char *fn, call *c,
                         problem *p);
ffpa_status read_backward(const ffpa_backward_params *params, const char *fn, call *c,
                          problem *p);

#endif
