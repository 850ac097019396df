/* checks.h - the rules every call is held to, each stated once. */
#ifndef FFPA_CORE_CHECKS_H
#define FFPA_CORE_CHECKS_H

#include "core/sequence.h"
#include "core/view.h"

/* Is an optional tensor there? An absent one has no address and no shape. */
bool tensor_given(const ffpa_tensor *t);

/* Is its dtype one at all? `name` is the tensor's in the sentence. */
ffpa_status dtype_check(const ffpa_tensor *t, const char *fn, const char *name);

/* Do the tensors and side structs of a call fit each other: shapes, dtypes, devices, reach? */
ffpa_status call_check(const call *c, const char *fn);

/* Rules that need no tensor: dimensions, options. Also for problems from text. */
ffpa_status ask_check(const ffpa_problem *ask, const char *fn);

/* Is there a mask where rows are packed? */
ffpa_status mask_check(bool mask, bool packed, const char *fn);

/* Rules about memory, checked when a call runs: nothing missing, nothing written over anything else that
 * the call reads or writes, index arrays and the part of the workspace that is used included. Who is only
 * `asking` may not have all memory yet: what has no address is left out. */
ffpa_status call_check_memory(const call *c, size_t workspace_bytes, bool asking,
                              const char *fn);

/* All of it for a merge. */
ffpa_status merge_check(const ffpa_merge_params *m, const char *fn);

#endif
