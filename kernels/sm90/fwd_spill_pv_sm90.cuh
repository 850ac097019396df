// fwd_spill_pv_sm90.cuh - O of the spilled forward (fwd_spill_plan_sm90.cuh has the whole): O^T = V^T P^T / l.
//
// An item is 192 rows of one head and 256 columns of O, 128 a team; where Dv leaves 128 columns over, items of 64 a team come last.
// Transposed, because then both operands come from shared memory as they lie, and the rows are the wide side of wgmma.
//
//   WG0 load   | V 64 keys x 4 chunks, P^T 3 blocks | ..          TMA and bulk copies, one slot per 64 keys
//   WG1 tensor | O^T[0:128, :] += V^T P^T                          m64 n192 twice, k64
//   WG2          the same for columns 128 .. 255
//
// Where a base moved (fwd_spill_p noted it) the loop is cut and the sums are scaled.
// Barriers: full[s] 1 + bytes (WG0 -> WG1, WG2), free[s] 2 (WG1, WG2 -> WG0), dealt[i] 1 + bytes (WG0 -> WG1, WG2), taken[i] 8 warps
// back; named 1, 2: 128 threads of a team (staging)
// Budget: registers / math thread 2 x 96, shared: ring 3 x 56 KB + staging 2 x 24 KB
#include "sm90/fwd_spill_plan_sm90.cuh"

static constexpr int STAGES = 3;
static constexpr int WIDE = DV / 256, NARROW = DV % 256 / 128; // items of 256 and of 128 columns, for each 192 rows

struct Part {      // 64 rows
    int first, end; // steps of 64 keys whose P was written
    int run;        // block of P of step 0
};
// An item. It stays in shared memory: registers are for the sums, and the loading thread has few.
struct Item {
    int local, head;        // head of the chunk, negative = no more items; of all
    int row64, rows, chunk; // first row64 of the chunk of rows, how many (3 but at the end); first chunk of columns
    int from, to;           // steps of 64 keys that some row sees
    bool wide;              // 256 columns
    bool moved;             // the base of some row did
#if FFPA_CACHE
    HeadKeys keys;
#endif
    alignas(16) Part part[3];
    alignas(16) float inverse[BK]; // what its rows of O are multiplied by
};
struct Smem {
    alignas(1024) u8 slot[STAGES][7 * BLOCK]; // four (or two) chunks of V, three blocks of P
    alignas(1024) u8 staging[2][3 * BLOCK];
    Item item[2]; // they alternate
    Barriers bar;
};
static_assert(sizeof(Smem) <= SPILL_PV_SHARED_BYTES, "shared budget");

FFPA_DEVICE int item_count(const fwd_spill_args &a) { return a.heads * ((2 * a.q_tiles + 2) / 3) * (WIDE + NARROW); }

// Item number i.
FFPA_DEVICE void find_item(const fwd_spill_args &a, int i, Item &t)
{
    const int tiles = (2 * a.q_tiles + 2) / 3, wide = a.heads * tiles * WIDE;
    int column = WIDE;
    if (i >= item_count(a)) {
        t.local = -1;
        return;
    }
    if (i < wide)
        column = i % WIDE, i /= WIDE; // neighbours share P
    else
        i -= wide;
    const Place at = place_of(a, i, tiles);
    t.local = at.local;
    t.head = a.head0 + at.local;
    t.wide = column < WIDE;
    t.chunk = column * 4;
    t.row64 = at.tile * 3;
    t.rows = min(3, 2 * a.q_tiles - at.tile * 3);
}

// Its parts: asked for once an item, for the ranges cost as much as a step's products.
FFPA_DEVICE void find_parts(const fwd_spill_args &a, Item &t)
{
    const unsigned *moved = a.moved + ((i64)t.local * 2 * a.q_tiles + t.row64 + 1) * (a.k_tiles + 1) - 1;
    const unsigned any = moved[0] | moved[t.rows > 1 ? a.k_tiles + 1 : 0] | moved[t.rows > 2 ? 2 * a.k_tiles + 2 : 0];
    int from = a.k_blocks, to = 0;
    const HeadKeys keys = keys_of_head(a, t.head);
#pragma unroll 1
    for (int x = 0; x < 3; x++) {
        const int row64 = t.row64 + x, tile = row64 / 2;
        const KeyTiles k = key_tiles(a, a.row0 + tile * BM, keys);
        Part p = {k.from * 3, min(k.to * 3, LENGTHS ? (key_count(a, keys) + 63) / 64 : a.k_blocks), p_run(a, t.local, tile, row64 & 1, k)};
        if (x >= t.rows) p.end = 0;
        if (p.first < p.end) from = min(from, p.first), to = max(to, p.end);
        t.part[x] = p;
    }
    t.from = from, t.to = to;
#if FFPA_CACHE
    t.keys = keys;
#endif
    t.moved = any != 0;
}

// Was P of step j (64 keys) written?
FFPA_DEVICE bool written(const Part &p, int j) { return j >= p.first && j < p.end; }

// ---- loads ----------------------------------------------------------------------------------------------

FFPA_DEVICE int draw(const fwd_spill_args &a) { return (int)atomic_add(&a.tickets[1], 1); }

// BOXES: chunks of V, 4 or 2. Returns the number of the CTA's next item, drawn a few steps before the end: what an item needs
// first takes a while to come, but a long item that waits for a busy CTA is worse.
template <int BOXES> FFPA_DEVICE int load_item(const fwd_spill_args &a, Smem &sm, Ring &r, const Item &t)
{
    const int b = key_batch(keys_of(t), t.head / a.hq), hk = t.head % a.hq / a.group;
    const int from = t.from, to = t.to, chunk = t.chunk;
    const Part part[3] = {t.part[0], t.part[1], t.part[2]};
    int next = 0;
#pragma unroll 1
    for (int j = from; j < to; j++) {
        const u32 full = smem_addr(&sm.bar.full[r.slot]), at = smem_addr(sm.slot[r.slot]);
        mbar_wait(smem_addr(&sm.bar.free[r.slot]), r.parity ^ 1);
        mbar_expect(full, (BOXES + 3) * BLOCK);
#pragma unroll
        for (int x = 0; x < 3; x++) {
            const u8 *p = (const u8 *)a.p + (i64)(part[x].run + j) * BLOCK;
            bulk_load(at + (4 + x) * BLOCK, written(part[x], j) ? p : a.zero, BLOCK, full);
        }
#pragma unroll
        for (int x = 0; x < BOXES; x++) tma_load_4d(at + x * BLOCK, &a.v, full, (chunk + x) * CHUNK, j * 64, hk, b);
        ring_next<STAGES>(r);
        if (j == max(from, to - 5)) next = draw(a);
    }
    return from < to ? next : draw(a);
}

FFPA_DEVICE void produce(const fwd_spill_args &a, Smem &sm)
{
    Ring r = {0, 0};
    int i = draw(a);
#pragma unroll 1
    for (int k = 0;; k++) {
        const u32 dealt = smem_addr(&sm.bar.dealt[k & 1]);
        Item &t = sm.item[k & 1];
        mbar_wait(smem_addr(&sm.bar.taken[k & 1]), (k >> 1 & 1) ^ 1);
        find_item(a, i, t);
        if (t.local < 0) {
            mbar_arrive(dealt);
            return;
        }
        find_parts(a, t);
        mbar_expect(dealt, t.rows * 256);
        bulk_load(smem_addr(t.inverse), a.inverse + ((i64)t.local * 2 * a.q_tiles + t.row64) * 64, t.rows * 256, dealt);
        i = !NARROW || t.wide ? load_item<4>(a, sm, r, t) : load_item<2>(a, sm, r, t);
    }
}

// Rows of V that exist of step j, or more.
FFPA_DEVICE int rows_of_step(const Item &t, int j)
{
#if FFPA_CACHE
    return t.keys.nk - j * 64;
#else
    return 64;
#endif
}

// ---- O^T += V^T P^T ---------------------------------------------------------------------------------------

// Rows of V past the end of a sequence are anything, and 0 x NaN is NaN: a team zeroes those of its chunks in a slot that has come.
template <int BOXES> FFPA_DEVICE void clear_rows(u32 chunks, int from)
{
    const u32 zeros[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int x = 0; x < BOXES; x++)
#pragma unroll 1
        for (int at = from * 128 + (threadIdx.x & 127) * 16; at < BLOCK; at += TEAM_THREADS * 16) sts128(chunks + x * BLOCK + at, zeros);
    fence_async_proxy();
    named_sync<TEAM_THREADS>(threadIdx.x / TEAM_THREADS);
}

// `steps` slots, the last of which has `rows` rows. TWO: 2 x 64 columns of O a team. Both widths in one loop body made ptxas serialise
// every wgmma.
template <bool TWO> FFPA_DEVICE void multiply(float (&lo)[BK / 2], float (&hi)[BK / 2], Smem &sm, Ring &r, int steps, int rows)
{
    const u32 team = threadIdx.x / TEAM_THREADS - 1;
    const bool elected = (threadIdx.x & 127) == 0;
    u32 before = 0; // barrier of the slot of the step before, which goes back when that is complete
#pragma unroll 1
    for (int j = 0; j < steps; j++) {
        const u32 at = opaque(desc_chunk(smem_addr(sm.slot[r.slot])));
        const u32 v = at + team * ((TWO ? 2 : 1) * BLOCK >> 4), p = at + (4 * BLOCK >> 4);
        mbar_wait(smem_addr(&sm.bar.full[r.slot]), r.parity);
        if (LENGTHS && rows < 64 && j == steps - 1)
            clear_rows<TWO ? 2 : 1>(smem_addr(sm.slot[r.slot]) + team * (TWO ? 2 : 1) * BLOCK, rows);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            wgmma_mk(lo, v + 128 * k, p + 2 * k, 1);
            if (TWO) wgmma_mk(hi, v + (BLOCK >> 4) + 128 * k, p + 2 * k, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (j > 0 && elected) mbar_arrive(before);
        before = smem_addr(&sm.bar.free[r.slot]);
        ring_next<STAGES>(r);
    }
    wgmma_wait<0>();
    pin(lo);
    if (TWO) pin(hi);
    if (steps > 0 && elected) mbar_arrive(before);
}

// First key tile from `tile` on where some base of the item's rows moved.
FFPA_DEVICE int next_move(const fwd_spill_args &a, const Item &t, int tile, int end)
{
    const i64 row64 = (i64)t.local * 2 * a.q_tiles + t.row64;
    if (!t.moved) return end;
#pragma unroll 1
    for (; tile < end; tile += 32) {
        const int mine = tile + (threadIdx.x & 31);
        u32 word = 0;
#pragma unroll 1
        for (int x = 0; x < t.rows; x++)
            if (mine < end && written(t.part[x], 3 * mine)) word |= a.moved[(row64 + x) * (a.k_tiles + 1) + mine];
        const u32 vote = __ballot_sync(~0u, word != 0);
        if (vote) return tile + __ffs(vote) - 1;
    }
    return end;
}

// Rare: bring the sums to the bases of key tile `tile`.
FFPA_DEVICE void rescale(float (&acc)[BK / 2], const fwd_spill_args &a, const Item &t, int tile)
{
#pragma unroll
    for (int g = 0; g < BK / 8; g++) {
        const int x = g / 8;
        if (!written(t.part[x], 3 * tile)) continue;
        const i64 row64 = (i64)t.local * 2 * a.q_tiles + t.row64 + x, at = row64 * a.k_tiles + tile;
        if (!(a.moved[at + row64] >> (g % 8 / 2 * 8) & 255)) continue;
        const float *f = a.factor + at * 64 + g % 8 * 8 + 2 * (threadIdx.x & 3);
        acc[4 * g] *= f[0], acc[4 * g + 1] *= f[1], acc[4 * g + 2] *= f[0], acc[4 * g + 3] *= f[1];
    }
}

// ---- results ------------------------------------------------------------------------------------------------

// 64 columns x 192 rows: normalise, turn by stmatrix into blocks of 64 rows, store. Was all of it finite?
FFPA_DEVICE bool store(const float (&acc)[BK / 2], const fwd_spill_args &a, const Item &t, int chunk)
{
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, id = threadIdx.x / TEAM_THREADS;
    extern __shared__ __align__(1024) u8 smem[];
    const u32 staging = smem_addr(((Smem *)smem)->staging[id - 1]);
    const u32 base = staging + ((lane & 7) + (lane >> 4) * 8) * 128 + (((warp * 2 + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
    const float *inverse = t.inverse + 2 * (lane & 3);
    float sum = 0.0f; // NaN and Inf survive a product with 0
    if ((threadIdx.x & 127) == 0) bulk_wait_read<0>();
    named_sync<TEAM_THREADS>(id);
#pragma unroll
    for (int g = 0; g < BK / 16; g++) {
        const float *x = acc + 8 * g;
        float f[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (g / 4 < t.rows) f[0] = inverse[16 * g], f[1] = inverse[16 * g + 1], f[2] = inverse[16 * g + 8], f[3] = inverse[16 * g + 9];
        float y[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            y[k] = x[k] * f[(k & 1) + (k >> 2) * 2];
            if (GUARDED) sum = fmaf(y[k], 0.0f, sum);
        }
        stmatrix4_trans(base + (g >> 2) * BLOCK + (g & 3) * 2048, pack2(y[0], y[1]), pack2(y[2], y[3]), pack2(y[4], y[5]), pack2(y[6], y[7]));
    }
    fence_async_proxy();
    named_sync<TEAM_THREADS>(id);
    if ((threadIdx.x & 127) == 0) {
        for (int x = 0; x < t.rows; x++)
            tma_store_4d(&a.o_map, staging + x * BLOCK, chunk * CHUNK, a.row0 + (t.row64 + x) * 64, t.head % a.hq, t.head / a.hq);
        bulk_commit();
    }
    return sum == 0.0f;
}

// Every row of the item that is not finite again, each warp 16 of a team's 64 columns; chunks `chunk` and, if TWO, the next.
template <bool TWO> FFPA_DEVICE void guard(const fwd_spill_args &a, const Item &t, int chunk)
{
    const int lane = threadIdx.x & 31, b = t.head / a.hq, h = t.head % a.hq;
    const int columns[1] = {(chunk + (lane >> 4)) * CHUNK + (threadIdx.x >> 5 & 3) * 16 + (lane & 15)};
    const bool mine = columns[0] < FFPA_DV && (TWO || lane < 16);
    const Sequence s = {b, a.nq, key_count(a, keys_of(t)), b, 0, key_batch(keys_of(t), b), 0};
    if ((threadIdx.x & 127) == 0) bulk_wait<0>();
    named_sync<TEAM_THREADS>(threadIdx.x / TEAM_THREADS); // O has been stored
#pragma unroll 1
    for (int x = 0; x < t.rows * 64 && a.row0 + t.row64 * 64 + x < a.nq; x++) {
        const int row = a.row0 + t.row64 * 64 + x;
        const i64 at = ((i64)t.local * 2 * a.q_tiles + t.row64) * 64 + x;
        const float o = mine ? element_get_alone(row_at(a.o, b, h, row), columns[0], DTYPE) : 0.0f;
        const int column[1] = {mine ? columns[0] : -1};
        const float inverse = a.inverse[at]; // NaN: a key that the row sees made it so
        if (inverse == inverse && __any_sync(~0u, !(fabsf(o) < FFPA_INF))) row_again(a, s, h, row, {inverse, 0.0f}, a.base[at], column);
    }
}

template <bool TWO> FFPA_DEVICE void consume_item(const fwd_spill_args &a, Smem &sm, Ring &r, const Item &t)
{
    float lo[BK / 2], hi[BK / 2];
#pragma unroll
    for (int x = 0; x < BK / 2; x++) lo[x] = hi[x] = 0.0f;
#pragma unroll 1
    for (int j = t.from; j < t.to;) {
        const int tile = next_move(a, t, j / 3 + 1, (t.to + 2) / 3), end = min(t.to, 3 * tile);
        multiply<TWO>(lo, hi, sm, r, end - j, rows_of_step(t, end - 1));
        j = end;
        if (j == t.to) break;
        rescale(lo, a, t, tile);
        if (TWO) rescale(hi, a, t, tile);
    }
    const int chunk = t.chunk + (TWO ? 2 : 1) * (threadIdx.x / TEAM_THREADS - 1);
    bool fine = store(lo, a, t, chunk);
    if (TWO) fine = store(hi, a, t, chunk + 1) && fine;
    if (GUARDED && named_any<TEAM_THREADS>(threadIdx.x / TEAM_THREADS, !fine)) guard<TWO>(a, t, chunk);
}

FFPA_DEVICE void consume(const fwd_spill_args &a, Smem &sm)
{
    Ring r = {0, 0};
#pragma unroll 1
    for (int k = 0;; k++) {
        mbar_wait(smem_addr(&sm.bar.dealt[k & 1]), k >> 1 & 1);
        const Item &t = sm.item[k & 1];
        if (t.local < 0) break;
        if (!NARROW || t.wide)
            consume_item<true>(a, sm, r, t);
        else
            consume_item<false>(a, sm, r, t);
        give_back_item(sm.bar, k);
    }
    if ((threadIdx.x & 127) == 0) bulk_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ fwd_spill_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    Smem &sm = *(Smem *)smem;
    set_up_barriers(sm.bar);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.tickets[0] = 0;
    if (threadIdx.x < TEAM_THREADS) {
        regs_less<40>();
        if (threadIdx.x == 0) produce(a, sm);
    } else {
        regs_more<232>();
        consume(a, sm);
    }
}
