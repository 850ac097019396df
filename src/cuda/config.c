/* config.c - writing config.cuh. */
#include "cuda/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What does not fit is cut, and config_whole tells. */
static void append(variant *v, const char *text)
{
    const size_t used = strlen(v->config), room = sizeof v->config - 1 - used;
    const size_t length = strlen(text);
    memcpy(v->config + used, text, length < room ? length : room);
}

variant *variant_add(variant_list *list, const char *file, const char *arch, unsigned shared,
                     const char *name)
{
    variant *v = &list->v[list->count];
    list->shared[list->count++] = shared;
    memset(v, 0, sizeof *v);
    v->file = file;
    snprintf(v->arch, sizeof v->arch, "%s", arch);
    snprintf(v->name, sizeof v->name, "%s", name);
    append(v, "// ");
    append(v, v->name);
    append(v, "\n");
    return v;
}

void config_set_always(variant *v, const char *macro, int64_t value)
{
    char line[80];
    snprintf(line, sizeof line, "#define FFPA_%s %" PRId64 "\n", macro, value);
    append(v, line);
}

void config_set(variant *v, const char *macro, int64_t value)
{
    if (value != 0) config_set_always(v, macro, value);
}

bool config_whole(const variant *v)
{
    const size_t used = strlen(v->config);
    return used + 1 < sizeof v->config && v->config[used - 1] == '\n';
}
