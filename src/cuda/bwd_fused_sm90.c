/* bwd_fused_sm90.c - plan and run of the backward pass for small heads on compute capability 9.0. */
#include "cuda/bwd_fused_sm90.h"

#include "common/args.h"
#include "common/shapes.h"
#include "cuda/cuda_args.h"
#include "cuda/tensor_map.h"

#include <inttypes.h>
#include <stdio.h>

enum { WIDEST = 128, ROWS = 128, THREADS = 384 };

/* ---- tiles ------------------------------------------------------------------------------------------- */

/* Walked rows of a block, and slots for them, by the side that owns: what the registers and shared memory leave. */
typedef struct tile {
    int d; /* the largest D and Dv it takes */
    int bn[FUSED_SIDES], stages[FUSED_SIDES];
} tile;
static const tile TILES[] = {
    {64, {128, 96}, {5, 6}}, {96, {96, 64}, {3, 4}}, {WIDEST, {96, 64}, {3, 4}}};

static const tile *tile_for(const problem *p)
{
    const int64_t widest = p->ask.d > p->ask.dv ? p->ask.d : p->ask.dv;
    const tile *t = TILES;
    while (t->d < widest)
        t++;
    return t;
}

static bool wanted(const problem *p, int side)
{
    return (p->outputs & (side == FUSED_KEYS ? OUT_DK | OUT_DV : OUT_DQ)) != 0;
}

static bool packed(const problem *p, int side)
{
    return (p->sources & (side == FUSED_KEYS ? VARLEN_K : VARLEN_Q)) != 0;
}

/* Tiles of one head over all sequences, or of one sequence when the side is dense; heads that have so many. */
static int64_t tiles_of(const problem *p, int side)
{
    const int64_t n = side == FUSED_KEYS ? p->ask.nk : p->ask.nq;
    const int64_t total = side == FUSED_KEYS ? p->total_k : p->total_q;
    return packed(p, side) ? tile_lines(p->ask.b, n, total, true, ROWS) : ceil_div(n, ROWS);
}
static int64_t heads_of(const problem *p, int side)
{
    return (side == FUSED_KEYS ? p->ask.hk : p->ask.hq) * (packed(p, side) ? 1 : p->ask.b);
}

/* ---- support ----------------------------------------------------------------------------------------- */

static bool alike(const problem *p, uint32_t output, int32_t dtype)
{
    return !(p->outputs & output) || dtype == p->ask.dtype;
}

/* Why the kernels cannot compute it; NULL = they can. */
static const char *obstacle(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const uint32_t boxed = BOXED_Q | BOXED_K | BOXED_V | BOXED_DOUT;
    if (a->dtype != FFPA_BF16 && a->dtype != FFPA_F16) return "takes bf16 and f16";
    if (a->d < 1 || a->dv < 1 || a->d > WIDEST || a->dv > WIDEST)
        return "takes D and Dv from 1 to 128";
    if (a->hq == 0 || p->total_q == 0 || p->total_k == 0) return "needs rows and keys";
    if (p->row_subset) return "takes no row subset";
    if (a->mask_dtype || a->alibi || p->dropping || a->softcap > 0)
        return "takes no mask, ALiBi, softcap or dropout";
    if (p->dout_dtype != a->dtype || !alike(p, OUT_DQ, p->dq_dtype) ||
        !alike(p, OUT_DK, p->dk_dtype) || !alike(p, OUT_DV, p->dv_dtype))
        return "dout and the gradients must have q's dtype";
    if ((p->aligned & boxed) != boxed)
        return "q, k, v and dout must have dense rows from 16-byte addresses on, and positive "
               "strides";
    if (tiles_of(p, FUSED_KEYS) * heads_of(p, FUSED_KEYS) > INT32_MAX / 2 ||
        tiles_of(p, FUSED_QUERIES) * heads_of(p, FUSED_QUERIES) > INT32_MAX / 2)
        return "too many tiles";
    return NULL;
}

bool fused_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const char *reason = obstacle(p);
    (void)device;
    if (reason) snprintf(why, why_bytes, "%s", reason);
    return !reason && args_fit(p, why, why_bytes);
}

/* ---- plan -------------------------------------------------------------------------------------------- */

/* Heads walked together where tiles differ in length: as many as have what they walk in the L2. */
static int choose_group(const problem *p, int side, int heads)
{
    enum { L2_BYTES = 32 << 20 };
    const ffpa_problem *a = &p->ask;
    if (!macro_range(p)) return 1;
    const int64_t group = a->hq / a->hk, rows = side == FUSED_KEYS ? a->nq * group : a->nk;
    const int64_t sets = L2_BYTES / (rows * (a->d + a->dv) * 2);
    const int64_t together = (sets > 1 ? sets : 1) * (side == FUSED_KEYS ? 1 : group);
    return together < heads ? (int)together : heads;
}

static int add_side(variant_list *list, const problem *p, const cuda_device *device, int side)
{
    const ffpa_problem *a = &p->ask;
    const tile *t = tile_for(p);
    const int bn = t->bn[side], stages = t->stages[side];
    char name[112];
    snprintf(name, sizeof name, "bwd_fused_sm90_%s_%s_d%" PRId64 "v%" PRId64 "_n%d%s%s",
             side == FUSED_KEYS ? "keys" : "queries", dtype_name(a->dtype), a->d, a->dv, bn,
             macro_range(p) ? "_range" : "", macro_varlen(p) ? "_varlen" : "");
    variant *v =
        variant_add(list, "sm90/bwd_fused_sm90.cuh", device->arch,
                    (unsigned)fused_shared_bytes((int)a->d, (int)a->dv, bn, stages), name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "D", a->d);
    config_set(v, "DV", a->dv);
    config_set(v, "BN", bn);
    config_set(v, "STAGES", stages);
    config_set(v, "RANGE", macro_range(p));
    config_set(v, "VARLEN", macro_varlen(p));
    config_set(v, "KEYS", side == FUSED_KEYS);
    return list->count - 1;
}

ffpa_status fused_choose(const problem *p, const cuda_device *device, void *choice,
                         variant_list *kernels, ffpa_report *report)
{
    fused_choice *x = choice;
    const tile *t = tile_for(p);
    const bool whole = p->ask.d % 8 == 0;
    backward_start(p, &x->shared);
    backward_choose_layout(p, &x->shared); /* no heads in the workspace: delta only */
    TRY(backward_add_shared(kernels, p, device, &x->shared));
    for (int side = 0; side < FUSED_SIDES; side++) {
        fused_side *s = &x->side[side];
        *s = (fused_side){.kernel = -1, .bn = t->bn[side]};
        s->tiles = (int)tiles_of(p, side);
        s->heads = (int)heads_of(p, side);
        s->head_group = choose_group(p, side, s->heads);
        s->wide[0] = whole && p->aligned & (side == FUSED_KEYS ? BOXED_DK : BOXED_DQ);
        s->wide[1] = p->ask.dv % 8 == 0 && p->aligned & BOXED_DV;
        if (wanted(p, side)) s->kernel = add_side(kernels, p, device, side);
    }
    report->workspace_bytes = x->shared.at.bytes;
    report->tile_q = report->tile_k = ROWS;
    report->tile_d = (int32_t)p->ask.d;
    return FFPA_OK;
}

/* ---- run --------------------------------------------------------------------------------------------- */

enum { OWN, WALKED = 2, SIDE_MAPS = 4 };

static ffpa_status get_maps(const cuda_plan *own, const call *c, k_map *maps)
{
    const fused_choice *x = own->choice;
    map_shape shapes[FUSED_SIDES * SIDE_MAPS];
    for (int side = 0; side < FUSED_SIDES; side++) {
        map_shape *of = shapes + side * SIDE_MAPS;
        const int queries = side == FUSED_QUERIES ? OWN : WALKED, keys = WALKED - queries;
        const int rows[WALKED + 1] = {[OWN] = 64, [WALKED] = x->side[side].bn};
        of[queries] = map_rows(&c->f.q, rows[queries]);
        of[queries + 1] = map_rows(&c->g.dout, rows[queries]);
        of[keys] = map_rows(&c->f.k, rows[keys]);
        of[keys + 1] = map_rows(&c->f.v, rows[keys]);
    }
    return map_cache_get(own->maps, own->device->drv, shapes, FUSED_SIDES * SIDE_MAPS, maps);
}

/* `joins`: the launch before is of the other side, and may still run. */
static ffpa_status run_side(const backward_pass *r, int side, bool joins)
{
    const fused_choice *x = r->own->choice;
    const fused_side *s = &x->side[side];
    const k_map *maps = r->maps + side * SIDE_MAPS;
    const bool keys = side == FUSED_KEYS;
    fused_args args = {.own1 = maps[OWN],
                       .own2 = maps[OWN + 1],
                       .walk1 = maps[WALKED],
                       .walk2 = maps[WALKED + 1],
                       .out1 = args_tensor(keys ? &r->c->g.dk : &r->c->g.dq),
                       .lse = args_tensor(&r->c->f.lse),
                       .delta =
                           (const float *)(const void *)(r->workspace + x->shared.at.delta),
                       .seq = r->seq,
                       .scores = r->scores,
                       .hq = r->hq,
                       .hk = r->hk,
                       .group = r->group,
                       .tiles = s->tiles,
                       .heads = s->heads,
                       .head_group = s->head_group,
                       .unit = log2_scale((double)r->scores.scale),
                       .wide1 = s->wide[0],
                       .wide2 = s->wide[1],
                       .joins = joins};
    if (keys) args.out2 = args_tensor(&r->c->g.dv);
    k_tensor *of_queries = keys ? args.walked : args.own,
             *of_keys = keys ? args.own : args.walked;
    of_queries[0] = args_tensor(&r->c->f.q), of_queries[1] = args_tensor(&r->c->g.dout);
    of_keys[0] = args_tensor(&r->c->f.k), of_keys[1] = args_tensor(&r->c->f.v);
    const cuda_grid grid = {(int64_t)s->tiles * s->heads, THREADS};
    return cuda_launch_early(r->own->device, r->own->kernels[s->kernel], r->c->g.stream, grid,
                             &args);
}

ffpa_status fused_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                      char *workspace)
{
    const fused_choice *x = own->choice;
    k_map maps[FUSED_SIDES * SIDE_MAPS];
    backward_pass r;
    TRY(get_maps(own, c, maps));
    TRY(backward_begin(&r, plan, own, c, workspace, maps));
    const bool keys = x->side[FUSED_KEYS].kernel >= 0;
    if (keys) TRY(run_side(&r, FUSED_KEYS, false));
    return x->side[FUSED_QUERIES].kernel >= 0 ? run_side(&r, FUSED_QUERIES, keys) : FFPA_OK;
}
