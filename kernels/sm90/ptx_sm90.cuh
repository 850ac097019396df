// ptx_sm90.cuh - instructions that Hopper adds: one a function, nothing else (common/ptx.cuh has the rest).
// Shared-memory addresses are 32-bit numbers. A `bar` is the address of an 8-byte mbarrier.
#pragma once
#include "common/args.h"
#include "common/types.cuh"

// ---- cluster

// Rank of this CTA in its cluster.                                        [%cluster_ctarank]
FFPA_DEVICE u32 cluster_rank()
{
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

// Address of the same shared location in CTA `rank` of the cluster.                   [mapa]
FFPA_DEVICE u32 map_rank(u32 addr, u32 rank)
{
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}

// Every thread of the cluster arrives, releasing what it wrote; waits for all, acquiring.   [barrier.cluster]
FFPA_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
FFPA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// ---- mbarrier

// Set a barrier up for `count` arrivals a phase.                             [mbarrier.init]
FFPA_DEVICE void mbar_init(u32 bar, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// Make the barriers set up above visible to the cluster and the copy engine.   [fence.mbarrier_init]
FFPA_DEVICE void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive once and announce `bytes` of data to come.               [mbarrier.arrive.expect_tx]
FFPA_DEVICE void mbar_expect(u32 bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Arrive once.                                                            [mbarrier.arrive]
FFPA_DEVICE void mbar_arrive(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// A warp is done with what `bar` guards, every lane of it: WARP_ARRIVALS of the barrier's count. The order between lanes is
// __syncwarp's, and lane 0 passes it on. FFPA_EVERY_LANE: each lane arrives, for tools that follow no order but a thread's own.
enum { WARP_ARRIVALS = FFPA_EVERY_LANE ? 32 : 1 };
FFPA_DEVICE void warp_arrive(u32 bar)
{
    __syncwarp();
    if (FFPA_EVERY_LANE || (threadIdx.x & 31) == 0) mbar_arrive(bar);
}

// Arrive once at a barrier of another CTA (address from map_rank). Without .release.cluster, which is a fence over
// the whole cluster of about 1500 clocks: for barriers that only say "read", not "written".   [mbarrier.arrive]
FFPA_DEVICE void mbar_arrive_remote(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Has the phase of this parity completed? Waits a while in hardware.     [mbarrier.try_wait.parity]
FFPA_DEVICE bool mbar_try(u32 bar, u32 parity)
{
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

// The same, acquiring what another CTA of the cluster wrote.     [mbarrier.try_wait.parity.acquire.cluster]
FFPA_DEVICE bool mbar_try_cluster(u32 bar, u32 parity)
{
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

// Until the phase of this parity has completed. FFPA_WATCHDOG: trap after so many tries instead of hanging.
FFPA_DEVICE void mbar_wait(u32 bar, u32 parity)
{
    for (u32 tries = 0; !mbar_try(bar, parity); tries++)
        if (FFPA_WATCHDOG && tries > FFPA_WATCHDOG) asm volatile("trap;");
}
FFPA_DEVICE void mbar_wait_cluster(u32 bar, u32 parity)
{
    for (u32 tries = 0; !mbar_try_cluster(bar, parity); tries++)
        if (FFPA_WATCHDOG && tries > FFPA_WATCHDOG) asm volatile("trap;");
}

// ---- the copy engine. Loads complete `bar` by bytes; stores are counted in bulk groups.

// Fill a shared box from a tensor.                             [cp.async.bulk.tensor load]
FFPA_DEVICE void tma_load_4d(u32 dst, const k_map *map, u32 bar, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
FFPA_DEVICE void tma_load_5d(u32 dst, const k_map *map, u32 bar, int x, int y, int z, int w, int v)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z),
                 "r"(w), "r"(v)
                 : "memory");
}

// Write a shared box to a tensor; what lies outside is dropped.       [cp.async.bulk.tensor store]
FFPA_DEVICE void tma_store_4d(const k_map *map, u32 src, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// Fetch `bytes` of contiguous memory into shared memory.                     [cp.async.bulk]
FFPA_DEVICE void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}

// Write `bytes` of shared memory to contiguous memory.                        [cp.async.bulk]
FFPA_DEVICE void bulk_store(void *dst, u32 src, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes)
                 : "memory");
}

// Copy shared memory to another CTA's; completes its `bar` (both from map_rank).   [cp.async.bulk]
FFPA_DEVICE void bulk_to_peer(u32 dst, u32 src, u32 bytes, u32 bar)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     dst),
                 "r"(src), "r"(bytes), "r"(bar)
                 : "memory");
}

// Close a group of this thread's stores.                          [cp.async.bulk.commit_group]
FFPA_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the last N groups have read their shared memory; are complete.   [cp.async.bulk.wait_group]
template <int N> FFPA_DEVICE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> FFPA_DEVICE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// Send 4 bytes to another CTA's shared memory; completes its `bar` by bytes.       [st.async]
FFPA_DEVICE void st_async(u32 dst, u32 x, u32 bar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(dst), "r"(x),
                 "r"(bar)
                 : "memory");
}

// Order ordinary shared accesses before those of wgmma and the copy engine.   [fence.proxy.async]
FFPA_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory, between the copy engine's stores and ordinary loads.   [fence.proxy.async]
FFPA_DEVICE void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- warpgroups

// Registers written before are visible to the wgmma that follow.            [wgmma.fence]
FFPA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Close a group of wgmma.                                               [wgmma.commit_group]
FFPA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most N groups are pending.                                     [wgmma.wait_group]
template <int N> FFPA_DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Registers leave and re-enter the compiler's view: nothing that reads them moves above this point.   [no instruction]
template <int N> FFPA_DEVICE void pin(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> FFPA_DEVICE void pin(u32 (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

// Registers of each thread of this warpgroup, from here on. Moves only what the launch allocated.   [setmaxnreg]
template <int N> FFPA_DEVICE void regs_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> FFPA_DEVICE void regs_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// The THREADS threads of named barrier `id` meet; this thread counts in and goes on.   [bar.sync, bar.arrive]
template <int THREADS> FFPA_DEVICE void named_sync(u32 id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS> FFPA_DEVICE void named_arrive(u32 id)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// The same as named_sync; is `x` true for any of its threads?                  [bar.red.or.pred]
template <int THREADS> FFPA_DEVICE bool named_any(u32 id, bool x)
{
    u32 any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((u32)x), "r"(id), "n"(THREADS)
                 : "memory");
    return any;
}

// Four 8 x 8 matrices of 16-bit elements to shared memory, lane l giving the address of row l % 8 of matrix l / 8;
// the same, each matrix transposed.                                          [stmatrix]
FFPA_DEVICE void stmatrix4(u32 addr, u32 x0, u32 x1, u32 x2, u32 x3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(x0), "r"(x1),
                 "r"(x2), "r"(x3)
                 : "memory");
}
FFPA_DEVICE void stmatrix4_trans(u32 addr, u32 x0, u32 x1, u32 x2, u32 x3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(x0), "r"(x1),
                 "r"(x2), "r"(x3)
                 : "memory");
}

// ---- the rest

// c + a b for two pairs.                                      [fma.rn.bf16x2, fma.rn.f16x2]
FFPA_DEVICE u32 fma_bf16(u32 a, u32 b, u32 c)
{
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
FFPA_DEVICE u32 fma_f16(u32 a, u32 b, u32 c)
{
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// Old value of a counter in global memory, which grows by `x`.             [atom.global.add]
FFPA_DEVICE u32 atomic_add(u32 *p, u32 x)
{
    u32 r;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(x) : "memory");
    return r;
}

// 16 bytes to global memory.                                              [st.global.v4]
FFPA_DEVICE void stg128(void *p, const u32 (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// 16 bytes of global memory that nobody writes meanwhile.                 [ld.global.nc.v4]
FFPA_DEVICE void ldg128(u32 (&x)[4], const void *p)
{
    asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(p));
}

// A line of global memory to the L2.                                      [prefetch.global.L2]
FFPA_DEVICE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Read-only load that stays where it is written, because its latency is planned.   [ld.global.nc]
FFPA_DEVICE float ldg_f32(const float *p)
{
    float x;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(p));
    return x;
}

// Programmatic dependent launch: the next grid may be set up; until the grid before is complete.   [griddepcontrol]
FFPA_DEVICE void grid_release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
FFPA_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
