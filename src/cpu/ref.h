/* ref.h - the two readable backends, one source (ref_panel.h, ref_engine.h) in two precisions.
 *   reference  float64 throughout, one rounding at the end: the oracle
 *   naive      what a plain implementation in the inputs' dtype gives: f32 arithmetic, P and dS
 *              rounded to that dtype before they are multiplied: the accept rule's yardstick
 * Backward recomputes O and LSE, so that the rounding of what they judge has no part in the verdict; it takes
 * the call's only where these stand for more keys than the call has (own_keys.h). */
#ifndef FFPA_CPU_REF_H
#define FFPA_CPU_REF_H

#include "core/backend.h"

extern const backend reference_backend, naive_backend;

#endif
