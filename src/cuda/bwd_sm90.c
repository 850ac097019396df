/* bwd_sm90.c - plan and launches of the Hopper backward. */
#include "cuda/bwd_sm90.h"

#include "common/args.h"
#include "common/shapes.h"
#include "cuda/bwd_sm90_chunks.h"
#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <stdio.h>

enum { THREADS = 384, WIDEST = 1024 };

/* ---- what it takes ----------------------------------------------------------------------------------- */

/* Tensors that the copy engine reads and writes. */
static bool boxed(const problem *p)
{
    const uint32_t outputs = (p->outputs & OUT_DQ ? BOXED_DQ : 0u) |
                             (p->outputs & OUT_DK ? BOXED_DK : 0u) |
                             (p->outputs & OUT_DV ? BOXED_DV : 0u);
    const uint32_t all = BOXED_Q | BOXED_K | BOXED_V | BOXED_DOUT | outputs;
    return (p->aligned & all) == all;
}

static bool alike(const problem *p, uint32_t output, int32_t dtype)
{
    return !(p->outputs & output) || dtype == p->ask.dtype;
}

bool backward_sm90_supports(const problem *p, const cuda_device *device, char *why,
                            size_t why_bytes)
{
    const ffpa_problem *a = &p->ask;
    const char *reason = NULL;
    (void)device;
    if (a->dtype != FFPA_F16 && a->dtype != FFPA_BF16)
        reason = "dtypes other than f16 and bf16";
    else if (a->d < 1 || a->d > WIDEST || a->dv < 1 || a->dv > WIDEST)
        reason = "D or Dv outside 1..1024";
    else if (a->hq == 0 || p->total_q == 0 || p->total_k == 0)
        reason = "a problem without pairs";
    else if (p->row_subset)
        reason = "rows";
    else if (p->dout_dtype != a->dtype || !alike(p, OUT_DQ, p->dq_dtype) ||
             !alike(p, OUT_DK, p->dk_dtype) || !alike(p, OUT_DV, p->dv_dtype))
        reason = "dout or a gradient of another dtype than q";
    else if (!boxed(p))
        reason =
            "rows that do not start at 16 bytes, or axes that lie backwards or are broadcast";
    if (reason) snprintf(why, why_bytes, "not for %s", reason);
    return !reason && args_fit(p, why, why_bytes);
}

/* ---- plan -------------------------------------------------------------------------------------------- */

/* Keys of a tile of P and dS. Wide tiles read less; beside them a math thread has registers for one option. */
static int tile_keys(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const bool added = a->mask_dtype && a->mask_dtype != FFPA_BOOL;
    const int options =
        (a->mask_dtype != 0) + (a->softcap > 0) + (a->alibi != 0) + (p->dropping != 0);
    return options > 1 || added || p->outputs & OUT_DMASK ? 128 : 192;
}

/* Staging tiles: P; weights that are not P, or, where the mask's gradient is asked for, in f32 (two tiles) and without the
 * softcap's slope, which then has another. */
static int staging_tiles(const problem *p)
{
    const bool capped = p->ask.softcap > 0;
    return p->outputs & OUT_DMASK ? 3 + capped : 1 + (capped || p->dropping);
}

static int units(const problem *p, bool keys, int64_t columns)
{
    const ffpa_problem *a = &p->ask;
    const int rows = unit_rows(columns_sm90(columns));
    return (int)(keys ? tile_lines(a->b, a->nk, p->total_k, p->sources & VARLEN_K, rows)
                      : tile_lines(a->b, a->nq, p->total_q, p->sources & VARLEN_Q, rows));
}

/* Partial sums of a kv head: whole tiles, as they lie in the registers. */
static uint64_t sums_bytes(const problem *p, int64_t columns, uint32_t output)
{
    const int wide = columns_sm90(columns);
    const uint64_t tiles = (uint64_t)units(p, true, columns) * (uint64_t)unit_tiles(wide);
    return p->outputs & output ? backward_padded(tiles * (uint64_t)part_elements(wide) * 4) : 0;
}

static int add_pds(variant_list *list, const problem *p, const cuda_device *device, int keys)
{
    const ffpa_problem *a = &p->ask;
    const int d = columns_sm90(a->d), dv = columns_sm90(a->dv);
    char name[112];
    const bool dmask = (p->outputs & OUT_DMASK) != 0;
    snprintf(name, sizeof name, "pds_sm90_%s_d%dv%d%s%s", dtype_name(a->dtype), d, dv,
             score_name_of(p).text, dmask ? "_dmask" : "");
    variant *v = variant_add(list, "sm90/bwd_pds_sm90.cuh", device->arch,
                             (unsigned)pds90_shared_bytes(keys, staging_tiles(p)), name);
    config_set(v, "DTYPE", a->dtype);
    config_set_always(v, "D", d);
    config_set_always(v, "DV", dv);
    config_set(v, "BN", keys);
    config_set_scores(v, p);
    config_set(v, "DMASK", dmask);
    return list->count - 1;
}

static int add_products(variant_list *list, const problem *p, const cuda_device *device,
                        int64_t columns)
{
    const int wide = columns_sm90(columns);
    char name[112];
    snprintf(name, sizeof name, "products_sm90_%s_n%d%s%s%s", dtype_name(p->ask.dtype), wide,
             macro_range(p) ? "_range" : "", p->ask.mask_dtype ? "_mask" : "",
             macro_varlen(p) ? "_varlen" : "");
    variant *v = variant_add(list, "sm90/bwd_gemm_sm90.cuh", device->arch,
                             (unsigned)products_shared_bytes(wide), name);
    config_set(v, "DTYPE", p->ask.dtype);
    config_set_always(v, "COLUMNS", wide);
    config_set(v, "RANGE", macro_range(p));
    config_set(v, "MASK", p->ask.mask_dtype ? FFPA_BOOL : 0); /* all alike here */
    config_set(v, "VARLEN", macro_varlen(p));
    return list->count - 1;
}

ffpa_status backward_sm90_choose(const problem *p, const cuda_device *device, void *choice,
                                 variant_list *kernels, ffpa_report *report)
{
    backward_choice *x = choice;
    const ffpa_problem *a = &p->ask;
    backward_start(p, x);
    x->dk_sums = sums_bytes(p, a->d, OUT_DK);
    x->dv_sums = sums_bytes(p, a->dv, OUT_DV);
    x->pds_keys = tile_keys(p);
    chunks_sm90_choose(p, device, x);
    backward_choose_layout(p, x);
    TRY(backward_add_shared(kernels, p, device, x));
    x->pds = add_pds(kernels, p, device, x->pds_keys);
    TRY(backward_add_renorm(kernels, p, device, x, true));
    if (p->outputs & (OUT_DQ | OUT_DK)) x->dk = x->dq = add_products(kernels, p, device, a->d);
    if (p->outputs & OUT_DV)
        x->dv = x->dk >= 0 && a->d == a->dv ? x->dk : add_products(kernels, p, device, a->dv);
    if (!(p->outputs & OUT_DQ)) x->dq = -1;
    if (!(p->outputs & OUT_DK)) x->dk = -1;
    report->workspace_bytes = x->at.bytes;
    report->tile_q = 128;
    report->tile_k = x->pds_keys;
    report->tile_d = 64;
    return FFPA_OK;
}

/* ---- run --------------------------------------------------------------------------------------------- */

enum { MAP_Q, MAP_DOUT, MAP_K, MAP_V, PDS_MAPS };
enum { MAP_B, MAP_OUT = 3, PRODUCT_MAPS = 6, ALL_MAPS = PDS_MAPS + PRODUCT_MAPS };
enum { DV, DK, DQ };

static const ffpa_tensor *result_of(const call *c, int product)
{
    return product == DV ? &c->g.dv : product == DK ? &c->g.dk : &c->g.dq;
}

static const ffpa_tensor *operand_of(const call *c, int product)
{
    return product == DV ? &c->g.dout : product == DK ? &c->f.q : &c->f.k;
}

static int kernel_of(const backward_choice *x, int product)
{
    return product == DV ? x->dv : product == DK ? x->dk : x->dq;
}

static ffpa_status get_maps(const cuda_plan *own, const call *c, k_map *maps)
{
    const backward_choice *x = own->choice;
    const driver *drv = own->device->drv;
    const map_shape pds[PDS_MAPS] = {map_rows(&c->f.q, 128), map_rows(&c->g.dout, 128),
                                     map_rows(&c->f.k, x->pds_keys),
                                     map_rows(&c->f.v, x->pds_keys)};
    map_shape products[PRODUCT_MAPS];
    for (int i = 0; i < 3; i++) { /* a result that is not asked for: any sound map */
        products[MAP_B + i] = map_rows(operand_of(c, i), 64);
        products[MAP_OUT + i] =
            map_rows(kernel_of(x, i) >= 0 ? result_of(c, i) : operand_of(c, i), 64);
    }
    TRY(map_cache_get(own->maps, drv, pds, PDS_MAPS, maps));
    return map_cache_get(own->maps, drv, products, PRODUCT_MAPS, maps + PDS_MAPS);
}

/* One CTA a multiprocessor, or fewer where there is less to do. */
static ffpa_status launch(const backward_pass *r, int kernel, int64_t tiles, void *args)
{
    const cuda_device *device = r->own->device;
    const cuda_grid grid = {tiles < device->sms ? tiles : device->sms, THREADS};
    return cuda_launch_early(device, r->own->kernels[kernel], r->c->g.stream, grid, args);
}

static unsigned *tickets_of(const backward_pass *r)
{
    return (unsigned *)(void *)(r->workspace + r->x->at.tickets);
}

static ffpa_status run_pds(const backward_pass *r)
{
    const backward_choice *x = r->x;
    pds90_args args = {.q = r->maps[MAP_Q],
                       .dout = r->maps[MAP_DOUT],
                       .k = r->maps[MAP_K],
                       .v = r->maps[MAP_V],
                       .lse = args_tensor(&r->c->f.lse),
                       .delta = (const float *)(const void *)(r->workspace + x->at.delta),
                       .p = r->workspace + x->at.p,
                       .ds = r->workspace + x->at.ds,
                       .tickets = tickets_of(r),
                       .seq = r->seq,
                       .scores = r->scores,
                       .dropout = r->dropout,
                       .chunk = r->chunk,
                       .stairs = backward_stairs(r),
                       .hq = r->hq,
                       .hk = r->hk,
                       .group = r->group,
                       .dbias =
                           x->dmask < 0 ? NULL : (float *)(void *)(r->workspace + x->at.dbias)};
    const int64_t tiles =
        (int64_t)r->chunk.nh * r->chunk.nt * ceil_div(r->chunk.ld, x->pds_keys);
    return launch(r, x->pds, tiles, &args);
}

/* All products of kernel `kernel`. */
static ffpa_status run_products_of(const backward_pass *r, int kernel, unsigned *ticket)
{
    const backward_choice *x = r->x;
    const problem *p = r->prob;
    products_args args = {.p = r->workspace + x->at.p,
                          .ds = r->workspace + x->at.ds,
                          .ticket = ticket,
                          .seq = r->seq,
                          .chunk = r->chunk,
                          .stairs = backward_stairs(r),
                          .scale = r->scores.scale,
                          .hq = r->hq,
                          .hk = r->hk,
                          .group = r->group,
                          .order = {-1, -1, -1},
                          .left = r->scores.left,
                          .right = r->scores.right,
                          .top_left = r->scores.top_left,
                          .last = r->closes};
    const bool keys_first = products_keys_first(
        &p->ask, r->chunk.nt, r->chunk.nh < r->group ? r->chunk.nh : r->group);
    int count = 0;
    for (int k = 0; k < 3; k++) {
        const int i = keys_first ? k : (k + 2) % 3; /* the longest sums first */
        if (kernel_of(x, i) != kernel) continue;
        args.order[count++] = i;
        args.b[i] = r->maps[PDS_MAPS + MAP_B + i];
        args.out[i] = r->maps[PDS_MAPS + MAP_OUT + i];
        args.b_rows[i] = args_tensor(operand_of(r->c, i));
        args.out_rows[i] = args_tensor(result_of(r->c, i));
        args.columns = (int)result_of(r->c, i)->shape[3];
    }
    args.key_units = units(p, true, args.columns);
    args.query_units = units(p, false, args.columns);
    if (x->partial && x->dv == kernel)
        args.partial[DV] = (float *)(void *)(r->workspace + x->at.dv_partial);
    if (x->partial && x->dk == kernel)
        args.partial[DK] = (float *)(void *)(r->workspace + x->at.dk_partial);
    const int64_t tiles = (int64_t)count * r->chunk.nh * (args.key_units + args.query_units) *
                          unit_tiles(columns_sm90(args.columns));
    return launch(r, kernel, tiles, &args);
}

static ffpa_status run_products(const backward_pass *r)
{
    const backward_choice *x = r->x;
    const int square = x->dk >= 0 ? x->dk : x->dq; /* of D columns */
    unsigned *tickets = tickets_of(r);
    if (x->dv >= 0 && x->dv != square) TRY(run_products_of(r, x->dv, tickets));
    return square >= 0 ? run_products_of(r, square, tickets + 1) : FFPA_OK;
}

ffpa_status backward_sm90_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                              char *workspace)
{
    static const backward_stages sm90 = {run_pds, run_products};
    k_map maps[ALL_MAPS];
    TRY(get_maps(own, c, maps));
    return backward_enqueue(plan, own, c, workspace, &sm90, maps);
}
