// bwd_gemm_sm90.cuh - attention backward, second half: the products of P and dS with tensors, one persistent launch.
//     dV = P^T dO       dK = scale dS^T Q       dQ = scale dS K
//
// Columns come in two kinds of tiles. A wide one, 256 columns x 192 rows, is computed transposed, columns as
// wgmma's M: dV^T = dO^T P. A slim one, 192 columns (64, 128, 160) x 256 rows, has its rows as M. Both give a warpgroup
// two 64 x 192 accumulators and 110 flop for a byte filled from L2 (128 x 256 has 85), and both take equally long a
// step: tiles that read the same P or dS advance together and read it from memory once. 448 columns are one of
// each, 576 three slim ones; 320 are two of 160, for 192 + 128 would drift apart.
// Every operand is used as it lies: rows x columns as M-major A or N-major B, 64 x 64 blocks of P or dS on the other
// side in either order. The epilogue turns wide tiles back.
// Heads of a group lengthen the sum of dV and dK. Sums keep to the steps that touch a visible pair; a block without
// one was never written and zeros stand in for it.
//
//             time ->
//   WG0 load  | 0 | 1 | ..                             | next tile ..     4 chunks + 3 blocks (or 3 + 4) a step, 1 thread
//   WG1 math  | acc 2 x (64 x 192) += A B, 64 deep     | scale, store     first half of M
//   WG2 math  | the same                                                  second half
//
// Tiles are drawn from a counter, longest sums first: which CTA makes a tile changes no bit of it.
//
// Barriers         arrivals      meaning
//   full[s]        1 + tx bytes  slot s holds its chunks and blocks, and the tile's item is there     WG0 -> WG1, WG2
//   free[s]        2             both warpgroups are done with slot s                                 WG1, WG2 -> WG0
//   raw[q]         1 + tx bytes  a slot waits for the guards, who pass it on to full (guard_sm90)     WG0 -> WG0
//   read[q]        96 threads    with FFPA_EVERY_LANE only: the note of raw[q] has been read          guards -> loads
//   1 + wg         128 threads   the staging tile is written, read                                    in one warpgroup
//   3              96 threads    a slot is clean                                                      guards
//
// Registers of a math thread: sums 192, addresses 40. Shared: ring 3 x 56 KiB (4 x 48 at 128 columns), staging 2 x 24.
#include "sm90/bwd_guard_sm90.cuh"
#include "sm90/ring_sm90.cuh"
#include "sm90/store_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int STAGES = products_stages(COLUMNS), SLOT_BLOCKS = products_slot_blocks(COLUMNS),
                     STAGING_BLOCKS = products_staging_blocks(COLUMNS);
static constexpr int RAWS = 4;   // guarded steps under way: not more than STAGES
static constexpr int ITEMS = 8;  // more than tiles that can be under way: a ring holds STAGES of their steps

struct Shared {
    u8 slot[STAGES][SLOT_BLOCKS * BLOCK];
    u8 staging[2][STAGING_BLOCKS * BLOCK];
    Item item[ITEMS];
    Sequence seq; // of the tile being loaded. The loading thread has few registers
    Span seen[4]; // dQ: key blocks that each block of its rows sees
    u64 full[STAGES], free[STAGES], raw[RAWS];
    int raw_slot[RAWS], raw_item[RAWS]; // to guard; slot -1: no more
    u64 read[RAWS]; // FFPA_EVERY_LANE
};
static_assert(sizeof(Shared) <= products_shared_bytes(COLUMNS) && sizeof(Shared) <= 227 * 1024, "shared budget");

struct Loads : Ring { // of the loading thread
    u32 raws, count; // guarded steps, tiles so far
};

__device__ __align__(128) u8 zeros[4 * BLOCK]; // stand in for blocks of P and dS that nobody wrote

// ---- loading

struct Slot {
    u32 at, bar; // where a step goes, whose arrival tells of it
};

// Where the next guarded step is noted. The guards have read what stands there: their named barrier lies before the slot of that
// step was full, and a later one is free. FFPA_EVERY_LANE: the same by a barrier from thread to thread.
FFPA_DEVICE int next_raw(Shared &sm, Loads &r)
{
    const u32 n = r.raws++;
    if (FFPA_EVERY_LANE && n >= RAWS) mbar_wait(smem_addr(&sm.read[n % RAWS]), (n / RAWS & 1) ^ 1);
    return n % RAWS;
}

// Wait for slot r and announce a step's bytes: to the warpgroups, or to the guards, who pass it on.
template <int WIDTH> FFPA_DEVICE Slot open_slot(Shared &sm, Loads &r, bool guarded)
{
    mbar_wait(smem_addr(&sm.free[r.slot]), r.parity ^ 1);
    u32 bar = smem_addr(&sm.full[r.slot]);
    if (guarded) {
        const int q = next_raw(sm, r);
        sm.raw_slot[q] = r.slot, sm.raw_item[q] = r.count % ITEMS;
        bar = smem_addr(&sm.raw[q]);
    }
    mbar_expect(bar, Tile<WIDTH>::BYTES);
    return {smem_addr(sm.slot[r.slot]), bar};
}

template <int WIDTH>
FFPA_DEVICE void load_chunks(u32 at, u32 full, const k_map &map, int column, int row, int head, int batch)
{
#pragma unroll
    for (int i = 0; i < Tile<WIDTH>::CHUNKS; i++) tma_load_4d(at + i * BLOCK, &map, full, column + i * 64, row, head, batch);
}

// A sum of nothing: one step of zeros.
template <int WIDTH> FFPA_DEVICE void load_nothing(Shared &sm, Loads &r)
{
    const Slot to = open_slot<WIDTH>(sm, r, false);
#pragma unroll 1
    for (int i = 0; i < Tile<WIDTH>::CHUNKS + Tile<WIDTH>::ROWS64; i++) bulk_load(to.at + i * BLOCK, zeros, BLOCK, to.bar);
    ring_next<STAGES>(r);
}

// dQ: blocks of the tile's rows, one key block a step. No division in the loops over steps: a step of the 128-column kind
// is 512 clocks.
template <int WIDTH> FFPA_DEVICE void load_queries(const products_args &a, Shared &sm, Loads &r, const Item &it)
{
    typedef Tile<WIDTH> T;
    const int hk = it.head / a.group, first = it.row / 64, first_width = width_at(a, it, first);
#pragma unroll 1
    for (int i = 0; i < T::ROWS64; i++) {
        const int row = it.row + i * 64;
        sm.seen[i] = row >= it.begin && row < it.end ? keys_seen(a, sm.seq, row, min(row + 64, it.end)) : Span{0, 0};
    }
    const u8 *src = (const u8 *)a.ds + block_at(a, it, it.heads.from, first, it.blocks.from) * BLOCK;
#pragma unroll 1
    for (int j = it.blocks.from; j < it.blocks.to; j++, src += BLOCK) {
        const Slot to = open_slot<WIDTH>(sm, r, step_guarded(it, j));
        const u8 *row = src;
        int width = first_width;
#pragma unroll
        for (int i = 0; i < T::ROWS64; i++) {
            const bool there = j >= sm.seen[i].from && j < sm.seen[i].to;
            bulk_load(to.at + (T::CHUNKS + i) * BLOCK, there ? row : zeros, BLOCK, to.bar);
            row += (i64)width * BLOCK;
            width = stairs_down(a.stairs, first + i, width);
        }
        load_chunks<WIDTH>(to.at, to.bar, a.b[DQ], it.column, (int)sm.seq.k_row + j * 64, hk, (int)sm.seq.k_batch);
        ring_next<STAGES>(r);
    }
}

// dV, dK: blocks of the tile's keys, which lie together, one block of rows a step; what they do not see is zeros.
template <int WIDTH> FFPA_DEVICE void load_keys(const products_args &a, Shared &sm, Loads &r, const Item &it)
{
    typedef Tile<WIDTH> T;
    const int first = it.row / 64;
    const u8 *base = (const u8 *)(it.product == DV ? a.p : a.ds);
#pragma unroll 1
    for (int head = it.heads.from; head < it.heads.to; head++) {
        const u8 *src = base + block_at(a, it, head, it.blocks.from, first) * BLOCK;
        int width = width_at(a, it, it.blocks.from);
#pragma unroll 1
        for (int j = it.blocks.from; j < it.blocks.to; j++) {
            Span seen = {first, first + (it.end - it.row + 63) / 64};
            if (j < it.clear.from || j >= it.clear.to) seen = keys_seen(a, sm.seq, j * 64, min(j * 64 + 64, sm.seq.nq));
            const int from = max(seen.from - first, 0), end = min(seen.to - first, (int)T::ROWS64);
            const Slot to = open_slot<WIDTH>(sm, r, step_guarded(it, j));
            const u32 blocks = to.at + T::CHUNKS * BLOCK;
            bulk_load(blocks + from * BLOCK, src + from * BLOCK, (end - from) * BLOCK, to.bar);
            src += (i64)width * BLOCK;
            width = stairs_down(a.stairs, j, width);
            if (FFPA_RANGE && from > 0) bulk_load(blocks, zeros, from * BLOCK, to.bar);
            if (end < T::ROWS64) bulk_load(blocks + end * BLOCK, zeros, (T::ROWS64 - end) * BLOCK, to.bar);
            load_chunks<WIDTH>(to.at, to.bar, a.b[it.product], it.column, (int)sm.seq.q_row + j * 64, a.chunk.h0 + head,
                               (int)sm.seq.q_batch);
            ring_next<STAGES>(r);
        }
    }
}

template <int WIDTH> FFPA_DEVICE void load_tile(const products_args &a, Shared &sm, Loads &r, const Item &it)
{
    if (it.heads.from >= it.heads.to || it.blocks.from >= it.blocks.to)
        load_nothing<WIDTH>(sm, r);
    else if (it.product == DQ)
        load_queries<WIDTH>(a, sm, r, it);
    else
        load_keys<WIDTH>(a, sm, r, it);
}

// Tiles as tickets come. The full barrier of a tile's first step also says that its item is there; behind the last tile it
// says that there is none.
FFPA_DEVICE void load_tiles(const products_args &a, Shared &sm)
{
    Loads r = {{0, 0}, 0, 0};
#pragma unroll 1
    for (;;) {
        Item &it = sm.item[r.count % ITEMS];
        int head, rank, tile;
        if (!place_ticket(a, (int)atomic_add(a.ticket, 1), it, head, rank, tile)) break;
        if (rank >= units_of(a, it.product)) continue;
        const int line = place_unit(a, it.product, rank, it);
        place_in_unit(tile, it);
        it.part = (head * a.key_units + line) * UNIT_TILES + tile;
        sm.seq = sequence_at(a.seq, it.seq);
        if (!place_sum(a, sm.seq, head, it)) continue;
        it.found = 0;
        if constexpr (SLIMS == 0)
            load_tile<256>(a, sm, r, it);
        else if constexpr (WIDES == 0)
            load_tile<SLIM>(a, sm, r, it);
        else if (it.wide)
            load_tile<256>(a, sm, r, it);
        else
            load_tile<SLIM>(a, sm, r, it);
        r.count++;
    }
    sm.item[r.count % ITEMS].product = NONE;
    mbar_wait(smem_addr(&sm.free[r.slot]), r.parity ^ 1);
    mbar_arrive(smem_addr(&sm.full[r.slot]));
    if (!GUARDED) return;
    const int q = next_raw(sm, r);
    sm.raw_slot[q] = -1;
    mbar_arrive(smem_addr(&sm.raw[q]));
}

// The guards: what they find is noted in the tile's item.
FFPA_DEVICE void guard_steps(Shared &sm)
{
#pragma unroll 1
    for (u32 n = 0;; n++) {
        mbar_wait(smem_addr(&sm.raw[n % RAWS]), n / RAWS & 1);
        const int slot = sm.raw_slot[n % RAWS];
        if (slot < 0) return;
        Item &it = sm.item[sm.raw_item[n % RAWS]];
        if (FFPA_EVERY_LANE) mbar_arrive(smem_addr(&sm.read[n % RAWS]));
        const int chunks = SLIMS == 0 || (WIDES > 0 && it.wide) ? 4 : Tile<SLIM>::CHUNKS;
        const bool found = guard_clean(smem_addr(sm.slot[slot]), chunks * BLOCK);
        if (threadIdx.x != 32) continue;
        if (found) it.found = 1;
        mbar_arrive(smem_addr(&sm.full[slot]));
    }
}

// ---- mathematics

// acc += A B over `steps` ring slots. A slot is released when the wgmma of the next one are under way.
// K_MAJOR: the sum runs along the rows of the blocks (dQ: keys), not down their columns (dV, dK: query rows).
template <int WIDTH, bool K_MAJOR>
FFPA_DEVICE void multiply(float (&lo)[Tile<WIDTH>::ACC], float (&hi)[Tile<WIDTH>::ACC], Shared &sm, Ring &r, int steps, u32 wg, bool elected)
{
    typedef Tile<WIDTH> T;
    constexpr u32 NEXT = BLOCK >> 4; // from one block to the next
    u32 before = 0;
#pragma unroll 1
    for (int j = 0; j < steps; j++) {
        const u32 at = opaque(desc_chunks(smem_addr(sm.slot[r.slot]), BLOCK));
        const u32 chunks = at, blocks = at + T::CHUNKS * NEXT, half = wg * 2 * NEXT;
        mbar_wait(smem_addr(&sm.full[r.slot]), r.parity);
        wgmma_fence();
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if constexpr (T::TURNED && K_MAJOR) {
                wgmma_mk(lo, chunks + half + 128 * k, blocks + 2 * k, 1);
                wgmma_mk(hi, chunks + half + NEXT + 128 * k, blocks + 2 * k, 1);
            } else if constexpr (T::TURNED) {
                wgmma_mn(lo, chunks + half + 128 * k, blocks + 128 * k, 1);
                wgmma_mn(hi, chunks + half + NEXT + 128 * k, blocks + 128 * k, 1);
            } else if constexpr (K_MAJOR) {
                wgmma_kn(lo, blocks + half + 2 * k, chunks + 128 * k, 1);
                wgmma_kn(hi, blocks + half + NEXT + 2 * k, chunks + 128 * k, 1);
            } else {
                wgmma_mn(lo, blocks + half + 128 * k, chunks + 128 * k, 1);
                wgmma_mn(hi, blocks + half + NEXT + 128 * k, chunks + 128 * k, 1);
            }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (j > 0 && elected) mbar_arrive(before);
        before = smem_addr(&sm.free[r.slot]);
        ring_next<STAGES>(r);
    }
    wgmma_wait<0>();
    pin(lo);
    pin(hi);
    if (elected) mbar_arrive(before);
}

// A block of the staging tile that the copy engine cannot cut to size: rows up to `end` of the sequence, `width` columns.
FFPA_DEVICE void store_rows(const products_args &a, const Item &it, u32 block, int row, int end, int column, int width)
{
    const k_tensor &t = a.out_rows[it.product];
    for (int x = threadIdx.x & 127; x < 64 * 8; x += 128) {
        const int r = x >> 3, c = column + (x & 7) * 8;
        if (row + r >= end || (x & 7) * 8 >= width || c >= a.columns) continue;
        const u32 from = block + r * 128 + (((x & 7) ^ (r & 7)) << 4);
        u16 *to = (u16 *)t.data + it.batch * t.sb + it.head * t.sh + (i64)(it.first_row + row + r) * t.sn + c;
        if (c + 8 <= a.columns) {
            u32 y[4];
            lds128(y, from);
            stg128(to, y);
        } else {
            for (int e = 0; c + e < a.columns; e++) to[e] = (u16)lds16(from + 2 * e);
        }
    }
}

// One accumulator, by way of the staging tile. Turned: 64 columns from `column` x 192 rows, blocks one below the other.
// Else: 64 rows from `row`, blocks side by side.
template <int WIDTH>
FFPA_DEVICE void store_acc(const float (&acc)[Tile<WIDTH>::ACC], const products_args &a, const Item &it, u32 staging, int row, int column)
{
    typedef Tile<WIDTH> T;
    const u32 thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5, id = threadIdx.x / 128;
    const u32 r = (lane & 7) + (T::TURNED ? lane >> 4 : lane >> 3 & 1) * 8;
    const float scale = it.product == DV ? 1.0f : a.scale;
    if (thread == 0) bulk_wait_read<0>();
    named_sync<128>(id);
#pragma unroll
    for (int g = 0; g < T::ACC / 8; g++) {
        const float *x = acc + 8 * g;
        const u32 p[4] = {pack2(x[0] * scale, x[1] * scale), pack2(x[2] * scale, x[3] * scale),
                          pack2(x[4] * scale, x[5] * scale), pack2(x[6] * scale, x[7] * scale)};
        const u32 block = staging + (g >> 2) * BLOCK;
        if (T::TURNED)
            stmatrix4_trans(block + (g & 3) * 2048 + r * 128 + (((warp * 2 + (lane >> 3 & 1)) ^ (lane & 7)) << 4), p[0],
                            p[1], p[2], p[3]);
        else
            stmatrix4(block + (warp * 16 + r) * 128 + ((((g & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4), p[0], p[1], p[2],
                      p[3]);
    }
    fence_async_proxy();
    named_sync<128>(id);
#pragma unroll 1
    for (int i = 0; i < T::PIECES; i++) {
        const int n = T::TURNED ? row + 64 * i : row, c = T::TURNED ? column : column + 64 * i;
        const int width = T::TURNED || WIDTH - 64 * i > 64 ? 64 : WIDTH - 64 * i;
        if (n < it.begin || n >= it.end) continue;
        if (width < 64 || (FFPA_VARLEN && n + 64 > it.end))
            store_rows(a, it, staging + i * BLOCK, n, it.end, c, width);
        else if (thread == 0)
            tma_store_4d(&a.out[it.product], staging + i * BLOCK, c, it.first_row + n, it.head, it.batch);
    }
    if (thread == 0) bulk_commit();
}

// Carry sums across the chunks of one kv head.
template <int N> FFPA_DEVICE void carry_in(float (&acc)[N], const float *part)
{
#pragma unroll
    for (int x = 0; x < N; x++) acc[x] += part[x * 128];
}
template <int N> FFPA_DEVICE void carry_out(const float (&acc)[N], float *part)
{
#pragma unroll
    for (int x = 0; x < N; x++) part[x * 128] = acc[x];
}

// One tile. Each kind has its own sums and loops: kinds that share them make ptxas serialise (C7515).
template <int WIDTH> FFPA_DEVICE void make_tile(const products_args &a, Shared &sm, Ring &r, const Item &it)
{
    typedef Tile<WIDTH> T;
    const u32 wg = threadIdx.x / 128 - 1, thread = threadIdx.x & 127, staging = smem_addr(sm.staging[wg]);
    float lo[T::ACC], hi[T::ACC];
#pragma unroll
    for (int x = 0; x < T::ACC; x++) lo[x] = hi[x] = 0.0f;
    if (it.product == DQ)
        multiply<WIDTH, true>(lo, hi, sm, r, it.steps, wg, thread == 0);
    else
        multiply<WIDTH, false>(lo, hi, sm, r, it.steps, wg, thread == 0);
    float *part = it.product == DQ ? 0 : a.partial[it.product];
    if (part) part += (i64)it.part * part_elements(COLUMNS) + wg * (2 * T::ACC * 128) + thread;
    if (part && !it.opens) {
        carry_in(lo, part);
        carry_in(hi, part + T::ACC * 128);
    }
    if (part && !it.closes) {
        carry_out(lo, part);
        carry_out(hi, part + T::ACC * 128);
    } else {
        const int row = it.row + (T::TURNED ? 0 : 128 * wg), column = it.column + (T::TURNED ? 128 * wg : 0);
        store_acc<WIDTH>(lo, a, it, staging, row, column);
        store_acc<WIDTH>(hi, a, it, staging, row + (T::TURNED ? 0 : 64), column + (T::TURNED ? 64 : 0));
    }
    if (GUARDED && *(volatile const int *)&it.found) guard_restore<WIDTH>(a, it, it.closes ? 0 : part);
}

FFPA_DEVICE void make_tiles(const products_args &a, Shared &sm)
{
    Ring r = {0, 0};
#pragma unroll 1
    for (u32 count = 0;; count++) {
        mbar_wait(smem_addr(&sm.full[r.slot]), r.parity);
        const Item &it = sm.item[count % ITEMS];
        if (it.product == NONE) break;
        if constexpr (SLIMS == 0)
            make_tile<256>(a, sm, r, it);
        else if constexpr (WIDES == 0)
            make_tile<SLIM>(a, sm, r, it);
        else if (it.wide)
            make_tile<256>(a, sm, r, it);
        else
            make_tile<SLIM>(a, sm, r, it);
    }
    if ((threadIdx.x & 127) == 0) bulk_wait<0>();
}

extern "C" __global__ void __launch_bounds__(384, 1) ffpa_kernel(const __grid_constant__ products_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    Shared &sm = *(Shared *)smem;
    if (threadIdx.x == 0) {
        ring_init(sm.full, sm.free, STAGES, 2);
        for (int q = 0; q < RAWS; q++) mbar_init(smem_addr(&sm.raw[q]), 1);
        if (FFPA_EVERY_LANE)
            for (int q = 0; q < RAWS; q++) mbar_init(smem_addr(&sm.read[q]), GUARDS);
        mbar_init_fence();
    }
    __syncthreads();
    grid_release();
    grid_wait(); // P and dS; the counter
    if (threadIdx.x < 128) {
        regs_less<40>();
        if (threadIdx.x == 0) load_tiles(a, sm);
        if (GUARDED && threadIdx.x >= 32) guard_steps(sm);
    } else {
        regs_more<232>();
        make_tiles(a, sm);
    }
}
