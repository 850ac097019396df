/* ref.h - the two readable backends, one source (ref_panel.h, ref_engine.h) in two precisions.
 *   reference  float64 throughout, one rounding at the end: the oracle
 *   naive      what a plain implementation in the inputs' dtype would give: f32 arithmetic,
 * with P and dS rounded to that dtype before they are multiplied. The yardstick of the accept
 * rule Both recompute O and LSE in backward rather than read the call's, so that what they
 * judge has no part in the verdict. */
#ifndef FFPA_CPU_REF_H
#define FFPA_CPU_REF_H

#include "core/backend.h"

extern const backend reference_backend, naive_backend;

#endif
