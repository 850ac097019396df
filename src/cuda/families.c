/* families.c - the table, and asking it. */
#include "cuda/families.h"

#include "cuda/bwd_fused_sm90.h"
#include "cuda/bwd_sm90.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_backward.h"
#include "cuda/cuda_forward.h"
#include "cuda/fwd_one_sm90.h"
#include "cuda/fwd_pair_sm90.h"
#include "cuda/fwd_spill_sm90.h"

#include <stdio.h>
#include <string.h>

const family FAMILIES[] = {
    {"sm90_one", FFPA_FORWARD, 90, 90, fwd_one_supports, parts_prefer, sizeof(fwd_one_choice),
     fwd_one_choose, fwd_one_run, true},
    {"sm90_spill", FFPA_FORWARD, 90, 90, spill_supports, spill_prefers, sizeof(spill_choice),
     spill_choose, spill_run, true},
    {"sm90_pair", FFPA_FORWARD, 90, 90, pair_supports, parts_prefer, sizeof(pair_choice),
     pair_choose, pair_run, true},
    {"sm80", FFPA_FORWARD, 80, 999, forward_supports, NULL, sizeof(forward_choice),
     forward_choose, forward_run, false},
    {"sm90_fused", FFPA_BACKWARD, 90, 90, fused_supports, NULL, sizeof(fused_choice),
     fused_choose, fused_run, true},
    {"sm90", FFPA_BACKWARD, 90, 90, backward_sm90_supports, NULL, sizeof(backward_choice),
     backward_sm90_choose, backward_sm90_run, true},
    {"sm80", FFPA_BACKWARD, 80, 999, backward_supports, NULL, sizeof(backward_choice),
     backward_choose, backward_run, false},
    {NULL, FFPA_FORWARD, 0, 0, NULL, NULL, 0, NULL, NULL, false},
};

static void add_reason(char *why, size_t why_bytes, const char *name, const char *reason)
{
    const size_t used = strlen(why);
    snprintf(why + used, why_bytes - used, "%s%s: %s", used ? "; " : "", name, reason);
}

bool cuda_family_exists(const char *name)
{
    for (const family *f = FAMILIES; f->name; f++)
        if (strcmp(f->name, name) == 0) return true;
    return false;
}

const family *family_for(const problem *p, const cuda_device *device, const char *only,
                         char *why, size_t why_bytes)
{
    if (why_bytes) why[0] = 0;
    for (const family *f = FAMILIES; f->name; f++) {
        char reason[160] = "";
        if (f->op != (ffpa_op)p->ask.op || (only && strcmp(f->name, only) != 0)) continue;
        if (device->cc < f->min_cc || device->cc > f->max_cc)
            snprintf(reason, sizeof reason, "not for compute capability %d.%d", device->cc / 10,
                     device->cc % 10);
        else if (f->supports(p, device, reason, sizeof reason) &&
                 (only || !f->prefers || f->prefers(p, device, reason, sizeof reason)))
            return f;
        add_reason(why, why_bytes, f->name, reason);
    }
    if (why_bytes && !*why)
        snprintf(why, why_bytes, "no kernels%s%s for this operation in this version",
                 only ? " of " : "", only ? only : "");
    return NULL;
}
