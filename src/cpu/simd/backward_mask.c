/* backward_mask.c - the mask pass: dMask, the sum of dS over all that shares an element of the mask.
 *
 * A piece owns a cell of dMask: one mask batch, the mask heads of one key head (or the only one), some
 * query rows (or the only one) and one chunk of keys (or the only one). It goes over every sequence, head,
 * block and tile that touch the cell, in order. */
#include "cpu/simd/backward.h"

typedef struct mask_cell {
    int64_t b0, b1, hk0, hk1; /* sequences and key heads that share it */
    int64_t row0, row1;       /* packed rows, a whole number of blocks */
    int64_t key0, key1;
    int64_t heads, queries, keys; /* size */
    int64_t head0, query0;        /* first mask head and row */
    int64_t batch;
} mask_cell;

/* Queries of a cell: as many as fill whole blocks, whatever the group; one when
 * there are no query heads. */
static int64_t cell_queries(const backward_job *job)
{
    return job->group > 0 && job->group < job->t.bm ? job->t.bm / job->group : 1;
}

typedef struct mask_grid {
    int64_t heads, rows, chunks; /* pieces along each axis; times the mask's batch */
} mask_grid;

static mask_grid grid_of(const backward_job *job)
{
    const int64_t *shape = job->c->f.mask.shape, queries = cell_queries(job);
    return (mask_grid){shape[1] == 1 ? 1 : job->hk,
                       shape[2] == 1 ? 1 : (shape[2] + queries - 1) / queries,
                       shape[3] == 1 ? 1 : (shape[3] + job->t.chunk - 1) / job->t.chunk};
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static mask_cell cell_of(const backward_job *job, int64_t piece)
{
    const int64_t *shape = job->c->f.mask.shape, queries = cell_queries(job);
    const mask_grid g = grid_of(job);
    const int64_t chunk = piece % g.chunks, rows = piece / g.chunks % g.rows;
    const int64_t head = piece / g.chunks / g.rows % g.heads;
    mask_cell cell = {.batch = piece / g.chunks / g.rows / g.heads};
    cell.b0 = shape[0] == 1 ? 0 : cell.batch;
    cell.b1 = shape[0] == 1 ? job->sequences : cell.batch + 1;
    cell.hk0 = shape[1] == 1 ? 0 : head;
    cell.hk1 = shape[1] == 1 ? job->hk : head + 1;
    cell.heads = shape[1] == 1 ? 1 : job->group;
    cell.head0 = shape[1] == 1 ? 0 : head * job->group;
    cell.query0 = shape[2] == 1 ? 0 : rows * queries;
    cell.queries = shape[2] == 1 ? 1 : smaller(queries, shape[2] - cell.query0);
    cell.row0 = cell.query0 * job->group;
    cell.row1 = (shape[2] == 1 ? job->longest_q : cell.query0 + cell.queries) * job->group;
    cell.key0 = chunk * job->t.chunk;
    cell.key1 = shape[3] == 1 ? job->longest_k : smaller(cell.key0 + job->t.chunk, shape[3]);
    cell.keys = shape[3] == 1 ? 1 : cell.key1 - cell.key0;
    return cell;
}

/* Add the tile's dS to the cell. */
static void cell_add(const backward_work *w, const mask_cell *cell, double *sum)
{
    const int64_t *shape = w->job->c->f.mask.shape;
    const ptrdiff_t ld = w->job->t.ld_p;
    for (int r = 0; r < w->rb.rows; r++) {
        const int64_t head = shape[1] == 1 ? 0 : w->rb.head[r] - cell->head0;
        const int64_t query = shape[2] == 1 ? 0 : w->rb.query[r] - cell->query0;
        double *row = sum + (head * cell->queries + query) * cell->keys;
        const int64_t key = shape[3] == 1 ? 0 : w->sc.j0 - cell->key0,
                      step = shape[3] == 1 ? 0 : 1;
        for (ptrdiff_t j = 0; j < w->sc.n; j++)
            row[key + j * step] += (double)w->m.dx[j * ld + r];
    }
}

static void cell_blocks(backward_work *w, const mask_cell *cell, double *sum)
{
    const backward_plan *t = &w->job->t;
    const int64_t end = w->chunk0 + w->keys;
    const int64_t last = smaller(cell->row1, w->seq.nq * w->job->group);
    for (int64_t row0 = cell->row0; row0 < last; row0 += t->bm) {
        backward_load_block(w, row0, (int)smaller(t->bm, last - row0));
        for (int64_t j0 = w->chunk0; j0 < end; j0 += t->bn)
            if (backward_tile(w, j0, (ptrdiff_t)smaller(t->bn, end - j0), WANT_P_DS))
                cell_add(w, cell, sum);
    }
}

static void cell_store(const backward_job *job, const mask_cell *cell, const double *sum)
{
    const ffpa_tensor *t = &job->c->g.dmask;
    float row[MAX_CHUNK];
    for (int64_t h = 0; h < cell->heads; h++)
        for (int64_t i = 0; i < cell->queries; i++) {
            const int64_t offset =
                cell->batch * t->stride[0] + (cell->head0 + h) * t->stride[1] +
                (cell->query0 + i) * t->stride[2] + cell->key0 * t->stride[3];
            for (int64_t j = 0; j < cell->keys; j++)
                row[j] = (float)sum[(h * cell->queries + i) * cell->keys + j];
            row_store((char *)t->data + offset * (int64_t)dtype_bytes(t->dtype), t->dtype,
                      t->stride[3], row, cell->keys);
        }
}

static void mask_piece(void *argument, int64_t piece, int worker)
{
    const backward_job *job = argument;
    const mask_cell cell = cell_of(job, piece);
    backward_work w;
    backward_work_begin(&w, job, worker);
    double *sum = w.m.mask_sum;
    memset(sum, 0, (size_t)(cell.heads * cell.queries * cell.keys) * sizeof *sum);
    for (int64_t b = cell.b0; b < cell.b1; b++)
        for (int64_t hk = cell.hk0; hk < cell.hk1; hk++) {
            backward_sequence(&w, b, hk);
            for (int64_t j0 = cell.key0; j0 < cell.key1; j0 += job->t.chunk) {
                backward_load_chunk(&w, j0, (ptrdiff_t)smaller(job->t.chunk, cell.key1 - j0));
                cell_blocks(&w, &cell, sum);
            }
        }
    cell_store(job, &cell, sum);
}

void backward_mask_pass(backward_job *job, pool *workers)
{
    const mask_grid g = grid_of(job);
    pool_run(workers, mask_piece, job, job->c->f.mask.shape[0] * g.heads * g.rows * g.chunks);
}
