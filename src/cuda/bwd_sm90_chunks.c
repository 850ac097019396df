/* bwd_sm90_chunks.c - chunks of the Hopper backward, by running each candidate in a small model of the device:
 * P and dS in rounds of equal tiles, then the products' tiles in their order, each to the multiprocessor
 * that is free first. What a chunk loses is its last round; large tiles and few heads make that dear. */
#include "cuda/bwd_sm90_chunks.h"

#include "common/shapes.h"
#include "cuda/cuda_args.h"

enum { LINE = 128, MAX_SMS = 256, MOST_TILES = 400000 };

/* Microseconds, fitted to an H200 (docs/design/0012-backward-on-hopper.md). */
static const double LAUNCH = 4, TILE_FIXED = 3.0, TILE_COLUMN = 4.1 / 512, STEP = 1.17,
                    TILE_STEPS = 3, CARRY_STEPS = 5;
static const int TILE_KEYS = 192; /* of the tiles that these are of */

typedef struct model {
    const problem *p;
    key_window w;
    int64_t group;
    int tile_keys, sms, order[3];
    double load[MAX_SMS]; /* a heap: the least is first */
    int64_t tiles;        /* looked at so far */
} model;

typedef struct chunk {
    int64_t heads, from, to; /* lines from .. to-1 */
    bool partial;
} chunk;

/* ---- the device --------------------------------------------------------------------------------------- */

static void give(model *m, double cost)
{
    const double load = m->load[0] + cost;
    int i = 0;
    for (;;) { /* down to its place */
        int child = 2 * i + 1;
        if (child >= m->sms) break;
        if (child + 1 < m->sms && m->load[child + 1] < m->load[child]) child++;
        if (m->load[child] >= load) break;
        m->load[i] = m->load[child];
        i = child;
    }
    m->load[i] = load;
    m->tiles++;
}

static double last_of(const model *m)
{
    double most = 0;
    for (int i = 0; i < m->sms; i++)
        if (m->load[i] > most) most = m->load[i];
    return most;
}

/* ---- sums ----------------------------------------------------------------------------------------------- */

static int64_t within(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static int64_t shift_of(const model *m)
{
    return m->w.top_left ? 0 : m->p->ask.nk - m->p->ask.nq;
}

/* Keys that rows [row, end) see. */
static int64_t keys_seen(const model *m, int64_t row, int64_t end)
{
    const int64_t nk = m->p->ask.nk, shift = shift_of(m);
    const int64_t hi = m->w.right < 0 ? nk : within(end + shift + m->w.right, 0, nk);
    return hi - (m->w.left < 0 ? 0 : within(row + shift - m->w.left, 0, hi));
}

/* Rows of [from, to) that see a key of [key, end). */
static int64_t rows_seeing(const model *m, int64_t key, int64_t end, int64_t from, int64_t to)
{
    const int64_t shift = shift_of(m);
    if (m->w.right >= 0) from = within(key - m->w.right - shift, from, to);
    if (m->w.left >= 0) to = within(end + m->w.left - shift, from, to);
    return to - from;
}

/* Of a product: 0 dV, 1 dK, 2 dQ. */
static int columns_of(const model *m, int product)
{
    return columns_sm90(product == 0 ? m->p->ask.dv : m->p->ask.d);
}

/* Steps that bring the sums of the keys [key, end) in from the chunk before and leave them to the next. */
static double carry_of(const model *m, const chunk *c, int64_t key, int64_t end, int64_t from,
                       int64_t to)
{
    const bool others =
        c->heads < m->group; /* heads of the group: most chunks are neither first nor last */
    const bool before = others || rows_seeing(m, key, end, 0, from) > 0;
    const bool behind = others || rows_seeing(m, key, end, to, m->p->ask.nq) > 0;
    return c->partial ? CARRY_STEPS * (before + behind) : 0;
}

/* Tiles of one unit of one product and head that begin at `row`; rows [from, to) of the sequence are in the
 * chunk. The tiles of a mixed unit count as equally spaced. */
static void give_unit(model *m, const chunk *c, int product, int64_t row, int64_t from,
                      int64_t to)
{
    const int columns = columns_of(m, product), n = unit_tiles(columns),
              unit = unit_rows(columns);
    const int side = wide_tiles(columns) + slim_tiles(columns); /* tiles side by side */
    const int64_t heads = product == 2          ? 1
                          : c->heads < m->group ? c->heads
                                                : m->group; /* of a sum */
    for (int i = 0; i < n; i++) {
        const int64_t at = row + (int64_t)(i / side * side) * unit / n,
                      end = at + unit * side / n;
        const int64_t length = product == 2 ? m->p->ask.nq : m->p->ask.nk;
        if (at >= length || (product == 2 && (at >= to || end <= from))) continue;
        const int64_t sum =
            product == 2 ? keys_seen(m, at, end) : rows_seeing(m, at, end, from, to);
        if (sum == 0 && c->partial) continue;
        const double extra = product == 2 ? 0 : carry_of(m, c, at, end, from, to);
        give(m, (double)(heads * ((sum + 63) / 64)) + extra + TILE_STEPS);
    }
}

static int64_t units_of(const model *m, int product)
{
    const int unit = unit_rows(columns_of(m, product));
    return ((product == 2 ? m->p->ask.nq : m->p->ask.nk) + unit - 1) / unit;
}

/* All units of one product and head in one sequence, in the kernel's order. */
static void give_product(model *m, const chunk *c, int product, int64_t from, int64_t to)
{
    const int64_t units = units_of(m, product), unit = unit_rows(columns_of(m, product));
    for (int64_t u = 0; u < units; u++)
        give_unit(m, c, product, (product == 2 ? units - 1 - u : u) * unit, from, to);
}

/* The same of all products together, as the kernel does where a head has keys of its own. */
static void give_head(model *m, const chunk *c, int64_t from, int64_t to)
{
    for (int64_t u = 0; u < units_of(m, 0) || u < units_of(m, 2); u++)
        for (int k = 0; k < 3; k++) {
            const int product = m->order[k];
            if (product < 0 || u >= units_of(m, product)) continue;
            const int64_t at = product == 2 ? units_of(m, 2) - 1 - u : u;
            give_unit(m, c, product, at * unit_rows(columns_of(m, product)), from, to);
        }
}

/* Tiles of P and dS of one head. */
static int64_t pds_tiles(const model *m, int64_t from, int64_t to)
{
    int64_t tiles = 0;
    for (int64_t row = from; row < to; row += LINE)
        tiles += ceil_div(keys_seen(m, row, row + LINE < to ? row + LINE : to), m->tile_keys);
    return tiles;
}

/* Products in the order of their launch. */
static void order_products(model *m, const chunk *c)
{
    const int64_t heads = c->heads < m->group ? c->heads : m->group;
    const bool keys_first = products_keys_first(&m->p->ask, c->to - c->from, heads);
    for (int k = 0; k < 3; k++) {
        const int product = keys_first ? k : (k + 2) % 3;
        const uint32_t output = product == 0 ? OUT_DV : product == 1 ? OUT_DK : OUT_DQ;
        m->order[k] = m->p->outputs & output ? product : -1;
    }
}

/* Microseconds of a chunk. */
static double cost_of(model *m, const chunk *c)
{
    const ffpa_problem *a = &m->p->ask;
    const int64_t each = (a->nq + LINE - 1) / LINE;
    const bool together = m->group == 1 && (m->w.left >= 0 || m->w.right >= 0);
    const int64_t kv_heads = c->heads < m->group ? 1 : c->heads / m->group;
    int64_t tiles = 0;
    order_products(m, c);
    for (int i = 0; i < m->sms; i++)
        m->load[i] = 0;
    for (int k = 0; k < (together ? 1 : 3); k++)
        for (int64_t s = c->from / each; s * each < c->to; s++) {
            const int64_t from = within((c->from - s * each) * LINE, 0, a->nq);
            const int64_t to = within((c->to - s * each) * LINE, 0, a->nq);
            const int64_t heads = m->order[k] == 2 || together ? c->heads : kv_heads;
            if (k == 0) tiles += c->heads * pds_tiles(m, from, to);
            for (int64_t h = 0; h < heads && m->order[k] >= 0; h++) {
                if (together)
                    give_head(m, c, from, to);
                else
                    give_product(m, c, m->order[k], from, to);
            }
        }
    const double tile =
        TILE_FIXED + TILE_COLUMN * (double)(a->d + a->dv) * m->tile_keys / TILE_KEYS;
    return 2 * LAUNCH + (double)((tiles + m->sms - 1) / m->sms) * tile + last_of(m) * STEP;
}

/* ---- candidates ----------------------------------------------------------------------------------------- */

/* Microseconds of everything in chunks of `heads` heads and `rows` lines. */
static double cost_of_all(model *m, const backward_choice *x)
{
    const int64_t hq = m->p->ask.hq, rest = hq % x->heads;
    double cost = 0;
    for (int64_t t = 0, to; t < x->lines && m->tiles < MOST_TILES; t = to) {
        to = t + backward_lines_from(m->p, x, (int)t);
        cost += (double)(hq / x->heads) * cost_of(m, &(chunk){x->heads, t, to, x->partial});
        if (rest) cost += cost_of(m, &(chunk){rest, t, to, x->partial});
    }
    return cost;
}

/* Do early rows see fewer keys than late ones? (Not asked of so many rows that planning would take a while.) */
static bool keys_grow(const problem *p, const backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    return x->lines <= 4096 && key_range_of(a, a->nq, a->nk, 0).last < a->nk;
}

static int chunks_with(const problem *p, backward_choice *x, uint64_t room)
{
    int chunks = 0;
    x->room = room;
    for (int t = 0; t < x->lines; t += backward_lines_from(p, x, t))
        chunks++;
    return chunks;
}

/* The least room from `least` to what there is that makes no more chunks: they become alike. */
static void even_room(const problem *p, backward_choice *x, uint64_t least)
{
    uint64_t most = x->room;
    const int chunks = chunks_with(p, x, most);
    while (most - least > (uint64_t)LINE * LINE) {
        const uint64_t middle = least + (most - least) / 2;
        if (chunks_with(p, x, middle) <= chunks)
            most = middle;
        else
            least = middle;
    }
    x->room = most;
}

/* As many lines as fit with `heads` heads, in chunks of equal length, or, where rows differ in the keys that they see, of equal
 * size. False when too few do. Divided step by step,
 * because the bytes of all lines may be more than 2^64. */
static bool fit_rows(const problem *p, backward_choice *x, int64_t heads, int64_t group)
{
    enum { LEAST = 6 }; /* lines: whole tiles of every kind */
    const uint64_t line = backward_line_bytes(p), ld = (uint64_t)x->ld;
    const uint64_t kv_heads = (uint64_t)(heads < group ? 1 : heads / group);
    uint64_t budget = backward_budget(p);
    x->heads = (int)heads;
    x->rows = x->lines;
    x->room = 0;
    x->partial = heads < group;
    const uint64_t all = backward_area(p, x, 0, x->lines);
    if (!x->partial && budget / line / (uint64_t)heads >= all) return true;
    const uint64_t sums = kv_heads * (x->dk_sums + x->dv_sums);
    x->partial = true;
    budget = budget > sums ? budget - sums : 0;
    const uint64_t fit = budget / line / (uint64_t)heads;
    if (heads < group && fit >= all) return true;
    if (fit < LEAST * ld) return false;
    const int64_t most = (int64_t)(fit / ld) / LEAST * LEAST;
    if (keys_grow(p, x)) {
        x->room = x->growth ? fit : (uint64_t)most * ld;
        even_room(p, x, LEAST * ld);
        return true;
    }
    const int64_t chunks = (x->lines + most - 1) / most;
    x->rows = (int)(((x->lines + chunks - 1) / chunks + LEAST - 1) / LEAST * LEAST);
    return true;
}

/* As many whole sequences as fit with `heads` heads, whole groups, in chunks of equal length: none of their sums goes on in the
 * next chunk. False when not one fits, or all do. */
static bool fit_sequences(const problem *p, backward_choice *x, int64_t heads)
{
    const int64_t each = ceil_div(p->ask.nq, LINE), b = p->ask.b;
    x->heads = (int)heads;
    x->room = 0;
    x->partial = false;
    const uint64_t fit = backward_budget(p) / backward_line_bytes(p) / (uint64_t)heads /
                         backward_area(p, x, 0, (int)each);
    if (fit < 1 || fit >= (uint64_t)b) return false;
    const int64_t chunks = ceil_div(b, (int64_t)fit);
    x->rows = (int)(ceil_div(b, chunks) * each);
    return true;
}

static void judge(model *m, backward_choice *x, const backward_choice *y, double *best)
{
    const double cost = cost_of_all(m, y);
    if (m->tiles >= MOST_TILES || (*best >= 0 && cost >= *best)) return;
    *best = cost;
    *x = *y;
}

static void consider(model *m, backward_choice *x, int64_t heads, double *best)
{
    backward_choice rows = *x, sequences = *x;
    if (fit_rows(m->p, &rows, heads, m->group)) judge(m, x, &rows, best);
    if (heads % m->group == 0 && fit_sequences(m->p, &sequences, heads))
        judge(m, x, &sequences, best);
}

bool products_keys_first(const ffpa_problem *a, int64_t lines, int64_t heads)
{
    const int64_t rows = lines * LINE < a->nq ? lines * LINE : a->nq;
    return rows * heads >= a->nk;
}

/* Where each row sees one key more than the row before, from the first key on, P and dS are as wide as that. */
static void stairs_start(const problem *p, backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    const key_window w = args_window(a);
    const int64_t shift = w.top_left ? 0 : a->nk - a->nq, first = w.right + shift;
    const bool added = a->mask_dtype && a->mask_dtype != FFPA_BOOL; /* renorm knows even rows */
    if (w.right < 0 || w.left >= 0 || first < 0 || first + a->nq > a->nk || added) return;
    if (p->outputs & OUT_DMASK) return;
    x->growth = 2;
    x->first = 2 + (int)ceil_div(first, 64);
    x->ld =
        ceil_div(x->first + 2 * (ceil_div(a->nq, LINE) - 1), 2) * LINE; /* of the last line */
}

void chunks_sm90_choose(const problem *p, const cuda_device *device, backward_choice *x)
{
    const ffpa_problem *a = &p->ask;
    model m = {.p = p,
               .w = args_window(a),
               .group = a->hq / a->hk,
               .tile_keys = x->pds_keys,
               .sms = device->sms < MAX_SMS ? device->sms : MAX_SMS};
    double best = -1;
    const bool dense = !(p->sources & (VARLEN_Q | VARLEN_K));
    if (dense) stairs_start(p, x);
    backward_choose_chunk(p, x);
    if (!dense) return; /* lengths are on the device */
    backward_choice sequences = *x;
    if (x->partial && fit_sequences(p, &sequences, m.group)) *x = sequences;
    for (int64_t chunks = 1, last = 0; chunks <= a->hk; chunks++) {
        const int64_t groups = (a->hk + chunks - 1) / chunks;
        if (groups != last) consider(&m, x, groups * m.group, &best);
        last = groups;
    }
    for (int64_t heads = m.group - 1; heads >= 1; heads--)
        if (m.group % heads == 0) consider(&m, x, heads, &best);
}
