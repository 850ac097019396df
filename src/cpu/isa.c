/* isa.c - asking the processor. */
#include "cpu/isa.h"

#include <string.h>

cpu_isa isa_best(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) return ISA_AVX512_BF16;
    if (avx512) return ISA_AVX512;
    if (avx2) return ISA_AVX2;
#endif
    return ISA_PORTABLE;
}

/* What "auto" takes. Only AMD's bf16 pair product is faster than its f32 one; Intel's has the same rate,
 * and preparing the pairs costs a third (design/0002). */
static cpu_isa isa_preferred(void)
{
    const cpu_isa best = isa_best();
#if defined(__x86_64__) || defined(__i386__)
    if (best == ISA_AVX512_BF16 && !__builtin_cpu_is("amd")) return ISA_AVX512;
#endif
    return best;
}

const char *isa_name(cpu_isa isa)
{
    switch (isa) {
    case ISA_PORTABLE: return "portable";
    case ISA_AVX2: return "avx2";
    case ISA_AVX512: return "avx512";
    case ISA_AVX512_BF16: return "avx512_bf16";
    }
    return "?";
}

ffpa_status isa_by_name(const char *name, const char *fn, cpu_isa *isa)
{
    const cpu_isa best = isa_best();
    *isa = isa_preferred();
    if (!name || strcmp(name, "auto") == 0) return FFPA_OK;
    for (cpu_isa i = ISA_PORTABLE; i <= ISA_AVX512_BF16; i++) {
        if (strcmp(name, isa_name(i)) != 0) continue;
        CHECK(i <= best, FFPA_E_UNSUPPORTED, "%s: cpu_isa=%s, but this processor's best is %s",
              fn, name, isa_name(best));
        *isa = i;
        return FFPA_OK;
    }
    return fail(FFPA_E_INVALID,
                "%s: cpu_isa=%.40s is none of auto, avx512_bf16, avx512, avx2, portable", fn,
                name);
}
