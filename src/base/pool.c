/* pool.c - a fixed set of threads that claim numbered pieces of one job at a time.
 *
 *   caller    lock `busy`; open a round with the job; wake all; claim pieces; close; wait for those in it
 *   worker    sleep until a round is open; join it; claim pieces until none are left; leave
 *
 * The caller waits only for threads that joined: on a crowded machine, one that has not woken up when
 * the pieces are gone would cost a small job many times its length. A worker holds no lock while it
 * computes, so `busy` serialises callers and `lock` only the hand-over. In a forked child the pool starts
 * afresh, with new locks and no threads. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/pool.h"

#include "base/forked.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

struct pool {
    const allocator *alloc;
    int threads;          /* workers 1..threads-1 are pool threads, worker 0 is the caller */
    int started;          /* pool threads that exist */
    fork_mark process;    /* that the locks and threads belong to */
    pthread_mutex_t busy; /* held by the caller whose job runs */
    pthread_mutex_t lock; /* guards everything below but `next` */
    pthread_cond_t wake;  /* to the workers: a round is open or `stop` is set */
    pthread_cond_t idle;  /* to the caller: `working` fell to 0 */
    uint64_t round;       /* jobs published so far */
    bool open;            /* may threads still join this round? */
    int working;          /* threads that joined and have not left */
    bool stop;
    pool_fn fn;
    void *job;
    int64_t pieces;
    _Atomic int64_t next; /* first unclaimed piece */
    struct worker {
        struct pool *pool;
        pthread_t thread;
        int index;
        uint64_t seen; /* last round this worker took part in */
    } worker[];
};

static void claim_pieces(pool *p, int worker)
{
    for (;;) {
        const int64_t piece = atomic_fetch_add(&p->next, 1);
        if (piece >= p->pieces) return;
        p->fn(p->job, piece, worker);
    }
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    pool *p = w->pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && (!p->open || p->round == w->seen))
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->stop) break;
        w->seen = p->round;
        p->working++;
        pthread_mutex_unlock(&p->lock);
        claim_pieces(p, w->index);
        pthread_mutex_lock(&p->lock);
        if (--p->working == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Make locks for this process and forget threads of another one. */
static void pool_renew(void *state)
{
    pool *p = state;
    pthread_mutex_init(&p->busy, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->started = 0;
    p->open = false;
    p->working = 0;
}

/* Start the threads that are missing; fewer may exist afterwards. Called with `busy` held. */
static void pool_start(pool *p)
{
    sigset_t all,
        before; /* signals are the program's: its handlers must not run on our threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->started < p->threads - 1) {
        struct worker *w = &p->worker[p->started];
        *w = (struct worker){.pool = p, .index = p->started + 1, .seen = p->round};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) break;
        p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

pool *pool_new(const allocator *a, int threads)
{
    const size_t workers = threads > 1 ? (size_t)threads - 1 : 0;
    pool *p = mem_new(a, sizeof *p + workers * sizeof p->worker[0]);
    if (!p) return NULL;
    p->alloc = a;
    p->threads = threads;
    pool_renew(p);
    fork_mark_here(&p->process);
    return p;
}

void pool_free(pool *p)
{
    if (!p) return;
    fork_check(&p->process, pool_renew, p); /* a forked child has no threads to join */
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->worker[i].thread, NULL);
    pthread_mutex_destroy(&p->busy);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    mem_free(p->alloc, p);
}

int pool_threads(const pool *p) { return p->threads; }

static void run_alone(pool_fn fn, void *job, int64_t pieces)
{
    for (int64_t piece = 0; piece < pieces; piece++)
        fn(job, piece, 0);
}

void pool_run(pool *p, pool_fn fn, void *job, int64_t pieces)
{
    if (pieces <= 1 || p->threads <= 1) {
        run_alone(fn, job, pieces);
        return;
    }
    fork_check(&p->process, pool_renew, p);
    if (pthread_mutex_trylock(&p->busy) != 0) {
        run_alone(fn, job, pieces);
        return;
    }
    pool_start(p);
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->job = job;
    p->pieces = pieces;
    atomic_store(&p->next, 0);
    p->open = true;
    p->round++;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    claim_pieces(p, 0);

    pthread_mutex_lock(&p->lock);
    p->open = false;
    while (p->working > 0)
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->busy);
}

int pool_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
