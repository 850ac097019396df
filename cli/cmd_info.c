/* cmd_info.c - `ffpa info`: this library on this machine. */
#include "program.h"

#include <string.h>

typedef struct ability {
    const char *name;
    bool present;
    char why[512]; /* why not; the context's line when present */
} ability;

/* Whether a context can be had with this backend or instruction set. */
static ability probe(const char *name, const char *backend, const char *isa)
{
    ffpa_context_options options = {
        .struct_size = sizeof options, .backend = backend, .cpu_isa = isa};
    ffpa_context *context;
    ability a = {.name = name};
    a.present = ffpa_context_create(&options, &context) == FFPA_OK;
    snprintf(a.why, sizeof a.why, "%s",
             a.present ? ffpa_context_describe(context) : ffpa_last_error());
    if (a.present) ffpa_context_destroy(context);
    return a;
}

static void cpu_name(char name[256])
{
    char line[512];
    snprintf(name, 256, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(name, 256, "%.250s", colon + (colon[1] == ' ' ? 2 : 1));
        break;
    }
    if (file) fclose(file);
}

static void show(cJSON *document, const char *title, const char *key, const ability *all,
                 int count)
{
    cJSON *object = document ? cJSON_AddObjectToObject(document, key) : NULL;
    for (int i = 0; i < count; i++) {
        if (document)
            cJSON_AddBoolToObject(object, all[i].name, all[i].present);
        else
            printf("%-11s %-11s %s%s\n", i ? "" : title, all[i].name,
                   all[i].present ? "yes" : "no: ", all[i].present ? "" : all[i].why);
    }
}

static void show_all(cJSON *document, const ffpa_context *context)
{
    const ability backends[] = {probe("cuda", "cuda", NULL), probe("cpu", "cpu", NULL),
                                probe("reference", "reference", NULL),
                                probe("naive", "naive", NULL)};
    const ability isas[] = {probe("amx_bf16", "cpu", "amx_bf16"),
                            probe("avx512_bf16", "cpu", "avx512_bf16"),
                            probe("avx512", "cpu", "avx512"), probe("avx2", "cpu", "avx2"),
                            probe("portable", "cpu", "portable")};
    uint32_t v = ffpa_version();
    char cpu[256];
    cpu_name(cpu);
    if (document) {
        cJSON_AddStringToObject(document, "context", ffpa_context_describe(context));
        cJSON_AddStringToObject(document, "processor", cpu);
    } else {
        printf("version     %u.%u.%u (header %d.%d.%d)\n", v >> 16, v >> 8 & 255, v & 255,
               FFPA_VERSION_MAJOR, FFPA_VERSION_MINOR, FFPA_VERSION_PATCH);
        printf("context     %s\n", ffpa_context_describe(context));
        printf("processor   %s\n", cpu);
    }
    show(document, "backends", "backends", backends, sizeof backends / sizeof *backends);
    show(document, "cpu ISA", "cpu_isa", isas, sizeof isas / sizeof *isas);
}

int cmd_info(int argc, char **argv)
{
    static const struct option TABLE[] = {COMMON_OPTIONS, {NULL, 0, NULL, 0}};
    common_options common = common_defaults(argc, argv);
    ffpa_context *context;
    int code = DONE;
    for (int option; code == DONE && (option = next_option(argc, argv, ":", TABLE)) != -1;)
        common_option(&common, option, &code);
    if (code == DONE && optind < argc)
        code = complain(BAD_USAGE, "info takes no argument '%s'", argv[optind]);
    cJSON *document = common.json ? json_document("info") : NULL;
    if (code == DONE) code = common_context(&common, NULL, &context);
    if (code == DONE) {
        show_all(document, context);
        ffpa_context_destroy(context);
    }
    if (document) json_finish(document, code);
    return code;
}
