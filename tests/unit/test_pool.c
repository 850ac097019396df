/* test_pool.c - the thread pool: every piece exactly once, distinct workers, callers that meet
 * or nest, a forked child, any thread count, no memory. */
#include "support/unit.h"

#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PIECES = 300, MAX_THREADS = 8 };

typedef struct job {
    _Atomic int done[MAX_PIECES];
    _Atomic int busy[MAX_THREADS]; /* a worker number in use by two pieces at once shows here */
    _Atomic int shared_worker, wrong_worker;
    int threads;
    pool *nested; /* run a small job on this pool from within, when set */
} job;

static void count_piece(void *argument, int64_t piece, int worker)
{
    _Atomic int *done = argument;
    (void)worker;
    atomic_fetch_add(&done[piece], 1);
}

static void do_piece(void *argument, int64_t piece, int worker)
{
    job *j = argument;
    if (worker < 0 || worker >= j->threads) {
        atomic_fetch_add(&j->wrong_worker, 1);
        return;
    }
    if (atomic_fetch_add(&j->busy[worker], 1) != 0) atomic_fetch_add(&j->shared_worker, 1);
    if (j->nested) {
        _Atomic int done[5] = {0};
        pool_run(j->nested, count_piece, done, 5);
        for (int i = 0; i < 5; i++)
            if (atomic_load(&done[i]) != 1) atomic_fetch_add(&j->wrong_worker, 1);
    }
    atomic_fetch_add(&j->done[piece], 1);
    atomic_fetch_sub(&j->busy[worker], 1);
}

/* 0 when the job ran right. */
static int run_job(pool *p, int64_t pieces, pool *nested)
{
    static _Thread_local job j;
    memset(&j, 0, sizeof j);
    j.threads = pool_threads(p);
    j.nested = nested;
    pool_run(p, do_piece, &j, pieces);
    int wrong = atomic_load(&j.shared_worker) + atomic_load(&j.wrong_worker);
    for (int64_t i = 0; i < MAX_PIECES; i++)
        wrong += atomic_load(&j.done[i]) != (i < pieces);
    return wrong;
}

static void every_piece_once_at_any_thread_count(void **state)
{
    (void)state;
    const int64_t pieces[] = {0, 1, 2, 3, 7, 8, 9, 64, MAX_PIECES};
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        pool *p = pool_new(&allocator_default, threads);
        assert_non_null(p);
        assert_int_equal(pool_threads(p), threads);
        for (int round = 0; round < 50; round++)
            for (size_t i = 0; i < COUNT(pieces); i++)
                assert_int_equal(run_job(p, pieces[i], NULL), 0);
        pool_free(p);
    }
}

static void unused_pool_is_freed(void **state)
{
    (void)state;
    pool_free(NULL);
    pool *p = pool_new(&allocator_default, 4);
    assert_non_null(p);
    pool_free(p);
}

static void a_piece_may_run_a_job_itself(void **state)
{
    (void)state;
    pool *outer = pool_new(&allocator_default, 3), *inner = pool_new(&allocator_default, 3);
    for (int round = 0; round < 50; round++) {
        assert_int_equal(run_job(outer, 20, outer), 0); /* busy with its own caller */
        assert_int_equal(run_job(outer, 20, inner),
                         0); /* one that three workers want at once */
    }
    pool_free(inner);
    pool_free(outer);
}

typedef struct caller {
    pool *pool;
    int wrong;
} caller;

static void *call_often(void *argument)
{
    caller *c = argument;
    for (int round = 0; round < 300; round++)
        c->wrong += run_job(c->pool, 1 + round % 40, NULL);
    return NULL;
}

static void many_callers_share_a_pool(void **state)
{
    (void)state;
    pool *p = pool_new(&allocator_default, 3);
    pthread_t thread[6];
    caller callers[6];
    for (int i = 0; i < 6; i++) {
        callers[i] = (caller){.pool = p};
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(callers[i].wrong, 0);
    }
    pool_free(p);
}

/* The thread sanitizer does not follow threads that a forked child starts. */
#ifdef __SANITIZE_THREAD__
#    define SKIP_UNDER_TSAN() skip()
#else
#    define SKIP_UNDER_TSAN() (void)0
#endif

/* Run `body` in a forked child and give its exit code, or -1 when it hung or died. */
static int in_child(int (*body)(pool *), pool *p)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(20); /* a hang ends the child, and the test fails */
        _exit(body(p));
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

static int run_and_free(pool *p)
{
    int wrong = 0;
    for (int round = 0; round < 20; round++)
        wrong += run_job(p, 50, NULL);
    pool_free(p);
    return wrong != 0;
}

static int only_free(pool *p)
{
    pool_free(p);
    return 0;
}

static void a_forked_child_can_run_and_free(void **state)
{
    (void)state;
    SKIP_UNDER_TSAN();
    pool *p = pool_new(&allocator_default, 4);
    assert_int_equal(in_child(run_and_free, p), 0); /* before any thread exists */
    assert_int_equal(run_job(p, 50, NULL), 0);
    assert_int_equal(in_child(run_and_free, p), 0);
    assert_int_equal(in_child(only_free, p), 0);
    assert_int_equal(run_job(p, 50, NULL), 0); /* and the parent goes on */
    pool_free(p);
}

/* Forks while another thread keeps the pool busy, so locks are held at that moment. */
static void a_child_forked_in_the_middle_of_a_job(void **state)
{
    (void)state;
    SKIP_UNDER_TSAN();
    pool *p = pool_new(&allocator_default, 3);
    pthread_t thread;
    caller other = {.pool = p};
    assert_int_equal(pthread_create(&thread, NULL, call_often, &other), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(in_child(run_and_free, p), 0);
    pthread_join(thread, NULL);
    assert_int_equal(other.wrong, 0);
    pool_free(p);
}

static void *run_once(void *argument)
{
    caller *c = argument;
    c->wrong += run_job(c->pool, 50, NULL);
    return NULL;
}

static int run_from_two_threads(pool *p)
{
    pthread_t thread;
    caller here = {.pool = p}, there = {.pool = p};
    if (pthread_create(&thread, NULL, run_once, &there) != 0) return 1;
    run_once(&here);
    pthread_join(thread, NULL);
    pool_free(p);
    return here.wrong + there.wrong != 0;
}

/* Threads of a child may come to the pool at once; only one of them may renew its locks. */
static void two_threads_of_a_child_run_at_once(void **state)
{
    (void)state;
    SKIP_UNDER_TSAN();
    pool *p = pool_new(&allocator_default, 3);
    assert_int_equal(run_job(p, 50, NULL), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(in_child(run_from_two_threads, p), 0);
    pool_free(p);
}

static void *no_memory(void *user, size_t bytes, size_t alignment)
{
    (void)user, (void)bytes, (void)alignment;
    return NULL;
}

static void no_memory_is_null(void **state)
{
    (void)state;
    const allocator none = {no_memory, allocator_default.free, NULL};
    assert_null(pool_new(&none, 1));
    assert_null(pool_new(&none, 8));
}

static void at_least_one_processor(void **state)
{
    (void)state;
    assert_in_range(pool_processors(), 1, 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_once_at_any_thread_count),
        cmocka_unit_test(unused_pool_is_freed),
        cmocka_unit_test(a_piece_may_run_a_job_itself),
        cmocka_unit_test(many_callers_share_a_pool),
        cmocka_unit_test(a_forked_child_can_run_and_free),
        cmocka_unit_test(a_child_forked_in_the_middle_of_a_job),
        cmocka_unit_test(two_threads_of_a_child_run_at_once),
        cmocka_unit_test(no_memory_is_null),
        cmocka_unit_test(at_least_one_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
