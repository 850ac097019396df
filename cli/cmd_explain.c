/* cmd_explain.c - `ffpa explain`: how a problem would run, and why not otherwise. */
#include "program.h"

#include <string.h>

static void print_report(const ffpa_problem *p, const ffpa_report *r, bool supported)
{
    char work[32], moved[32], space[32];
    printf("%s%s%s\n", style_head(), problem_print(p).text, style_off());
    printf("  heads      Hq=%lld Hk=%lld group=%lld D=%lld Dv=%lld\n", (long long)p->hq,
           (long long)p->hk, (long long)(p->hk ? p->hq / p->hk : 0), (long long)p->d,
           (long long)p->dv);
    if (supported) {
        printf("  path       %s%s%s\n", style_good(), r->path, style_off());
        if (r->tile_q || r->tile_k || r->tile_d)
            printf("  tiles      %d query rows, %d keys, %d columns\n", r->tile_q, r->tile_k,
                   r->tile_d);
        printf("  splits     %d%s\n", r->splits,
               r->splits > 1 ? " parts of the keys" : " (keys not split)");
        if (r->threads) printf("  threads    %d\n", r->threads);
        printf("  workspace  %s\n", text_bytes(space, (double)r->workspace_bytes));
        printf("  work       %s over %s of inputs and outputs", text_flop(work, r->flop),
               text_bytes(moved, r->bytes));
        if (r->bytes > 0) printf(": %.1f FLOP a byte", r->flop / r->bytes);
        printf("\n");
    } else {
        printf("  path       %snone%s\n", style_bad(), style_off());
    }
    if (!*r->refusals) return;
    printf("  passed over\n");
    for (const char *line = r->refusals; *line;) {
        int length = (int)strcspn(line, "\n");
        printf("    %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

static void add_json(cJSON *results, const ffpa_problem *p, const ffpa_report *r,
                     bool supported)
{
    cJSON *one = cJSON_CreateObject(), *refusals = cJSON_CreateArray();
    cJSON_AddItemToArray(results, one);
    cJSON_AddStringToObject(one, "problem", problem_print(p).text);
    cJSON_AddNumberToObject(one, "group", p->hk ? (double)(p->hq / p->hk) : 0);
    cJSON_AddBoolToObject(one, "supported", supported);
    cJSON_AddStringToObject(one, "path", r->path);
    cJSON_AddNumberToObject(one, "tile_q", r->tile_q);
    cJSON_AddNumberToObject(one, "tile_k", r->tile_k);
    cJSON_AddNumberToObject(one, "tile_d", r->tile_d);
    cJSON_AddNumberToObject(one, "splits", r->splits);
    cJSON_AddNumberToObject(one, "threads", r->threads);
    cJSON_AddNumberToObject(one, "workspace_bytes", (double)r->workspace_bytes);
    json_number(one, "flop", r->flop);
    json_number(one, "bytes", r->bytes);
    cJSON_AddItemToObject(one, "refusals", refusals);
    char line[1024];
    for (const char *at = r->refusals; *at;) {
        int length = (int)strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", length, at);
        cJSON_AddItemToArray(refusals, cJSON_CreateString(line));
        at += length + (at[length] == '\n');
    }
}

static int explain_all(ffpa_context *context, const problem_list *problems, cJSON *document)
{
    cJSON *results = document ? cJSON_AddArrayToObject(document, "results") : NULL;
    int code = DONE;
    for (int i = 0; i < problems->count; i++) {
        ffpa_report report = {.struct_size = sizeof report};
        ffpa_status status = ffpa_explain(context, &problems->items[i], &report);
        if (document)
            add_json(results, &problems->items[i], &report, status == FFPA_OK);
        else
            print_report(&problems->items[i], &report, status == FFPA_OK);
        if (status != FFPA_OK) code = complain_library(status);
    }
    return code;
}

int cmd_explain(int argc, char **argv)
{
    static const struct option TABLE[] = {
        COMMON_OPTIONS, {"file", required_argument, NULL, 'f'}, {NULL, 0, NULL, 0}};
    common_options common = common_defaults(argc, argv);
    problem_list problems = {0};
    ffpa_context *context = NULL;
    const char *file = NULL;
    int code = DONE;
    for (int option; code == DONE && (option = next_option(argc, argv, ":f:", TABLE)) != -1;)
        if (option == 'f')
            file = optarg;
        else
            common_option(&common, option, &code);
    cJSON *document = common.json ? json_document("explain") : NULL;
    if (code == DONE) code = problems_collect(&problems, argc - optind, argv + optind, file);
    if (code == DONE) code = common_context(&common, NULL, &context);
    if (code == DONE) code = explain_all(context, &problems, document);
    ffpa_context_destroy(context);
    problems_free(&problems);
    if (document) json_finish(document, code);
    return code;
}
