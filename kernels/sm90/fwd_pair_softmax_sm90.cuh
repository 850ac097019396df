// fwd_pair_softmax_sm90.cuh - scalar work of fwd_pair_sm90.cuh: masks, softmax, the exchange of P, results.
//
// Row base without a meeting. Each CTA keeps the agreed base m of every row. Its proposal for block i is b = the row maximum if
// that grew past m by LAZY, else m; P_c is computed with b, and b travels ahead of P_c. After the swap both CTAs know both
// proposals and set m = max(b_0, b_1): the same answer on both sides. Only if anything moved (the first block, then almost never)
// O, P and l are rescaled. A base is a maximum itself, not rounded up: the weight of a key that is alone is then 1 exactly.
#pragma once
#include "sm90/fwd_pair_plan_sm90.cuh"

// A pair times f, rounded once.
FFPA_DEVICE u32 scale2(u32 x, float f)
{
    if (DTYPE == F16) return pack_f16(f32_of_f16((u16)x) * f, f32_of_f16((u16)(x >> 16)) * f);
    return pack_bf16(__uint_as_float(x << 16) * f, __uint_as_float(x & 0xFFFF0000u) * f);
}
FFPA_DEVICE float lds_f32(u32 addr) { return __uint_as_float(lds32(addr)); }

// ---- masks and scores -----------------------------------------------------------------------------------

// Note the tile and which of its blocks need masks; move w.last on to its last block.
FFPA_DEVICE void note_tile(Math &w, const fwd_pair_args &a, int id, int number)
{
    const Tile t = find_tile(a, id);
    const k_scores &c = a.scores;
    const int team = threadIdx.x / TEAM_THREADS - 1, row = t.row0 + team * BM, own = cluster_rank() * BH;
    const int end = row + BM < t.seq.nq ? row + BM - 1 : t.seq.nq - 1;
    const int hi = key_range(c.left, c.right, c.top_left, row, t.seq.nq, t.seq.nk).hi; // keys that every row sees
    const int lo = key_range(c.left, c.right, c.top_left, end, t.seq.nq, t.seq.nk).lo;
    const int clear_to = (hi - own + BH > 0 ? hi - own + BH : 0) / BN, clear_from = (lo - own + BN - 1) / BN;
    const KeyRange line = key_line(c, t.seq.nq, t.seq.nk);
    w.last += t.blocks;
    w.note = w.ring.sm + AT(Smem, note) + (threadIdx.x - TEAM_THREADS) / 32 * sizeof(Note);
    __syncwarp(); // every lane is done with the tile before
    if ((thread_id() & 31) == 0)
        note_at(w.note) = {t, number, w.last + t.first - clear_to + 1, w.last + t.first - clear_from + 1,
                           {line.lo + t.row0, line.hi + t.row0}, w.ring.sm};
    __syncwarp();
}

// Of block i: masked keys get -inf.
FFPA_DEVICE void mask_scores(Math &w, int i)
{
    const Note &n = note_at(w.note);
    const int row = tile_row(), column = (n.tile.first + w.last - i) * BN + cluster_rank() * BH + 2 * (thread_id() & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int lo = n.line.lo + row + 8 * h - column, hi = min(n.line.hi + row + 8 * h, n.tile.seq.nk) - column;
#pragma unroll
        for (int x = 0; x < BH / 4; x++) {
            const int j = 8 * (x / 2) + (x & 1);
            float &v = w.s[4 * (x / 2) + 2 * h + (x & 1)];
            v = j < hi && (!FFPA_RANGE || j >= lo) ? v : -FFPA_INF;
        }
    }
}

// Of block i: what makes a score of a product.
FFPA_DEVICE void finish_scores(Math &w, const fwd_pair_args &a, int i)
{
    const Tile &t = note_at(w.note).tile;
    const int row = t.row0 + tile_row(), most = t.seq.nq - 1;
    const int column = (t.first + w.last - i) * BN + cluster_rank() * BH + 2 * (thread_id() & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const ScoreRow r = score_row(a.scores, t.seq, t.head, row + 8 * h < most ? row + 8 * h : most);
#pragma unroll
        for (int x = 0; x < BH / 4; x++) {
            float &v = w.s[4 * (x / 2) + 2 * h + (x & 1)];
            v = score(a.scores, r, score_capped(a.scores, v), column + 8 * (x / 2) + (x & 1), false);
            if (x % 8 == 7) pin(w.s); // no more loads of the mask at once than registers hold
        }
    }
}

FFPA_DEVICE void block_scores(Math &w, const fwd_pair_args &a, int i)
{
    if (SCORED)
        finish_scores(w, a, i);
    else if (i < (int)lds32(w.note + AT(Note, head)) || (FFPA_RANGE && i >= (int)lds32(w.note + AT(Note, tail))))
        mask_scores(w, i);
}

// ---- softmax ----------------------------------------------------------------------------------------------

// From scores as they lie in registers to the unit of bases.
FFPA_DEVICE float to_unit(float x, float scale) { return SCORED ? x : x * scale; }

// What a value relative to base `from` is multiplied by to be relative to `to`.
FFPA_DEVICE float factor(float from, float to) { return ex2((from - to) * UNIT); }

// b = base for this block, proposed from the agreed base m.
FFPA_DEVICE void propose_base(Math &w, float scale)
{
    float x[2] = {w.s[0], w.s[2]};
#pragma unroll
    for (int i = 0; i < BH / 2; i += 4) {
        x[0] = fmaxf(x[0], fmaxf(w.s[i], w.s[i + 1]));
        x[1] = fmaxf(x[1], fmaxf(w.s[i + 2], w.s[i + 3]));
    }
    const bool grew = to_unit(x[0], scale) > w.m[0] + LAZY || to_unit(x[1], scale) > w.m[1] + LAZY;
    w.b[0] = w.m[0];
    w.b[1] = w.m[1];
    if (__any_sync(~0u, grew)) { // rare: only then the row maximum itself matters
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x[h] = fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 1));
            x[h] = to_unit(fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 2)), scale);
            if (x[h] > w.m[h] + LAZY) w.b[h] = x[h];
            w.l[h] *= factor(w.m[h], w.b[h]);
        }
    }
}

// s = 2^(s - b), l += row sums, for part X of the columns.
template <int X> FFPA_DEVICE void exp_part(Math &w, float scale)
{
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 8 * X; i < 8 * X + 8; i++) {
        const float b = w.b[i >> 1 & 1];
        w.s[i] = ex2(SCORED ? (w.s[i] - b) * LOG2E : fmaf(w.s[i], scale, -b));
        sum[i >> 1 & 1] += w.s[i];
    }
    w.l[0] += sum[0];
    w.l[1] += sum[1];
}
template <int X> FFPA_DEVICE void exp_parts(Math &w, float scale)
{
    if constexpr (X < PARTS) {
        exp_part<X>(w, scale);
        exp_parts<X + 1>(w, scale);
    }
}

// P of block i as the A operand, without what dropout takes.
FFPA_DEVICE void pack_p(Math &w, const fwd_pair_args &a, int i)
{
    if (FFPA_DROPOUT) {
        const Tile &t = note_at(w.note).tile;
        const DropKey key = drop_key(a.dropout);
        const int row = t.row0 + tile_row(), column = (t.first + w.last - i) * BN + cluster_rank() * BH + 2 * (thread_id() & 3);
#pragma unroll
        for (int x = 0; x < BH / 2; x += 2) {
            bool keeps[2];
            drop_keeps2(key, t.seq.s * a.hq + t.head, row + 4 * (x & 2), column + 8 * (x / 4), keeps);
            w.s[x] = keeps[0] ? w.s[x] : 0.0f;
            w.s[x + 1] = keeps[1] ? w.s[x + 1] : 0.0f;
        }
    }
#pragma unroll
    for (int x = 0; x < BH / 4; x++) w.p[x] = pack2(w.s[2 * x], w.s[2 * x + 1]);
}

// ---- exchange -----------------------------------------------------------------------------------------------

// Where the peer's bases of block i are, for this thread's first row; the other is 32 bytes on.
FFPA_DEVICE u32 base_at_row(u32 team, int i)
{
    const u32 thread = thread_id();
    return team + AT(TeamSmem, base) + ((i & 1) * BM + 16 * (thread >> 5) + (thread >> 2 & 7)) * 4;
}

// Sending P_i to the peer, in three pieces: each is a latency of 100 to 300 clocks that hides under one step of S_{i+1}. The copy
// engine moves the tile: remote stores from registers kept every warp busy for about 900 clocks per block.
// 1: once the peer is done with P_{i-1} (then p_out has been read too), stage P_i.
FFPA_DEVICE void stage_p(Math &w, int i)
{
    const int thread = thread_id(), lane = thread & 31, row = 16 * (thread >> 5) + (lane & 15);
    if (i > 0) mbar_wait_cluster(w.team + AT(TeamSmem, p_free), (i - 1) & 1);
#pragma unroll
    for (int n = 0; n < BH / 16; n++) {
        const int group = 2 * n + (lane >> 4);
        stmatrix4(w.team + AT(TeamSmem, p_out) + row * 128 + ((group ^ (row & 7)) << 4), w.p[4 * n], w.p[4 * n + 1],
                  w.p[4 * n + 2], w.p[4 * n + 3]);
    }
}
// 2: fence_async_proxy().   3: when all 64 rows are staged, one thread starts the copy.
FFPA_DEVICE void copy_p(Math &w)
{
    named_sync<TEAM_THREADS>(threadIdx.x / TEAM_THREADS);
    const u32 peer = at_peer(w.team);
    if (thread_id() == 0)
        bulk_to_peer(peer + AT(TeamSmem, p), w.team + AT(TeamSmem, p_out), P_BYTES, peer + AT(TeamSmem, p_full));
}
FFPA_DEVICE void send_p(Math &w, int i)
{
    stage_p(w, i);
    fence_async_proxy();
    copy_p(w);
}

// Send the row bases of P_i ahead of P_i itself. The place is free: the peer sent its bases of block i - 1, which this team has
// met, after it had read the ones of block i - 2.
FFPA_DEVICE void send_base(Math &w, int i)
{
    const u32 peer = at_peer(w.team);
    if ((thread_id() & 3) == 0) {
        const u32 at = base_at_row(peer, i), bar = peer + AT(TeamSmem, base_full) + 8 * (i & 1);
        st_async(at, __float_as_uint(w.b[0]), bar);
        st_async(at + 32, __float_as_uint(w.b[1]), bar);
    }
}

// The P half received is no longer needed (its P V steps are complete): arm the barrier for the next one, then tell the peer.
FFPA_DEVICE void free_p(Math &w)
{
    const u32 thread = thread_id();
    if (thread == 0) mbar_expect(w.team + AT(TeamSmem, p_full), P_BYTES);
    if ((thread & 31) == 0) mbar_arrive_remote(at_peer(w.team + AT(TeamSmem, p_free)));
}

// Wait for the peer's bases of block i; note whether the base of O, of own P or of received P must move.
FFPA_DEVICE void meet_peer(Math &w, int i)
{
    const u32 bar = w.team + AT(TeamSmem, base_full) + 8 * (i & 1), at = base_at_row(w.team, i);
    mbar_wait_cluster(bar, (i >> 1) & 1);
    w.moved = __any_sync(~0u, lds_f32(at) != w.m[0] || lds_f32(at + 32) != w.m[1] || w.b[0] != w.m[0] || w.b[1] != w.m[1]);
    if (thread_id() == 0) mbar_expect(bar, BASE_BYTES); // for block i + 2
}

// Wait for the peer's P_i itself.
FFPA_DEVICE void wait_p(Math &w, int i) { mbar_wait_cluster(w.team + AT(TeamSmem, p_full), i & 1); }

// Received P times a factor a row: this warp's 16 rows, two lanes a row. Each warp scales its own rows: the tensor cores read a
// warp's rows of A for that warp only.
FFPA_DEVICE void rescale_received(u32 p, float g0, float g1)
{
    const u32 thread = thread_id(), lane = thread & 31, row = lane >> 1;
    g0 = __shfl_sync(~0u, g0, (row & 7) * 4);
    g1 = __shfl_sync(~0u, g1, (row & 7) * 4);
    const float g = row < 8 ? g0 : g1;
    const u32 at = p + (16 * (thread >> 5) + row) * 128 + (lane & 1) * 64;
#pragma unroll 1
    for (int x = 0; x < 64; x += 16) {
        u32 v[4];
        lds128(v, at + x);
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = scale2(v[k], g);
        sts128(at + x, v);
    }
    __syncwarp();
}

// Rare: move O, own P, received P and l to the common base, one after the other to keep few factors. Nothing may be in flight.
FFPA_DEVICE void rescale(Math &w, int i)
{
    wait_p(w, i);
    const u32 at = base_at_row(w.team, i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float n = fmaxf(w.b[h], lds_f32(at + 32 * h)), o = factor(w.m[h], n);
        w.m[h] = n;
#pragma unroll
        for (int x = 2 * h; x < DH / 2; x += 4) w.o[x] *= o, w.o[x + 1] *= o;
    }
    pin(w.o);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float f = factor(w.b[h], w.m[h]);
        w.l[h] *= f;
        w.b[h] = w.m[h];
#pragma unroll
        for (int x = h; x < BH / 4; x += 2) w.p[x] = scale2(w.p[x], f);
    }
    pin(w.p);
    rescale_received(w.team + AT(TeamSmem, p), factor(lds_f32(at), w.m[0]), factor(lds_f32(at + 32), w.m[1]));
}

// ---- results --------------------------------------------------------------------------------------------------

// Row sums of the own keys to the peer.
FFPA_DEVICE void send_sums(Math &w)
{
    const u32 thread = thread_id(), at = w.team + AT(TeamSmem, sum) + (16 * (thread >> 5) + (thread >> 2 & 7)) * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.l[h] += __shfl_xor_sync(~0u, w.l[h], 1);
        w.l[h] += __shfl_xor_sync(~0u, w.l[h], 2);
        if ((thread & 3) == 0)
            st_async(at_peer(at + 32 * h), __float_as_uint(w.l[h]), at_peer(w.team + AT(TeamSmem, l_full)));
    }
}

// Number of a row of partial results.
FFPA_DEVICE i64 partial_row(const fwd_pair_args &a, const Tile &t, int row)
{
    return part_row(a.parts, a.seq, a.hq, t.seq, t.head, part_of(t), row);
}

// What O is multiplied by, and LSE.
FFPA_DEVICE void finish_rows(const Math &w, const fwd_pair_args &a, float (&inverse)[2])
{
    const Tile &t = note_at(w.note).tile;
    const u32 thread = thread_id(), at = w.team + AT(TeamSmem, sum) + (16 * (thread >> 5) + (thread >> 2 & 7)) * 4;
    const int row = t.row0 + tile_row();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const RowEnd end = end_row(a.scores, t.head, w.m[h], w.l[h] + lds_f32(at + 32 * h));
        inverse[h] = end.inverse * (FFPA_DROPOUT ? a.dropout.keep_scale : 1.0f);
        const bool part = part_of(t) != ALL_KEYS;
        if (cluster_rank() == 0 && (thread & 3) == 0 && row + 8 * h < t.seq.nq && (part || a.lse.data)) {
            if (part)
                a.parts.lse[partial_row(a, t, row + 8 * h)] = end.lse;
            else
                ((float *)a.lse.data)[t.seq.q_batch * a.lse.sb + t.head * a.lse.sh + (t.seq.q_row + row + 8 * h) * a.lse.sn] = end.lse;
        }
    }
}

// Column of O, and of V, that number n of this CTA's DH is.
FFPA_DEVICE int column_of(int n, int c)
{
    return n < FULL * CHUNK ? c * FULL * CHUNK + n : (FULL * CHUNK + c * HALF) + n;
}

// Normalise and store from registers, 16 bytes a lane after a transpose inside each quad: Q's shared memory is free for the next
// tile long before O is ready.
FFPA_DEVICE void store_o(const Math &w, const fwd_pair_args &a, const float (&inverse)[2])
{
    const Tile &t = note_at(w.note).tile;
    const int row = t.row0 + tile_row(), lane = thread_id() & 3, c = cluster_rank();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u16 *to = row_at(a.o, t.seq.q_batch, t.head, t.seq.q_row + row + 8 * h);
#pragma unroll
        for (int n = 0; n < DH / 32; n++) {
            const float *o = w.o + 16 * n + 2 * h;
            const int column = column_of(32 * n, c) + 8 * lane;
            u32 x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = pack2(o[4 * k] * inverse[h], o[4 * k + 1] * inverse[h]);
            quad_transpose(x, lane);
            if (row + 8 * h < t.seq.nq && (FFPA_DV == DV || column < FFPA_DV)) stg128(to + column, x);
        }
    }
}

// The same of a part: 32 bytes of f32 a quad.
FFPA_DEVICE void store_part(const Math &w, const fwd_pair_args &a, const float (&inverse)[2])
{
    const Tile &t = note_at(w.note).tile;
    const int row = t.row0 + tile_row(), lane = thread_id() & 3, c = cluster_rank();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= t.seq.nq) continue;
        float *to = a.parts.o + partial_row(a, t, row + 8 * h) * FFPA_DV;
#pragma unroll
        for (int n = 0; n < DH / 8; n++) {
            const int column = column_of(8 * n, c) + 2 * lane;
            if (FFPA_DV == DV || column < FFPA_DV)
                element_put2(to, column, F32, w.o[4 * n + 2 * h] * inverse[h], w.o[4 * n + 2 * h + 1] * inverse[h]);
        }
    }
}

// ---- NaN and Inf of keys that a row does not see: row_again ----------------------------------------------------

// Which of the warp's rows of O are not finite? A bit per lane whose columns hold some: rows lane / 4 and lane / 4 + 8.
struct BadRows {
    u32 low, high;
};
FFPA_DEVICE BadRows bad_rows(const Math &w)
{
    float sum[2] = {0.0f, 0.0f}; // NaN and Inf survive a product with 0 and a sum
#pragma unroll
    for (int x = 0; x < DH / 2; x++) sum[x >> 1 & 1] = fmaf(w.o[x], 0.0f, sum[x >> 1 & 1]);
    return {__ballot_sync(~0u, sum[0] != 0.0f), __ballot_sync(~0u, sum[1] != 0.0f)};
}

// Rows whose O is not finite are computed again, unless a key that they see made their sum NaN. O must have been stored.
FFPA_DEVICE void guard(const Math &w, const fwd_pair_args &a, const BadRows &bad, const float (&inverse)[2])
{
    if ((bad.low | bad.high) == 0) return;
    __syncwarp(); // the stores of all lanes before row_again reads them
    const Tile &t = note_at(w.note).tile;
    const int lane = thread_id() & 31, first = t.row0 + tile_row() - (lane >> 2);
    int columns[DH / 32];
#pragma unroll
    for (int x = 0; x < DH / 32; x++) {
        columns[x] = column_of(32 * x, cluster_rank()) + lane;
        if (FFPA_DV != DV && columns[x] >= FFPA_DV) columns[x] = -1;
    }
#pragma unroll 1
    for (int x = 0; x < 16; x++) {
        const u32 lanes = (x < 8 ? bad.low : bad.high) >> 4 * (x & 7) & 15;
        if (lanes == 0 || first + x >= t.seq.nq) continue;
        const float m = __shfl_sync(~0u, x < 8 ? w.m[0] : w.m[1], 4 * (x & 7));
        const RowEnd end = {__shfl_sync(~0u, x < 8 ? inverse[0] : inverse[1], 4 * (x & 7)), 0.0f};
        if (end.inverse != end.inverse) continue;
        if (FFPA_SPLIT)
            row_again(a, t.seq, t.head, first + x, end, m, columns,
                      {a.parts.o + partial_row(a, t, first + x) * FFPA_DV, {t.first * BN, (t.first + t.blocks) * BN}});
        else
            row_again(a, t.seq, t.head, first + x, end, m, columns);
    }
}
