/* status.c - status names and the per-thread sentences. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];
static _Thread_local char last_path[64];

ffpa_status fail(ffpa_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return status;
}

ffpa_status fail_in(const char *fn, ffpa_status status)
{
    char sentence[sizeof last_error];
    const size_t n = strlen(fn);
    if (status == FFPA_OK || (strncmp(last_error, fn, n) == 0 && last_error[n] == ':'))
        return status;
    memcpy(sentence, last_error, sizeof sentence);
    return fail(status, "%s: %s", fn, sentence);
}

void path_taken(const char *path) { snprintf(last_path, sizeof last_path, "%s", path); }

const char *ffpa_last_error(void) { return last_error; }

const char *ffpa_last_path(void) { return last_path; }

const char *ffpa_status_name(ffpa_status status)
{
    switch (status) {
#define FFPA_X(name, value, text) \
    case FFPA_##name: return "FFPA_" #name;
        FFPA_STATUS_MAP(FFPA_X)
#undef FFPA_X
    }
    return "FFPA_E_UNKNOWN";
}

const char *ffpa_status_text(ffpa_status status)
{
    switch (status) {
#define FFPA_X(name, value, text) \
    case FFPA_##name: return text;
        FFPA_STATUS_MAP(FFPA_X)
#undef FFPA_X
    }
    return "unknown status";
}

uint32_t ffpa_version(void)
{
    return FFPA_VERSION_MAJOR << 16 | FFPA_VERSION_MINOR << 8 | FFPA_VERSION_PATCH;
}
