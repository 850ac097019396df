/* cmd_bench.c - `ffpa bench`: how fast a problem runs. */
#include "case.h"
#include "copy_roof.h"
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below this many FLOP for each byte moved, memory is the roof, not arithmetic. */
static const double MEMORY_BOUND = 20;
enum { RUNS_MIN = 5, RUNS_MAX = 1000, WARM_UPS = 2 };

typedef struct bench_options {
    common_options common;
    const char *file;
    double seconds; /* timed, per problem */
} bench_options;

typedef struct bench_result {
    char path[64];
    int runs;
    double median, least; /* seconds of one call */
    double flop, bytes;
    bool memory_bound;
} bench_result;

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static ffpa_status run_once(const attention_case *c, const ffpa_plan *plan)
{
    return c->problem.op == FFPA_BACKWARD ? ffpa_plan_run_backward(plan, &c->backward)
                                          : ffpa_plan_run_forward(plan, &c->forward);
}

/* Warm up, then time single calls: at least RUNS_MIN, more until `limit` seconds are spent. */
static ffpa_status time_runs(bench_result *r, const attention_case *c, const ffpa_plan *plan,
                             double limit)
{
    double times[RUNS_MAX], spent = 0;
    for (int i = 0; i < WARM_UPS; i++) {
        double start = seconds_now();
        ffpa_status status = run_once(c, plan);
        if (status != FFPA_OK) return status;
        if (seconds_now() - start > limit) break; /* long calls need no second warm-up */
    }
    snprintf(r->path, sizeof r->path, "%s", ffpa_last_path());
    for (r->runs = 0; r->runs < RUNS_MAX && (r->runs < RUNS_MIN || spent < limit); r->runs++) {
        double start = seconds_now();
        ffpa_status status = run_once(c, plan);
        if (status != FFPA_OK) return status;
        times[r->runs] = seconds_now() - start;
        spent += times[r->runs];
    }
    qsort(times, (size_t)r->runs, sizeof *times, by_value);
    r->median = (times[r->runs / 2] + times[(r->runs - 1) / 2]) / 2;
    r->least = times[0];
    return FFPA_OK;
}

static ffpa_status bench_case(bench_result *r, attention_case *c, ffpa_context *context,
                              double limit)
{
    ffpa_plan *plan = NULL;
    ffpa_report report = {.struct_size = sizeof report};
    bool backward = c->problem.op == FFPA_BACKWARD;
    ffpa_status status = backward ? ffpa_forward(context, &c->forward) : FFPA_OK; /* o, lse */
    if (status == FFPA_OK)
        status = backward ? ffpa_plan_backward(context, &c->backward, &plan)
                          : ffpa_plan_forward(context, &c->forward, &plan);
    if (status == FFPA_OK) /* the plan's own report does not know the lengths of sequences */
        status = backward ? ffpa_backward_supported(context, &c->backward, &report)
                          : ffpa_forward_supported(context, &c->forward, &report);
    if (status == FFPA_OK) {
        r->flop = report.flop;
        r->bytes = report.bytes;
        r->memory_bound = report.bytes > 0 && report.flop / report.bytes < MEMORY_BOUND;
        status = time_runs(r, c, plan, limit);
    }
    ffpa_plan_destroy(plan);
    return status;
}

static int bench_problem(bench_result *r, const ffpa_problem *p, ffpa_context *context,
                         double limit)
{
    attention_case c;
    *r = (bench_result){0};
    int code = case_build(&c, p, false, context);
    if (code != DONE) return code;
    ffpa_status status = bench_case(r, &c, context, limit);
    if (status != FFPA_OK) code = complain_library(status);
    case_free(&c);
    return code;
}

/* ---- output ---- */

/* Share of the copy bandwidth as text; "-" where arithmetic is the limit or nothing was measured. */
static void print_row(const bench_result *r, const ffpa_problem *p, double copy)
{
    char median[32], least[32], share[32] = "-";
    double rate = r->flop / r->median;
    if (r->memory_bound && copy > 0)
        snprintf(share, sizeof share, "%.2f", r->bytes / r->median / copy);
    printf("%s\n", problem_print(p).text);
    printf("  %10s %10s %5d %9.1f %s %8.2f %7s  %s\n", text_seconds(median, r->median),
           text_seconds(least, r->least), r->runs, rate / (rate < 1e12 ? 1e9 : 1e12),
           rate < 1e12 ? "GFLOP/s" : "TFLOP/s", r->bytes / r->median / 1e9, share, r->path);
}

static void add_json(cJSON *results, const bench_result *r, const ffpa_problem *p, double copy)
{
    cJSON *one = cJSON_CreateObject();
    cJSON_AddItemToArray(results, one);
    cJSON_AddStringToObject(one, "problem", problem_print(p).text);
    cJSON_AddStringToObject(one, "path", r->path);
    cJSON_AddNumberToObject(one, "runs", r->runs);
    json_number(one, "median_seconds", r->median);
    json_number(one, "least_seconds", r->least);
    json_number(one, "flop", r->flop);
    json_number(one, "bytes", r->bytes);
    json_number(one, "gflop_per_second", r->flop / r->median / 1e9);
    json_number(one, "gb_per_second", r->bytes / r->median / 1e9);
    if (r->memory_bound && copy > 0)
        json_number(one, "share_of_copy", r->bytes / r->median / copy);
}

static int bench_all(ffpa_context *context, const problem_list *problems,
                     const bench_options *o, cJSON *document)
{
    cJSON *results = document ? cJSON_AddArrayToObject(document, "results") : NULL;
    double copy = 0;
    int code = DONE;
    if (!document) {
        printf("%s\n", ffpa_context_describe(context));
        printf("%s  %10s %10s %5s %17s %8s %7s  path%s\n", style_head(), "median", "least",
               "runs", "rate", "GB/s", "of copy", style_off());
    }
    for (int i = 0; i < problems->count; i++) {
        bench_result r;
        progress_begin(problem_print(&problems->items[i]).text);
        int one = bench_problem(&r, &problems->items[i], context, o->seconds);
        if (one == DONE && r.memory_bound && copy <= 0)
            copy = copy_bandwidth(o->common.threads);
        progress_end();
        code = one != DONE ? one : code;
        if (one == DONE && document)
            add_json(results, &r, &problems->items[i], copy);
        else if (one == DONE)
            print_row(&r, &problems->items[i], copy);
    }
    if (document && copy > 0)
        json_number(document, "copy_gb_per_second", copy / 1e9);
    else if (copy > 0)
        printf("copy: %.1f GB/s read and written, measured in this run\n", copy / 1e9);
    return code;
}

/* ---- command ---- */

enum { OPT_SECONDS = OPT_OWN };

static int read_options(bench_options *o, int argc, char **argv)
{
    static const struct option TABLE[] = {COMMON_OPTIONS,
                                          {"seconds", required_argument, NULL, OPT_SECONDS},
                                          {"file", required_argument, NULL, 'f'},
                                          {NULL, 0, NULL, 0}};
    int code = DONE;
    for (int option; code == DONE && (option = next_option(argc, argv, ":f:", TABLE)) != -1;)
        if (option == 'f')
            o->file = optarg;
        else if (option != OPT_SECONDS)
            common_option(&o->common, option, &code);
        else if (!parse_real(optarg, 0, 3600, &o->seconds))
            code = complain(BAD_USAGE, "--seconds=%s: a number from 0 to 3600", optarg);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.common = common_defaults(argc, argv), .seconds = 2};
    problem_list problems = {0};
    ffpa_context *context = NULL;
    int code = read_options(&o, argc, argv);
    cJSON *document = o.common.json ? json_document("bench") : NULL;
    if (code == DONE) code = problems_collect(&problems, argc - optind, argv + optind, o.file);
    if (code == DONE) code = common_context(&o.common, NULL, &context);
    if (code == DONE) {
        if (document)
            cJSON_AddStringToObject(document, "context", ffpa_context_describe(context));
        code = bench_all(context, &problems, &o, document);
    }
    ffpa_context_destroy(context);
    problems_free(&problems);
    if (document) json_finish(document, code);
    return code;
}
