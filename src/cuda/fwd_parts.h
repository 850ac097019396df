/* fwd_parts.h - whether tiles of a Hopper forward have their keys cut into parts (kernels/sm90/parts_sm90.cuh), into how many, and
 * the launch that joins them. */
#ifndef FFPA_CUDA_FWD_PARTS_H
#define FFPA_CUDA_FWD_PARTS_H

#include "common/args.h"
#include "cuda/config.h"
#include "cuda/families.h"

/* A family's tiles, and what they take. */
typedef struct parts_ask {
    int64_t tiles;   /* of all heads */
    int workers;     /* that compute a tile at a time each */
    int bm, bn;      /* rows of a tile, keys of a block */
    int least;       /* blocks of a part */
    double block_us; /* of a block of keys */
    double item_us;  /* of a tile, or part of one, besides */
} parts_ask;

typedef struct parts_choice {
    int splits;           /* parts of a tile, 1 = none is cut */
    int whole;            /* tiles that are not cut, the first ones */
    int64_t first_row;    /* of head * total_q + row: rows before it are in those */
    int64_t items;        /* tiles and parts together */
    size_t lse_at, bytes; /* of partial results: where LSE begins, all */
    double us;            /* estimate */
} parts_choice;

/* With parts a family is for all but decode: a tile of few rows is mostly padding
 * (docs/design/0011-forward-on-pairs-of-blocks.md). */
bool parts_prefer(const problem *p, const cuda_device *device, char *why, size_t why_bytes);

parts_choice parts_choose(const problem *p, const parts_ask *ask);

/* Where partial results are in the workspace; bytes of it with them. */
enum { PARTS_AT = 256 };
size_t parts_workspace(const parts_choice *x, size_t without);

/* The problem of the kernel that makes them: the sink counts once, where they are joined. */
problem parts_problem(const problem *p, const parts_choice *x);

/* The kernel that joins them: last of the list, where there is something to join. */
void parts_add_kernel(variant_list *list, const problem *p, const cuda_device *device,
                      const parts_choice *x);

k_parts parts_args(const parts_choice *x, char *workspace);
ffpa_status parts_join(const parts_choice *x, const cuda_plan *own, const call *c,
                       const k_sequences *seq, char *workspace);

#endif
