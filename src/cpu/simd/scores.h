/* scores.h - what happens to a tile of Q K^T before the softmax, written once for forward, decode
 * and backward: softcap, bias, mask, ALiBi, causal and window ranges; and dropout after it.
 *
 *   x = scale <q, k>    t = c tanh(x / c)    s = t + bias - slope |i + Nk - Nq - j|
 *   s = -inf where the key is not allowed
 *
 * Scores are in natural units. A tile is keys x lanes, S^T: element (key, lane) of a panel of NR lanes
 * is s[key * NR + lane]. Excluding a key overwrites its score whatever it was, NaN included. */
#ifndef FFPA_CPU_SIMD_SCORES_H
#define FFPA_CPU_SIMD_SCORES_H

#include "core/dropout.h"
#include "cpu/simd/matrix.h"
#include "cpu/simd/rows.h"

enum { MAX_KEYS = HAS_MATRIX ? 256 : 192 }; /* keys of a tile */

typedef enum tile_kind {
    TILE_EMPTY,  /* no lane may see any key: nothing to do */
    TILE_PLAIN,  /* every lane sees every key, and s = <q, k> */
    TILE_SCALED, /* every lane sees every key, and s = factor * <q, k> */
    TILE_SCORED, /* every lane sees every key */
    TILE_MASKED  /* some lane may not see some key */
} tile_kind;

typedef struct scores {
    const row_block *rb;
    float softcap; /* 0 = off */
    float factor;  /* scale, or scale / softcap */
    bool dropout;
    dropout_key key;
    float slope[MAX_ROWS]; /* ALiBi, with `alibi` */
    bool alibi;
    float
        *bias; /* [lanes / NR][MAX_KEYS][NR]: the tile's mask as numbers; NULL without a mask */

    int64_t j0; /* the tile that scores_tile prepared: keys j0 .. j0 + n - 1 */
    ptrdiff_t n;
    bool ranged; /* causal or window cuts through it */
} scores;

/* Floats of scratch for `bias`: 0 without a mask. */
#define scores_scratch ISA_NAME(scores_scratch)
size_t scores_scratch(const ffpa_problem *ask, int lanes);

/* Start on a block of rows; `scratch` is scores_scratch() floats. */
#define scores_begin ISA_NAME(scores_begin)
void scores_begin(scores *sc, const row_block *rb, float *scratch);

/* Prepare keys j0 .. j0 + n - 1, n <= MAX_KEYS: read the mask, find out what kind of tile it is. */
#define scores_tile ISA_NAME(scores_tile)
tile_kind scores_tile(scores *sc, int64_t j0, ptrdiff_t n);

/* Keys first .. first + n - 1 of a tile. */
typedef struct tile_part {
    ptrdiff_t first, n;
    bool ranged; /* causal or window cuts through them */
} tile_part;

/* bf16 of whole words, or of whole tiles of them. */
enum { PART_STEP = HAS_MATRIX ? 2 * MATRIX_EDGE : 2 };

/* The whole tile, and what of it some lane of the panel at lane0 may see as far as causal and window go:
 * its start is a multiple of PART_STEP, n = 0 if nothing. */
INLINE tile_part scores_whole(const scores *sc) { return (tile_part){0, sc->n, sc->ranged}; }
#define scores_part ISA_NAME(scores_part)
tile_part scores_part(const scores *sc, int lane0);

/* Turn <q, k> into scores, in place, for lanes lane0 .. lane0 + NR - 1; s is where the part's first key is.
 * With softcap and `tanhs` not NULL, t / c of each element goes there: the derivative of the cap is
 * 1 - (t / c)^2. */
#define scores_apply ISA_NAME(scores_apply)
void scores_apply(const scores *sc, int lane0, tile_part part, float *s, float *tanhs);

/* For scores_exact: a panel of the tile. */
typedef struct exact_part {
    tile_part at;
    const float *k; /* the part's keys, rows ld_k apart */
    ptrdiff_t ld_k;
    const float *q; /* [d][NR] */
    ptrdiff_t d;
    const int32_t *lanes; /* all bits set, or none: the lanes that are wanted */
    float *s;             /* [n][NR], after scores_apply */
    float *low;           /* [n][ld_low] */
    ptrdiff_t ld_low;
    float *tanhs; /* as scores_apply; NULL = not wanted */
} exact_part;

/* The part's scores in f64, as s + low, for the lanes wanted; of the others s stays and low is 0. See
 * scores_exact.c. */
#define scores_exact ISA_NAME(scores_exact)
void scores_exact(const scores *sc, int lane0, const exact_part *part);

/* Which of VL lanes from lane0 on may see key j0 + j of the tile: all bits set, or none. */
#define scores_allowed ISA_NAME(scores_allowed)
vi scores_allowed(const scores *sc, int lane0, ptrdiff_t j);

/* Dropout factors of the part's elements, keep / (1 - p), for lanes lane0 .. lane0 + NR - 1. */
#define scores_keep ISA_NAME(scores_keep)
void scores_keep(const scores *sc, int lane0, tile_part part, float *keep);

#endif
