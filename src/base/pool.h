/* pool.h - one small thread pool. No OpenMP: a second runtime beside a framework's own is a known
 * source of hangs and oversubscription. */
#ifndef FFPA_BASE_POOL_H
#define FFPA_BASE_POOL_H

#include "base/alloc.h"

typedef struct pool pool;

/* One piece of a job. `worker` is in 0..pool_threads()-1 and distinct among pieces running at once,
 * so it may index per-worker scratch. */
typedef void (*pool_fn)(void *job, int64_t piece, int worker);

/* A pool of `threads` (the caller counts as one). Threads start at the first run. NULL = no memory. */
pool *pool_new(const allocator *a, int threads);

void pool_free(pool *p); /* joins the threads; NULL is fine */

int pool_threads(const pool *p);

/* Run fn for pieces 0..pieces-1 and return when all are done. Pieces are claimed in order. When the
 * pool is busy with another caller's job, or threads cannot be started, the caller does all pieces
 * itself as worker 0. In a forked child the pool starts threads of its own. */
void pool_run(pool *p, pool_fn fn, void *job, int64_t pieces);

/* Processors this process may use, at least 1. */
int pool_processors(void);

#endif
