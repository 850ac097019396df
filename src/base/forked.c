/* forked.c - telling processes apart by counting forks, which costs less than asking for the process's
 * number and is never fooled by a number used again. */
#include "base/forked.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* A mark holds twice the number of forks that led to its process, plus 1 while a thread renews. A process
 * forked in the middle of that sees an odd value which is not its own, and renews again. */
static _Atomic uint64_t forks;

static void count_fork(void) { atomic_fetch_add(&forks, 1); }

static pthread_once_t counting = PTHREAD_ONCE_INIT;

static void count_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

void fork_mark_here(fork_mark *mark)
{
    pthread_once(&counting, count_forks);
    atomic_store(&mark->value, 2 * atomic_load(&forks));
}

void fork_check(fork_mark *mark, void (*renew)(void *state), void *state)
{
    const uint64_t here = 2 * atomic_load_explicit(&forks, memory_order_relaxed);
    for (;;) {
        uint64_t seen = atomic_load_explicit(&mark->value, memory_order_acquire);
        if (seen == here) return;
        if (seen == here + 1)
            sched_yield(); /* for the thread that is renewing */
        else if (atomic_compare_exchange_strong(&mark->value, &seen, here + 1)) {
            renew(state);
            atomic_store(&mark->value, here);
        }
    }
}
