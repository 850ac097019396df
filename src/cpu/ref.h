/* ref.h - the two readable backends, one source (ref_panel.h, ref_engine.h) in two precisions.
 *   reference  float64 throughout, one rounding at the end: the oracle
 *   naive      what a plain implementation in the inputs' dtype gives: f32 arithmetic, P and dS
 *              rounded to that dtype before they are multiplied: the accept rule's yardstick
 * Both recompute O and LSE in backward rather than read the call's, so that what they judge has
 * no part in the verdict. */
#ifndef FFPA_CPU_REF_H
#define FFPA_CPU_REF_H

#include "core/backend.h"

extern const backend reference_backend, naive_backend;

#endif
