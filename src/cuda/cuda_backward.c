/* cuda_backward.c - plan of the backward pass: chunks, workspace, kernels. Running is in
 * cuda_backward_run.c. */
#include "cuda/cuda_backward.h"

#include "common/args.h"
#include "common/shapes.h"
#include "cuda/cuda_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS = 128,
    FLOOR = 64 << 20, /* least workspace that a limit may ask for */
    CUT = 6           /* lines: whole tiles of every kind */
};

bool backward_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes)
{
    const ffpa_problem *a = &p->ask;
    const char *reason = NULL;
    (void)device;
    if (a->dtype == FFPA_F64)
        reason = "f64 runs on the reference backend only";
    else if (p->row_subset)
        reason = "rows: only the reference and naive backends take a subset";
    if (reason) snprintf(why, why_bytes, "%s", reason);
    return !reason && args_fit(p, why, why_bytes);
}

/* ---- chunks ---------------------------------------------------------------------------------------- */

size_t backward_padded(uint64_t bytes) { return (size_t)((bytes + 255) / 256 * 256); }

uint64_t backward_line_bytes(const problem *p)
{
    return ROWS * (2 * dtype_bytes(p->ask.dtype) + (p->outputs & OUT_DMASK ? 4 : 0));
}

int64_t backward_keys_of(const problem *p, const backward_choice *x, int t0, int lines)
{
    const ffpa_problem *a = &p->ask;
    const int64_t each = ceil_div(a->nq, ROWS),
                  end = t0 + lines; /* dense: lines of a sequence */
    if (x->room == 0 || t0 / each != (end - 1) / each) return x->ld;
    const int64_t row = (end - t0 / each * each) * ROWS - 1;
    const int64_t keys = key_range_of(a, a->nq, a->nk, row < a->nq ? row : a->nq - 1).last;
    return keys < ROWS ? ROWS : ceil_div(keys, ROWS) * ROWS;
}

/* Blocks of a head before line t of all sequences. */
static int64_t blocks_before(const problem *p, const backward_choice *x, int64_t t)
{
    const int64_t each = ceil_div(p->ask.nq, ROWS);
    return t / each * stairs_before(x->first, x->growth, each) +
           stairs_before(x->first, x->growth, t % each);
}

uint64_t backward_area(const problem *p, const backward_choice *x, int t0, int lines)
{
    enum { BLOCK_KEYS = 32 }; /* 64 x 64 elements are 32 keys of a line */
    if (!x->growth) return (uint64_t)lines * (uint64_t)backward_keys_of(p, x, t0, lines);
    return (uint64_t)(blocks_before(p, x, t0 + lines) - blocks_before(p, x, t0)) * BLOCK_KEYS;
}

k_stairs backward_stairs(const backward_pass *r)
{
    const backward_choice *x = r->x;
    const k_chunk *c = &r->chunk;
    if (!x->growth) {
        const int wide = (int)(c->ld / 64);
        return (k_stairs){.first = wide,
                          .head = stairs_before(wide, 0, c->nt),
                          .start = stairs_before(wide, 0, c->t0)};
    }
    const int64_t start = blocks_before(r->prob, x, c->t0);
    return (k_stairs){.first = x->first,
                      .growth = x->growth,
                      .head = blocks_before(r->prob, x, c->t0 + c->nt) - start,
                      .sequence =
                          stairs_before(x->first, x->growth, ceil_div(r->prob->ask.nq, ROWS)),
                      .start = start};
}

int backward_lines_from(const problem *p, const backward_choice *x, int t0)
{
    const int rest = x->lines - t0;
    if (x->room == 0) return x->rows < rest ? x->rows : rest;
    int lines =
        (int)(x->room / (uint64_t)x->ld) / CUT * CUT; /* so many fit, whatever they see */
    for (int more = lines + CUT; lines < rest; more += CUT) {
        if (more > rest) more = rest;
        if (backward_area(p, x, t0, more) > x->room) break;
        lines = more;
    }
    return lines < rest ? lines : rest;
}

static int64_t mask_rows(const ffpa_problem *a)
{
    return (a->mask_axes & 1 ? a->b : 1) * (a->mask_axes & 2 ? a->hq : 1) *
           (a->mask_axes & 4 ? a->nq : 1);
}

static int64_t mask_columns(const ffpa_problem *a) { return a->mask_axes & 8 ? a->nk : 1; }

static uint64_t mask_elements(const ffpa_problem *a)
{
    return (uint64_t)(mask_rows(a) * mask_columns(a));
}

/* Largest divisor of `group` that is at most `limit`. */
static int divisor_within(int64_t group, uint64_t limit)
{
    int64_t best = 0;
    for (int64_t n = 1; n <= group; n++)
        if (group % n == 0 && (uint64_t)n <= limit) best = n;
    return (int)best;
}

uint64_t backward_budget(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const uint64_t limit = p->workspace_limit_bytes > FLOOR ? p->workspace_limit_bytes : FLOOR;
    uint64_t fixed = backward_padded((uint64_t)a->hq * (uint64_t)p->total_q * 4) +
                     1024; /* delta, padding of the parts */
    if (p->outputs & OUT_DMASK) fixed += backward_padded(mask_elements(a) * 4);
    return limit > fixed ? limit - fixed : 0;
}

/* Whole kv groups if one fits the budget, else heads that divide a group, else lines of one head. Divided step by
 * step, because the bytes of a head may be more than 2^64. */
void backward_choose_chunk(const problem *p, backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const int64_t group = a->hk > 0 ? a->hq / a->hk : 1;
    const uint64_t bytes = backward_line_bytes(p) * (uint64_t)x->ld, line = bytes ? bytes : 1;
    const uint64_t lines = (uint64_t)(x->lines ? x->lines : 1);
    uint64_t budget = backward_budget(p);
    const uint64_t groups = budget / line / lines / (uint64_t)group;
    x->rows = x->lines;
    x->partial = false;
    if (groups >= 1) {
        x->heads = (int)((int64_t)groups < a->hk ? (int64_t)groups * group : a->hq);
        return;
    }
    x->partial = true;
    const uint64_t sums = x->dk_sums + x->dv_sums;
    budget = budget > sums ? budget - sums : 0;
    x->heads = divisor_within(group, budget / line / lines);
    if (x->heads > 0) return;
    x->heads = 1;
    x->rows = (int)(budget / line > 1 ? budget / line : 1);
}

static size_t place(size_t *end, uint64_t bytes)
{
    const size_t at = *end;
    *end += backward_padded(bytes);
    return at;
}

void backward_choose_layout(const problem *p, backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const bool several = x->heads < a->hq || x->rows < x->lines;
    /* Lines of whole sequences take as much in every chunk. */
    const bool alike = x->rows == x->lines ||
                       (!(p->sources & VARLEN_Q) && x->rows % ceil_div(a->nq, ROWS) == 0);
    const uint64_t area = x->room ? x->room
                          : alike ? backward_area(p, x, 0, x->rows)
                                  : (uint64_t)x->rows * (uint64_t)x->ld;
    const uint64_t elements = (uint64_t)x->heads * area * ROWS;
    const uint64_t size = dtype_bytes(a->dtype);
    const int64_t group = a->hk > 0 ? a->hq / a->hk : 1;
    const uint64_t kv_heads = (uint64_t)ceil_div(x->heads, group);
    size_t end = 0;
    x->dmask_partial = (p->outputs & OUT_DMASK) && several && (a->mask_axes & 7u) != 7u;
    x->at.delta = place(&end, (uint64_t)a->hq * (uint64_t)p->total_q * 4);
    x->at.p = place(&end, elements * size);
    x->at.ds = place(&end, elements * size);
    x->at.dbias = place(&end, p->outputs & OUT_DMASK ? elements * 4 : 0);
    x->at.dk_partial = place(&end, x->partial ? x->dk_sums * kv_heads : 0);
    x->at.dv_partial = place(&end, x->partial ? x->dv_sums * kv_heads : 0);
    x->at.dmask_partial = place(&end, x->dmask_partial ? mask_elements(a) * 4 : 0);
    x->at.tickets = place(&end, 8);
    x->at.bytes = end;
}

void backward_start(const problem *p, backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const int64_t keys = p->sources & VARLEN_K ? p->total_k : a->nk;
    *x = (backward_choice){.delta = -1,
                           .pds = -1,
                           .renorm = -1,
                           .dv = -1,
                           .dk = -1,
                           .dq = -1,
                           .dmask = -1,
                           .dsink = -1};
    x->ld = ceil_div(keys, ROWS) * ROWS;
    x->lines = (int)tile_lines(a->b, a->nq, p->total_q, p->sources & VARLEN_Q, ROWS);
    x->key_lines = (int)tile_lines(a->b, a->nk, p->total_k, p->sources & VARLEN_K, ROWS);
}

/* ---- kernels --------------------------------------------------------------------------------------- */

static int add_small(variant_list *list, const problem *p, const cuda_device *device,
                     const char *file, const char *kind)
{
    char name[112];
    snprintf(name, sizeof name, "%s_%s", kind, dtype_name(p->ask.dtype));
    variant *v = variant_add(list, file, device->arch, 0, name);
    config_set(v, "DTYPE", p->ask.dtype);
    config_set(v, "VARLEN", macro_varlen(p));
    return list->count - 1;
}

bool backward_delta_aligned(const problem *p)
{
    const uint32_t both = BOXED_O | ALIGNED_DOUT;
    return (p->aligned & both) == both && dtype_bytes(p->ask.dtype) == 2 &&
           p->o_dtype == p->ask.dtype && p->dout_dtype == p->ask.dtype;
}

static int add_delta(variant_list *list, const problem *p, const cuda_device *device)
{
    const int at = add_small(list, p, device, "any/bwd_delta.cuh", "delta");
    config_set(&list->v[at], "O_DTYPE", p->o_dtype);
    config_set(&list->v[at], "DO_DTYPE", p->dout_dtype);
    config_set(&list->v[at], "ALIGNED", backward_delta_aligned(p));
    return at;
}

static int add_dmask(variant_list *list, const problem *p, const cuda_device *device)
{
    const int at = add_small(list, p, device, "any/bwd_mask.cuh", "dmask");
    config_set(&list->v[at], "O_DTYPE", p->dmask_dtype);
    config_set(&list->v[at], "RANGE", macro_range(p));
    return at;
}

int64_t backward_delta_blocks(const problem *p)
{
    const int rows =
        backward_delta_aligned(p) ? 32 : 8; /* of a CTA: eight lanes a row, or a warp */
    return p->ask.hq * ceil_div(p->total_q, rows);
}

int64_t backward_dmask_blocks(const problem *p)
{
    const int keys = p->ask.mask_axes & 4 && p->ask.nq > 1 ? 256 : 32; /* of a CTA */
    return mask_rows(&p->ask) * ceil_div(mask_columns(&p->ask), keys);
}

ffpa_status backward_add_shared(variant_list *list, const problem *p, const cuda_device *device,
                                backward_choice *x)
{
    x->delta = add_delta(list, p, device);
    TRY(cuda_check_blocks(&list->v[x->delta], backward_delta_blocks(p)));
    if (p->outputs & OUT_DMASK) {
        x->dmask = add_dmask(list, p, device);
        TRY(cuda_check_blocks(&list->v[x->dmask], backward_dmask_blocks(p)));
    }
    if (p->outputs & OUT_DSINK)
        x->dsink = add_small(list, p, device, "any/bwd_sink.cuh", "dsink");
    return FFPA_OK;
}

/* An added mask may leave LSE without room for the logarithm of the sum. Dropped weights leave no sum to see. */
static bool needs_renorm(const problem *p)
{
    return p->ask.mask_dtype && p->ask.mask_dtype != FFPA_BOOL && !p->dropping;
}

ffpa_status backward_add_renorm(variant_list *list, const problem *p, const cuda_device *device,
                                backward_choice *x, bool blocks)
{
    const k_chunk largest = {.nh = x->heads, .nt = x->rows};
    if (!needs_renorm(p)) return FFPA_OK;
    x->renorm = add_small(list, p, device, "any/bwd_renorm.cuh", "renorm");
    config_set(&list->v[x->renorm], "RANGE", macro_range(p));
    config_set(&list->v[x->renorm], "BLOCKS", blocks);
    return cuda_check_blocks(&list->v[x->renorm], backward_renorm_blocks(&largest));
}

static bool pds_aligned(const problem *p)
{
    enum { ALL = ALIGNED_Q | ALIGNED_K | ALIGNED_V | ALIGNED_DOUT };
    return (p->aligned & ALL) == ALL && p->dout_dtype == p->ask.dtype;
}

/* Queries of a block: half a tile where f32, any stride or the options' state leave no registers for more. */
static int pds_rows(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    const bool full = p->dropping || a->softcap > 0 || a->mask_dtype;
    return a->dtype == FFPA_F32 || !pds_aligned(p) || full ? ROWS / 2 : ROWS;
}

static int add_pds(variant_list *list, const problem *p, const cuda_device *device, int rows)
{
    enum { MAX_STAGES = 6 };
    const ffpa_problem *a = &p->ask;
    const int fit = device->shared_optin / pds_shared_bytes(rows, 1),
              stages = fit < MAX_STAGES ? fit : MAX_STAGES;
    char name[112];
    snprintf(name, sizeof name, "pds_sm80_%s_d%" PRId64 "v%" PRId64 "_m%ds%d%s",
             dtype_name(a->dtype), a->d, a->dv, rows, stages, score_name_of(p).text);
    variant *v = variant_add(list, "sm80/bwd_pds_sm80.cuh", device->arch,
                             (unsigned)pds_shared_bytes(rows, stages), name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "DO_DTYPE", p->dout_dtype);
    config_set_always(v, "D", a->d);
    config_set_always(v, "DV", a->dv);
    config_set(v, "BM", rows);
    config_set(v, "STAGES", stages);
    config_set(v, "ALIGNED", pds_aligned(p));
    config_set_scores(v, p);
    config_set(v, "DMASK", (p->outputs & OUT_DMASK) != 0);
    return list->count - 1;
}

/* One product: its rows are keys or queries, its columns those of operand b. */
typedef struct product {
    bool keys;
    int64_t columns;
    int32_t b_dtype, out_dtype;
    bool b_aligned;
    int64_t row_tiles;
} product;

static bool product_aligned(const problem *p, const product *g)
{
    return g->b_aligned && g->b_dtype == p->ask.dtype;
}

/* The fewest equal tiles of at most 320 columns, or fewer where shared memory or registers are short, but
 * narrower ones while they do not fill the device. */
static int columns_of_tile(const problem *p, const product *g, const cuda_device *device)
{
    static const int widest[] = {320, 256, 192, 128};
    const bool slim =
        device->shared_optin < 160 * 1024 || p->ask.mask_dtype || !product_aligned(p, g);
    int bn = 64;
    for (int i = p->ask.dtype == FFPA_F32 ? 3 : slim ? 1 : 0; i < 4; i++) {
        const int64_t tiles = ceil_div(g->columns, widest[i]);
        bn = (int)(ceil_div(ceil_div(g->columns, tiles), 64) * 64);
        if (g->row_tiles * tiles * 10 >= (int64_t)device->sms * 9) break;
    }
    return bn;
}

static int add_product(variant_list *list, const problem *p, const cuda_device *device,
                       const product *g, int *bn)
{
    enum { MAX_STAGES = 4 };
    const ffpa_problem *a = &p->ask;
    char name[112];
    if (g->columns == 0 || g->out_dtype == 0) return -1;
    *bn = columns_of_tile(p, g, device);
    const int fit = device->shared_optin / gemm_shared_bytes(*bn, 1);
    const int stages = fit < MAX_STAGES ? fit : MAX_STAGES;
    snprintf(name, sizeof name, "gemm_sm80_%s_%s_n%ds%d%s%s%s", dtype_name(a->dtype),
             g->keys ? "keys" : "queries", *bn, stages, macro_range(p) ? "_range" : "",
             a->mask_dtype ? "_mask" : "", macro_varlen(p) ? "_varlen" : "");
    variant *v = variant_add(list, "sm80/bwd_gemm_sm80.cuh", device->arch,
                             (unsigned)gemm_shared_bytes(*bn, stages), name);
    config_set(v, "DTYPE", a->dtype);
    config_set(v, "O_DTYPE", g->out_dtype);
    config_set(v, "B_DTYPE", g->b_dtype);
    config_set(v, "BN", *bn);
    config_set(v, "STAGES", stages);
    config_set(v, "ALIGNED", product_aligned(p, g));
    config_set(v, "RANGE", macro_range(p));
    config_set(v, "MASK", a->mask_dtype);
    config_set(v, "VARLEN", macro_varlen(p));
    config_set(v, "KEYS", g->keys);
    return list->count - 1;
}

static void add_products(variant_list *list, const problem *p, const cuda_device *device,
                         backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const int64_t group = a->hk > 0 ? a->hq / a->hk : 1;
    const int64_t key_tiles = ceil_div(x->heads, group) * x->key_lines,
                  row_tiles = (int64_t)x->heads * x->rows;
    const product dv = {true,     a->dv, p->dout_dtype, p->dv_dtype, p->aligned & ALIGNED_DOUT,
                        key_tiles};
    const product dk = {true, a->d, a->dtype, p->dk_dtype, p->aligned & ALIGNED_Q, key_tiles};
    const product dq = {false, a->d, a->dtype, p->dq_dtype, p->aligned & ALIGNED_K, row_tiles};
    x->dv = add_product(list, p, device, &dv, &x->dv_columns);
    x->dk = add_product(list, p, device, &dk, &x->dk_columns);
    x->dq = add_product(list, p, device, &dq, &x->dq_columns);
}

/* Partial sums of a kv head: [total_k][columns]. */
static uint64_t sums_bytes(const problem *p, int64_t columns, uint32_t output)
{
    return p->outputs & output ? backward_padded((uint64_t)p->total_k * (uint64_t)columns * 4)
                               : 0;
}

int64_t backward_pds_blocks(const backward_choice *x, const k_chunk *chunk)
{
    return (int64_t)chunk->nh * chunk->nt * (chunk->ld / ROWS) * (ROWS / x->pds_rows);
}

int64_t backward_renorm_blocks(const k_chunk *chunk)
{
    return (int64_t)chunk->nh * chunk->nt * (ROWS / 8); /* a warp a row */
}

int64_t backward_keys_blocks(const backward_choice *x, int64_t kv_heads, int64_t columns,
                             int bn)
{
    return kv_heads * x->key_lines * ceil_div(columns, bn);
}

int64_t backward_rows_blocks(const backward_choice *x, const k_chunk *chunk, int64_t columns)
{
    return (int64_t)chunk->nh * chunk->nt * ceil_div(columns, x->dq_columns);
}

/* Of the largest chunk. */
static ffpa_status check_blocks(const variant_list *list, const problem *p,
                                const backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const k_chunk chunk = {.ld = x->ld, .nh = x->heads, .nt = x->rows};
    const int64_t kv_heads = ceil_div(x->heads, a->hk > 0 ? a->hq / a->hk : 1);
    TRY(cuda_check_blocks(&list->v[x->pds], backward_pds_blocks(x, &chunk)));
    if (x->dv >= 0)
        TRY(cuda_check_blocks(&list->v[x->dv],
                              backward_keys_blocks(x, kv_heads, a->dv, x->dv_columns)));
    if (x->dk >= 0)
        TRY(cuda_check_blocks(&list->v[x->dk],
                              backward_keys_blocks(x, kv_heads, a->d, x->dk_columns)));
    return x->dq < 0
               ? FFPA_OK
               : cuda_check_blocks(&list->v[x->dq], backward_rows_blocks(x, &chunk, a->d));
}

ffpa_status backward_choose(const problem *p, const cuda_device *device, void *choice,
                            variant_list *kernels, ffpa_report *report)
{
    backward_choice *x = choice;
    backward_start(p, x);
    x->dk_sums = sums_bytes(p, p->ask.d, OUT_DK);
    x->dv_sums = sums_bytes(p, p->ask.dv, OUT_DV);
    backward_choose_chunk(p, x);
    backward_choose_layout(p, x);
    TRY(backward_add_shared(kernels, p, device, x));
    x->pds_rows = pds_rows(p);
    x->pds = add_pds(kernels, p, device, x->pds_rows);
    TRY(backward_add_renorm(kernels, p, device, x, false));
    add_products(kernels, p, device, x);
    TRY(check_blocks(kernels, p, x));
    report->workspace_bytes = x->at.bytes;
    report->tile_q = report->tile_k = ROWS;
    report->tile_d = 128 / (int32_t)dtype_bytes(p->ask.dtype);
    return FFPA_OK;
}
