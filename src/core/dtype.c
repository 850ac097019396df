/* dtype.c - sizes and names of dtypes. */
#include "core/dtype.h"

#include "ffpa/ffpa.h"

size_t dtype_bytes(int32_t dtype)
{
    switch ((ffpa_dtype)dtype) {
    case FFPA_F64:
    case FFPA_I64: return 8;
    case FFPA_F32:
    case FFPA_I32: return 4;
    case FFPA_F16:
    case FFPA_BF16: return 2;
    case FFPA_BOOL:
    case FFPA_E4M3:
    case FFPA_E5M2: return 1;
    }
    return 0;
}

const char *dtype_name(int32_t dtype)
{
    switch ((ffpa_dtype)dtype) {
    case FFPA_F32: return "f32";
    case FFPA_F16: return "f16";
    case FFPA_BF16: return "bf16";
    case FFPA_F64: return "f64";
    case FFPA_BOOL: return "bool";
    case FFPA_I32: return "i32";
    case FFPA_I64: return "i64";
    case FFPA_E4M3: return "e4m3";
    case FFPA_E5M2: return "e5m2";
    }
    return "?";
}
