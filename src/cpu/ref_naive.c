/* ref_naive.c - the yardstick: the engine in float, P and dS rounded to the dtype of the
 * inputs. */
#define REAL            float
#define REF_BACKEND     naive_backend
#define REF_NAME        "naive"
#define REF_ROUNDING(x) ((real)element_round((double)(x), p->job->c->f.q.dtype))
#define REF_TAKES_F64   0
#include "cpu/ref_engine.h"
