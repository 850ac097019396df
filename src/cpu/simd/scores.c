/* scores.c - score modification on tiles; see scores.h. */
#include "cpu/simd/scores.h"

#include <math.h>

size_t scores_scratch(const ffpa_problem *ask, int lanes)
{
    return ask->mask_dtype ? (size_t)lanes * MAX_KEYS : 0;
}

static void dropout_begin(scores *sc, const ffpa_dropout *d)
{
    sc->dropout = d != NULL;
    if (!d) return;
    sc->key = dropout_key_make(d->p, d->seed_ptr ? *d->seed_ptr : d->seed,
                               d->offset_ptr ? *d->offset_ptr : d->offset);
}

void scores_begin(scores *sc, const row_block *rb, float *scratch)
{
    const ffpa_forward_params *f = &rb->c->f;
    sc->rb = rb;
    sc->softcap = f->softcap > 0 ? f->softcap : 0;
    sc->factor = (float)(call_scale(rb->c) / (sc->softcap > 0 ? (double)sc->softcap : 1.0));
    sc->bias = f->mask.data ? scratch : NULL;
    sc->alibi = f->alibi.data != NULL;
    dropout_begin(sc, f->dropout);
    for (int r = 0; r < rb->lanes && sc->alibi; r++) {
        const int64_t b = f->alibi.shape[0] == 1 ? 0 : rb->b;
        sc->slope[r] =
            ((const float *)
                 f->alibi.data)[b * f->alibi.stride[0] + rb->head[r] * f->alibi.stride[1]];
    }
}

/* Address of mask element (lane, j0); axes of 1 are broadcast. */
static const void *mask_row(const scores *sc, int lane)
{
    const ffpa_tensor *m = &sc->rb->c->f.mask;
    const int64_t at[4] = {sc->rb->b, sc->rb->head[lane], sc->rb->query[lane], sc->j0};
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++)
        if (m->shape[axis] != 1) offset += at[axis] * m->stride[axis];
    return (const char *)m->data + offset * (int64_t)dtype_bytes(m->dtype);
}

/* Read one panel of the mask into `bias`. */
static void mask_read(const scores *sc, int lane0, float *bias)
{
    const ffpa_tensor *m = &sc->rb->c->f.mask;
    const int64_t stride = m->shape[3] != 1 ? m->stride[3] : 0;
    const void *before = NULL;
    float row[MAX_KEYS];
    for (int r = 0; r < NR; r++) {
        const void *p = mask_row(sc, lane0 + r);
        if (r == 0 || p != before) row_load(row, p, m->dtype, stride, sc->n);
        before = p;
        for (ptrdiff_t j = 0; j < sc->n; j++)
            bias[j * NR + r] = row[j];
    }
}

/* What a panel's mask does: 0 excludes all, 1 excludes none, 2 some. */
static int mask_kind(const float *bias, ptrdiff_t n)
{
    const vf removed = vset(-INFINITY);
    vi all = viset(-1), any = viset(0);
    for (ptrdiff_t i = 0; i < n * NR; i += VL) {
        const vi out = vload(bias + i) == removed;
        all &= out;
        any |= out;
    }
    return !vany(any) ? 1 : !vany(~all) ? 0 : 2;
}

tile_kind scores_tile(scores *sc, int64_t j0, ptrdiff_t n)
{
    const row_block *rb = sc->rb;
    bool empty = true;
    sc->j0 = j0;
    sc->n = n;
    sc->ranged = false;
    for (int r = 0; r < rb->lanes; r++) {
        empty = empty && (rb->from[r] >= j0 + n || rb->to[r] <= j0 || rb->from[r] >= rb->to[r]);
        sc->ranged = sc->ranged || rb->from[r] > j0 || rb->to[r] < j0 + n;
    }
    if (empty) return TILE_EMPTY;
    bool masked = sc->ranged;
    if (sc->bias) {
        empty = true;
        for (int p = 0; p < rb->lanes; p += NR) {
            float *bias = sc->bias + (ptrdiff_t)p * MAX_KEYS;
            mask_read(sc, p, bias);
            const int kind = mask_kind(bias, n);
            empty = empty && kind == 0;
            masked = masked || kind != 1;
        }
        if (empty) return TILE_EMPTY;
    }
    if (masked) return TILE_MASKED;
    if (sc->bias || sc->alibi || sc->softcap > 0) return TILE_SCORED;
    return sc->factor == 1.0f ? TILE_PLAIN : TILE_SCALED;
}

static void apply_softcap(const scores *sc, ptrdiff_t n, float *s, float *tanhs)
{
    const vf c = vset(sc->softcap), factor = vset(sc->factor);
    for (ptrdiff_t i = 0; i < n * NR; i += VL) {
        const vf t = vtanh(vload(s + i) * factor);
        if (tanhs) vstore(tanhs + i, t);
        vstore(s + i, c * t);
    }
}

static void apply_factor(const scores *sc, ptrdiff_t n, float *s)
{
    const vf factor = vset(sc->factor);
    for (ptrdiff_t i = 0; i < n * NR; i += VL)
        vstore(s + i, vload(s + i) * factor);
}

static void apply_bias(const scores *sc, int lane0, tile_part part, float *s)
{
    const float *bias = sc->bias + (ptrdiff_t)lane0 * MAX_KEYS + part.first * NR;
    const vf removed = vset(-INFINITY);
    for (ptrdiff_t i = 0; i < part.n * NR; i += VL) {
        const vf b = vload(bias + i);
        vstore(s + i, vselect(b == removed, removed, vload(s + i) + b));
    }
}

static void apply_alibi(const scores *sc, int lane0, tile_part part, float *s)
{
    const row_block *rb = sc->rb;
    const int64_t j0 = sc->j0 + part.first;
    for (int half = 0; half < NR; half += VL) {
        const vf slope = vload(sc->slope + lane0 + half);
        vf distance; /* exact up to 2^24 keys apart */
        for (int r = 0; r < VL; r++)
            distance[r] = (float)(rb->query[lane0 + half + r] + rb->s->nk - rb->s->nq - j0);
        for (ptrdiff_t j = 0; j < part.n; j++) {
            float *p = s + j * NR + half;
            vstore(p, vload(p) - slope * vabs(distance));
            distance -= vset(1.0f);
        }
    }
}

vi scores_allowed(const scores *sc, int lane0, ptrdiff_t j)
{
    const row_block *rb = sc->rb;
    const int64_t key = sc->j0 + j;
    vi allowed;
    for (int r = 0; r < VL; r++)
        allowed[r] = key >= rb->from[lane0 + r] && key < rb->to[lane0 + r] ? -1 : 0;
    if (!sc->bias) return allowed;
    const int panel = lane0 / NR * NR;
    const float *bias = sc->bias + (ptrdiff_t)panel * MAX_KEYS + j * NR + lane0 % NR;
    return allowed & ~(vload(bias) == vset(-INFINITY));
}

tile_part scores_part(const scores *sc, int lane0)
{
    const row_block *rb = sc->rb;
    const int64_t end = sc->j0 + sc->n;
    int64_t first = end, last = sc->j0, from = sc->j0, to = end;
    if (!sc->ranged) return scores_whole(sc);
    for (int r = lane0; r < lane0 + NR;
         r++) { /* the union of the lanes' ranges, and what all of them see */
        if (rb->from[r] < rb->to[r]) {
            first = rb->from[r] < first ? rb->from[r] : first;
            last = rb->to[r] > last ? rb->to[r] : last;
        }
        from = rb->from[r] > from ? rb->from[r] : from;
        to = rb->to[r] < to ? rb->to[r] : to;
    }
    first = first < sc->j0 ? sc->j0 : first - (first - sc->j0) % PART_STEP;
    last = last > end ? end : last;
    if (first >= last) return (tile_part){0, 0, true};
    return (tile_part){first - sc->j0, last - first, from > first || to < last};
}

static int32_t clamp_key(int64_t j, ptrdiff_t n)
{
    return (int32_t)(j < 0 ? 0 : j > n ? n : j);
}

static void apply_ranges(const scores *sc, int lane0, tile_part part, float *s)
{
    const row_block *rb = sc->rb;
    const int64_t j0 = sc->j0 + part.first;
    for (int half = 0; half < NR; half += VL) {
        vi from, to;
        for (int r = 0; r < VL; r++) {
            from[r] = clamp_key(rb->from[lane0 + half + r] - j0, part.n);
            to[r] = clamp_key(rb->to[lane0 + half + r] - j0, part.n);
        }
        for (ptrdiff_t j = 0; j < part.n; j++) {
            const vi key = viset((int32_t)j), seen = (key >= from) & (key < to);
            float *p = s + j * NR + half;
            vstore(p, vselect(seen, vload(p), vset(-INFINITY)));
        }
    }
}

void scores_apply(const scores *sc, int lane0, tile_part part, float *s, float *tanhs)
{
    if (sc->softcap > 0)
        apply_softcap(sc, part.n, s, tanhs);
    else
        apply_factor(sc, part.n, s);
    if (sc->alibi) apply_alibi(sc, lane0, part, s);
    if (sc->bias) apply_bias(sc, lane0, part, s);
    if (part.ranged) apply_ranges(sc, lane0, part, s);
}

/* Philox as core/dropout.c has it, a lane per query row; the four words are four neighbouring keys. */
static void philox_lanes(const dropout_key *key, vu counter[4])
{
    vu k0 = vuset(key->key[0]), k1 = vuset(key->key[1]);
    for (int round = 0; round < 10; round++) {
        vu high0, high1;
        const vu low0 = vmul_wide(counter[0], 0xD2511F53u, &high0);
        const vu low1 = vmul_wide(counter[2], 0xCD9E8D57u, &high1);
        counter[0] = high1 ^ counter[1] ^ k0;
        counter[1] = low1;
        counter[2] = high0 ^ counter[3] ^ k1;
        counter[3] = low0;
        k0 += vuset(0x9E3779B9u);
        k1 += vuset(0xBB67AE85u);
    }
}

void scores_keep(const scores *sc, int lane0, tile_part part, float *keep)
{
    const int64_t j0 = sc->j0 + part.first;
    const row_block *rb = sc->rb;
    const int64_t heads = rb->c->f.q.shape[1];
    const vf kept = vset(sc->key.keep_scale);
    const vu threshold = vuset((uint32_t)sc->key.threshold);
    const vi none = viset(sc->key.threshold >> 32 ? 0 : -1); /* p = 1 keeps nothing */
    for (int half = 0; half < NR; half += VL) {
        vu query, head;
        for (int r = 0; r < VL; r++) {
            query[r] = (uint32_t)rb->query[lane0 + half + r];
            head[r] = (uint32_t)(rb->b * heads + rb->head[lane0 + half + r]);
        }
        for (int64_t four = j0 / 4; four * 4 < j0 + part.n; four++) {
            vu word[4] = {vuset((uint32_t)four), query, head, vuset(sc->key.offset)};
            philox_lanes(&sc->key, word);
            for (int w = 0; w < 4; w++) {
                const int64_t j = four * 4 + w - j0;
                if (j < 0 || j >= part.n) continue;
                const vi keeps = (vi)(word[w] >= threshold) & none;
                vstore(keep + j * NR + half, vbits(keeps & vint(kept)));
            }
        }
    }
}
