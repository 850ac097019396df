// ring_sm90.cuh - a ring of slots between the warpgroup that loads and those that multiply.
//
// Barriers      arrivals      meaning
//   full[s]     1 + bytes     slot s holds what was copied          loading -> multiplying
//   free[s]     READERS       every reader is done with slot s      multiplying -> loading
#pragma once
#include "sm90/ptx_sm90.cuh"

struct Ring {
    u32 slot, parity; // next to use; its phase
};
template <int STAGES> FFPA_DEVICE void ring_next(Ring &r)
{
    if (++r.slot == STAGES) r.slot = 0, r.parity ^= 1;
}

// One thread, before anybody uses them; then mbar_init_fence and a barrier of the CTA.
FFPA_DEVICE void ring_init(u64 *full, u64 *free, int stages, int readers)
{
    for (int s = 0; s < stages; s++) {
        mbar_init(smem_addr(&full[s]), 1);
        mbar_init(smem_addr(&free[s]), readers);
    }
}
