/* cmd_prebuild.c - `ffpa prebuild`: compile the GPU kernels of problems into a folder, without a GPU. */
#include "program.h"

#include <string.h>

/* Compilations take seconds, so each is announced, on stderr where they are no output. */
static void announce(void *user, ffpa_log_level level, const char *line)
{
    (void)user;
    if (level != FFPA_LOG_DEBUG && strncmp(line, "compil", 6) == 0)
        fprintf(stderr, "%s\n", line);
}

typedef struct request {
    const char *arches; /* separated by commas */
    const char *folder;
} request;

/* Every problem for one architecture; `arch` need not be terminated. */
static int prebuild_arch(ffpa_context *context, const problem_list *problems, const char *arch,
                         int length, const char *folder)
{
    char name[32];
    snprintf(name, sizeof name, "%.*s", length < 31 ? length : 31, arch);
    for (int i = 0; i < problems->count; i++) {
        const ffpa_status status = ffpa_prebuild(context, &problems->items[i], name, folder);
        if (status != FFPA_OK) return complain_library(status);
    }
    return DONE;
}

static int prebuild_all(ffpa_context *context, const problem_list *problems, const request *r)
{
    int code = DONE;
    for (const char *arch = r->arches; code == DONE && *arch;) {
        const int length = (int)strcspn(arch, ",");
        code = prebuild_arch(context, problems, arch, length, r->folder);
        arch += length + (arch[length] == ',');
    }
    return code;
}

static int read_options(int argc, char **argv, common_options *common, request *r,
                        const char **file)
{
    enum { OPT_ARCH = OPT_OWN };
    static const struct option TABLE[] = {OUTPUT_OPTIONS,
                                          {"file", required_argument, NULL, 'f'},
                                          {"arch", required_argument, NULL, OPT_ARCH},
                                          {"out", required_argument, NULL, 'o'},
                                          {NULL, 0, NULL, 0}};
    int code = DONE;
    for (int option; code == DONE && (option = next_option(argc, argv, ":f:o:", TABLE)) != -1;)
        if (option == 'f')
            *file = optarg;
        else if (option == 'o')
            r->folder = optarg;
        else if (option == OPT_ARCH)
            r->arches = optarg;
        else
            common_option(common, option, &code);
    if (code == DONE && !r->arches)
        code = complain(BAD_USAGE, "prebuild needs --arch, such as --arch sm_90a");
    if (code == DONE && !r->folder) code = complain(BAD_USAGE, "prebuild needs --out DIR");
    return code;
}

int cmd_prebuild(int argc, char **argv)
{
    common_options common = common_defaults(argc, argv);
    problem_list problems = {0};
    request r = {NULL, NULL};
    ffpa_context *context = NULL;
    const char *file = NULL;
    int code = read_options(argc, argv, &common, &r, &file);
    cJSON *document = common.json ? json_document("prebuild") : NULL;
    if (code == DONE) code = problems_collect(&problems, argc - optind, argv + optind, file);
    const ffpa_context_options options = {.struct_size = sizeof options, .log = announce};
    if (code == DONE) {
        const ffpa_status status = ffpa_context_create(&options, &context);
        if (status != FFPA_OK) code = complain_library(status);
    }
    if (code == DONE) code = prebuild_all(context, &problems, &r);
    if (code == DONE && !document)
        printf("%s holds the kernels of %d problem%s for %s; use it as FFPA_CACHE_DIR\n",
               r.folder, problems.count, problems.count == 1 ? "" : "s", r.arches);
    ffpa_context_destroy(context);
    problems_free(&problems);
    if (document) {
        if (r.folder) cJSON_AddStringToObject(document, "directory", r.folder);
        json_finish(document, code);
    }
    return code;
}
