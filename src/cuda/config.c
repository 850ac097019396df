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

/* Length of "FFPA_NAME=NUMBER" at the start of the text; 0 when that is not what the word is. */
static size_t word_length(const char *text)
{
    static const char digits[] = "0123456789";
    if (strncmp(text, "FFPA_", 5) != 0) return 0;
    const size_t name = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    if (text[name] != '=') return 0;
    const size_t number = strspn(text + name + 1, digits), all = name + 1 + number;
    return number && (!text[all] || text[all] == ' ') ? all : 0;
}

ffpa_status config_words(const char *words, char *lines, size_t bytes)
{
    size_t used = 0;
    const char *at = words ? words : "";
    *lines = 0;
    while (*(at += strspn(at, " "))) {
        const size_t length = word_length(at), name = strcspn(at, "=");
        CHECK(length, FFPA_E_INVALID,
              "FFPA_KERNEL_DEFINES '%.200s': '%.*s' is not FFPA_NAME=NUMBER", words,
              (int)strcspn(at, " "), at);
        const int n = snprintf(lines + used, bytes - used, "#define %.*s %.*s\n", (int)name, at,
                               (int)(length - name - 1), at + name + 1);
        CHECK(n > 0 && (size_t)n < bytes - used, FFPA_E_INVALID,
              "FFPA_KERNEL_DEFINES '%.200s' makes more than %zu characters", words, bytes - 1);
        used += (size_t)n;
        at += length;
    }
    return FFPA_OK;
}

bool config_whole(const variant *v)
{
    const size_t used = strlen(v->config);
    return used + 1 < sizeof v->config && v->config[used - 1] == '\n';
}
