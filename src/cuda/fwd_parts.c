/* fwd_parts.c - choosing parts of the keys by a small model of time, and joining them. */
#include "cuda/fwd_parts.h"

#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- what tiles take ------------------------------------------------------------------------------- */

/* Blocks of keys of a tile. */
typedef struct tile_blocks {
    double longest, mean;
} tile_blocks;

static double blocks_between(const ffpa_problem *a, const parts_ask *ask, int64_t nq,
                             int64_t nk, int64_t row)
{
    const int64_t last = row + ask->bm < nq ? row + ask->bm - 1 : nq - 1;
    const int64_t from = key_range_of(a, nq, nk, row).first / ask->bn;
    const int64_t to = ceil_div(key_range_of(a, nq, nk, last).last, ask->bn);
    return to > from ? (double)(to - from) : 1;
}

/* Sequences whose lengths are not known here count as equally long. Of many tiles a sample is enough. */
static tile_blocks blocks_of(const problem *p, const parts_ask *ask)
{
    enum { SAMPLE = 128 };
    const ffpa_problem *a = &p->ask;
    const int64_t batch = a->b > 0 ? a->b : 1;
    const int64_t nq = p->sources & VARLEN_Q ? ceil_div(p->total_q, batch) : a->nq;
    const int64_t nk = p->sources & VARLEN_K ? ceil_div(p->total_k, batch) : a->nk;
    if (!macro_range(p)) {
        const double all = (double)ceil_div(nk, ask->bn);
        return (tile_blocks){all, all};
    }
    const int64_t lines = ceil_div(nq, ask->bm), step = ceil_div(lines, SAMPLE);
    tile_blocks x = {1, 0};
    int count = 0;
    for (int64_t line = lines - 1; line >= 0; line -= step, count++) {
        const double n = blocks_between(a, ask, nq, nk, line * ask->bm);
        x.longest = fmax(x.longest, n);
        x.mean += n;
    }
    x.mean = count ? x.mean / count : 1;
    return x;
}

/* ---- choosing ---------------------------------------------------------------------------------------- */

enum { BYTES_PER_US = 3500000, JOIN_US = 3 }; /* of partial results; the second launch */

static bool equal_tiles(const problem *p) { return !macro_range(p) && !p->sources; }

/* The first tiles can stay whole where they are the first rows, no row is done again (fwd_rows_sm90.cuh), and no sink is to be added
 * to those alone that are joined. */
static bool may_keep_whole(const problem *p)
{
    return equal_tiles(p) && !p->ask.mask_dtype && !p->ask.sink &&
           (p->ask.b == 1 || p->ask.hq == 1);
}

/* With `whole` tiles, and `splits` parts of the others. Items of equal length take whole rounds; unequal ones, the longest
 * first, fill each other's gaps, but not the last ones, and none is shorter than the longest. */
static parts_choice evaluate(const problem *p, const parts_ask *ask, const tile_blocks *n,
                             int splits, int64_t whole)
{
    parts_choice x = {.splits = splits, .whole = (int)whole};
    const int64_t cut = ask->tiles - whole, lines = ceil_div(p->ask.nq, ask->bm);
    const double longest = fmax(ceil(n->longest / splits), ask->least);
    const double mean = fmax(n->mean / splits, ask->least);
    const double each = longest * ask->block_us + ask->item_us;
    const double average = mean * ask->block_us + ask->item_us;
    x.items = whole + cut * splits;
    if (equal_tiles(p)) {
        const double one = n->longest * ask->block_us + ask->item_us;
        x.us = (double)(whole / ask->workers) * one +
               (double)ceil_div(cut * splits, ask->workers) * each;
    } else {
        x.us = each;
        if (x.items > ask->workers)
            x.us = fmax(each, ((double)x.items / ask->workers + 0.75) * average);
    }
    if (splits == 1) return x;
    if (whole) x.first_row = whole / lines * p->ask.nq + whole % lines * ask->bm;
    const double rows = (double)(p->ask.hq * p->total_q - x.first_row);
    const double part = rows * (double)(p->ask.dv + 1) * 4;
    x.us += JOIN_US + (2 * splits * part + part / 2) / BYTES_PER_US;
    x.lse_at = ((size_t)rows * (size_t)splits * (size_t)p->ask.dv * 4 + 255) / 256 * 256;
    x.bytes = x.lse_at + (size_t)rows * (size_t)splits * 4;
    return x;
}

bool parts_prefer(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    enum { DECODE_ROWS = 16 };
    (void)device;
    if (p->ask.nq > DECODE_ROWS) return true;
    snprintf(why, why_bytes, "%" PRId64 " query rows leave a tile of 128 mostly empty",
             p->ask.nq);
    return false;
}

parts_choice parts_choose(const problem *p, const parts_ask *ask)
{
    const double WORTH =
        0.85; /* of the time of whole tiles: where these leave processors idle, clocks are higher */
    const tile_blocks n = blocks_of(p, ask);
    parts_choice best = evaluate(p, ask, &n, 1, 0);
    if (p->ask.dv % 4 != 0) return best; /* the second launch reads 16 bytes of a row */
    best.us *= WORTH;
    const int64_t rounds = may_keep_whole(p) ? ask->tiles / ask->workers * ask->workers : 0;
    for (int splits = 2; splits <= K_MAX_PARTS && n.longest >= splits * ask->least; splits++)
        for (int64_t whole = 0; whole <= rounds; whole += rounds ? rounds : 1) {
            const parts_choice x = evaluate(p, ask, &n, splits, whole);
            if (x.us < best.us && x.bytes + PARTS_AT <= p->workspace_limit_bytes &&
                x.items <= INT32_MAX / 2)
                best = x;
        }
    return best;
}

size_t parts_workspace(const parts_choice *x, size_t without)
{
    return x->splits > 1 ? PARTS_AT + x->bytes : without;
}

problem parts_problem(const problem *p, const parts_choice *x)
{
    problem part = *p;
    if (x->splits > 1) part.ask.sink = 0;
    return part;
}

/* ---- joining ------------------------------------------------------------------------------------------- */

void parts_add_kernel(variant_list *list, const problem *p, const cuda_device *device,
                      const parts_choice *x)
{
    char name[112];
    if (x->splits == 1) return;
    snprintf(name, sizeof name, "fwd_combine_sm90_%s%s", dtype_name(p->o_dtype),
             p->ask.sink ? "_sink" : "");
    variant *v = variant_add(list, "sm90/fwd_combine_sm90.cuh", device->arch, 0, name);
    config_set(v, "DTYPE", p->ask.dtype);
    config_set(v, "O_DTYPE", p->o_dtype);
    config_set(v, "SINK", p->ask.sink);
    config_set(v, "VARLEN", macro_varlen(p));
}

k_parts parts_args(const parts_choice *x, char *workspace)
{
    if (x->splits == 1) return (k_parts){.splits = 1};
    char *at = workspace + PARTS_AT;
    return (k_parts){.o = (float *)(void *)at,
                     .lse = (float *)(void *)(at + x->lse_at),
                     .first_row = x->first_row,
                     .splits = x->splits,
                     .whole = x->whole};
}

ffpa_status parts_join(const parts_choice *x, const cuda_plan *own, const call *c,
                       const k_sequences *seq, char *workspace)
{
    enum { COLUMNS = 128, WARPS = 8 }; /* of a row that a warp takes; of a block */
    if (x->splits == 1) return FFPA_OK;
    join_args args = {.parts = parts_args(x, workspace),
                      .o = args_tensor(&c->f.o),
                      .lse = args_tensor(&c->f.lse),
                      .seq = *seq,
                      .sink = c->f.sink.data,
                      .sink_sh = args_tensor(&c->f.sink).sh,
                      .hq = (int)c->f.q.shape[1],
                      .dv = (int)c->f.v.shape[3]};
    const int64_t rows = args.hq * seq->total_q - x->first_row;
    const int64_t warps = rows * ceil_div(args.dv, COLUMNS);
    return cuda_launch_early(own->device, own->kernels[1], c->f.stream,
                             (cuda_grid){ceil_div(warps, WARPS), 32 * WARPS}, &args);
}
