/* ref_reference.c - the oracle: the engine in double, nothing rounded on the way. */
#define REAL            double
#define REF_BACKEND     reference_backend
#define REF_NAME        "reference"
#define REF_ROUNDING(x) (x)
#define REF_TAKES_F64   1
#include "cpu/ref_engine.h"
