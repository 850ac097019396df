/* cuda_forward.c - plan and run of the forward pass. */
#include "cuda/cuda_forward.h"

#include "common/args.h"
#include "common/shapes.h"
#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- support ------------------------------------------------------------------------------------- */

static bool refuse(char *why, size_t why_bytes, const char *reason)
{
    snprintf(why, why_bytes, "%s", reason);
    return false;
}

bool forward_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const ffpa_problem *a = &p->ask;
    (void)device;
    if (a->dtype == FFPA_F64)
        return refuse(why, why_bytes, "f64 runs on the reference backend only");
    if (p->row_subset)
        return refuse(why, why_bytes,
                      "rows: only the reference and naive backends take a subset");
    return args_fit(p, why, why_bytes);
}

/* ---- tiles --------------------------------------------------------------------------------------- */

/* Tiles in order of preference. `widest` is the largest Dv whose O fits the registers beside the state of
 * the options: a bias, distances, random bits or any stride leave less room. */
enum { PLAIN = 1, RANGE = 2, HEAVY = 4, ANY = 7 }; /* what a tile serves */
typedef struct tile {
    int bm, bn, wm, wn, widest;
    unsigned serves;
} tile;
static const tile TILES[] = {{128, 128, 4, 2, 128, PLAIN | RANGE},
                             {128, 64, 4, 2, 256, ANY},
                             {128, 64, 4, 2, 320, PLAIN},
                             {64, 128, 2, 4, 576, PLAIN | RANGE},
                             {64, 64, 2, 4, 640, PLAIN | RANGE},
                             {32, 256, 1, 8, 1024, PLAIN | RANGE},
                             {64, 64, 2, 4, 512, ANY},
                             {32, 128, 1, 8, 1024, ANY},
                             {16, 128, 1, 8, 1024, ANY},
                             {16, 64, 1, 4, 1024, ANY}};
enum { TILE_COUNT = sizeof TILES / sizeof TILES[0], DECODE_ROWS = 16, F32_WIDEST = 640 };

static bool streams_aligned(const problem *p)
{
    const uint32_t streamed = ALIGNED_Q | ALIGNED_K | ALIGNED_V;
    return (p->aligned & streamed) == streamed;
}

/* What a tile must serve for this problem. */
static unsigned needs(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const bool bias = a->mask_dtype && a->mask_dtype != FFPA_BOOL;
    if (bias || a->alibi || p->dropping || a->softcap > 0 || !streams_aligned(p)) return HEAVY;
    return macro_range(p) || a->mask_dtype ? RANGE : PLAIN;
}

static int shared_bytes(const ffpa_problem *a, const forward_choice *x, int ring_panels)
{
    return fwd_shared_bytes((int)a->d, (int)dtype_bytes(a->dtype), x->bm, x->bn, x->wn,
                            ring_panels);
}

static int at_most(int x, int limit) { return x < limit ? x : limit; }

/* The ring of slots that shared memory leaves room for: slots as wide as they can be, then up to three of
 * them. Decode keeps the memory busy with many small ones, and with two blocks a processor where they fit
 * (each costs 1 KiB of the system's besides its own). False when there is no room for two slots. */
static bool choose_ring(const ffpa_problem *a, const cuda_device *device, int64_t rows,
                        forward_choice *x)
{
    const bool small = x->bm == DECODE_ROWS;
    const int half = device->shared_optin / 2 - 512;
    const bool two = small && rows <= DECODE_ROWS && shared_bytes(a, x, 3) <= half;
    const int room = (two ? half : device->shared_optin) - shared_bytes(a, x, 0),
              panel = x->bn * 128;
    if (room < 2 * panel) return false;
    const int all = shape_panels((int)a->d, (int)dtype_bytes(a->dtype));
    x->panels = small ? 1 : at_most(at_most(all, 5), room / (2 * panel));
    x->stages = at_most(small ? 8 : 3, room / (panel * x->panels));
    return true;
}

/* f32 fills twice the registers and shared memory. The compiler for 10.x and 12.x has no registers left for
 * the tile of 256 keys. */
static bool tile_serves(const tile *t, const problem *p, const cuda_device *device,
                        int64_t rows)
{
    const ffpa_problem *a = &p->ask;
    if (t->bn == 256 && device->cc >= 100) return false;
    if (!(t->serves & needs(p)) || a->dv > t->widest ||
        (t->bm > DECODE_ROWS && rows <= DECODE_ROWS))
        return false;
    if (a->dtype != FFPA_F32) return true;
    return t->bm <= 32 && t->bn <= 128 && (t->bm <= DECODE_ROWS || a->dv <= F32_WIDEST);
}

/* The first tile that registers and shared memory hold; `rows` query rows share keys. */
static bool choose_tile(const problem *p, const cuda_device *device, int64_t rows,
                        forward_choice *x)
{
    for (int i = 0; i < TILE_COUNT; i++) {
        if (!tile_serves(&TILES[i], p, device, rows)) continue;
        x->bm = TILES[i].bm, x->bn = TILES[i].bn, x->wm = TILES[i].wm, x->wn = TILES[i].wn;
        if (choose_ring(&p->ask, device, rows, x)) return true;
    }
    return false;
}

/* Rows of one tile line: with packing, a sequence has Nq * group of them. */
static void choose_grid(const problem *p, forward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const int64_t per_row = x->packed ? a->hq / a->hk : 1;
    x->heads = (int)(x->packed ? a->hk : a->hq);
    x->tiles = (int)tile_lines(a->b, a->nq * per_row, p->total_q * per_row,
                               p->sources & VARLEN_Q, x->bm);
}

/* Split the keys when there are too few blocks for the processors: each part at least two tiles of keys,
 * and partial results within the workspace limit. */
static void choose_splits(const problem *p, const cuda_device *device, forward_choice *x)
{
    enum { MIN_TILES = 2 };
    const ffpa_problem *a = &p->ask;
    const int64_t blocks = (int64_t)x->heads * x->tiles;
    const int64_t key_tiles = ceil_div(a->nk, x->bn);
    const uint64_t part = (uint64_t)a->hq * (uint64_t)p->total_q * ((uint64_t)a->dv + 1) * 4;
    const int64_t wanted = (int64_t)device->sms * (x->bm == DECODE_ROWS ? 2 : 1);
    int64_t splits = blocks > 0 && blocks < wanted ? wanted / blocks : 1;
    if (splits > key_tiles / MIN_TILES) splits = key_tiles / MIN_TILES;
    if (part && (uint64_t)splits > p->workspace_limit_bytes / part)
        splits = (int64_t)(p->workspace_limit_bytes / part);
    if (splits > K_MAX_SPLITS) splits = K_MAX_SPLITS;
    x->splits = splits > 1 ? (int)splits : 1;
}

/* ---- kernels ------------------------------------------------------------------------------------- */

static void set_sequences(variant *v, const problem *p)
{
    config_set(v, "VARLEN", macro_varlen(p));
    config_set(v, "CACHE", macro_cache(p));
}

static void add_attention(variant_list *list, const problem *p, const cuda_device *device,
                          const forward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    char name[112];
    snprintf(name, sizeof name, "fwd_sm80_%s_d%" PRId64 "v%" PRId64 "_m%dn%ds%d%s%s%s",
             dtype_name(a->dtype), a->d, a->dv, x->bm, x->bn, x->stages, score_name_of(p).text,
             macro_cache(p) ? "_cache" : "", x->splits > 1 ? "_split" : "");
    variant *v = variant_add(list, "sm80/fwd_sm80.cuh", device->arch,
                             (unsigned)shared_bytes(a, x, x->stages * x->panels), name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "O_DTYPE", p->o_dtype);
    config_set_always(v, "D", a->d);
    config_set_always(v, "DV", a->dv);
    config_set(v, "BM", x->bm);
    config_set(v, "BN", x->bn);
    config_set(v, "WM", x->wm);
    config_set(v, "WN", x->wn);
    config_set(v, "PANELS", x->panels);
    config_set(v, "STAGES", x->stages);
    config_set(v, "ALIGNED", streams_aligned(p));
    config_set_scores(v, p);
    config_set(v, "CACHE", macro_cache(p));
    config_set(v, "PACK", x->packed);
    config_set(v, "SPLIT", x->splits > 1);
}

/* One of the helpers whose only constants are dtypes and where sequences are. */
static int add_helper(variant_list *list, const problem *p, const cuda_device *device,
                      const char *file, const char *name)
{
    char full[112];
    snprintf(full, sizeof full, "%s_%s", name, dtype_name(p->ask.dtype));
    variant *v = variant_add(list, file, device->arch, 0, full);
    config_set(v, "DTYPE", p->ask.dtype);
    config_set(v, "O_DTYPE", p->o_dtype);
    set_sequences(v, p);
    return list->count - 1;
}

/* v has no columns, but lse is wanted: the problem with one column, which reads and writes a spare element of
 * the workspace. */
static problem with_spare_column(const problem *p)
{
    problem spare = *p;
    spare.ask.dv = 1;
    spare.aligned &= ~(uint32_t)ALIGNED_V;
    return spare;
}

/* Partial results, then the spare element. */
static void choose_workspace(const problem *p, forward_choice *x, ffpa_report *report)
{
    size_t end = 0;
    if (x->splits > 1) {
        const size_t rows = (size_t)x->splits * (size_t)p->ask.hq * (size_t)p->total_q;
        x->lse_part = (rows * (size_t)p->ask.dv * 4 + 255) / 256 * 256;
        end = x->lse_part + rows * 4;
    }
    x->spare_at = (end + 255) / 256 * 256;
    report->workspace_bytes = x->spare ? x->spare_at + 256 : end;
}

ffpa_status forward_choose(const problem *asked, const cuda_device *device, void *choice,
                           variant_list *kernels, ffpa_report *report)
{
    forward_choice *x = choice;
    *x = (forward_choice){.append = -1, .combine = -1, .splits = 1};
    x->spare = asked->ask.dv == 0 && (asked->outputs & OUT_LSE);
    const problem spare = with_spare_column(asked), *p = x->spare ? &spare : asked;
    const ffpa_problem *a = &p->ask;
    x->nothing = p->total_q == 0 || a->hq == 0 || a->dv == 0;
    const int64_t group = a->hk > 0 ? a->hq / a->hk : 1;
    x->packed = group > 1 && a->nq <= DECODE_ROWS;
    if (!x->nothing) {
        CHECK(choose_tile(p, device, x->packed ? a->nq * group : a->nq, x), FFPA_E_UNSUPPORTED,
              "cuda: no forward tile for %s D=%" PRId64 " Dv=%" PRId64
              " fits the %d bytes of shared memory of %s",
              dtype_name(a->dtype), a->d, a->dv, device->shared_optin, device->arch);
        choose_grid(p, x);
        choose_splits(p, device, x);
        CHECK((int64_t)x->heads * x->tiles <= INT32_MAX, FFPA_E_UNSUPPORTED,
              "cuda: %d tiles of %d heads are too many for one launch", x->tiles, x->heads);
        add_attention(kernels, p, device, x);
        if (x->splits > 1)
            x->combine = add_helper(kernels, p, device, "any/split_combine.cuh", "combine");
    }
    if (p->new_keys) x->append = add_helper(kernels, p, device, "any/append.cuh", "append");
    if (!x->nothing) choose_workspace(p, x, report);
    report->tile_q = x->bm;
    report->tile_k = x->bn;
    report->tile_d = (int32_t)a->d;
    report->splits = x->splits;
    return FFPA_OK;
}

/* ---- run ------------------------------------------------------------------------------------------- */

static ffpa_status run_append(const cuda_plan *own, const cuda_kernel *kernel, const call *c,
                              const k_sequences *seq)
{
    append_args args = {.k_new = args_tensor(&c->cache.k_new),
                        .v_new = args_tensor(&c->cache.v_new),
                        .k = args_tensor(&c->f.k),
                        .v = args_tensor(&c->f.v),
                        .seq = *seq,
                        .hk = (int)c->f.k.shape[1],
                        .d = (int)c->f.k.shape[3],
                        .dv = (int)c->f.v.shape[3]};
    const int64_t rows = (int64_t)seq->batch * args.hk * seq->new_keys;
    return cuda_launch(own->device, kernel, c->f.stream, (cuda_grid){ceil_div(rows, 8), 256},
                       &args);
}

static ffpa_status run_attention(const cuda_plan *own, const call *c, const k_sequences *seq,
                                 char *workspace)
{
    const forward_choice *x = own->choice;
    fwd_args args = args_forward(c, seq);
    args.tiles = x->tiles;
    args.splits = x->splits;
    if (x->spare) args.v = args.o = (k_tensor){.data = workspace + x->spare_at};
    if (x->splits > 1) {
        args.o_part = (float *)(void *)workspace;
        args.lse_part = (float *)(void *)(workspace + x->lse_part);
    }
    const int64_t blocks = (int64_t)x->splits * x->heads * x->tiles;
    const cuda_grid grid = {blocks, (unsigned)(32 * x->wm * x->wn)};
    return cuda_launch(own->device, own->kernels[0], c->f.stream, grid, &args);
}

/* A row's columns go to several blocks when there are few rows. */
static int combine_slices(const cuda_device *device, int64_t rows, int64_t dv)
{
    enum { COLUMNS = 64, EACH = 4 }; /* of a run; blocks that a processor should have */
    const int64_t runs = ceil_div(dv, COLUMNS);
    const int64_t wanted = rows > 0 ? (int64_t)device->sms * EACH / rows : 1;
    return (int)(wanted > runs ? runs : wanted > 1 ? wanted : 1);
}

static ffpa_status run_combine(const cuda_plan *own, const call *c, const k_sequences *seq,
                               char *workspace)
{
    const forward_choice *x = own->choice;
    combine_args args = {.o_part = (const float *)(void *)workspace,
                         .lse_part = (const float *)(void *)(workspace + x->lse_part),
                         .o = args_tensor(&c->f.o),
                         .lse = args_tensor(&c->f.lse),
                         .seq = *seq,
                         .hq = (int)c->f.q.shape[1],
                         .splits = x->splits,
                         .dv = x->spare ? 1 : (int)c->f.v.shape[3]};
    if (x->spare) args.o = (k_tensor){.data = workspace + x->spare_at};
    const int64_t rows = args.hq * seq->total_q;
    args.slices = combine_slices(own->device, rows, args.dv);
    const cuda_grid grid = {rows * args.slices, 256};
    return cuda_launch(own->device, own->kernels[x->combine], c->f.stream, grid, &args);
}

ffpa_status forward_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                        char *workspace)
{
    const forward_choice *x = own->choice;
    const k_sequences seq = args_sequences(&plan->prob, c);
    if (x->append >= 0) TRY(run_append(own, own->kernels[x->append], c, &seq));
    if (x->nothing) return FFPA_OK;
    TRY(run_attention(own, c, &seq, workspace));
    return x->combine >= 0 ? run_combine(own, c, &seq, workspace) : FFPA_OK;
}
