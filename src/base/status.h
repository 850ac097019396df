/* status.h - how every function here says no: a status, and a sentence kept per thread. */
#ifndef FFPA_BASE_STATUS_H
#define FFPA_BASE_STATUS_H

#include "ffpa/ffpa.h"

#define FFPA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Store the sentence for ffpa_last_error() and return `status`. */
ffpa_status fail(ffpa_status status, const char *fmt, ...) FFPA_PRINTF(2, 3);

/* Return `status`. Unless it is a success, the sentence stored gets "fn: " in front if it lacks it: what a
 * backend says does not know which function was called. */
ffpa_status fail_in(const char *fn, ffpa_status status);

/* Remember the path of a successful run for ffpa_last_path(). */
void path_taken(const char *path);

#define TRY(expr)                                       \
    do {                                                \
        const ffpa_status try_status_ = (expr);         \
        if (try_status_ != FFPA_OK) return try_status_; \
    } while (0)

/* CHECK(rule, FFPA_E_INVALID, "%s: ...", fn): return with a sentence unless the rule holds. */
#define CHECK(rule, status, ...)                         \
    do {                                                 \
        if (!(rule)) return fail((status), __VA_ARGS__); \
    } while (0)

#endif
