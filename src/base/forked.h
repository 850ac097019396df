/* forked.h - state that a forked child must renew: only the calling thread exists there, and a lock that
 * another one held at that moment stays locked for ever. */
#ifndef FFPA_BASE_FORKED_H
#define FFPA_BASE_FORKED_H

#include <stdint.h>

/* The process that some state belongs to. */
typedef struct fork_mark {
    _Atomic uint64_t value;
} fork_mark;

/* The state belongs to this process. */
void fork_mark_here(fork_mark *mark);

/* Call before using the state. In a forked child the first thread to come runs renew(state); others that
 * come meanwhile wait for it. One atomic load where nothing was forked. */
void fork_check(fork_mark *mark, void (*renew)(void *state), void *state);

#endif
