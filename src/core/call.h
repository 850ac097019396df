/* call.h - one call as the library sees it: every params struct of whatever version copied, checked
 * for unknown fields, and zero-filled. Nothing past this point looks at a struct_size. */
#ifndef FFPA_CORE_CALL_H
#define FFPA_CORE_CALL_H

#include "base/status.h"

/* Side structs are copied; `f.dropout` and friends point at the copies, or are NULL. So a call is
 * not to be copied by value. */
typedef struct call {
    ffpa_op op;
    ffpa_forward_params f;
    ffpa_backward_params g; /* zero in a forward call; g.forward is NULL */
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    ffpa_quant quant;
    ffpa_row_subset rows;
} call;

/* Size of ffpa_problem in version 0.1, for params_read. */
enum { PROBLEM_V01 = 408 };

/* Copy a struct of any version into `dst`: fields an older caller lacks become zero; bytes a newer
 * caller has beyond ours must be zero. `min_bytes` is the size the struct had in version 0.1. */
ffpa_status params_read(void *dst, size_t dst_bytes, size_t min_bytes, const void *src,
                        const char *fn, const char *what);

/* The other way round: fill a caller's struct of any version, whose struct_size says how long it is and stays. What
 * it has beyond ours becomes zero; what it lacks must be zero in ours. */
ffpa_status params_give(void *user, size_t min_bytes, const void *ours, size_t our_bytes,
                        const char *fn, const char *what);

ffpa_status call_read_forward(call *c, const ffpa_forward_params *params, const char *fn);
ffpa_status call_read_backward(call *c, const ffpa_backward_params *params, const char *fn);

/* The factor on Q K^T: the explicit scale or 1/sqrt(D). */
double call_scale(const call *c);

/* The stream and workspace that this call runs with (backward has its own). */
void *call_workspace(const call *c, size_t *bytes);

#endif
