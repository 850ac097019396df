// fwd_pair_sm90.cuh - attention forward for D 320 .. 576 on Hopper: two CTAs share 128 query rows.
//
//   O[128, DV] = softmax(S) V,   S = scale Q[128, D] K[Nk, D]^T, masked,   LSE = log sum exp       (per batch and head)
//
// Why a pair of CTAs: with 64 query rows per SM the way from L2 to the SM caps the kernel near 590 TFLOP/s; 128 rows halve
// the traffic, and O[128, DV] in f32 does not fit one SM. CTA c multiplies Q with its half of the keys, owns its half of
// the columns of O, and swaps P with its peer through distributed shared memory. Every byte of K and V feeds 128 flop.
//
// Work of CTA c on block i of BN = 128 keys; team t = 0, 1 is one warpgroup and owns rows 64 t .. 64 t + 63
//
//   S_c = Q_t K[own BH keys]^T        m64 n64, CHUNKS steps of k64            P_c = 2^(S_c * scale - base)
//   O_t[:, cols of c] += P_c V[own keys, cols of c] + P_peer V[peer's keys, cols of c]        m64 n(DV / 2)
//
// Columns of O: CTA c owns FULL whole chunks of 64; when DV / 2 is an odd multiple of 32 the last chunk is shared, CTA c owns
// its half c and reads that chunk from column 32 c on. Up to DV = 512 the half chunk lies in the V slot (one wgmma covers
// both); above (n288 does not exist) it has slots of its own, 64 keys each, n32. D and DV that are no multiple of 64 count as
// the next one: the copy engine fills with zeros.
//
//            time ->                  (one block of the loop)
//   WG0 load   | K_{i+2} boxes .. | V_{i+1} own keys, peer keys .. | K_{i+3} ..            TMA, one ring slot per step
//   WG1 tensor | O += P_i V_i, VSTEPS steps        | S_{i+2} = Q K_{i+2}, CHUNKS steps             | O += P_{i+1} V_{i+1}
//   WG1 scalar | softmax of S_{i+1} -> P_{i+1}     | send bases, send P_{i+1}, meet peer's bases   | ..
//   WG2          the same for rows 64 .. 127, sharing every slot with WG1
//   Blocks are walked from the last key to the first, so that masked ones come first. One pair per two SMs stays resident and
//   takes tiles from a counter, longest first; the loads of a tile begin while the one before is finished.
//
// Barriers            arrivals        meaning
//   q_full[j]         1 + tx bytes    chunk j of Q (both teams) is in shared memory                     WG0 -> WG1, WG2
//   q_free            8 (warps)       the last S of the tile is complete, Q may be replaced             WG1, WG2 -> WG0
//   full[s]           1 + tx bytes    ring slot s holds a K or V box                                    WG0 -> WG1, WG2
//   free[s]           8 (warps)       every math warp is done with slot s                               WG1, WG2 -> WG0
//   base_full[i & 1]  1 + tx bytes    the peer's row bases of block i have landed                       peer team t -> team t
//   p_full            1 + tx bytes    the peer's P half has landed                                      peer team t -> team t
//   p_free            4 (warps)       the peer has finished reading the P half this team sent           peer team t -> team t
//   l_full            1 + tx bytes    the peer's row sums have landed                                   peer team t -> team t
//   tile_full[k & 1]  1 + tx bytes    the id of the pair's tile k is known                     rank 0, WG0 warp 1 -> both CTAs
//   named 1, 2        128 threads     a team's P is staged for the copy engine                          inside a team
//
// Deadlock rule: the ring has fewer slots than a block. Slots go back one by one while later steps run, never at the end of a
// block. Register rule: nothing is kept that can be read again (thread from %tid, rows and keys of a mask from the tile).
// The softmax and the exchange are in fwd_pair_softmax_sm90.cuh, budgets in fwd_pair_plan_sm90.cuh.
#include "sm90/fwd_pair_softmax_sm90.cuh"

// ---- loads (WG0) ------------------------------------------------------------------------------------

FFPA_DEVICE u32 open_slot(const Ring &r, int bytes)
{
    mbar_wait(r.sm + AT(Smem, free) + 8 * r.slot, r.parity ^ 1);
    mbar_expect(r.sm + AT(Smem, full) + 8 * r.slot, bytes);
    return r.sm + AT(Smem, ring) + r.slot * SLOT_BYTES;
}

// One box of 64 rows x 64 columns from column x: K, or the half chunk of V.
FFPA_DEVICE void load_box(Ring &r, const k_map *map, int x, int row, int head, int batch)
{
    const u32 data = open_slot(r, KBOX_BYTES);
    tma_load_4d(data, map, r.sm + AT(Smem, full) + 8 * r.slot, x, row, head, batch);
    ring_next(r);
}

// VROWS keys of this CTA's columns of V: its whole chunks, then its half of the shared one (the rest of that box is not
// used: the neighbour's columns for CTA 0, zeros from outside for CTA 1).
FFPA_DEVICE void load_v(Ring &r, const fwd_pair_args &a, int row, int head, int batch)
{
    const u32 data = open_slot(r, VBOX_BYTES), full = r.sm + AT(Smem, full) + 8 * r.slot, c = cluster_rank();
    if (V_WHOLE) {
        tma_load_5d(data, &a.v, full, 0, row, c * FULL, head, batch);
    } else {
#pragma unroll 1
        for (int x = 0; x < FULL; x++)
            tma_load_4d(data + x * VCHUNK_BYTES, &a.v, full, (c * FULL + x) * CHUNK, row, head, batch);
    }
    if (HALF && !HALF_SLOT)
        tma_load_4d(data + FULL * VCHUNK_BYTES, &a.v_half, full, 2 * FULL * CHUNK + HALF * c, row, head, batch);
    ring_next(r);
}

// K of one block: this CTA's keys.
FFPA_DEVICE void load_k_block(Ring &r, const fwd_pair_args &a, int row, int head, int batch)
{
#pragma unroll 1
    for (int x = 0; x < CHUNKS * CHUNK; x += CHUNK) load_box(r, &a.k, x, row + cluster_rank() * BH, head, batch);
}

// V of one block: own keys, then the peer's.
FFPA_DEVICE void load_v_block(Ring &r, const fwd_pair_args &a, int row, int head, int batch)
{
    int half = row + cluster_rank() * BH;
#pragma unroll 1
    for (int x = 0; x < 2; x++) {
#pragma unroll 1
        for (int k = 0; k < BH; k += VROWS) load_v(r, a, half + k, head, batch);
        if (HALF_SLOT) load_box(r, &a.v_half, 2 * FULL * CHUNK + HALF * cluster_rank(), half, head, batch);
        half = 2 * row + BH - half;
    }
}

// Warp 0: K and V of all tiles, K one block ahead of V.
FFPA_DEVICE void produce(Ring r, const fwd_pair_args &a)
{
#pragma unroll 1
    for (int k = 0;; k++) {
        const int id = tile_id(r.sm, k);
        if (id >= a.total) break;
        const Tile t = find_tile(a, id);
        const int head = t.head / a.group, batch = t.seq.k_batch, stop = t.seq.k_row + t.first * BN;
        int row = stop + (t.blocks - 1) * BN;
        load_k_block(r, a, row, head, batch);
#pragma unroll 1
        for (; row >= stop; row -= BN) {
            if (row > stop) load_k_block(r, a, row - BN, head, batch);
            load_v_block(r, a, row, head, batch);
        }
    }
}

// Take the next tile from the counter and tell both CTAs. Its place held the id of tile k - 2. Every reader of that has read
// it: the last S of tile k - 2 is complete here, and needed K, Q and a P from the peer, whose warps had begun that tile too.
FFPA_DEVICE void announce_tile(u32 sm, int k, unsigned *counter)
{
    const u32 id = atomic_add(counter, 1) + gridDim.x / 2;
    for (int rank = 0; rank < 2; rank++)
        st_async(map_rank(sm + AT(Smem, next_tile) + 4 * (k & 1), rank), id,
                 map_rank(sm + AT(Smem, tile_full) + 8 * (k & 1), rank));
}

// Warp 1: Q of all tiles, and which tile comes next.
FFPA_DEVICE void produce_q(u32 sm, const fwd_pair_args &a)
{
#pragma unroll 1
    for (int k = 0;; k++) {
        const int id = tile_id(sm, k);
        if (k > 0) mbar_expect(sm + AT(Smem, tile_full) + 8 * (k & 1), 4); // for tile k + 2
        if (id >= a.total) break;
        const Tile t = find_tile(a, id);
        if (k > 0) mbar_wait(sm + AT(Smem, q_free), (k - 1) & 1);
#pragma unroll 1
        for (int j = 0; j < CHUNKS; j++) {
            const u32 full = sm + AT(Smem, q_full) + 8 * j;
            mbar_expect(full, 2 * Q_BYTES);
            for (int team = 0; team < 2; team++)
                tma_load_4d(sm + team * sizeof(TeamSmem) + j * Q_BYTES, &a.q, full, j * CHUNK,
                            t.seq.q_row + t.row0 + team * BM, t.head, t.seq.q_batch);
        }
        if (cluster_rank() == 0) announce_tile(sm, k + 1, a.counter);
    }
}

// ---- S = Q K^T ----------------------------------------------------------------------------------------

// Step J of S: chunk J. One ring slot, one wgmma group.
template <int J> FFPA_DEVICE void qk_issue(Math &w)
{
    mbar_wait(w.ring.sm + AT(Smem, full) + 8 * w.ring.slot, w.ring.parity);
    wgmma_fence();
    const u32 q = desc_chunk(w.team + AT(TeamSmem, q)) + J * (Q_BYTES >> 4),
              k = desc_chunk(w.ring.sm + AT(Smem, ring)) + w.ring.slot * (SLOT_BYTES >> 4);
#pragma unroll
    for (int y = 0; y < CHUNK / 16; y++) wgmma_kk(w.s, q + 2 * y, k + 2 * y, J | y);
    wgmma_commit();
    ring_next(w.ring);
}

// Steps J .. of S_{i+1}. Slots go back as they complete: first the last FLIGHT V slots of block i - 1, then the K slots, KLAG
// steps behind. Under the steps: bases and P_i leave for the peer, the peer's bases are met.
// FIRST: the tile's first block has no P V before it.
template <int J, bool FIRST> FFPA_DEVICE void qk_steps(Math &w, int i)
{
    if constexpr (J <= CHUNKS) {
        constexpr int before = FLIGHT - J > KLAG ? FLIGHT - J : KLAG, after = FLIGHT - J - 1 > KLAG ? FLIGHT - J - 1 : KLAG;
        if constexpr (J < CHUNKS) {
            qk_issue<J>(w);
            wgmma_wait<after>();
            ring_release<before + 1 - after, before + 1>(w.ring);
        }
        if (J == 1) send_base(w, i);
        if (J == FREE_AT && !FIRST) free_p(w); // O += P V of block i - 1 is complete
        if (J == SWAP_AT) stage_p(w, i);
        if (J == SWAP_AT + 1) fence_async_proxy();
        if (J == SWAP_AT + 2) copy_p(w);
        if (J == MEET_AT) meet_peer(w, i);
        qk_steps<J + 1, FIRST>(w, i);
    }
}

// S of the tile's first block: nothing else is in flight. Leaves FLIGHT slots unreleased, which qk_steps expects.
template <int J> FFPA_DEVICE void qk_first(Math &w, int q_parity)
{
    if constexpr (J < CHUNKS) {
        mbar_wait(w.ring.sm + AT(Smem, q_full) + 8 * J, q_parity);
        qk_issue<J>(w);
        wgmma_wait<1>();
        if (J > 0 && J <= CHUNKS - FLIGHT) ring_release<1, 2>(w.ring);
        qk_first<J + 1>(w, q_parity);
    }
}

// ---- O += P V -------------------------------------------------------------------------------------------

// Give back the oldest of PENDING + 1 slots once at most PENDING groups are in flight.
template <int PENDING> FFPA_DEVICE void release_slot(Math &w)
{
    wgmma_wait<PENDING>();
    ring_release<1, PENDING + 1>(w.ring);
}
template <int N> FFPA_DEVICE void release_all(Math &w)
{
    if constexpr (N > 0) {
        release_slot<N - 1>(w);
        release_all<N - 1>(w);
    }
}

// One wgmma on N columns of O: 16 keys, number K of the half block. P from registers for the own keys, from shared memory
// for the peer's.
template <int N, int K, bool PEER> FFPA_DEVICE void pv_mma(Math &w, float *o, u32 v)
{
    if constexpr (PEER)
        wgmma_kn(part<N / 2>(o), desc_chunk(w.team + AT(TeamSmem, p)) + 2 * K, v, 1);
    else
        wgmma_rn(part<N / 2>(o), w.p + 4 * K, v, 1);
}

// Step K: VROWS keys, own ones first (or 64 keys of the half chunk). One slot, one group.
template <int K> FFPA_DEVICE void pv_issue(Math &w, int i)
{
    mbar_wait(w.ring.sm + AT(Smem, full) + 8 * w.ring.slot, w.ring.parity);
    const u32 v = desc_chunks(w.ring.sm + AT(Smem, ring), VCHUNK_BYTES) + w.ring.slot * (SLOT_BYTES >> 4);
    constexpr int k = K % OWN;
    constexpr bool PEER = K >= OWN;
    if constexpr (K == OWN) {
        wait_p(w, i);
        fence_async_proxy(); // rescale() may have written P by ordinary stores, wgmma reads it next
    }
    wgmma_fence();
    if constexpr (k < BH / VROWS) {
        constexpr int N = HALF_SLOT ? FULL * CHUNK : DH, x = k * (VROWS / 16);
        pv_mma<N, x, PEER>(w, w.o, v);
        if constexpr (VROWS == 32) pv_mma<N, x + 1, PEER>(w, w.o, v + (16 * 128 >> 4));
    } else {
        float *o = w.o + FULL * CHUNK / 2;
        pv_mma<HALF, 0, PEER>(w, o, v);
        pv_mma<HALF, 1, PEER>(w, o, v + (16 * 128 >> 4));
        pv_mma<HALF, 2, PEER>(w, o, v + (32 * 128 >> 4));
        pv_mma<HALF, 3, PEER>(w, o, v + (48 * 128 >> 4));
    }
    wgmma_commit();
    ring_next(w.ring);
}

// Steps K .. LAST - 1; the oldest slot goes back whenever more than FLIGHT steps would be in flight.
template <int K, int LAST> FFPA_DEVICE void pv_steps(Math &w, int i)
{
    if constexpr (K < LAST) {
        if constexpr (K >= FLIGHT) release_slot<FLIGHT - 1>(w);
        pv_issue<K>(w, i);
        pv_steps<K + 1, LAST>(w, i);
    }
}

// Part X of the softmax, then the P V steps that keep pace with it.
template <int X> FFPA_DEVICE void softmax_parts(Math &w, float scale, int i)
{
    if constexpr (X < PARTS) {
        constexpr int from = FLIGHT + X * (VSTEPS - FLIGHT) / PARTS, to = FLIGHT + (X + 1) * (VSTEPS - FLIGHT) / PARTS;
        exp_part<X>(w, scale);
        pin(w.s);
        pv_steps<from, to>(w, i);
        pin(w.s);
        softmax_parts<X + 1>(w, scale, i);
    }
}

// O += P_i V_i, and the softmax of S_{i+1} between its steps, so that the tensor cores always have some queued. FLIGHT steps go
// before the row maximum, which takes about 450 clocks, and FLIGHT stay in flight. At the end P_{i+1} is in registers.
FFPA_DEVICE void pv_softmax(Math &w, const fwd_pair_args &a, int i)
{
    pv_steps<0, FLIGHT>(w, i);
    pin(w.s);
    block_scores(w, a, i + 1);
    propose_base(w, a.scale_log2);
    pin(w.s);
    softmax_parts<0>(w, a.scale_log2, i); // the steps that read P_i from registers are complete after it
    pin(w.p);
    pin(w.s);
    pack_p(w, a, i + 1);
}

// ---- one team ---------------------------------------------------------------------------------------------

FFPA_DEVICE void tile_begin(Math &w)
{
#pragma unroll
    for (int x = 0; x < DH / 2; x++) w.o[x] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) w.m[h] = w.b[h] = NO_BASE, w.l[h] = 0.0f;
}

// With parts, the widest O leaves no registers for addresses from above: make them anew.
static constexpr bool FORGETS = FFPA_SPLIT && HALF_SLOT;

FFPA_DEVICE void consume_tile(Math &w, const fwd_pair_args &a, int id, int number)
{
    int i = w.last + 1;
    note_tile(w, a, id, number);
    tile_begin(w);
    // phase 0: S_0 and its softmax, nothing to overlap with; then S_1
    qk_first<0>(w, number & 1);
    wgmma_wait<0>();
    pin(w.s);
    block_scores(w, a, i);
    propose_base(w, a.scale_log2);
    exp_parts<0>(w, a.scale_log2);
    pack_p(w, a, i);
    pin(w.s);
    if (FORGETS) w.team = opaque(w.team), w.ring.sm = opaque(w.ring.sm), w.note = opaque(w.note);
    qk_steps<0, true>(w, i);
    wgmma_wait<0>();
    ring_release<KLAG, KLAG>(w.ring);

    // Nothing is in flight at the back edge: the compiler does not count groups across it and would serialise every wgmma
#pragma unroll 1
    for (; i + 1 < w.last; i++) {
        w.ring.sm = opaque(w.ring.sm), w.team = opaque(w.team);
        if (w.moved) rescale(w, i);
        pv_softmax(w, a, i);          // phase 1: O += P_i V_i and softmax of S_{i+1}
        pin(w.s);
        qk_steps<0, false>(w, i + 1); // phase 2: S_{i+2}; P_{i+1} is swapped meanwhile
        wgmma_wait<0>();
        ring_release<KLAG, KLAG>(w.ring);
        pin(w.o);
        pin(w.s);
    }
    if (FORGETS) w.ring.sm = lds32(w.note + AT(Note, sm)), w.ring.parity = opaque(w.ring.parity);
    // phase 3: the last two blocks have no S to issue
    if ((thread_id() & 31) == 0) mbar_arrive(w.ring.sm + AT(Smem, q_free));
    if (w.moved) rescale(w, i);
    pv_softmax(w, a, i);
    send_base(w, w.last);
    wgmma_wait<0>();
    pin(w.o);
    ring_release<FLIGHT, FLIGHT>(w.ring);
    free_p(w);
    send_p(w, w.last);
    meet_peer(w, w.last);
    if (w.moved) rescale(w, w.last);
    w.ring.sm = lds32(w.note + AT(Note, sm)); // a value that ptxas does not know: else every slot's address stays from above, and spills
    pv_steps<0, VSTEPS>(w, w.last);
    // phase 4: the peer's row sums (both sides hold the same base), then O and LSE
    send_sums(w);
    mbar_wait_cluster(w.team + AT(TeamSmem, l_full), lds32(w.note + AT(Note, number)) & 1);
    float inverse[2];
    finish_rows(w, a, inverse);
    if (thread_id() == 0) mbar_expect(w.team + AT(TeamSmem, l_full), BM * 4); // for the next tile
    release_all<FLIGHT>(w);
    pin(w.o);
    free_p(w);
    const BadRows bad = GUARDED ? bad_rows(w) : BadRows{0, 0};
    if (part_of(note_at(w.note).tile) != ALL_KEYS)
        store_part(w, a, inverse);
    else
        store_o(w, a, inverse);
    if (GUARDED) guard(w, a, bad, inverse);
}

FFPA_DEVICE void consume(const Ring &ring, const fwd_pair_args &a)
{
    Math w;
    w.ring = ring;
    w.team = ring.sm + (threadIdx.x / TEAM_THREADS - 1) * sizeof(TeamSmem);
    w.last = -1;
#pragma unroll 1
    for (int k = 0;; k = lds32(w.note + AT(Note, number)) + 1) {
        const int id = tile_id(ring.sm, k);
        if (id >= a.total) break;
        w.ring.sm = ring.sm;
        consume_tile(w, a, id, k);
    }
}

// ---- the kernel -------------------------------------------------------------------------------------------

FFPA_DEVICE void set_up_barriers(u32 sm)
{
    for (int j = 0; j < CHUNKS; j++) mbar_init(sm + AT(Smem, q_full) + 8 * j, 1);
    mbar_init(sm + AT(Smem, q_free), 8);
    for (int x = 0; x < 2; x++) {
        mbar_init(sm + AT(Smem, tile_full) + 8 * x, 1);
        mbar_expect(sm + AT(Smem, tile_full) + 8 * x, 4);
    }
    for (int s = 0; s < STAGES; s++) {
        mbar_init(sm + AT(Smem, full) + 8 * s, 1);
        mbar_init(sm + AT(Smem, free) + 8 * s, 8);
    }
    for (int team = 0; team < 2; team++) {
        const u32 own = sm + team * sizeof(TeamSmem);
        mbar_init(own + AT(TeamSmem, p_full), 1);
        mbar_init(own + AT(TeamSmem, p_free), 4);
        mbar_expect(own + AT(TeamSmem, p_full), P_BYTES);
        for (int x = 0; x < 2; x++) {
            mbar_init(own + AT(TeamSmem, base_full) + 8 * x, 1);
            mbar_expect(own + AT(TeamSmem, base_full) + 8 * x, BASE_BYTES);
        }
        mbar_init(own + AT(TeamSmem, l_full), 1);
        mbar_expect(own + AT(TeamSmem, l_full), BM * 4);
    }
    mbar_init_fence();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
    ffpa_kernel(const __grid_constant__ fwd_pair_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    const Ring ring = {smem_addr(smem), 0, 0};
    if (threadIdx.x == 0) set_up_barriers(ring.sm);
    cluster_arrive(), cluster_wait(); // no barrier is used, here or from the peer, before it is set up
    if (threadIdx.x < TEAM_THREADS) {
        regs_less<REGS_LOAD>();
        if (threadIdx.x == 0) produce(ring, a);
        if (threadIdx.x == 32) produce_q(ring.sm, a);
    } else {
        regs_more<REGS_MATH>();
        consume(ring, a);
    }
    __syncwarp(); // the loading threads join their warps: the barrier below is for whole warps
    cluster_arrive(), cluster_wait(); // nothing is sent to a CTA that has left
}
