/* device_call.h - the call that a problem string describes, with tensors at made-up device addresses. For
 * the fake driver, which follows none of them. */
#ifndef FFPA_TESTS_DEVICE_CALL_H
#define FFPA_TESTS_DEVICE_CALL_H

#include "ffpa/ffpa.h"

typedef struct device_call {
    ffpa_problem ask;
    ffpa_forward_params f;
    ffpa_backward_params g; /* of a bwd problem; g.forward points at f */
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
} device_call;

/* Fill *c in place: side structs are pointed at. Aborts on a bad string. */
void device_call_make(device_call *c, const char *problem, int device);

#endif
