/* isa.c - asking the processor. */
#define _GNU_SOURCE /* syscall */
#include "cpu/isa.h"

#include <string.h>

#if defined(__x86_64__)
#    include <cpuid.h>
#    include <pthread.h>
#    include <sys/syscall.h>
#    include <unistd.h>

static bool amx; /* may this process use it? */

/* Tiles are state that the system saves for threads that use it, and a process must ask for that. It may be
 * refused: then, and where there is no such request, AMX is as good as absent. What was granted holds for all threads
 * and for children, so asking once will do. */
static void ask_for_amx(void)
{
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 }; /* CPUID leaf 7, EDX */
    enum { TILE_STATES = 3 << 17 };                  /* XCR0: their configuration, their data */
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM) */
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    if ((d & (AMX_BF16 | AMX_TILE)) != (AMX_BF16 | AMX_TILE)) return;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* AVX-512 is there, and so is this */
    if ((low & TILE_STATES) != TILE_STATES) return;
    amx = syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

static bool amx_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_for_amx);
    return amx;
}
#endif

/* The best without the matrix unit. */
static cpu_isa best_vectors(void)
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

cpu_isa isa_best(void)
{
    const cpu_isa best = best_vectors();
#if defined(__x86_64__)
    if (best == ISA_AVX512_BF16 && amx_usable()) return ISA_AMX_BF16;
#endif
    return best;
}

/* What "auto" takes. Only AMD's bf16 pair product is faster than its f32 one; Intel's has the same rate,
 * and preparing the pairs costs a third (design/0002). AMX is for who asks for it (design/0005). */
static cpu_isa isa_preferred(void)
{
    const cpu_isa best = best_vectors();
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
    case ISA_AMX_BF16: return "amx_bf16";
    }
    return "?";
}

ffpa_status isa_by_name(const char *name, const char *fn, cpu_isa *isa)
{
    *isa = isa_preferred();
    if (!name || strcmp(name, "auto") == 0) return FFPA_OK;
    const cpu_isa best = isa_best();
    for (cpu_isa i = ISA_PORTABLE; i <= ISA_AMX_BF16; i++) {
        if (strcmp(name, isa_name(i)) != 0) continue;
        CHECK(i <= best, FFPA_E_UNSUPPORTED, "%s: cpu_isa=%s, but this processor's best is %s",
              fn, name, isa_name(best));
        *isa = i;
        return FFPA_OK;
    }
    return fail(
        FFPA_E_INVALID,
        "%s: cpu_isa=%.40s is none of auto, amx_bf16, avx512_bf16, avx512, avx2, portable", fn,
        name);
}
