/* dynlib.c - dlopen behind the table. */
#include "base/dynlib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *system_open(const char *path, bool global, char *why, size_t why_bytes)
{
    void *library =
        dlopen(path, RTLD_NOW | RTLD_NODELETE | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!library) {
        const char *reason = dlerror();
        snprintf(why, why_bytes, "%s", reason ? reason : "unknown reason");
    }
    return library;
}

static dynlib_fn system_symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    dynlib_fn fn;
    memcpy(&fn, &address, sizeof fn); /* ISO C has no cast from object to function pointer */
    return fn;
}

/* With RTLD_NODELETE the code stays: drivers and compilers keep threads and exit handlers of their own. */
static void system_close(void *library) { dlclose(library); }

const dynlib dynlib_system = {system_open, system_symbol, system_close};

void dynlib_store(void *slot, dynlib_fn fn) { memcpy(slot, &fn, sizeof fn); }
