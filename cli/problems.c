/* problems.c - problem strings on the command line and in files; the JSON document of a command. */
#include "program.h"

#include "files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int add(problem_list *list, const char *text, const char *where, int code)
{
    ffpa_problem *items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) return complain(LIB_FAILED, "out of memory for the list of problems");
    list->items = items;
    memset(&items[list->count], 0, sizeof *items);
    items[list->count].struct_size = sizeof *items;
    if (ffpa_problem_parse(text, &items[list->count]) != FFPA_OK)
        return complain(code, "%s%s", where, ffpa_last_error());
    list->count++;
    return DONE;
}

static int add_line(problem_list *list, char *line, const char *file, int number)
{
    char where[512];
    line[strcspn(line, "#\r")] = 0;
    line += strspn(line, " \t");
    size_t length = strlen(line);
    while (length > 0 && strchr(" \t", line[length - 1]))
        line[--length] = 0;
    if (length == 0) return DONE;
    snprintf(where, sizeof where, "%s:%d: ", file, number);
    return add(list, line, where, BAD_FILE);
}

static int add_file(problem_list *list, const char *file)
{
    char *text;
    size_t length;
    char why[256];
    int code = DONE, number = 1;
    if (!file_read_text(file, &text, &length, why, sizeof why))
        return complain(BAD_FILE, "%s: %s", file, why);
    if (memchr(text, 0, length)) code = complain(BAD_FILE, "%s: it is no text", file);
    for (char *line = text; line && code == DONE; number++) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        code = add_line(list, line, file, number);
        line = end ? end + 1 : NULL;
    }
    free(text);
    return code;
}

int problems_collect(problem_list *list, int argc, char **argv, const char *file)
{
    int code = file ? add_file(list, file) : DONE;
    for (int i = 0; i < argc && code == DONE; i++)
        code = add(list, argv[i], "", BAD_USAGE);
    if (code == DONE && list->count == 0)
        code =
            complain(BAD_USAGE, "no problem given; `ffpa help problem` tells how to write one");
    return code;
}

void problems_free(problem_list *list)
{
    free(list->items);
    *list = (problem_list){0};
}

problem_text problem_print(const ffpa_problem *problem)
{
    problem_text p;
    if (ffpa_problem_format(problem, p.text, sizeof p.text) != FFPA_OK)
        snprintf(p.text, sizeof p.text, "?");
    return p;
}

/* ---- JSON ---- */

cJSON *json_document(const char *name)
{
    char version[32];
    uint32_t v = ffpa_version();
    cJSON *document = cJSON_CreateObject();
    snprintf(version, sizeof version, "%u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    cJSON_AddStringToObject(document, "command", name);
    cJSON_AddStringToObject(document, "version", version);
    return document;
}

/* Bytes of the UTF-8 character at `at`; 0 when there is none. */
static int utf8_length(const unsigned char *at)
{
    static const struct {
        unsigned char first, last, low, high; /* lead byte from..to, second byte from..to */
        int length;
    } FORMS[] = {
        {0x01, 0x7f, 0, 0xff, 1},    {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        if (at[0] < FORMS[i].first || at[0] > FORMS[i].last) continue;
        if (FORMS[i].length > 1 && (at[1] < FORMS[i].low || at[1] > FORMS[i].high)) return 0;
        for (int j = 2; j < FORMS[i].length; j++)
            if (at[j] < 0x80 || at[j] > 0xbf) return 0;
        return FORMS[i].length;
    }
    return 0;
}

/* A line of text; what is not UTF-8, which names of files need not be, as the replacement character. */
static void put_utf8(const char *text)
{
    while (*text) {
        int n = utf8_length((const unsigned char *)text);
        printf("%.*s", n ? n : 3, n ? text : "\xef\xbf\xbd");
        text += n ? n : 1;
    }
    putchar('\n');
}

void json_finish(cJSON *document, int code)
{
    cJSON_AddNumberToObject(document, "exit", code);
    if (code != DONE && *last_complaint())
        cJSON_AddStringToObject(document, "error", last_complaint());
    char *text = cJSON_Print(document);
    put_utf8(text ? text : "{\"error\": \"out of memory\"}");
    cJSON_free(text);
    cJSON_Delete(document);
}

void json_number(cJSON *object, const char *name, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddStringToObject(object, name,
                                isnan(value) ? "nan"
                                : value > 0  ? "inf"
                                             : "-inf");
}
