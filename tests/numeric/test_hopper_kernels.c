/* test_hopper_kernels.c - the smallest problem that reaches each kernel of the Hopper families and each way through
 * it. Most families leave small problems to others unless they alone are allowed, so on a GPU each is asked by name;
 * elsewhere the problems are judged on every path, unless effort is spared. On a GPU also what runs under the tools that watch memory,
 * races and barriers.
 *
 * usage: test_hopper_kernels [TEST]    all of them, or those that match */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>
#include <stdio.h>

typedef struct form {
    int32_t dtype;
    int64_t hq, nq, nk, d, dv; /* two heads of q for one of k */
    bool backward;
} form;

static sample *problem(const form *f)
{
    sample *t = sample_new(&(sample_spec){.dtype = f->dtype,
                                          .hq = f->hq,
                                          .hk = f->hq / 2,
                                          .nq = f->nq,
                                          .nk = f->nk,
                                          .d = f->d,
                                          .dv = f->dv,
                                          .backward = f->backward});
    t->f.flags = 0;
    return t;
}

#define BF16(hq, nq, nk, d, dv)  problem(&(form){FFPA_BF16, hq, nq, nk, d, dv, false})
#define F16(hq, nq, nk, d, dv)   problem(&(form){FFPA_F16, hq, nq, nk, d, dv, false})
#define GRADIENTS(nq, nk, d, dv) problem(&(form){FFPA_BF16, 2, nq, nk, d, dv, true})

/* What the context would run the call by; "" and the reasons where it would not. */
static ffpa_report asked(ffpa_context *ctx, sample *t)
{
    ffpa_report r = {.struct_size = sizeof r};
    sample_wire(t);
    judge_say_device(ctx, &t->f, &t->g);
    const ffpa_status status = t->spec.backward ? ffpa_backward_supported(ctx, &t->g, &r)
                                                : ffpa_forward_supported(ctx, &t->f, &r);
    if (status != FFPA_OK) r.path[0] = 0;
    return r;
}

/* By that backend, which has to take it on compute capability 9.0, and by `path`. */
static void judge_by(sample *t, const char *backend, const char *path, const char *name)
{
    judge_path by = {backend, backend, NULL, judge_context(backend, NULL, 2), false};
    const ffpa_report r = asked(by.ctx, t);
    if (strstr(r.refusals, "not for compute capability"))
        print_message("%s: no such GPU\n", backend);
    else if (strcmp(r.path, path) != 0)
        fail_msg("%s: runs on '%s', not on %s: %s", name, r.path, path, r.refusals);
    else
        judge_sample_on(t, &by, name);
    ffpa_context_destroy(by.ctx);
}

/* Does this process judge a GPU, and this family on it? */
static bool on_gpu(const char *family, bool *wanted)
{
    const judge_path *p = judge_paths();
    *wanted = strcmp(p->backend, "cuda") == 0 || strcmp(p->backend, family) == 0;
    return judge_on_device(p->ctx);
}

/* On a processor: other tests judge such problems there, too. */
static void judge_elsewhere(sample *t, const char *name)
{
    if (!judge_quick()) judge_sample(t, name);
}

static void forward(sample *t, const char *family, const char *name)
{
    bool wanted;
    char path[64];
    snprintf(path, sizeof path, "%s/forward", family);
    if (!on_gpu(family, &wanted))
        judge_elsewhere(t, name);
    else if (wanted)
        judge_by(t, family, path, name);
    sample_free(t);
}

/* The same of a problem whose tiles are so few that their keys are cut into parts. */
static void in_parts(sample *t, const char *family, const char *name)
{
    bool wanted;
    if (on_gpu(family, &wanted) && wanted) {
        ffpa_context *ctx = judge_context(family, NULL, 2);
        const ffpa_report r = asked(ctx, t);
        ffpa_context_destroy(ctx);
        if (r.path[0] && r.splits < 2) fail_msg("%s: is not cut into parts", name);
    }
    forward(t, family, name);
}

/* The family has no forward, so the planner chooses both; it prefers this one wherever it can. */
static void backward(sample *t, const char *family, const char *name)
{
    bool wanted;
    if (!on_gpu("cuda", &wanted))
        judge_elsewhere(t, name);
    else if (wanted) {
        char path[64];
        snprintf(path, sizeof path, "%s/backward", family);
        ffpa_context *hopper = judge_context(family, NULL, 2);
        const ffpa_report r = asked(hopper, t);
        ffpa_context_destroy(hopper);
        if (strstr(r.refusals, "not for compute capability"))
            print_message("%s: no such GPU\n", family);
        else
            judge_by(t, "cuda", path, name);
    }
    sample_free(t);
}

static sample *causal(sample *t)
{
    t->f.causal = FFPA_BOTTOM_RIGHT;
    return t;
}

/* NaN in the last key, which the last row alone sees. */
static sample *poisoned(sample *t)
{
    tensor_put(t->t[V], 0, 0, t->spec.nk - 1, 3, NAN);
    return causal(t);
}

/* Infinity in a key whose weight dropout takes from some of the rows that see it: NaN there. */
static sample *dropped(sample *t)
{
    tensor_put(t->t[V], 0, 0, 100, 3, INFINITY);
    sample_use_dropout(t, .5f, 5, 1);
    return causal(t);
}

static sample *with_mask(sample *t)
{
    const int64_t shape[4] = {1, 1, t->spec.nq, t->spec.nk};
    tensor *keep = tensor_new(FFPA_BOOL, shape[0], shape[1], shape[2], shape[3], NULL);
    for (int64_t i = 0; i < shape[2]; i++)
        for (int64_t j = 0; j < shape[3]; j++)
            tensor_put(keep, 0, 0, i, j, (i * 7 + j * 3) % 5 != 0);
    sample_put(t, MASK, keep);
    return t;
}

static sample *with_alibi(sample *t)
{
    tensor *slopes = tensor_new(FFPA_F32, 1, t->spec.hq, 1, 1, NULL);
    for (int64_t h = 0; h < t->spec.hq; h++)
        tensor_put(slopes, 0, h, 0, 0, h % 2 ? .0625 : .25);
    sample_put(t, ALIBI, slopes);
    return t;
}

/* Later keys weigh more, by far. */
static sample *with_ramp(sample *t)
{
    tensor *bias = tensor_new(FFPA_F32, 1, 1, 1, t->spec.nk, NULL);
    for (int64_t j = 0; j < t->spec.nk; j++)
        tensor_put(bias, 0, 0, 0, j, .25 * (double)j);
    sample_put(t, MASK, bias);
    return t;
}

static sample *with_sink(sample *t)
{
    tensor *sink = tensor_new(FFPA_F32, 1, t->spec.hq, 1, 1, NULL);
    tensor_all(sink, 1);
    sample_put(t, SINK, sink);
    return t;
}

static sample *with_softcap(sample *t)
{
    t->f.softcap = 1.5f;
    return t;
}

static sample *with_dropout(sample *t)
{
    sample_use_dropout(t, .3f, 42, 7);
    return t;
}

/* Everything that goes together. */
static sample *with_bias(sample *t)
{
    const int64_t nq = t->spec.nq, nk = t->spec.nk;
    tensor_hash(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, nq, nk, NULL)), 4000000, 4);
    return t;
}
static sample *with_all(sample *t)
{
    return causal(with_alibi(with_sink(with_softcap(with_dropout(with_bias(t))))));
}

static sample *with_window(sample *t)
{
    sample_use_window(t, 40, 0);
    return t;
}

/* Fewer keys than the cache has room for; behind them are NaN and infinity. */
static sample *with_length(sample *t)
{
    static const int32_t length[] = {137};
    sample_use_cache(t, length);
    for (int64_t j = length[0]; j < t->spec.nk; j++) {
        tensor_put(t->t[K], 0, 0, j, j % 64, NAN);
        tensor_put(t->t[V], 0, 0, j, j % 64, j % 2 ? INFINITY : NAN);
    }
    return t;
}

/* Four sequences, one of them empty; 150 rows, 180 keys. */
static sample *packed(sample *t)
{
    static const int32_t cu_q[] = {0, 8, 8, 140, 150}, cu_k[] = {0, 20, 25, 160, 180};
    sample_use_varlen(t, 4, cu_q, cu_k);
    return causal(t);
}

/* ---- D up to 320 ------------------------------------------------------------------------------------ */

static void one(void **state)
{
    static const char family[] = "cuda/sm90_one";
    (void)state;
    forward(BF16(140, 150, 40, 64, 64), family, "192 rows, more tiles than processors");
    forward(BF16(2, 140, 270, 128, 128), family, "128 rows");
    forward(causal(BF16(2, 140, 270, 64, 64)), family, "causal");
    forward(causal(BF16(140, 150, 150, 192, 128)), family, "causal, many tiles");
    forward(F16(2, 140, 270, 256, 256), family, "widest in one instruction");
    forward(BF16(2, 140, 270, 320, 320), family, "widest");
    forward(causal(BF16(140, 150, 150, 264, 288)), family, "causal, many wide tiles");
    forward(BF16(2, 40, 70, 72, 40), family, "tails");
}

static void one_options(void **state)
{
    static const int32_t length[] = {37};
    static const char family[] = "cuda/sm90_one";
    (void)state;
    forward(with_all(BF16(2, 140, 270, 64, 64)), family, "all options");
    forward(with_mask(BF16(2, 140, 270, 256, 256)), family, "bool mask");
    forward(with_sink(with_window(BF16(2, 140, 270, 128, 128))), family, "window and sink");
    forward(with_all(BF16(2, 140, 270, 320, 320)), family, "all options, widest");
    forward(packed(BF16(2, 150, 180, 64, 64)), family, "packed");
    forward(packed(BF16(2, 150, 180, 320, 320)), family, "packed, widest");
    forward(poisoned(BF16(2, 140, 140, 320, 320)), family, "NaN, widest");
    forward(poisoned(BF16(2, 140, 140, 128, 128)), family, "NaN");
    forward(dropped(BF16(2, 140, 140, 128, 128)), family, "infinity and dropout");
    sample *t = BF16(2, 20, 100, 128, 128);
    sample_use_cache(t, length);
    forward(t, family, "lengths of keys");
}

static void one_parts(void **state)
{
    static const char family[] = "cuda/sm90_one";
    (void)state;
    in_parts(BF16(2, 140, 1400, 128, 128), family, "parts");
    in_parts(with_sink(causal(F16(2, 140, 1400, 256, 256))), family, "causal and sink");
    in_parts(poisoned(BF16(2, 140, 1400, 320, 320)), family, "NaN");
    in_parts(with_all(BF16(2, 140, 1400, 64, 64)), family, "all options");
}

/* ---- D from 257 to 576 ------------------------------------------------------------------------------- */

static void pair(void **state)
{
    static const char family[] = "cuda/sm90_pair";
    (void)state;
    forward(BF16(2, 140, 270, 512, 512), family, "plain");
    forward(BF16(34, 140, 40, 320, 320), family, "more tiles than pairs");
    forward(F16(2, 140, 140, 448, 448), family, "f16");
    forward(BF16(2, 140, 140, 576, 512), family, "Dv below D");
    forward(BF16(2, 40, 70, 264, 328), family, "tails");
}

static void pair_range(void **state)
{
    static const char family[] = "cuda/sm90_pair";
    (void)state;
    forward(causal(BF16(2, 140, 270, 512, 512)), family, "causal");
    forward(causal(BF16(34, 140, 140, 320, 320)), family, "causal, many tiles");
    forward(with_sink(with_window(BF16(2, 140, 270, 576, 576))), family, "window and sink");
    forward(packed(BF16(2, 150, 180, 512, 512)), family, "packed");
    forward(poisoned(BF16(2, 140, 140, 512, 512)), family, "NaN");
}

static void pair_options(void **state)
{
    static const char family[] = "cuda/sm90_pair";
    (void)state;
    forward(with_all(BF16(2, 140, 140, 320, 320)), family, "all options");
    forward(with_mask(BF16(2, 140, 140, 448, 448)), family, "bool mask");
    forward(dropped(BF16(2, 140, 140, 448, 448)), family, "infinity and dropout");
}

static void pair_parts(void **state)
{
    static const char family[] = "cuda/sm90_pair";
    (void)state;
    in_parts(BF16(2, 140, 1400, 512, 512), family, "parts");
    in_parts(with_sink(causal(F16(2, 140, 1400, 384, 384))), family, "causal and sink");
    in_parts(poisoned(BF16(2, 140, 1400, 576, 576)), family, "NaN");
    in_parts(with_mask(BF16(2, 140, 1400, 448, 448)), family, "bool mask");
}

/* ---- D above ------------------------------------------------------------------------------------------ */

static void spill(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(BF16(2, 140, 270, 640, 640), family, "plain");
    forward(causal(BF16(2, 140, 270, 1024, 1024)), family, "causal");
    forward(with_sink(with_window(F16(2, 140, 270, 584, 200))), family, "window, sink, tails");
    forward(poisoned(BF16(2, 140, 140, 640, 640)), family, "NaN");
    sample *t = BF16(2, 500, 40, 640, 640);
    if (judge_on_device(judge_paths()->ctx)) t->f.workspace_limit_bytes = 170000;
    forward(t, family, "chunks of rows");
}

/* A kernel with options takes many seconds to compile: several tests, which processes may share. */
static void spill_options(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(with_all(BF16(2, 140, 270, 512, 512)), family, "all options");
    forward(dropped(BF16(2, 140, 140, 640, 640)), family, "infinity and dropout");
}

static void spill_options_widest(void **state)
{
    (void)state;
    forward(with_all(F16(2, 140, 270, 1024, 584)), "cuda/sm90_spill", "all options, widest");
}

static void spill_masks(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(with_mask(BF16(2, 140, 288, 512, 512)), family, "bool mask, 16 keys at once");
    forward(poisoned(with_mask(BF16(2, 140, 140, 512, 512))), family, "bool mask and NaN");
    forward(with_mask(BF16(2, 140, 270, 576, 576)), family, "bool mask, a key at a time");
}

static void spill_biases(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(with_ramp(BF16(2, 140, 470, 512, 512)), family, "added mask, bases that move");
    forward(with_bias(with_dropout(BF16(2, 140, 270, 640, 640))), family,
            "added mask and dropout");
}

static void spill_scores(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(causal(with_softcap(BF16(2, 140, 270, 512, 512))), family, "softcap");
    forward(with_alibi(BF16(2, 140, 470, 512, 512)), family, "ALiBi, bases from the diagonal");
}

static void spill_lengths(void **state)
{
    static const char family[] = "cuda/sm90_spill";
    (void)state;
    forward(with_length(BF16(2, 140, 270, 640, 640)), family, "plain");
    forward(with_length(causal(F16(2, 140, 270, 1024, 1024))), family, "causal");
    forward(with_length(with_all(BF16(2, 140, 270, 512, 512))), family, "all options");
}

/* ---- backward ------------------------------------------------------------------------------------------ */

static void gradients(void **state)
{
    static const char family[] = "cuda/sm90";
    (void)state;
    backward(with_alibi(GRADIENTS(140, 270, 64, 64)), family, "small head");
    backward(GRADIENTS(140, 270, 512, 512), family, "widest tiles");
    backward(GRADIENTS(70, 140, 192, 128), family, "Dv below D");
    backward(GRADIENTS(140, 140, 320, 264), family, "Dv below D, in tiles of the same width");
    backward(GRADIENTS(140, 140, 264, 320), family, "Dv above D, in tiles of the same width");
    backward(GRADIENTS(40, 70, 136, 40), family, "tails");
    backward(problem(&(form){FFPA_F16, 2, 140, 140, 320, 320, true}), family, "f16");
}

static void gradients_range(void **state)
{
    static const char family[] = "cuda/sm90";
    (void)state;
    backward(causal(GRADIENTS(140, 270, 192, 192)), family, "causal");
    backward(with_window(GRADIENTS(270, 270, 136, 136)), family, "window");
    backward(packed(GRADIENTS(150, 180, 192, 192)), family, "packed");
    backward(packed(GRADIENTS(150, 180, 192, 136)), family, "packed, Dv below D");
    backward(poisoned(GRADIENTS(140, 140, 192, 192)), family, "NaN");
}

static void gradients_options(void **state)
{
    static const char family[] = "cuda/sm90";
    (void)state;
    backward(with_mask(GRADIENTS(140, 140, 128, 128)), family, "bool mask");
    backward(with_softcap(GRADIENTS(140, 140, 128, 128)), family, "softcap");
    backward(with_alibi(GRADIENTS(140, 140, 128, 128)), family, "ALiBi");
    backward(causal(with_dropout(GRADIENTS(140, 140, 128, 128))), family, "dropout");
    backward(with_bias(GRADIENTS(140, 140, 128, 128)), family, "added mask");
    backward(with_all(GRADIENTS(140, 140, 128, 128)), family, "all options");
}

/* ---- backward, D up to 128 ----------------------------------------------------------------------------- */

static void fused(void **state)
{
    static const char family[] = "cuda/sm90_fused";
    (void)state;
    backward(GRADIENTS(140, 270, 64, 64), family, "plain");
    backward(GRADIENTS(270, 140, 128, 128), family, "widest");
    backward(GRADIENTS(140, 140, 96, 96), family, "middle");
    backward(GRADIENTS(40, 70, 72, 40), family, "tails");
    backward(GRADIENTS(70, 40, 40, 128), family, "Dv above D");
    backward(problem(&(form){FFPA_F16, 2, 140, 140, 128, 128, true}), family, "f16");
}

static void fused_range(void **state)
{
    static const char family[] = "cuda/sm90_fused";
    (void)state;
    backward(causal(GRADIENTS(140, 270, 64, 64)), family, "causal");
    backward(causal(GRADIENTS(270, 140, 128, 128)), family, "causal, rows without keys");
    backward(with_window(GRADIENTS(270, 270, 64, 64)), family, "window");
    backward(packed(GRADIENTS(150, 180, 128, 128)), family, "packed");
    backward(causal(problem(&(form){FFPA_F16, 2, 140, 140, 96, 96, true})), family, "f16");
}

/* Element 3 of row `i` in both heads of one operand. */
static sample *spoiled(sample *t, role which, int64_t i, double value)
{
    for (int64_t h = 0; h < t->t[which]->view.shape[1]; h++)
        tensor_put(t->t[which], 0, h, i, 3, value);
    return causal(t);
}

/* Infinity in a key makes scores of -inf, which leave the rest of their rows alone. */
static sample *with_lost_key(sample *t)
{
    for (int64_t h = 0; h < t->spec.hq; h++)
        for (int64_t i = 0; i < t->spec.nq; i++)
            tensor_put(t->t[Q], 0, h, i, 3, .5);
    return spoiled(t, K, 100, -(double)INFINITY);
}

static void fused_spoiled(void **state)
{
    static const char family[] = "cuda/sm90_fused";
    (void)state;
    backward(poisoned(GRADIENTS(140, 140, 128, 128)), family, "NaN in V");
    backward(spoiled(GRADIENTS(140, 140, 64, 64), K, 120, NAN), family, "NaN in K");
    backward(spoiled(GRADIENTS(140, 140, 128, 128), Q, 20, NAN), family, "NaN in Q");
    backward(spoiled(GRADIENTS(140, 140, 64, 64), DOUT, 20, INFINITY), family, "Inf in dO");
    backward(with_lost_key(GRADIENTS(140, 140, 64, 64)), family, "-Inf in K");
    backward(with_lost_key(GRADIENTS(140, 140, 128, 96)), family, "-Inf in K, wide");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one),
        cmocka_unit_test(one_options),
        cmocka_unit_test(one_parts),
        cmocka_unit_test(pair),
        cmocka_unit_test(pair_range),
        cmocka_unit_test(pair_options),
        cmocka_unit_test(pair_parts),
        cmocka_unit_test(spill),
        cmocka_unit_test(spill_options),
        cmocka_unit_test(spill_options_widest),
        cmocka_unit_test(spill_masks),
        cmocka_unit_test(spill_biases),
        cmocka_unit_test(spill_scores),
        cmocka_unit_test(spill_lengths),
        cmocka_unit_test(gradients),
        cmocka_unit_test(gradients_range),
        cmocka_unit_test(gradients_options),
        cmocka_unit_test(fused),
        cmocka_unit_test(fused_range),
        cmocka_unit_test(fused_spoiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
