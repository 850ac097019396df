/* cuda_backward.h - backward on sm_80 and newer, in stages that later families can replace one by one:
 *   delta  rowsum(dO * O) - dLSE
 *   pds    recompute S and dP, write P and dS of a chunk to the workspace
 *   renorm with an added mask: rows whose LSE is too coarse for the sum's logarithm
 *   gemm   dV = P^T dO,  dK = dS^T Q,  dQ = dS K
 * Deterministic: no atomics, sums in one order. The workspace is bounded by walking the problem in chunks
 * of kv groups, else of heads of a group, else of lines of query tiles. */
#ifndef FFPA_CUDA_BACKWARD_H
#define FFPA_CUDA_BACKWARD_H

#include "common/args.h"
#include "cuda/config.h"
#include "cuda/families.h"

/* Places in the workspace, in bytes; a part that is not needed has no size. */
typedef struct backward_layout {
    size_t delta, p, ds, dbias, dk_partial, dv_partial, dmask_partial, tickets, bytes;
} backward_layout;

typedef struct backward_choice {
    int64_t ld;      /* keys of a row of P and dS */
    int lines;       /* lines of 128 query rows, of one head over all sequences */
    int key_lines;   /* the same of keys */
    int heads, rows; /* of a chunk: query heads, lines (at most so many, with `room`) */
    uint64_t
        room; /* not 0: chunks of as many lines as have at most this area, for early rows see few keys */
    int first,
        growth; /* not 0: each line has its own width in P and dS (k_stairs); dense, sm90 only */
    int pds_rows; /* of a block of the pds kernel */
    int pds_keys; /* sm90: of a tile of it */
    bool partial; /* a kv head takes several chunks */
    bool dmask_partial;
    uint64_t dk_sums, dv_sums; /* bytes of a kv head's partial sums, were they needed */
    int delta, pds, renorm, dv, dk, dq, dmask,
        dsink;                              /* index of each kernel, -1 = not needed */
    int dv_columns, dk_columns, dq_columns; /* of a tile of each product */
    backward_layout at;
} backward_choice;

/* What every stage of one run needs. */
typedef struct backward_pass {
    const problem *prob;
    const cuda_plan *own;
    const backward_choice *x;
    const call *c;
    char *workspace;
    const k_map *maps; /* of a family that takes tensor maps */
    k_sequences seq;
    k_scores scores;
    k_dropout dropout;
    int hq, hk, group;
    k_chunk chunk;
    bool opens, closes; /* does this chunk begin, finish its kv heads? */
    bool first, last;   /* of the call */
} backward_pass;

/* The stages that differ between families. */
typedef struct backward_stages {
    ffpa_status (*pds)(const backward_pass *r);
    ffpa_status (*products)(const backward_pass *r);
} backward_stages;

/* Lines and ld; no kernels yet. */
void backward_start(const problem *p, backward_choice *x);

/* Bytes of P, dS and the mask's gradient for one head, one line and one key; keys that lines t0.. of a head take in
 * all; bytes for P, dS and partial sums. */
uint64_t backward_line_bytes(const problem *p);
uint64_t backward_area(const problem *p, const backward_choice *x, int t0, int lines);
uint64_t backward_budget(const problem *p);

/* Lines of the chunk that begins with line t0; keys of a row of its P and dS. */
int backward_lines_from(const problem *p, const backward_choice *x, int t0);
int64_t backward_keys_of(const problem *p, const backward_choice *x, int t0, int lines);

/* Where the blocks of P and dS of a chunk are (sm90). */
k_stairs backward_stairs(const backward_pass *r);

/* The largest chunk that fits. Then the layout, and the kernels that all families share, whose blocks must fit a
 * grid. */
void backward_choose_chunk(const problem *p, backward_choice *x);
void backward_choose_layout(const problem *p, backward_choice *x);
ffpa_status backward_add_shared(variant_list *list, const problem *p, const cuda_device *device,
                                backward_choice *x);

/* The renorm kernel where the problem needs one. `blocks`: P and dS lie in blocks, not in rows. */
ffpa_status backward_add_renorm(variant_list *list, const problem *p, const cuda_device *device,
                                backward_choice *x, bool blocks);

/* Blocks of each kernel: of delta, of the mask's gradient, then for a chunk, of kv heads, of columns in tiles of bn. */
int64_t backward_delta_blocks(const problem *p);
int64_t backward_dmask_blocks(const problem *p);
int64_t backward_pds_blocks(const backward_choice *x, const k_chunk *chunk);
int64_t backward_renorm_blocks(const k_chunk *chunk);
int64_t backward_keys_blocks(const backward_choice *x, int64_t kv_heads, int64_t columns,
                             int bn);
int64_t backward_rows_blocks(const backward_choice *x, const k_chunk *chunk, int64_t columns);

/* May delta read o and dout 16 bytes at a time? */
bool backward_delta_aligned(const problem *p);

/* Bytes of a part with the gap behind it. */
size_t backward_padded(uint64_t bytes);

/* What a run is about; delta and the gradient of sinks are enqueued. `own`'s choice begins with a backward_choice. */
ffpa_status backward_begin(backward_pass *r, const ffpa_plan *plan, const cuda_plan *own,
                           const call *c, char *workspace, const k_map *maps);

/* Enqueue everything, chunk by chunk. */
ffpa_status backward_enqueue(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                             char *workspace, const backward_stages *stages, const k_map *maps);

/* ---- family sm80 ---- */

bool backward_supports(const problem *p, const cuda_device *device, char *why,
                       size_t why_bytes);
ffpa_status backward_choose(const problem *p, const cuda_device *device, void *choice,
                            variant_list *kernels, ffpa_report *report);
ffpa_status backward_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                         char *workspace);

#endif
