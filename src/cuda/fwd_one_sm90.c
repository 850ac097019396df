/* fwd_one_sm90.c - plan and run of the forward pass for small heads on compute capability 9.0. */
#include "cuda/fwd_one_sm90.h"

#include "common/args.h"
#include "common/shapes.h"
#include "cuda/cuda_args.h"
#include "cuda/tensor_map.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- tiles --------------------------------------------------------------------------------------- */

/* What a tile serves: sequences from arrays and options need registers of their own. */
enum { PLAIN = 1, LISTED = 2, HEAVY = 4, ANY = 7 };
typedef struct tile {
    int d, dv; /* the largest it takes */
    int bm, bn, v_stages;
    unsigned serves;
    int speed; /* on many long rows, percent of the fastest tile for these heads */
} tile;
static const tile TILES[] = {{64, 64, 192, 128, 2, PLAIN, 100},
                             {96, 96, 192, 112, 2, PLAIN | LISTED, 100},
                             {128, 128, 192, 80, 2, PLAIN | LISTED, 100},
                             {64, 64, 128, 128, 2, PLAIN | LISTED, 80},
                             {96, 96, 128, 128, 2, PLAIN | LISTED, 88},
                             {128, 128, 128, 128, 2, PLAIN | LISTED, 96},
                             {160, 160, 128, 112, 2, ANY, 100},
                             {192, 128, 128, 128, 2, ANY, 100},
                             {192, 192, 128, 96, 2, ANY, 100},
                             {256, 256, 128, 64, 3, ANY, 100},
                             {320, 320, 128, 48, 2, PLAIN | LISTED, 100},
                             {320, 320, 128, 32, 3, HEAVY, 100}};
enum { TILE_COUNT = sizeof TILES / sizeof TILES[0], K_STAGES = 2, WIDEST = 320 };

static bool packed(const problem *p) { return (p->sources & VARLEN_Q) != 0; }

/* Tiles of one head over all sequences, or of one sequence when q is dense; heads that have so many. */
static int64_t tiles_of(const problem *p, int bm)
{
    return packed(p) ? tile_lines(p->ask.b, p->ask.nq, p->total_q, true, bm)
                     : (p->ask.nq + bm - 1) / bm;
}
static int64_t heads_of(const problem *p) { return p->ask.hq * (packed(p) ? 1 : p->ask.b); }

static unsigned needs(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    if (a->mask_dtype || a->alibi || p->dropping || a->softcap > 0) return HEAVY;
    return macro_varlen(p) || macro_cache(p) ? LISTED : PLAIN;
}

/* A block of keys at the rate of a full GPU; the first S and the last P V of a tile overlap little (0010). */
static parts_choice choose_parts(const problem *p, const tile *t, int sms)
{
    const double flop = 2.0 * t->bm * t->bn * (double)(p->ask.d + p->ask.dv);
    const parts_ask ask = {.tiles = tiles_of(p, t->bm) * heads_of(p),
                           .workers = sms,
                           .bm = t->bm,
                           .bn = t->bn,
                           .least = 1,
                           .block_us = flop / (5.2e4 * t->speed),
                           .item_us = 3};
    return parts_choose(p, &ask);
}

/* Time of whole tiles on `sms` processors, in no particular unit. Tiles of equal length take whole rounds; unequal ones, half as
 * long on average, fill each other's gaps, but none is shorter than the longest. */
static double time_of(const problem *p, const tile *t, int sms)
{
    const double rounds = (double)(tiles_of(p, t->bm) * heads_of(p)) / sms;
    const double half = rounds / 2 + 0.25;
    const double taken = !macro_range(p) ? ceil(rounds) : half > 1 ? half : 1;
    return taken * t->bm / t->speed;
}

static bool faster(const problem *p, const tile *t, const tile *than, int sms)
{
    const parts_choice x = choose_parts(p, t, sms), y = choose_parts(p, than, sms);
    if (x.splits == 1 && y.splits == 1) return time_of(p, t, sms) <= time_of(p, than, sms);
    return x.us <= y.us;
}

/* For each number of rows the first that takes the heads and the options; of these the faster. */
static const tile *choose_tile(const problem *p, int sms)
{
    const tile *small = NULL, *large = NULL;
    for (int i = TILE_COUNT - 1; i >= 0; i--) {
        const tile *t = &TILES[i];
        if (p->ask.d > t->d || p->ask.dv > t->dv || !(t->serves & needs(p))) continue;
        *(t->bm == 128 ? &small : &large) = t;
    }
    return large && faster(p, large, small, sms) ? large : small;
}

/* ---- support ------------------------------------------------------------------------------------- */

/* Why the kernel cannot compute it; NULL = it can. */
static const char *obstacle(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const uint32_t boxed = BOXED_Q | BOXED_K | BOXED_V;
    if (a->dtype != FFPA_BF16 && a->dtype != FFPA_F16) return "takes bf16 and f16";
    if (a->d < 1 || a->dv < 1 || a->d > WIDEST || a->dv > WIDEST)
        return "takes D and Dv from 1 to 320";
    if (p->row_subset) return "takes no row subset";
    if (p->sources & CACHE_PAGED) return "takes no paged cache";
    if (p->new_keys) return "appends no keys";
    if ((p->aligned & boxed) != boxed)
        return "q, k and v must have dense rows from 16-byte addresses on, and positive "
               "strides";
    if (p->total_q == 0 || a->hq == 0 || a->nk == 0 || p->total_k == 0)
        return "needs rows and keys";
    return NULL;
}

bool fwd_one_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const char *reason = obstacle(p);
    if (!reason && !args_fit(p, why, why_bytes)) return false;
    const tile *t = reason ? NULL : choose_tile(p, device->sms);
    if (t && tiles_of(p, t->bm) * heads_of(p) > INT32_MAX / 2) reason = "too many tiles";
    if (!reason) return true;
    snprintf(why, why_bytes, "%s", reason);
    return false;
}

/* ---- plan ---------------------------------------------------------------------------------------- */

/* Heads walked together where tiles differ in length: as many as have K and V in the L2. */
static int choose_group(const problem *p, int heads)
{
    enum { L2_BYTES = 64 << 20 };
    const ffpa_problem *a = &p->ask;
    if (!macro_range(p)) return 1;
    const int64_t bytes = a->nk * (a->d + a->dv) * 2, kv_heads = L2_BYTES / bytes;
    const int64_t group = (kv_heads > 1 ? kv_heads : 1) * (a->hq / a->hk);
    return group < heads ? (int)group : heads;
}

static void add_attention(variant_list *list, const problem *asked, const cuda_device *device,
                          const fwd_one_choice *x)
{
    const problem part = parts_problem(asked, &x->parts), *p = &part;
    const ffpa_problem *a = &p->ask;
    char name[112];
    snprintf(name, sizeof name, "fwd_one_sm90_%s_d%" PRId64 "v%" PRId64 "_m%dn%d%s%s%s",
             dtype_name(a->dtype), a->d, a->dv, x->bm, x->bn, score_name_of(p).text,
             macro_cache(p) ? "_cache" : "", x->parts.splits > 1 ? "_split" : "");
    const int shared =
        fwd_one_shared_bytes((int)a->d, (int)a->dv, x->bm, x->bn, K_STAGES, x->v_stages);
    variant *v =
        variant_add(list, "sm90/fwd_one_sm90.cuh", device->arch, (unsigned)shared, name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "O_DTYPE", p->o_dtype);
    config_set(v, "D", a->d);
    config_set(v, "DV", a->dv);
    config_set(v, "BM", x->bm);
    config_set(v, "BN", x->bn);
    config_set(v, "STAGES", K_STAGES);
    config_set(v, "V_STAGES", x->v_stages);
    config_set_scores(v, p);
    config_set(v, "CACHE", macro_cache(p));
    config_set(v, "SPLIT", x->parts.splits > 1);
}

ffpa_status fwd_one_choose(const problem *p, const cuda_device *device, void *choice,
                           variant_list *kernels, ffpa_report *report)
{
    fwd_one_choice *x = choice;
    const tile *t = choose_tile(p, device->sms);
    *x = (fwd_one_choice){.bm = t->bm, .bn = t->bn, .v_stages = t->v_stages};
    x->tiles = (int)tiles_of(p, t->bm);
    x->heads = (int)heads_of(p);
    x->head_group = choose_group(p, x->heads);
    x->parts = choose_parts(p, t, device->sms);
    x->counted = x->parts.items > device->sms;
    x->blocks = x->counted ? device->sms : (int)x->parts.items;
    report->workspace_bytes = parts_workspace(&x->parts, x->counted ? sizeof(unsigned) : 0);
    x->wide = (p->aligned & BOXED_O) && p->o_dtype == p->ask.dtype && p->ask.dv % 8 == 0;
    add_attention(kernels, p, device, x);
    parts_add_kernel(kernels, p, device, &x->parts);
    report->tile_q = x->bm;
    report->tile_k = x->bn;
    report->tile_d = (int32_t)p->ask.d;
    report->splits = x->parts.splits;
    return FFPA_OK;
}

/* ---- run ------------------------------------------------------------------------------------------- */

static void set_units(fwd_one_args *args)
{
    const double scale = args->f.scores.scale;
    args->unit = log2_scale(scale);
    const double back = args->unit != 0 ? scale / args->unit : 1;
    args->back = (float)back;
    args->back_rest = (float)(back - args->back);
}

static ffpa_status clear_counter(const cuda_device *device, unsigned *counter, void *stream)
{
    return driver_check(
        device->drv, device->drv->cuMemsetD32Async((uint64_t)(uintptr_t)counter, 0, 1, stream),
        "cuMemsetD32Async");
}

ffpa_status fwd_one_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                        char *workspace)
{
    const fwd_one_choice *x = own->choice;
    const ffpa_forward_params *f = &c->f;
    const map_shape shapes[3] = {map_rows(&f->q, 64), map_rows(&f->k, x->bn),
                                 map_rows(&f->v, x->bn)};
    k_map maps[3];
    TRY(map_cache_get(own->maps, own->device->drv, shapes, 3, maps));
    const k_sequences seq = args_sequences(&plan->prob, c);
    fwd_one_args args = {.q_map = maps[0],
                         .k_map = maps[1],
                         .v_map = maps[2],
                         .f = args_forward(c, &seq),
                         .heads = x->heads,
                         .head_group = x->head_group,
                         .wide = x->wide,
                         .parts = parts_args(&x->parts, workspace)};
    args.f.tiles = x->tiles;
    args.f.splits = 1;
    set_units(&args);
    if (x->counted) {
        args.counter = (unsigned *)(void *)workspace;
        TRY(clear_counter(own->device, args.counter, f->stream));
    }
    const cuda_grid grid = {x->blocks, (unsigned)(128 * (x->bm / 64 + 1))};
    TRY(cuda_launch(own->device, own->kernels[0], f->stream, grid, &args));
    return parts_join(&x->parts, own, c, &seq, workspace);
}
