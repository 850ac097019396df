/* unit.h - cmocka with the headers it wants first, and the assertions that our tests repeat. */
#ifndef FFPA_TESTS_UNIT_H
#define FFPA_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail     /* the library has its own, in base/status.h */
#undef fail_msg /* which cmocka's would call */
#define fail_msg(...)              \
    do {                           \
        print_error(__VA_ARGS__);  \
        print_error("\n");         \
        _fail(__FILE__, __LINE__); \
    } while (0)

#include "ffpa/ffpa.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* The call gives this status and, when it is a failure, a sentence that contains `words`. */
#define assert_status(call, wanted, words)                                                     \
    do {                                                                                       \
        const ffpa_status got_ = (call);                                                       \
        if (got_ != (wanted))                                                                  \
            fail_msg("%s: %s \"%s\", wanted %s", #call, ffpa_status_name(got_),                \
                     got_ ? ffpa_last_error() : "", ffpa_status_name(wanted));                 \
        if (got_ != FFPA_OK && !strstr(ffpa_last_error(), (words)))                            \
            fail_msg("%s: \"%s\" does not mention \"%s\"", #call, ffpa_last_error(), (words)); \
    } while (0)

#define assert_ok(call) assert_status(call, FFPA_OK, "")

#endif
