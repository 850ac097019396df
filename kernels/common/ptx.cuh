// ptx.cuh - one PTX instruction a function, nothing else. Included by types.cuh.
#pragma once

// Shared-memory address of a generic pointer.                            [cvta.to.shared]
FFPA_DEVICE u32 smem_addr(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// The same value, hidden from the optimiser: what is computed from it is not moved out of a loop.   [no instruction]
FFPA_DEVICE i64 opaque(i64 x)
{
    asm volatile("" : "+l"(x));
    return x;
}

FFPA_DEVICE u32 opaque(u32 x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// Copy 16 bytes to shared memory; past `bytes` (0..16) zeros are written.   [cp.async.cg]
FFPA_DEVICE void cp_async16(u32 dst, const void *src, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

// Close a group of copies.                                        [cp.async.commit_group]
FFPA_DEVICE void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most N groups of this thread are in flight.         [cp.async.wait_group]
template <int N> FFPA_DEVICE void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8 x 8 matrices of 16-bit elements, lane l giving the address of row l % 8 of matrix l / 8.  [ldmatrix]
FFPA_DEVICE void ldmatrix4(u32 (&r)[4], u32 addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

// The same, each matrix transposed.                                    [ldmatrix.trans]
FFPA_DEVICE void ldmatrix4_trans(u32 (&r)[4], u32 addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

// d += a b, 16 x 8 x 16.                                        [mma.sync bf16, f32 sums]
FFPA_DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a b, 16 x 8 x 16.                                         [mma.sync f16, f32 sums]
FFPA_DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a b, 16 x 8 x 8.                                         [mma.sync tf32, f32 sums]
FFPA_DEVICE void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Round to tf32.                                                     [cvt.rna.tf32.f32]
FFPA_DEVICE u32 tf32_of(float x)
{
    u32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

// Two values to a pair, x in the low half.                          [cvt.rn.bf16x2.f32]
FFPA_DEVICE u32 pack_bf16(float x, float y)
{
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

// Two values to a pair, x in the low half.                           [cvt.rn.f16x2.f32]
FFPA_DEVICE u32 pack_f16(float x, float y)
{
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

// [cvt.f32.f16]
FFPA_DEVICE float f32_of_f16(u16 bits)
{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
}

// 1 / x, to the last bit or so.                                            [rcp.approx.ftz]
FFPA_DEVICE float rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x, relative error about 2^-22.                                   [ex2.approx.ftz]
FFPA_DEVICE float ex2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// BYTES (1, 2, 4) of global memory, or `other` without a look at it: never a branch, so many of them are under way at once.
template <int BYTES> FFPA_DEVICE u32 ldg_where(bool there, const void *p, u32 other)
{
    u32 x = other;
    if (BYTES == 4)
        asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\n@q ld.global.u32 %0, [%1];\n}" : "+r"(x) : "l"(p), "r"((u32)there));
    else if (BYTES == 2)
        asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\n@q ld.global.u16 %0, [%1];\n}" : "+r"(x) : "l"(p), "r"((u32)there));
    else
        asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q, %2, 0;\n@q ld.global.u8 %0, [%1];\n}" : "+r"(x) : "l"(p), "r"((u32)there));
    return x;
}

// [st.shared, ld.shared]
FFPA_DEVICE void sts32(u32 addr, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(addr), "r"(x) : "memory"); }
FFPA_DEVICE void sts64(u32 addr, u32 x, u32 y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(addr), "r"(x), "r"(y) : "memory");
}
FFPA_DEVICE void sts128(u32 addr, const u32 (&x)[4])
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
FFPA_DEVICE u32 lds32(u32 addr)
{
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(addr) : "memory");
    return x;
}
FFPA_DEVICE void lds64(float (&x)[2], u32 addr)
{
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(addr) : "memory");
}
FFPA_DEVICE u32 lds16(u32 addr)
{
    u16 x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(addr) : "memory");
    return x;
}
FFPA_DEVICE void lds128(u32 (&x)[4], u32 addr)
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(addr)
                 : "memory");
}
