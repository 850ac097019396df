/* fwd_pair_sm90.c - plan and run of the forward pass on pairs of blocks. */
#include "cuda/fwd_pair_sm90.h"

#include "common/shapes.h"
#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <stdio.h>

enum { CHUNK = 64, MIN_CHUNKS = 5, MAX_CHUNKS = 9, TILE_ROWS = 128, COUNTER_BYTES = 64 };

/* ---- support ------------------------------------------------------------------------------------- */

/* Chunks of 64 columns, the last one filled up with zeros. */
static int chunks_of(int64_t columns) { return (int)((columns + CHUNK - 1) / CHUNK); }

static int64_t tiles_of(const problem *p)
{
    return tile_lines(p->ask.b, p->ask.nq, p->total_q, p->sources & VARLEN_Q, TILE_ROWS);
}

static const char *refusal(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const uint32_t boxed = BOXED_Q | BOXED_K | BOXED_V | BOXED_O;
    const int d = chunks_of(a->d), dv = chunks_of(a->dv);
    if (a->dtype != FFPA_F16 && a->dtype != FFPA_BF16) return "takes f16 and bf16";
    if (d < MIN_CHUNKS || d > MAX_CHUNKS || dv < MIN_CHUNKS || dv > MAX_CHUNKS)
        return "takes D and Dv from 257 to 576";
    if (p->o_dtype != a->dtype || a->dv % 8 != 0)
        return "o must have the inputs' dtype and Dv a multiple of 8";
    if ((p->aligned & boxed) != boxed)
        return "q, k, v and o need rows at 16 bytes and positive strides";
    if (p->sources & (CACHE_LENGTHS | CACHE_PAGED)) return "takes no KV cache";
    if (a->has_scale && !(a->scale > 0.0f)) return "takes no scale of zero or below";
    if ((a->mask_dtype || a->alibi || a->softcap > 0 || p->dropping) && (d > 7 || dv > 7))
        return "takes a mask, ALiBi, softcap or dropout up to D and Dv of 448";
    if (p->row_subset) return "takes no subset of rows";
    if (p->total_q == 0 || p->total_k == 0 || a->hq == 0) return "needs a query and a key";
    if (tiles_of(p) * a->hq > INT32_MAX / 2) return "takes at most 2^30 tiles";
    return NULL;
}

bool pair_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const char *reason = refusal(p);
    (void)device;
    if (reason) {
        snprintf(why, why_bytes, "%s", reason);
        return false;
    }
    return args_fit(p, why, why_bytes);
}

/* ---- plan ------------------------------------------------------------------------------------------ */

/* Ring slots that shared memory leaves room for. */
static int stages_of(const ffpa_problem *a, const cuda_device *device, int vrows)
{
    const int fixed = pair_shared_bytes((int)a->d, (int)a->dv, vrows, 0);
    return (device->shared_optin - fixed) / pair_slot_bytes((int)a->dv, vrows);
}

/* The measured choices (docs/design/0011-forward-on-pairs-of-blocks.md): narrow heads take 32 keys of V a step, since a step has a
 * latency of its own; few slots leave room for two steps in flight only; the exchange is late enough that
 * the peer's P has been read, and early enough that its own has come. */
static void choose_steps(const ffpa_problem *a, const cuda_device *device, pair_choice *x)
{
    static const int swap_at[] = {2, 4, 4, 5, 5};
    const int chunks = chunks_of(a->d), columns = chunks_of(a->dv);
    x->vrows = columns <= 6 && stages_of(a, device, 32) >= 7 ? 32 : 16;
    x->stages = stages_of(a, device, x->vrows);
    x->flight = x->vrows == 16 && x->stages >= 8 ? 4 : 2;
    x->klag = x->vrows == 32 || chunks == 8 ? 2 : 1;
    x->swap_at = swap_at[chunks - MIN_CHUNKS];
    x->regs = columns <= 7 ? 232 : 240;
}

/* A block of keys at the rate of a full GPU; the start and the end of a tile overlap nothing (0011). */
static parts_choice choose_parts(const problem *p, const cuda_device *device)
{
    const double flop = 2.0 * TILE_ROWS * TILE_ROWS * (double)(p->ask.d + p->ask.dv);
    const parts_ask ask = {.tiles = tiles_of(p) * p->ask.hq,
                           .workers = device->sms / 2,
                           .bm = TILE_ROWS,
                           .bn = TILE_ROWS,
                           .least = 2,
                           .block_us = flop / 9.3e6,
                           .item_us = 10};
    return parts_choose(p, &ask);
}

static void add_kernel(variant_list *list, const problem *asked, const cuda_device *device,
                       const pair_choice *x)
{
    const problem part = parts_problem(asked, &x->parts), *p = &part;
    const ffpa_problem *a = &p->ask;
    char name[112];
    snprintf(name, sizeof name, "fwd_pair_sm90_%s_d%" PRId64 "v%" PRId64 "_v%ds%d%s%s",
             dtype_name(a->dtype), a->d, a->dv, x->vrows, x->stages, score_name_of(p).text,
             x->parts.splits > 1 ? "_split" : "");
    const int shared = pair_shared_bytes((int)a->d, (int)a->dv, x->vrows, x->stages);
    variant *v =
        variant_add(list, "sm90/fwd_pair_sm90.cuh", device->arch, (unsigned)shared, name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "D", a->d);
    config_set(v, "DV", a->dv);
    config_set(v, "VROWS", x->vrows);
    config_set(v, "STAGES", x->stages);
    config_set(v, "FLIGHT", x->flight);
    config_set(v, "KLAG", x->klag);
    config_set(v, "SWAP_AT", x->swap_at);
    config_set(v, "REGS", x->regs);
    config_set_scores(v, p);
    config_set(v, "SPLIT", x->parts.splits > 1);
}

ffpa_status pair_choose(const problem *p, const cuda_device *device, void *choice,
                        variant_list *kernels, ffpa_report *report)
{
    pair_choice *x = choice;
    const ffpa_problem *a = &p->ask;
    choose_steps(a, device, x);
    x->tiles = (int)tiles_of(p);
    x->parts = choose_parts(p, device);
    add_kernel(kernels, p, device, x);
    parts_add_kernel(kernels, p, device, &x->parts);
    report->workspace_bytes = parts_workspace(&x->parts, COUNTER_BYTES);
    report->tile_q = TILE_ROWS;
    report->tile_k = TILE_ROWS;
    report->tile_d = CHUNK;
    report->splits = x->parts.splits;
    return FFPA_OK;
}

/* ---- run ------------------------------------------------------------------------------------------- */

/* Maps of q, k, v and of the half chunk of v, in the order of fwd_pair_args. */
static ffpa_status get_maps(const cuda_plan *own, const ffpa_forward_params *f,
                            fwd_pair_args *args)
{
    const pair_choice *x = own->choice;
    const int columns = chunks_of(f->v.shape[3]);
    const bool whole = f->v.shape[3] % CHUNK == 0, half_slot = columns > 8;
    const map_shape shapes[] = {map_rows(&f->q, CHUNK), map_rows(&f->k, CHUNK),
                                whole ? map_chunks(&f->v, x->vrows, columns / 2)
                                      : map_rows(&f->v, x->vrows),
                                map_rows(&f->v, half_slot ? CHUNK : x->vrows)};
    k_map maps[4];
    TRY(map_cache_get(own->maps, own->device->drv, shapes, 4, maps));
    args->q = maps[0], args->k = maps[1], args->v = maps[2], args->v_half = maps[3];
    return FFPA_OK;
}

ffpa_status pair_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                     char *workspace)
{
    const pair_choice *x = own->choice;
    const ffpa_forward_params *f = &c->f;
    const driver *drv = own->device->drv;
    fwd_pair_args args = {.o = args_tensor(&f->o),
                          .lse = args_tensor(&f->lse),
                          .q_rows = args_tensor(&f->q),
                          .k_rows = args_tensor(&f->k),
                          .v_rows = args_tensor(&f->v),
                          .seq = args_sequences(&plan->prob, c),
                          .scores = args_scores(c),
                          .dropout = args_dropout(c),
                          .counter = (unsigned *)(void *)workspace,
                          .hq = (int)f->q.shape[1],
                          .tiles = x->tiles,
                          .total = (int)x->parts.items,
                          .parts = parts_args(&x->parts, workspace)};
    args.group = args.hq / (int)f->k.shape[1];
    args.scale_log2 = log2_scale(call_scale(c));
    TRY(get_maps(own, f, &args));
    TRY(driver_check(drv, drv->cuMemsetD32Async((uintptr_t)workspace, 0, 1, f->stream),
                     "cuMemsetD32Async"));
    const int pairs = own->device->sms / 2 < args.total ? own->device->sms / 2 : args.total;
    TRY(cuda_launch(own->device, own->kernels[0], f->stream, (cuda_grid){2 * pairs, 384},
                    &args));
    return parts_join(&x->parts, own, c, &args.seq, workspace);
}
