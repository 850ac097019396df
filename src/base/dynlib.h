/* dynlib.h - shared libraries opened at run time, through a table, so that tests can put libraries of
 * their own in place of a driver or a compiler. */
#ifndef FFPA_BASE_DYNLIB_H
#define FFPA_BASE_DYNLIB_H

#include <stdbool.h>
#include <stddef.h>

typedef void (*dynlib_fn)(void);

typedef struct dynlib {
    /* Open by path or, without a slash, by the system's search order. With `global` its symbols serve
     * libraries opened later. NULL when it cannot be opened; `why` then gets the reason. */
    void *(*open)(const char *path, bool global, char *why, size_t why_bytes);
    dynlib_fn (*symbol)(void *library,
                        const char *name); /* NULL when it has none of that name */
    void (*close)(void *library);
} dynlib;

/* dlopen and friends. */
extern const dynlib dynlib_system;

/* Store a function in a pointer of whatever function type: `slot` is the address of that pointer. */
void dynlib_store(void *slot, dynlib_fn fn);

#endif
