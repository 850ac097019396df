/* backward.h - gradients with query rows as lanes: what its files share. With S^T, P^T, dX^T as keys x
 * rows tiles, lse and delta per lane,
 *
 *   S^T = K Q^T   dP^T = V dO^T   P = e^(S - lse)   dS = P (keep dP - delta)   dX = dS (1 - (t/c)^2)
 *   dQ^T += K^T dX^T       dV += (keep P)^T dO       dK += dX^T Q       dQ, dK times scale when stored
 *
 * Who owns which sum, so that no result depends on threads:
 *   keys pass   a piece owns every `parts`-th chunk of keys of one (sequence, key head): it goes over
 *               all query rows of the group, dK and dV of the chunk in its scratch
 *   rows pass   a piece owns a block of query rows and goes over all keys: dQ in its scratch
 *   mask pass   a piece owns a rectangle of dMask and goes over all that shares it
 * When dQ is wanted beside dK or dV and there is workspace for it, the keys pass also leaves one dQ
 * per part, which are then added in order: five products instead of seven. */
#ifndef FFPA_CPU_SIMD_BACKWARD_H
#define FFPA_CPU_SIMD_BACKWARD_H

#include "core/plan.h"
#include "cpu/simd/scores.h"

#include <math.h>

enum { MAX_CHUNK = 512 };

/* Tiles and passes of a problem, from its shape and workspace limit alone. */
typedef struct backward_plan {
    int bm, bn;      /* rows of a block, keys of a tile */
    int chunk;       /* keys that are in scratch at a time; a multiple of bn */
    ptrdiff_t d, dv; /* columns, and the same padded to whole panels */
    ptrdiff_t d_pad, dv_pad;
    ptrdiff_t ld_k, ld_v;               /* row strides of K, dK and V, dV in scratch */
    ptrdiff_t ld_p;                     /* row stride of P^T and dX^T */
    size_t bias, keep, tanhs, mask_sum; /* floats of optional scratch */
    bool fused;                         /* dQ comes from the keys pass */
    int64_t parts;                      /* of the keys, for the keys pass */
    int64_t units; /* fused: independent dQ's; a key head of a sequence, or of all packed */
    int64_t unit_sequences; /* sequences in a unit */
    int64_t unit_blocks;    /* blocks of rows in a unit, at most */
} backward_plan;

#define backward_plan_of ISA_NAME(backward_plan_of)
backward_plan backward_plan_of(const problem *p);

/* Scratch of one worker: cut from the workspace. Panels are [lanes / NR][columns][NR]. */
typedef struct backward_scratch {
    float *k, *v, *dk, *dv;        /* [chunk][ld] */
    float *q, *dout;               /* [bm][ld]; ld of k and v */
    float *q_panels, *dout_panels; /* the same with lanes as rows */
    float *s, *dp;                 /* [bm / NR][bn][NR] */
    float *p, *dx;                 /* [bn][ld_p] */
    float *dq;                     /* panels */
    float *row;                    /* one row */
    float *bias, *keep, *tanhs;
    double *mask_sum; /* sums over thousands of rows, some of them: f32 would round each step */
} backward_scratch;

#define backward_scratch_bytes ISA_NAME(backward_scratch_bytes)
size_t backward_scratch_bytes(const backward_plan *t);

#define backward_scratch_at ISA_NAME(backward_scratch_at)
backward_scratch backward_scratch_at(const backward_plan *t, void *memory);

/* Rows whose LSE has a larger magnitude take their sums from backward's own scores (backward_stats.c), and f32
 * problems add up those scores in f64 (scores_exact.c). */
INLINE bool lse_is_large(float lse) { return fabsf(lse) > 16 && fabsf(lse) < INFINITY; }

/* What passes need of a row: P = e^(s - base) norm, the base being base + base_low. */
typedef struct row_stat {
    float base, base_low, norm, delta;
} row_stat;

/* Sums over the keys of each lane, from exponentials whose base is the largest score so far. */
typedef struct row_sums {
    float top[MAX_ROWS];             /* that score, */
    float top_low[MAX_ROWS];         /* and what its f32 lacks, of exact rows */
    float p[MAX_ROWS], ds[MAX_ROWS]; /* sums of e^(s - top) and of dS */
    float k_norm[MAX_ROWS];          /* the largest |k| among keys with a weight */
} row_sums;

/* One call, as all pieces see it. */
typedef struct backward_job {
    const call *c;
    const ffpa_problem *ask;
    backward_plan t;
    int64_t sequences, hq, hk, group;
    int64_t longest_q, longest_k; /* over all sequences */
    float scale;
    row_stat *stats;     /* [q's batch, Hq, q's rows] */
    float *dq;           /* fused: [parts][wave][unit_blocks] panels */
    int64_t wave, unit0; /* units of dq, the first of which is unit0 */
    char *scratch;
    size_t scratch_bytes; /* of one worker */
} backward_job;

#define backward_stat ISA_NAME(backward_stat)
row_stat *backward_stat(const backward_job *job, const sequence *s, int64_t h, int64_t i);

/* What one worker is doing now: a chunk of keys, a block of rows, a tile. */
typedef struct backward_work {
    const backward_job *job;
    backward_scratch m;
    sequence seq;
    int64_t at[2]; /* sequence and key head */

    int64_t chunk0; /* first key in scratch */
    ptrdiff_t keys;
    bool odd_v;   /* V is not finite somewhere */
    int odd_keys; /* keys whose K is not finite */
    int16_t odd_key[MAX_CHUNK];

    row_block rb;
    scores sc;
    bool dead_lanes; /* are there lanes past the last row, or rows without keys? */
    int32_t live[MAX_ROWS];
    float lse[MAX_ROWS]; /* as given */
    int32_t
        exact[MAX_ROWS]; /* is the row's score the sum of two floats? all bits set, or none */
    float base[MAX_ROWS], base_low[MAX_ROWS], norm[MAX_ROWS], delta[MAX_ROWS];
    bool odd_rows;       /* a row's base or delta is not finite */
    row_sums *sums;      /* where wanted: backward_tile then keeps their base */
    int odd_q, odd_dout; /* rows of Q, dO that are not finite */
    int16_t odd_q_row[MAX_ROWS], odd_dout_row[MAX_ROWS];
} backward_work;

/* ---- backward_load.c ---- */

#define backward_work_begin ISA_NAME(backward_work_begin)
void backward_work_begin(backward_work *w, const backward_job *job, int worker);

#define backward_sequence ISA_NAME(backward_sequence)
void backward_sequence(backward_work *w, int64_t b, int64_t hk);

/* Keys chunk0 .. chunk0 + n - 1 of K and V into scratch. */
#define backward_load_chunk ISA_NAME(backward_load_chunk)
void backward_load_chunk(backward_work *w, int64_t chunk0, ptrdiff_t n);

/* Make packed rows row0 .. row0 + rows - 1 of the sequence, rows <= bm, the block, with the lse of each lane.
 * A row whose lse is -inf has no keys: it is as dead as a lane past the last row. */
#define backward_set_block ISA_NAME(backward_set_block)
void backward_set_block(backward_work *w, int64_t row0, int rows);

/* The block's rows of Q, dO or O as f32, 0 for dead lanes: as rows `ld` apart, then as panels. */
#define backward_load_lanes ISA_NAME(backward_load_lanes)
void backward_load_lanes(const backward_work *w, const ffpa_tensor *t, float *rows,
                         ptrdiff_t ld, float *panels);

/* Both: all that tiles need of these rows. */
#define backward_load_block ISA_NAME(backward_load_block)
void backward_load_block(backward_work *w, int64_t row0, int rows);

/* ---- backward_tile.c ---- */

/* What a tile leaves in p and dx. */
typedef enum tile_want {
    WANT_KEPT_DX, /* (keep P)^T and dX^T, for the products */
    WANT_P_DS     /* P^T and dS^T, for sums over rows and keys */
} tile_want;

/* Do that for keys j0 .. j0 + n - 1 of the chunk against the block. False if no row may see any of them:
 * nothing was computed. */
#define backward_tile ISA_NAME(backward_tile)
bool backward_tile(backward_work *w, int64_t j0, ptrdiff_t n, tile_want want);

/* Add that tile to dQ (panels of the block) or to dK and dV of the chunk. */
#define backward_add_dq ISA_NAME(backward_add_dq)
void backward_add_dq(backward_work *w, float *dq);
#define backward_add_dkdv ISA_NAME(backward_add_dkdv)
void backward_add_dkdv(backward_work *w);

/* Write the panels of packed rows row0 .. row0 + rows - 1 to dQ, times scale. */
#define backward_store_dq ISA_NAME(backward_store_dq)
void backward_store_dq(backward_work *w, int64_t row0, int rows, float *dq);

/* ---- the passes ---- */

#define backward_stats_pass ISA_NAME(backward_stats_pass)
void backward_stats_pass(backward_job *job, pool *workers); /* and dSink */
#define backward_keys_pass ISA_NAME(backward_keys_pass)
void backward_keys_pass(backward_job *job, pool *workers);
#define backward_rows_pass ISA_NAME(backward_rows_pass)
void backward_rows_pass(backward_job *job, pool *workers);
#define backward_mask_pass ISA_NAME(backward_mask_pass)
void backward_mask_pass(backward_job *job, pool *workers);

/* ---- backward.c: as the members of `backend` ---- */

#define cpu_plan_backward ISA_NAME(cpu_plan_backward)
ffpa_status cpu_plan_backward(struct ffpa_plan *plan);
#define cpu_backward ISA_NAME(cpu_backward)
ffpa_status cpu_backward(const struct ffpa_plan *plan, const call *c, void *workspace);

#endif
