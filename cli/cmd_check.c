/* cmd_check.c - `ffpa check`: a fast path against the oracle, judged by the naive way's error. */
#include "case.h"
#include "compare.h"
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multiply-adds that the oracle may take per problem before rows are sampled: a few seconds. */
static const double ORACLE_WORK = 1.5e9;
enum { OUTPUTS_MAX = 8 };

typedef struct check_options {
    common_options common;
    const char *file;
    int64_t rows; /* 0 = as many as the oracle's budget allows, -1 = all */
    bool dlse;
} check_options;

typedef struct verdict {
    const char *name;
    difference ours, naive;
    double bound;
    bool pass;
} verdict;

typedef struct check_result {
    verdict outputs[OUTPUTS_MAX];
    int count;
    bool pass;
    int64_t rows_checked, rows_all; /* per sequence and head, of the longest sequence */
    char path[64];
    char repro[1300]; /* a problem and options */
} check_result;

/* ---- which rows ---- */

/* Of all rows of the longest sequence, which Nq is. */
static int64_t rows_wanted(const ffpa_problem *p, int64_t asked)
{
    int64_t all = p->nq;
    double passes = p->op == FFPA_BACKWARD ? 3.5 : 1;
    double row = passes * (double)p->b * (double)p->hq * (double)p->nk * (double)(p->d + p->dv);
    if (asked != 0) return asked < 0 || asked > all ? all : asked;
    if (row * (double)all <= ORACLE_WORK) return all;
    int64_t rows = (int64_t)(ORACLE_WORK / row);
    return rows < 4 ? (all < 4 ? all : 4) : rows;
}

/* `count` of `all` rows: the first, the last, and one from each equal stretch between them. */
static bool sample_rows(attention_case *c, int64_t count, int64_t all)
{
    int64_t *rows = arena_alloc(&c->memory, (size_t)count * sizeof *rows);
    uint64_t state = c->problem.seed;
    if (!rows) return false;
    for (int64_t i = 0; i < count; i++) {
        int64_t low = i * all / count, high = (i + 1) * all / count;
        state = state * 6364136223846793005u + 1442695040888963407u;
        rows[i] = low + (int64_t)((state >> 33) % (uint64_t)(high - low));
    }
    rows[0] = 0;
    if (count > 1) rows[count - 1] = all - 1;
    c->rows = (ffpa_row_subset){.struct_size = sizeof c->rows, .count = count, .rows = rows};
    return true;
}

/* keep[n] for every row n of q, packed or not. */
static unsigned char *rows_kept(attention_case *c)
{
    const ffpa_problem *p = &c->problem;
    int64_t start = 0, total = c->forward.q.shape[2];
    unsigned char *keep = arena_alloc(&c->memory, (size_t)total);
    if (!keep) return NULL;
    memset(keep, 0, (size_t)total);
    for (int64_t b = 0; b < (c->forward.varlen ? p->b : 1); b++) {
        for (int64_t i = 0; i < c->rows.count && c->rows.rows[i] < case_queries(p, b); i++)
            keep[start + c->rows.rows[i]] = 1;
        start += case_queries(p, b);
    }
    return keep;
}

/* With the incoming gradients zero elsewhere, the sampled rows alone make up every gradient. */
static void zero_other_rows(const ffpa_tensor *t, const unsigned char *keep)
{
    int64_t at[4] = {0};
    if (!t->data || tensor_elements(t) == 0) return;
    do
        if (!keep[at[2]]) tensor_set(t, at, 0);
    while (tensor_next(t, at));
}

/* ---- one problem ---- */

static void judge(check_result *r, const attention_case *const cases[3],
                  const unsigned char *keep)
{
    ffpa_tensor ours, naive, exact;
    const char *name;
    r->pass = true;
    for (int i = 0; case_output(cases[0], i, &name, &ours); i++) {
        if (!ours.data) continue;
        case_output(cases[1], i, &name, &naive);
        case_output(cases[2], i, &name, &exact);
        bool by_row =
            strcmp(name, "o") == 0 || strcmp(name, "lse") == 0 || strcmp(name, "dq") == 0;
        verdict *v = &r->outputs[r->count++];
        v->name = name;
        v->ours = compare_tensors(&ours, &exact, by_row ? keep : NULL);
        v->naive = compare_tensors(&naive, &exact, by_row ? keep : NULL);
        v->pass = difference_accept(&v->ours, &v->naive, name[0] == 'd', &v->bound);
        r->pass = r->pass && v->pass;
    }
}

static int run_on(attention_case *c, const check_options *o, const char *backend)
{
    ffpa_context *context;
    common_options others = {.threads = o->common.threads, .allow_slow = true};
    int code = common_context(&others, backend, &context);
    if (code != DONE) return code;
    code = case_run(c, context);
    ffpa_context_destroy(context);
    return code;
}

/* fast, naive and reference on the same inputs */
static int run_three(check_result *r, attention_case *fast, const check_options *o,
                     ffpa_context *context)
{
    attention_case naive = {0}, exact = {0};
    const unsigned char *keep = NULL;
    bool sampled = r->rows_checked < r->rows_all;
    if (sampled) {
        if (!sample_rows(fast, r->rows_checked, r->rows_all) || !(keep = rows_kept(fast)))
            return complain(LIB_FAILED, "out of memory for the sampled rows");
        zero_other_rows(&fast->backward.dout, keep);
        zero_other_rows(&fast->backward.dlse, keep);
    }
    int code = case_run(fast, context);
    if (code == DONE) snprintf(r->path, sizeof r->path, "%s", ffpa_last_path());
    if (code == DONE && (code = case_twin(&naive, fast, fast->problem.dtype)) == DONE)
        code = run_on(&naive, o, "naive");
    if (code == DONE && (code = case_twin(&exact, fast, sampled ? 0 : FFPA_F64)) == DONE)
        code = run_on(&exact, o, "reference");
    if (code == DONE) judge(r, (const attention_case *const[3]){fast, &naive, &exact}, keep);
    case_free(&naive);
    case_free(&exact);
    return code;
}

static void write_repro(check_result *r, const ffpa_problem *p, const check_options *o)
{
    char *at = r->repro;
    size_t left = sizeof r->repro;
    const char *const names[] = {"backend", "isa"}, *const values[] = {o->common.backend,
                                                                       o->common.isa};
    int n = snprintf(at, left, "ffpa check '%s'", problem_print(p).text);
    for (int i = 0; i < 2; i++)
        if (values[i])
            n += snprintf(at + n, left - (size_t)n, " --%s %.64s", names[i], values[i]);
    if (o->common.threads)
        n += snprintf(at + n, left - (size_t)n, " --threads %d", o->common.threads);
    if (r->rows_checked < r->rows_all)
        n += snprintf(at + n, left - (size_t)n, " --rows %lld", (long long)r->rows_checked);
    snprintf(at + n, left - (size_t)n, "%s%s", o->dlse ? " --dlse" : "",
             o->common.allow_slow ? " --allow-slow" : "");
}

static int check_problem(check_result *r, const ffpa_problem *p, const check_options *o)
{
    attention_case fast;
    ffpa_context *context;
    *r = (check_result){.rows_all = p->nq};
    r->rows_checked = rows_wanted(p, o->rows);
    write_repro(r, p, o);
    if (p->dtype == FFPA_F64)
        return complain(LIB_FAILED,
                        "%s: f64 runs on the reference alone, which is the oracle: "
                        "there is nothing to compare it with",
                        problem_print(p).text);
    int code = common_context(&o->common, NULL, &context);
    if (code != DONE) return code;
    code = case_build(&fast, p, o->dlse, context);
    if (code == DONE) {
        code = run_three(r, &fast, o, context);
        case_free(&fast);
    }
    ffpa_context_destroy(context);
    return code;
}

/* ---- output ---- */

static const char *coloured(bool pass) { return pass ? style_good() : style_bad(); }

static void print_result(const check_result *r, const ffpa_problem *p)
{
    printf("%s%s%s\n", style_head(), problem_print(p).text, style_off());
    printf("  path %s; ", r->path);
    if (r->rows_checked < r->rows_all)
        printf("against the oracle on %lld of %lld rows of every head%s\n",
               (long long)r->rows_checked, (long long)r->rows_all,
               p->op == FFPA_BACKWARD ? " (dO is zero in the others, so gradients are exact)"
                                      : "");
    else
        printf("against the oracle on all rows\n");
    printf("  %-7s %11s %11s %7s %11s %11s\n", "output", "max error", "naive", "ratio", "bound",
           "rel L2");
    for (int i = 0; i < r->count; i++) {
        const verdict *v = &r->outputs[i];
        char ratio[32] = "-";
        if (v->naive.max_error > 0)
            snprintf(ratio, sizeof ratio, "%.2f", v->ours.max_error / v->naive.max_error);
        printf("  %-7s %11.2e %11.2e %7s %11.2e %11.2e  %s%s%s\n", v->name, v->ours.max_error,
               v->naive.max_error, ratio, v->bound, v->ours.relative_l2, coloured(v->pass),
               v->pass ? "PASS" : "FAIL", style_off());
        if (v->ours.pattern > 0)
            printf("          %lld elements are NaN or infinite where they should not be, or "
                   "the other"
                   " way round; the first is [%lld,%lld,%lld,%lld]\n",
                   (long long)v->ours.pattern, (long long)v->ours.first[0],
                   (long long)v->ours.first[1], (long long)v->ours.first[2],
                   (long long)v->ours.first[3]);
    }
    printf("  %s%s%s   repro: %s\n", coloured(r->pass), r->pass ? "PASS" : "FAIL", style_off(),
           r->repro);
}

static void add_json(cJSON *results, const check_result *r, const ffpa_problem *p, int code)
{
    cJSON *one = cJSON_CreateObject(), *outputs = cJSON_CreateArray();
    cJSON_AddItemToArray(results, one);
    cJSON_AddStringToObject(one, "problem", problem_print(p).text);
    cJSON_AddStringToObject(one, "repro", r->repro);
    cJSON_AddBoolToObject(one, "pass", code == DONE && r->pass);
    if (code != DONE) cJSON_AddStringToObject(one, "error", last_complaint());
    cJSON_AddStringToObject(one, "path", r->path);
    cJSON_AddNumberToObject(one, "rows_checked", (double)r->rows_checked);
    cJSON_AddNumberToObject(one, "rows", (double)r->rows_all);
    cJSON_AddItemToObject(one, "outputs", outputs);
    for (int i = 0; i < r->count; i++) {
        const verdict *v = &r->outputs[i];
        cJSON *output = cJSON_CreateObject();
        cJSON_AddItemToArray(outputs, output);
        cJSON_AddStringToObject(output, "name", v->name);
        json_number(output, "max_error", v->ours.max_error);
        json_number(output, "naive_error", v->naive.max_error);
        json_number(output, "bound", v->bound);
        json_number(output, "relative_l2", v->ours.relative_l2);
        cJSON_AddNumberToObject(output, "pattern_mismatches", (double)v->ours.pattern);
        cJSON_AddBoolToObject(output, "pass", v->pass);
    }
}

/* ---- command ---- */

enum { OPT_ROWS = OPT_OWN, OPT_DLSE };

static int check_options_read(check_options *o, int argc, char **argv)
{
    static const struct option TABLE[] = {COMMON_OPTIONS,
                                          {"rows", required_argument, NULL, OPT_ROWS},
                                          {"dlse", no_argument, NULL, OPT_DLSE},
                                          {"file", required_argument, NULL, 'f'},
                                          {NULL, 0, NULL, 0}};
    for (int option; (option = next_option(argc, argv, ":f:", TABLE)) != -1;) {
        int code = DONE;
        if (option == 'f')
            o->file = optarg;
        else if (option == OPT_DLSE)
            o->dlse = true;
        else if (option == OPT_ROWS && strcmp(optarg, "all") == 0)
            o->rows = -1;
        else if (option == OPT_ROWS && !parse_integer(optarg, 1, INT64_MAX, &o->rows))
            code = complain(BAD_USAGE, "--rows=%s: a whole number from 1, or 'all'", optarg);
        else if (option != OPT_ROWS)
            common_option(&o->common, option, &code);
        if (code != DONE) return code;
    }
    return DONE;
}

static bool any_backward(const problem_list *problems)
{
    bool any = false;
    for (int i = 0; i < problems->count; i++)
        any = any || problems->items[i].op == FFPA_BACKWARD;
    return any;
}

int cmd_check(int argc, char **argv)
{
    check_options o = {.common = common_defaults(argc, argv)};
    problem_list problems = {0};
    check_result r;
    int code = check_options_read(&o, argc, argv), failed = 0;
    if (code == DONE) code = problems_collect(&problems, argc - optind, argv + optind, o.file);
    if (code == DONE && o.dlse && !any_backward(&problems))
        code = complain(BAD_USAGE, "--dlse does nothing without a backward problem");
    cJSON *document = o.common.json ? json_document("check") : NULL;
    cJSON *results = document ? cJSON_AddArrayToObject(document, "results") : NULL;
    for (int i = 0; i < problems.count && (code == DONE || code == LIB_FAILED); i++) {
        progress_begin(problem_print(&problems.items[i]).text);
        int one = check_problem(&r, &problems.items[i], &o);
        progress_end();
        code = one != DONE ? one : code;
        failed += one == DONE && !r.pass;
        if (document)
            add_json(results, &r, &problems.items[i], one);
        else if (one == DONE)
            print_result(&r, &problems.items[i]);
    }
    if (!document && problems.count > 1 && code == DONE)
        printf("%d of %d problems passed\n", problems.count - failed, problems.count);
    if (code == DONE && failed) code = CHECK_FAILED;
    if (document) json_finish(document, code);
    problems_free(&problems);
    return code;
}
