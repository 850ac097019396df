/* cmd_doctor.c - `ffpa doctor`: what will work on this machine, and why the rest will not. Each line is an
 * attempt, not a guess: a driver opened, a kernel compiled, a file written. */
#include "program.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct finding {
    const char *name;
    bool good;
    char text[700];
} finding;

static const char PROBE[] = "fwd,bf16,b1h1,q64k64,d64"; /* the smallest kernel there is */

static finding from_status(const char *name, ffpa_status status, const char *when_good)
{
    finding f = {.name = name, .good = status == FFPA_OK};
    snprintf(f.text, sizeof f.text, "%s", f.good ? when_good : ffpa_last_error());
    return f;
}

static ffpa_context *context_of(const char *backend, ffpa_status *status)
{
    const ffpa_context_options options = {.struct_size = sizeof options, .backend = backend};
    ffpa_context *context = NULL;
    *status = ffpa_context_create(&options, &context);
    return context;
}

static finding find_cpu(void)
{
    ffpa_status status;
    ffpa_context *context = context_of("cpu", &status);
    const finding f = from_status("cpu", status, ffpa_context_describe(context));
    ffpa_context_destroy(context);
    return f;
}

/* What the library complains of and goes on after: an entry of the cache that is damaged, a folder it cannot write. */
typedef struct complaint {
    char text[450];
} complaint;

static void keep_complaint(void *user, ffpa_log_level level, const char *line)
{
    complaint *last = user;
    if (level == FFPA_LOG_ERROR) snprintf(last->text, sizeof last->text, "; %s", line);
}

/* The driver; and, where there is one, a kernel from the cache or compiler to the GPU. */
static int find_gpu(finding *out)
{
    complaint last = {""};
    const ffpa_context_options options = {.struct_size = sizeof options,
                                          .backend = "cuda",
                                          .log = keep_complaint,
                                          .log_user = &last};
    ffpa_problem problem = {.struct_size = sizeof problem};
    ffpa_report report = {.struct_size = sizeof report};
    char text[sizeof out->text];
    ffpa_context *context;
    ffpa_status status = ffpa_context_create(&options, &context);
    out[0] = from_status("driver", status, "an NVIDIA driver with a GPU");
    if (!context) return 1;
    const double begin = seconds_now();
    status = ffpa_problem_parse(PROBE, &problem);
    if (status == FFPA_OK) status = ffpa_explain(context, &problem, &report);
    snprintf(text, sizeof text, "%s loaded in %.2f s%s", report.path, seconds_now() - begin,
             last.text);
    out[1] = from_status("gpu kernel", status, text);
    ffpa_context_destroy(context);
    return 2;
}

/* A folder of plain files. */
static void remove_folder(const char *folder)
{
    char path[400];
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (entries) closedir(entries);
    rmdir(folder);
}

static finding find_compiler(void)
{
    char folder[] = "/tmp/ffpa_doctor_XXXXXX", text[200];
    ffpa_problem problem = {.struct_size = sizeof problem};
    ffpa_status status;
    ffpa_context *context = context_of("auto", &status);
    finding f = from_status("compiler", status, "");
    if (!context) return f;
    if (!mkdtemp(folder)) {
        snprintf(f.text, sizeof f.text, "/tmp cannot be written, so it was not tried");
        f.good = false;
    } else {
        const double begin = seconds_now();
        status = ffpa_problem_parse(PROBE, &problem);
        if (status == FFPA_OK) status = ffpa_prebuild(context, &problem, "sm_90a", folder);
        snprintf(text, sizeof text, "NVRTC compiled a kernel for sm_90a in %.2f s",
                 seconds_now() - begin);
        f = from_status("compiler", status, text);
        remove_folder(folder);
    }
    ffpa_context_destroy(context);
    return f;
}

/* Can this process make something in the folder, or else in the nearest one above it that exists? Leaves nothing. */
static bool can_write(const char *cache)
{
    char folder[600], made[640];
    snprintf(folder, sizeof folder, "%s", cache);
    while (access(folder, F_OK) != 0) {
        char *slash = strrchr(folder, '/');
        if (!slash) snprintf(folder, sizeof folder, ".");
        if (slash) slash[slash == folder] = 0;
    }
    snprintf(made, sizeof made, "%s/.ffpa_doctor_XXXXXX", folder);
    return mkdtemp(made) && rmdir(made) == 0;
}

/* The cache as the library's description names it. */
static finding find_cache(void)
{
    ffpa_status status;
    ffpa_context *context = context_of("auto", &status);
    finding f = from_status("cache", status, "");
    const char *at = strstr(ffpa_context_describe(context), " cache=");
    char folder[600] = "";
    snprintf(folder, sizeof folder, "%s", at ? at + 7 : "");
    ffpa_context_destroy(context);
    if (!f.good) return f;
    const bool kept = strcmp(folder, "off") != 0 && strcmp(folder, "none") != 0;
    f.good = kept && can_write(folder);
    snprintf(f.text, sizeof f.text, "%s%s%s", folder,
             kept && !f.good ? ": cannot be written" : "",
             f.good ? "" : "; every process compiles again");
    return f;
}

static void show(cJSON *document, const finding *f)
{
    if (!document) {
        printf("%s%-4s%s %-11s %s\n", f->good ? style_good() : style_bad(),
               f->good ? "yes" : "no", style_off(), f->name, f->text);
        return;
    }
    cJSON *one = cJSON_AddObjectToObject(document, f->name);
    cJSON_AddBoolToObject(one, "good", f->good);
    cJSON_AddStringToObject(one, "text", f->text);
}

int cmd_doctor(int argc, char **argv)
{
    static const struct option TABLE[] = {OUTPUT_OPTIONS, {NULL, 0, NULL, 0}};
    common_options common = common_defaults(argc, argv);
    finding found[5];
    int code = DONE, count = 0;
    for (int option; code == DONE && (option = next_option(argc, argv, ":", TABLE)) != -1;)
        common_option(&common, option, &code);
    if (code == DONE && optind < argc)
        code = complain(BAD_USAGE, "doctor takes no argument '%s'", argv[optind]);
    if (code == DONE) {
        found[count++] = find_cpu();
        count += find_gpu(found + count);
        found[count++] = find_compiler();
        found[count++] = find_cache();
    }
    cJSON *document = common.json ? json_document("doctor") : NULL;
    for (int i = 0; i < count; i++)
        show(document, &found[i]);
    if (document) json_finish(document, code);
    return code;
}
