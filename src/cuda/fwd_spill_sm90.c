/* fwd_spill_sm90.c - plan and run of the forward pass with P in the workspace. */
#include "cuda/fwd_spill_sm90.h"

#include "common/shapes.h"
#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <stdio.h>

enum { MIN_D = 321, MAX_D = 1024, ROWS = 128, KEYS = 192, BLOCK = 8192, THREADS = 384 };

/* ---- workspace ------------------------------------------------------------------------------------- */

/* Tiles of 192 keys that the 128 rows from `row` on see. */
static int64_t tiles_seen(const problem *p, int64_t row)
{
    const ffpa_problem *a = &p->ask;
    const int64_t end = row + ROWS < a->nq ? row + ROWS : a->nq;
    const int64_t from = key_range_of(a, a->nq, a->nk, row).first;
    return ceil_div(key_range_of(a, a->nq, a->nk, end - 1).last, KEYS) - from / KEYS;
}

/* May a sequence have fewer keys than the host knows of? */
static bool lengths(const problem *p) { return (p->sources & CACHE_LENGTHS) != 0; }

/* Do two tiles of rows share a place in P? What both see must not depend on a length. */
static bool paired(const problem *p) { return macro_range(p) && !lengths(p); }

/* Tiles of keys that 128 rows see at most, whatever the length. */
static int64_t most_tiles(const problem *p)
{
    const key_window w = args_window(&p->ask);
    const int64_t all = ceil_div(p->ask.nk, KEYS);
    if (w.left < 0 || w.right < 0) return all;
    const int64_t seen = ((int64_t)w.left + w.right + ROWS + KEYS - 1) / KEYS + 1;
    return seen < all ? seen : all;
}

/* Blocks of a run of P where a head's rows come in parts of q_tiles tiles: one tile's, or, where rows differ in the keys
 * they see, those of a tile from the beginning of a part and of one as far from its end. */
static int64_t run_blocks(const problem *p, int64_t q_tiles)
{
    int64_t most = 0;
    if (!macro_range(p)) return ceil_div(p->ask.nk, 64);
    if (lengths(p)) return 3 * most_tiles(p);
    for (int64_t row0 = 0; row0 < p->ask.nq; row0 += q_tiles * ROWS) {
        const int64_t rest = ceil_div(p->ask.nq - row0, ROWS),
                      n = rest < q_tiles ? rest : q_tiles;
        for (int64_t t = 0; 2 * t < n; t++) {
            int64_t tiles = tiles_seen(p, row0 + t * ROWS);
            if (2 * t + 1 < n) tiles += tiles_seen(p, row0 + (n - 1 - t) * ROWS);
            if (tiles > most) most = tiles;
        }
    }
    return 3 * most;
}

/* Bytes of P of a head, or of q_tiles of its tiles. */
static size_t p_bytes(const problem *p, int64_t q_tiles, int64_t run)
{
    return (size_t)((paired(p) ? (q_tiles + 1) / 2 : q_tiles) * 2 * run) * BLOCK;
}

/* Bytes for 128 rows of one head of what there is beside P. */
typedef struct row_bytes {
    size_t moved, factor, inverse;
} row_bytes;

static row_bytes bytes_of_rows(int64_t nk)
{
    const size_t tiles = (size_t)ceil_div(nk, KEYS);
    const row_bytes bytes = {.moved = 2 * (tiles + 1) * 4,
                             .factor = 2 * tiles * 64 * 4,
                             .inverse = (size_t)2 * 64 * 4};
    return bytes;
}

static size_t other_bytes(const problem *p)
{
    const row_bytes b = bytes_of_rows(p->ask.nk);
    return b.moved + b.factor + 2 * b.inverse;
}

/* Alignment of five parts, the block of zeros and the two tickets behind it. */
enum { FIXED_BYTES = BLOCK + 6 * 256 };

static uint64_t room(const problem *p)
{
    return p->workspace_limit_bytes > FIXED_BYTES ? p->workspace_limit_bytes - FIXED_BYTES : 0;
}

/* Whole heads that the workspace limit leaves room for. */
static int64_t heads_that_fit(const problem *p)
{
    const int64_t q_tiles = ceil_div(p->ask.nq, ROWS);
    const size_t head =
        p_bytes(p, q_tiles, run_blocks(p, q_tiles)) + (size_t)q_tiles * other_bytes(p);
    return (int64_t)(room(p) / head);
}

/* Tiles of 128 rows of one head that it leaves room for, should they see every key. One is lost to the pairs of runs. */
static int64_t rows_that_fit(const problem *p)
{
    const int64_t blocks = 2 * 3 * ceil_div(p->ask.nk, KEYS);
    const int64_t fit = (int64_t)(room(p) / ((size_t)(blocks * BLOCK) + other_bytes(p)));
    return paired(p) ? fit - 1 : fit;
}

/* Tiles of 128 rows of all heads. */
static int64_t items_of(const problem *p)
{
    return p->ask.b * p->ask.hq * ceil_div(p->ask.nq, ROWS);
}

/* ---- support ------------------------------------------------------------------------------------- */

static const char *refusal(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const uint32_t boxed = BOXED_Q | BOXED_K | BOXED_V | BOXED_O;
    if (a->dtype != FFPA_F16 && a->dtype != FFPA_BF16) return "takes f16 and bf16";
    if (a->d < MIN_D || a->d > MAX_D || a->dv < 1 || a->dv > MAX_D)
        return "takes D from 321 to 1024 and Dv up to 1024";
    if (p->o_dtype != a->dtype) return "o must have the inputs' dtype";
    if ((p->aligned & boxed) != boxed)
        return "q, k, v and o need rows at 16 bytes and positive strides";
    if (p->sources & ~(uint32_t)CACHE_LENGTHS) return "takes no packed sequences and no pages";
    if (p->new_keys) return "appends no keys";
    if (a->has_scale && !(a->scale > 0.0f)) return "takes no scale of zero or below";
    if (p->row_subset) return "takes no subset of rows";
    if (p->total_q == 0 || p->total_k == 0 || a->hq == 0) return "needs a query and a key";
    if (items_of(p) > INT32_MAX / 2) return "takes at most 2^30 tiles";
    return NULL;
}

bool spill_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const char *reason = refusal(p);
    const int64_t tiles = ceil_div(p->ask.nq, ROWS);
    (void)device;
    if (reason) {
        snprintf(why, why_bytes, "%s", reason);
        return false;
    }
    if (heads_that_fit(p) < 1 && rows_that_fit(p) < (tiles < 3 ? tiles : 3)) {
        snprintf(why, why_bytes,
                 "workspace_limit_bytes=%" PRIu64 " holds P of less than 384 rows",
                 p->workspace_limit_bytes);
        return false;
    }
    return args_fit(p, why, why_bytes);
}

/* What sm90_pair takes is faster there (docs/design/0013-forward-with-p-in-the-workspace.md) unless its softmax has more to do. */
static bool pair_is_faster(const problem *p)
{
    enum { PAIR_MAX_D = 576 };
    const ffpa_problem *a = &p->ask;
    const bool options = a->mask_dtype || a->alibi || a->softcap > 0 || p->dropping;
    return !options && !p->sources && a->d <= PAIR_MAX_D && a->dv > 256 && a->dv <= PAIR_MAX_D;
}

bool spill_prefers(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const int64_t items = items_of(p);
    if (pair_is_faster(p)) {
        snprintf(why, why_bytes, "sm90_pair is faster here");
        return false;
    }
    if (p->ask.nq > ROWS / 2 && items * 6 >= device->sms) return true;
    snprintf(why, why_bytes, "%" PRId64 " tiles of 128 rows of %" PRId64 " do not fill the GPU",
             items, p->ask.nq);
    return false;
}

/* ---- plan ------------------------------------------------------------------------------------------ */

/* Time of a chunk of so many heads, in clocks of the tensor cores over a constant: rounds of the last CTA of each
 * kernel, and a launch's beginning and end. */
static double cost_of_chunk(const problem *p, int64_t heads, int sms)
{
    const ffpa_problem *a = &p->ask;
    const int64_t q_tiles = ceil_div(a->nq, ROWS), o_tiles = ceil_div(a->nq, 192);
    const int64_t halves = ceil_div(a->dv, 128); /* of the widest item of O */
    return 128.0 * (double)a->d * (double)ceil_div(heads * q_tiles, sms) +
           192.0 * 256 * (double)ceil_div(heads * o_tiles * halves, (int64_t)2 * sms) + 3000;
}

/* The same of all chunks, the last of which has what is left. */
static double cost_of(const problem *p, int64_t heads, int sms)
{
    const int64_t all = p->ask.b * p->ask.hq, rest = all % heads;
    return (double)(all / heads) * cost_of_chunk(p, heads, sms) +
           (rest ? cost_of_chunk(p, rest, sms) : 0);
}

/* Heads of a chunk: the most that fit, or fewer where the ends of the launches then idle less. */
static int choose_heads(const problem *p, int64_t most, int sms)
{
    int64_t heads = most;
    double best = cost_of(p, most, sms);
    for (int64_t h = most - 1; h >= 1 && h > most / 2; h--) {
        const double cost = cost_of(p, h, sms);
        if (cost < best * 0.995) best = cost, heads = h;
    }
    return (int)heads;
}

/* Heads of a chunk, of at most so many, where a row's keys grow with its number: whole groups of heads that are walked
 * side by side, for within one the long and the short tiles of a CTA add up to the same. */
static int whole_sides(int64_t most, int64_t side)
{
    return (int)(most > side ? most / side * side : most);
}

static void choose_chunk(const problem *p, int sms, spill_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const int64_t q_tiles = ceil_div(a->nq, ROWS), all = a->b * a->hq;
    const int64_t fit = heads_that_fit(p), most = fit < all ? fit : all;
    const int64_t side = 2 * sms > q_tiles ? 2 * sms / q_tiles : 1;
    x->side = (int)(side < all ? side : all);
    if (most < 1) {
        x->q_tiles = (int)(rows_that_fit(p) / 3 * 3); /* O has tiles of 192 rows */
        if (x->q_tiles > q_tiles) x->q_tiles = (int)q_tiles;
        x->heads = 1;
    } else {
        x->q_tiles = (int)q_tiles;
        x->heads = macro_range(p) ? whole_sides(most, x->side) : choose_heads(p, most, sms);
    }
    x->run_blocks = (int)run_blocks(p, x->q_tiles);
    x->k_blocks = (int)ceil_div(a->nk, 64);
    x->k_tiles = (int)ceil_div(a->nk, KEYS);
}

static size_t place(size_t *end, size_t bytes)
{
    const size_t at = *end;
    *end += (bytes + 255) / 256 * 256;
    return at;
}

/* Offsets of the parts; the size of all. */
static size_t layout(const problem *p, spill_choice *x)
{
    const row_bytes b = bytes_of_rows(p->ask.nk);
    const size_t rows = (size_t)x->heads * (size_t)x->q_tiles;
    size_t end = 0;
    place(&end, (size_t)x->heads * p_bytes(p, x->q_tiles, x->run_blocks));
    x->zero = place(&end, BLOCK + 2 * sizeof(unsigned));
    x->moved = place(&end, rows * b.moved);
    x->factor = place(&end, rows * b.factor);
    x->inverse = place(&end, rows * b.inverse);
    x->base = place(&end, rows * b.inverse);
    return end;
}

static void add_kernel(variant_list *list, const problem *p, const cuda_device *device,
                       const char *part, unsigned shared)
{
    const ffpa_problem *a = &p->ask;
    const bool values = part[1] != 0;
    char name[112];
    snprintf(name, sizeof name, "fwd_spill_%s_sm90_%s_d%" PRId64 "v%" PRId64 "%s%s", part,
             dtype_name(a->dtype), a->d, a->dv, score_name_of(p).text,
             lengths(p) ? "_cache" : "");
    variant *v =
        variant_add(list, values ? "sm90/fwd_spill_pv_sm90.cuh" : "sm90/fwd_spill_p_sm90.cuh",
                    device->arch, shared, name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "D", a->d);
    config_set(v, "DV", a->dv);
    config_set_scores(v, p);
    config_set(v, "CACHE", macro_cache(p));
}

ffpa_status spill_choose(const problem *p, const cuda_device *device, void *choice,
                         variant_list *kernels, ffpa_report *report)
{
    spill_choice *x = choice;
    choose_chunk(p, device->sms, x);
    report->workspace_bytes = layout(p, x);
    add_kernel(kernels, p, device, "p", SPILL_SHARED_BYTES);
    add_kernel(kernels, p, device, "pv", SPILL_PV_SHARED_BYTES);
    report->tile_q = ROWS;
    report->tile_k = KEYS;
    report->tile_d = 64;
    report->splits = 1;
    return FFPA_OK;
}

/* ---- run ------------------------------------------------------------------------------------------- */

static ffpa_status get_maps(const cuda_plan *own, const ffpa_forward_params *f,
                            fwd_spill_args *args)
{
    const map_shape shapes[] = {map_rows(&f->q, 128), map_rows(&f->k, 192), map_rows(&f->v, 64),
                                map_rows(&f->o, 64)};
    k_map maps[4];
    TRY(map_cache_get(own->maps, own->device->drv, shapes, 4, maps));
    args->q = maps[0], args->k = maps[1], args->v = maps[2], args->o_map = maps[3];
    return FFPA_OK;
}

/* May a kernel ask for 16 keys of a bool mask at once, or for two of an added one? */
static bool mask_wide(const k_tensor *m, int32_t dtype)
{
    const int64_t size = (int64_t)dtype_bytes(dtype), unit = dtype == FFPA_BOOL ? 16 : 2 * size;
    return m->data && m->sd == 1 && (uintptr_t)m->data % (uintptr_t)unit == 0 &&
           m->sb * size % unit == 0 && m->sh * size % unit == 0 && m->sn * size % unit == 0;
}

static fwd_spill_args args_of(const problem *p, const spill_choice *x, const call *c,
                              char *workspace)
{
    const ffpa_forward_params *f = &c->f;
    fwd_spill_args args = {
        .q_rows = args_tensor(&f->q),
        .k_rows = args_tensor(&f->k),
        .v_rows = args_tensor(&f->v),
        .o = args_tensor(&f->o),
        .lse = args_tensor(&f->lse),
        .scores = args_scores(c),
        .dropout = args_dropout(c),
        .seq = args_sequences(p, c),
        .p = workspace,
        .zero = workspace + x->zero,
        .moved = (unsigned *)(void *)(workspace + x->moved),
        .factor = (float *)(void *)(workspace + x->factor),
        .inverse = (float *)(void *)(workspace + x->inverse),
        .base = (float *)(void *)(workspace + x->base),
        .tickets = (unsigned *)(void *)(workspace + x->zero + BLOCK),
        .k_blocks = x->k_blocks,
        .k_tiles = x->k_tiles,
        .run_blocks = x->run_blocks,
        .side = x->side,
        .hq = (int)f->q.shape[1],
        .nq = (int)f->q.shape[2],
        .nk = (int)f->k.shape[2]
    };
    args.group = args.hq / (int)f->k.shape[1];
    args.scale_log2 = log2_scale(call_scale(c));
    args.bend = f->softcap > 0 ? args.scores.scale / f->softcap : 0.0f;
    args.mask_wide = mask_wide(&args.scores.mask, f->mask.dtype);
    return args;
}

ffpa_status spill_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                      char *workspace)
{
    const spill_choice *x = own->choice;
    const driver *drv = own->device->drv;
    const cuda_grid grid = {own->device->sms, THREADS};
    fwd_spill_args args = args_of(&plan->prob, x, c, workspace);
    const int heads = (int)(plan->prob.ask.b * args.hq), rows = x->q_tiles * ROWS;
    TRY(get_maps(own, &c->f, &args));
    TRY(driver_check(drv,
                     drv->cuMemsetD32Async((uintptr_t)args.zero, 0, BLOCK / 4 + 2, c->f.stream),
                     "cuMemsetD32Async"));
    for (args.head0 = 0; args.head0 < heads; args.head0 += x->heads)
        for (args.row0 = 0; args.row0 < args.nq; args.row0 += rows) {
            const int tiles = (int)ceil_div(args.nq - args.row0, ROWS);
            args.heads = heads - args.head0 < x->heads ? heads - args.head0 : x->heads;
            args.q_tiles = tiles < x->q_tiles ? tiles : x->q_tiles;
            for (int i = 0; i < 2; i++)
                TRY(cuda_launch(own->device, own->kernels[i], c->f.stream, grid, &args));
        }
    return FFPA_OK;
}
