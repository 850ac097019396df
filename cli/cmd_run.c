/* cmd_run.c - `ffpa run`: attention on tensors from files. */
#include "compare.h"
#include "program.h"
#include "run_options.h"
#include "scalar.h"

#include <math.h>
#include <string.h>

enum { OUTPUTS_MAX = 7 };

typedef struct attention_run {
    arena memory;
    input_file files[ROLE_COUNT];
    int file_count;
    const array *arrays[ROLE_COUNT];
    ffpa_tensor inputs[ROLE_COUNT];
    ffpa_forward_params forward;
    ffpa_backward_params backward;
    ffpa_dropout dropout;
    bool ones;          /* dout is all ones, for want of one */
    ffpa_report report; /* of the last call */
    double seconds, flop;
    char forward_path[64], backward_path[64];
    named_tensor outputs[OUTPUTS_MAX];
    int count;
} attention_run;

typedef struct comparison {
    const char *name;
    difference difference;
    double bound;
    bool pass;
} comparison;

/* ---- inputs ---- */

static int open_next(attention_run *r, const char *path)
{
    int code = input_open(&r->files[r->file_count], path);
    r->file_count += code == DONE;
    return code;
}

/* Only backward looks at these two. */
static bool role_used(const run_options *o, enum role role)
{
    return o->grad || (role != ROLE_DOUT && role != ROLE_DLSE);
}

/* Was it named by --name? Then it must be there. */
static bool role_named(const run_options *o, enum role role)
{
    return o->names[role] != ROLE_NAMES[role];
}

static int load_role(attention_run *r, const run_options *o, enum role role,
                     const input_file *file, bool required)
{
    const array *a = input_find(file, o->names[role]);
    if (!a && role <= ROLE_V && !role_named(o, role))
        return complain(BAD_FILE,
                        "%s: there is no tensor '%s'; --name %s=NAME says what it is called",
                        file->path, o->names[role], ROLE_NAMES[role]);
    if (!a && required)
        return complain(BAD_FILE, "%s: there is no tensor '%s' for %s", file->path,
                        o->names[role], ROLE_NAMES[role]);
    if (!a) return DONE;
    r->arrays[role] = a;
    view_options view = o->view;
    view.wide = r->inputs[ROLE_Q].dtype == FFPA_F64;
    return input_tensor(&r->memory, &r->inputs[role], role, file, a, &view);
}

/* Those of the first file, or q k v of the first three, that have no file of their own. */
static int load_main(attention_run *r, const run_options *o, bool npy)
{
    int code = DONE;
    for (int i = 0; i < (npy ? 3 : ROLE_COUNT) && code == DONE; i++) {
        const enum role role = (enum role)i;
        if (npy && role_named(o, role))
            return complain(BAD_USAGE, "--name %s=%s: a .npy file has no names",
                            ROLE_NAMES[role], o->names[role]);
        if (role_named(o, role) && !role_used(o, role))
            return complain(BAD_USAGE, "--name %s=%s does nothing without --grad",
                            ROLE_NAMES[role], o->names[role]);
        if (role_used(o, role) && !o->extra[role])
            code = load_role(r, o, role, &r->files[npy ? i : 0],
                             role <= ROLE_V || role_named(o, role));
    }
    return code;
}

static int load_files(attention_run *r, const run_options *o, int count, char **paths)
{
    int code;
    if (count != 1 && count != 3)
        return complain(BAD_USAGE, "give one .safetensors file, or three .npy files: q k v");
    for (int i = 0; i < count; i++) {
        if ((code = open_next(r, paths[i])) != DONE) return code;
        if (r->files[i].npy != (count == 3))
            return complain(BAD_USAGE,
                            "%s: give one .safetensors file, or three .npy files: q k v",
                            paths[i]);
    }
    if ((code = load_main(r, o, count == 3)) != DONE) return code;
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (!o->extra[role]) continue;
        if ((code = open_next(r, o->extra[role])) != DONE) return code;
        code = load_role(r, o, (enum role)role, &r->files[r->file_count - 1], true);
        if (code != DONE) return code;
    }
    return DONE;
}

/* Without a dout: the gradient of the sum of O. */
static bool make_ones(attention_run *r)
{
    static const float ONE = 1;
    int64_t zero[4] = {0};
    ffpa_tensor *t = &r->backward.dout;
    r->ones = true;
    if (!tensor_new(&r->memory, t, r->forward.o.dtype, (int64_t[4]){1, 1, 1, 1}, false))
        return false;
    tensor_set(t, zero, (double)ONE);
    memcpy(t->shape, r->forward.o.shape, sizeof t->shape);
    memset(t->stride, 0, sizeof t->stride);
    return true;
}

/* ---- the calls ---- */

static void add_output(attention_run *r, const char *name, const ffpa_tensor *t, enum role role)
{
    int rank = role == ROLE_MASK || role == ROLE_SINK ? 4 : r->arrays[ROLE_Q]->rank;
    r->outputs[r->count++] = (named_tensor){name, *t, rank, role};
}

static bool make_gradients(attention_run *r, const run_options *o)
{
    ffpa_forward_params *f = &r->forward;
    ffpa_backward_params *g = &r->backward;
    bool bnhd = o->view.bnhd, mask = f->mask.data && f->mask.dtype != FFPA_BOOL;
    *g = ffpa_backward_params_init();
    g->forward = f;
    g->dout = r->inputs[ROLE_DOUT];
    g->dlse = r->inputs[ROLE_DLSE];
    if ((!g->dout.data && !make_ones(r)) ||
        !tensor_new(&r->memory, &g->dq, f->q.dtype, f->q.shape, bnhd) ||
        !tensor_new(&r->memory, &g->dk, f->k.dtype, f->k.shape, bnhd) ||
        !tensor_new(&r->memory, &g->dv, f->v.dtype, f->v.shape, bnhd) ||
        (mask && !tensor_new(&r->memory, &g->dmask, f->mask.dtype, f->mask.shape, false)) ||
        (f->sink.data && !tensor_new(&r->memory, &g->dsink, FFPA_F32, f->sink.shape, false)))
        return false;
    add_output(r, "dq", &g->dq, ROLE_Q);
    add_output(r, "dk", &g->dk, ROLE_K);
    add_output(r, "dv", &g->dv, ROLE_V);
    if (mask) add_output(r, "dmask", &g->dmask, ROLE_MASK);
    if (f->sink.data) add_output(r, "dsink", &g->dsink, ROLE_SINK);
    return true;
}

static int prepare(attention_run *r, const run_options *o)
{
    ffpa_forward_params *f = &r->forward;
    *f = o->forward;
    f->q = r->inputs[ROLE_Q];
    f->k = r->inputs[ROLE_K];
    f->v = r->inputs[ROLE_V];
    f->mask = r->inputs[ROLE_MASK];
    f->alibi = r->inputs[ROLE_ALIBI];
    f->sink = r->inputs[ROLE_SINK];
    if (o->dropout > 0) {
        r->dropout = (ffpa_dropout){.struct_size = sizeof r->dropout, .p = (float)o->dropout};
        r->dropout.seed = o->seed > 0 ? (uint64_t)o->seed : 0;
        f->dropout = &r->dropout;
    }
    int64_t shape[4] = {f->q.shape[0], f->q.shape[1], f->q.shape[2], f->v.shape[3]};
    int64_t rows[4] = {shape[0], shape[1], shape[2], 1};
    int32_t lse = f->q.dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32;
    if (!tensor_new(&r->memory, &f->o, f->q.dtype, shape, o->view.bnhd) ||
        !tensor_new(&r->memory, &f->lse, lse, rows, false))
        return complain(LIB_FAILED, "out of memory for the outputs");
    add_output(r, "o", &f->o, ROLE_Q);
    if (o->lse || o->expect) add_output(r, "lse", &f->lse, ROLE_DLSE);
    if (o->grad && !make_gradients(r, o))
        return complain(LIB_FAILED, "out of memory for the gradients");
    return DONE;
}

static int compute(attention_run *r, const run_options *o)
{
    ffpa_context *context;
    ffpa_report report = {.struct_size = sizeof report};
    int code = common_context(&o->common, NULL, &context);
    if (code != DONE) return code;
    progress_begin("attention");
    double start = seconds_now();
    ffpa_status status = ffpa_forward(context, &r->forward);
    if (status == FFPA_OK) {
        snprintf(r->forward_path, sizeof r->forward_path, "%s", ffpa_last_path());
        if (o->grad) status = ffpa_backward(context, &r->backward);
    }
    r->seconds = seconds_now() - start;
    progress_end();
    if (status != FFPA_OK) {
        code = complain_library(status);
    } else {
        if (o->grad)
            snprintf(r->backward_path, sizeof r->backward_path, "%s", ffpa_last_path());
        if (ffpa_forward_supported(context, &r->forward, &report) == FFPA_OK)
            r->flop = report.flop * (o->grad ? 3.5 : 1);
    }
    ffpa_context_destroy(context);
    return code;
}

/* ---- comparison with expected tensors ---- */

/* Largest error allowed, in units of the largest expected magnitude: a few roundings of the dtype of
 * the inputs, which P and O go through; LSE and f32 keep f32 precision. */
static double bound_of(const run_options *o, const named_tensor *n, double largest)
{
    double unit = n->tensor.dtype == FFPA_BF16  ? 1.0 / 256
                  : n->tensor.dtype == FFPA_F16 ? 1.0 / 2048
                                                : 5e-6;
    if (o->tolerance >= 0) return o->tolerance;
    return (n->name[0] == 'd' ? 4 : 2) * unit * fmax(largest, 1e-30);
}

static int compare_one(comparison *c, const run_options *o, const input_file *file,
                       const named_tensor *output, arena *memory)
{
    char name[256];
    ffpa_tensor expected;
    view_options view = {.bnhd = o->view.bnhd, .wide = true};
    if (snprintf(name, sizeof name, "%s%s", output->name, o->expect_suffix) >= (int)sizeof name)
        return complain(BAD_USAGE, "--expect-suffix %.40s...: too long", o->expect_suffix);
    const array *a = input_find(file, name);
    if (!a) return DONE;
    int code = input_tensor(memory, &expected, output->role, file, a, &view);
    if (code != DONE) return code;
    if (memcmp(expected.shape, output->tensor.shape, sizeof expected.shape) != 0)
        return complain(BAD_FILE,
                        "%s: tensor '%s' has shape [%lld,%lld,%lld,%lld], the result"
                        " [%lld,%lld,%lld,%lld]",
                        file->path, name, (long long)expected.shape[0],
                        (long long)expected.shape[1], (long long)expected.shape[2],
                        (long long)expected.shape[3], (long long)output->tensor.shape[0],
                        (long long)output->tensor.shape[1], (long long)output->tensor.shape[2],
                        (long long)output->tensor.shape[3]);
    c->name = output->name;
    c->difference = compare_tensors(&output->tensor, &expected, NULL);
    c->bound = bound_of(o, output, c->difference.max_expected);
    c->pass = c->difference.pattern == 0 && c->difference.max_error <= c->bound;
    return DONE;
}

static int compare_all(attention_run *r, const run_options *o, comparison *c, int *count)
{
    input_file file;
    int code = input_open(&file, o->expect);
    if (code != DONE) return code;
    if (file.npy)
        code = complain(BAD_USAGE, "--expect %s: it must be a .safetensors file", o->expect);
    for (int i = 0; i < r->count && code == DONE; i++) {
        c[*count].name = NULL;
        code = compare_one(&c[*count], o, &file, &r->outputs[i], &r->memory);
        *count += c[*count].name != NULL;
    }
    input_close(&file);
    if (code == DONE && *count == 0)
        code = complain(BAD_FILE, "%s: it holds no 'o%s' and no 'lse%s' to compare with",
                        o->expect, o->expect_suffix, o->expect_suffix);
    return code;
}

/* ---- output ---- */

static void print_run(const attention_run *r, const run_options *o)
{
    const ffpa_forward_params *f = &r->forward;
    char time[32], work[32];
    printf("%sattention%s  B=%lld Hq=%lld Hk=%lld Nq=%lld Nk=%lld D=%lld Dv=%lld %s%s\n",
           style_head(), style_off(), (long long)f->q.shape[0], (long long)f->q.shape[1],
           (long long)f->k.shape[1], (long long)f->q.shape[2], (long long)f->k.shape[2],
           (long long)f->q.shape[3], (long long)f->v.shape[3], scalar_name(f->q.dtype),
           f->causal == FFPA_TOP_LEFT ? ", causal top-left"
           : f->causal                ? ", causal"
                                      : "");
    printf("  path     %s%s%s\n", r->forward_path, *r->backward_path ? ", " : "",
           r->backward_path);
    printf("  time     %s for %s in one call, %.1f GFLOP/s\n", text_seconds(time, r->seconds),
           text_flop(work, r->flop), r->flop / r->seconds / 1e9);
    if (r->ones) printf("  dout     all ones: the gradient of the sum of o\n");
    if (o->output) printf("  wrote    %s\n", o->output);
}

static void print_comparison(const comparison *c, int count, const run_options *o)
{
    printf("  against  %s\n", o->expect);
    printf("  %-8s %11s %11s %11s\n", "output", "max error", "bound", "rel L2");
    for (int i = 0; i < count; i++)
        printf("  %-8s %11.2e %11.2e %11.2e  %s%s%s%s\n", c[i].name, c[i].difference.max_error,
               c[i].bound, c[i].difference.relative_l2, c[i].pass ? style_good() : style_bad(),
               c[i].pass ? "PASS" : "FAIL", style_off(),
               c[i].difference.pattern ? " (NaN or infinity in the wrong place)" : "");
}

static void add_json(cJSON *document, const attention_run *r, const comparison *c, int count)
{
    cJSON_AddStringToObject(document, "forward_path", r->forward_path);
    if (*r->backward_path) cJSON_AddStringToObject(document, "backward_path", r->backward_path);
    json_number(document, "seconds", r->seconds);
    json_number(document, "gflop_per_second", r->seconds > 0 ? r->flop / r->seconds / 1e9 : 0);
    cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
    for (int i = 0; i < r->count; i++)
        cJSON_AddItemToArray(outputs, cJSON_CreateString(r->outputs[i].name));
    cJSON *compared = count ? cJSON_AddArrayToObject(document, "compared") : NULL;
    for (int i = 0; i < count; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(compared, one);
        cJSON_AddStringToObject(one, "name", c[i].name);
        json_number(one, "max_error", c[i].difference.max_error);
        json_number(one, "bound", c[i].bound);
        json_number(one, "relative_l2", c[i].difference.relative_l2);
        cJSON_AddNumberToObject(one, "pattern_mismatches", (double)c[i].difference.pattern);
        cJSON_AddBoolToObject(one, "pass", c[i].pass);
    }
}

/* ---- command ---- */

static int run_all(attention_run *r, const run_options *o, int count, char **paths,
                   cJSON *document)
{
    comparison compared[OUTPUTS_MAX];
    int compared_count = 0, code;
    if ((code = load_files(r, o, count, paths)) != DONE || (code = prepare(r, o)) != DONE)
        return code;
    if (o->output && (code = outputs_check_path(o->output, r->count)) != DONE) return code;
    if ((code = compute(r, o)) != DONE) return code;
    if (o->expect && (code = compare_all(r, o, compared, &compared_count)) != DONE) return code;
    if (o->output &&
        (code = outputs_write(o->output, r->outputs, r->count, o->view.bnhd)) != DONE)
        return code;
    if (document)
        add_json(document, r, compared, compared_count);
    else
        print_run(r, o);
    if (!document && compared_count) print_comparison(compared, compared_count, o);
    for (int i = 0; i < compared_count; i++)
        if (!compared[i].pass) return CHECK_FAILED;
    return DONE;
}

int cmd_run(int argc, char **argv)
{
    run_options o;
    attention_run r = {0};
    int code = run_options_read(&o, argc, argv);
    cJSON *document = o.common.json ? json_document("run") : NULL;
    if (code == DONE) code = run_all(&r, &o, argc - optind, argv + optind, document);
    for (int i = 0; i < r.file_count; i++)
        input_close(&r.files[i]);
    arena_free(&r.memory);
    if (document) json_finish(document, code);
    return code;
}
