/* scores_exact.c - scores in f64, for rows whose scores are large.
 *
 * An f32 score s is off by about 2^-24 |s|, and by the roundings of its sum: a factor on P that grows with |s|,
 * and that rows where few keys matter show in full. Products of two f32 are exact in f64, so here
 * only s - base is rounded to f32, after the subtraction: the score leaves as two floats, s + low, and
 * (s - base) + (low - base_low) is right to an f32's last place near the base, where P is large. */
#include "cpu/simd/scores.h"

#include <math.h>

enum { KEYS = 3, VECTORS = 2 * NR / VL }; /* accumulators fit in 16 registers */

/* <q, k> of KEYS keys and the lanes of a panel. */
static void dots(const float *const k[KEYS], const float *q, ptrdiff_t d, double x[KEYS][NR])
{
    vd sum[KEYS][VECTORS];
    UNROLL for (int i = 0; i < KEYS * VECTORS; i++) sum[i / VECTORS][i % VECTORS] = vdset(0);
    for (ptrdiff_t c = 0; c < d; c++) {
        vd b[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) b[v] = vwiden(q + c * NR + v * VL / 2);
        UNROLL for (int i = 0; i < KEYS; i++)
        {
            const vd a = vdset((double)k[i][c]);
            UNROLL for (int v = 0; v < VECTORS; v++) sum[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < KEYS; i++)
        UNROLL for (int v = 0; v < VECTORS; v++) vdstore(x[i] + v * VL / 2, sum[i][v]);
}

static void cap(const scores *sc, const exact_part *part, double *x, float *tanhs)
{
    for (int r = 0; r < NR; r++) {
        if (!part->lanes[r]) continue;
        const double t = tanh(x[r] / (double)sc->softcap);
        if (tanhs) tanhs[r] = (float)t;
        x[r] = (double)sc->softcap * t;
    }
}

/* As scores_apply, for key j, but without the cap. */
static void bias_and_ranges(const scores *sc, int lane0, ptrdiff_t j, double *x)
{
    const row_block *rb = sc->rb;
    const int64_t key = sc->j0 + j;
    for (int r = 0; r < NR && sc->alibi; r++) {
        const int64_t distance = rb->query[lane0 + r] + rb->s->nk - rb->s->nq - key;
        x[r] -= (double)sc->slope[lane0 + r] * fabs((double)distance);
    }
    for (int r = 0; r < NR && sc->bias; r++) {
        const float b = sc->bias[(ptrdiff_t)lane0 * MAX_KEYS + j * NR + r];
        x[r] = b == -INFINITY ? -(double)INFINITY : x[r] + (double)b;
    }
    for (int r = 0; r < NR && sc->ranged; r++)
        if (key < rb->from[lane0 + r] || key >= rb->to[lane0 + r]) x[r] = -(double)INFINITY;
}

/* The wanted lanes of x in two floats. Infinity and NaN have nothing to add. */
static void split(const exact_part *part, ptrdiff_t j, const double *x)
{
    float *s = part->s + j * NR, *low = part->low + j * part->ld_low;
    for (int r = 0; r < NR; r++) {
        const float high = (float)x[r], rest = (float)(x[r] - (double)high);
        low[r] = part->lanes[r] && fabsf(high) < INFINITY ? rest : 0.0f;
        s[r] = part->lanes[r] ? high : s[r];
    }
}

void scores_exact(const scores *sc, int lane0, const exact_part *part)
{
    const double scale = call_scale(sc->rb->c);
    const tile_part at = part->at;
    for (ptrdiff_t j0 = 0; j0 < at.n; j0 += KEYS) {
        const ptrdiff_t n = at.n - j0 < KEYS ? at.n - j0 : KEYS;
        const float *k[KEYS];
        double x[KEYS][NR];
        for (ptrdiff_t i = 0; i < KEYS; i++) /* past the end the last one again */
            k[i] = part->k + (j0 + (i < n ? i : n - 1)) * part->ld_k;
        dots(k, part->q, part->d, x);
        for (ptrdiff_t i = 0; i < n; i++) {
            for (int r = 0; r < NR; r++)
                x[i][r] *= scale;
            if (sc->softcap > 0)
                cap(sc, part, x[i], part->tanhs ? part->tanhs + (j0 + i) * NR : NULL);
            bias_and_ranges(sc, lane0, at.first + j0 + i, x[i]);
            split(part, j0 + i, x[i]);
        }
    }
}
