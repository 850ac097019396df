/* judge_device.h - calls whose tensors are in host memory, on a path of either kind. For a GPU everything that
 * the call may touch is copied to device memory between guards, and the outputs back. Workspace and guards hold
 * NaN; a byte written outside the outputs fails the running test. */
#ifndef FFPA_TESTS_JUDGE_DEVICE_H
#define FFPA_TESTS_JUDGE_DEVICE_H

#include "ffpa/ffpa.h"

#include <stdbool.h>

/* Does this context compute on a GPU? It reads no lengths on the host, and clamps what it finds in them. */
bool judge_on_device(const ffpa_context *ctx);

/* Say that the tensors are on the GPU, for questions that read none of them. Only for such a context. */
void judge_say_device(ffpa_context *ctx, ffpa_forward_params *f, ffpa_backward_params *g);

/* As ffpa_forward, ffpa_backward and ffpa_merge, finished on return. */
ffpa_status judge_forward(ffpa_context *ctx, const ffpa_forward_params *f);
ffpa_status judge_backward(ffpa_context *ctx, const ffpa_backward_params *g);
ffpa_status judge_merge(ffpa_context *ctx, const ffpa_merge_params *m);

#endif
