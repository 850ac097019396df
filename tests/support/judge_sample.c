/* judge_sample.c - building and running one call. */
#include "support/judge_sample.h"

#include "support/judge_device.h"
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>

const char *const role_name[ROLES] = {"q",    "k",    "v",     "mask",  "alibi", "sink",
                                      "dout", "dlse", "k_new", "v_new", "o",     "lse",
                                      "dq",   "dk",   "dv",    "dmask", "dsink"};

static int64_t size(int64_t given, int64_t otherwise)
{
    return given == 0 ? otherwise : given < 0 ? 0 : given;
}

static bool is_output(role r) { return r >= O; }

tensor *sample_put(sample *t, role r, tensor *given)
{
    tensor_free(t->t[r]);
    t->t[r] = given;
    return given;
}

static void put_new(sample *t, role r, int32_t dtype, const int64_t shape[4])
{
    sample_put(t, r,
               tensor_new(dtype, shape[0], shape[1], shape[2], shape[3], &t->spec.layout[r]));
}

static void add_tensors(sample *t)
{
    const sample_spec *s = &t->spec;
    const int64_t q[4] = {s->b, s->hq, s->nq, s->d}, o[4] = {s->b, s->hq, s->nq, s->dv};
    const int64_t k[4] = {s->b, s->hk, s->nk, s->d}, v[4] = {s->b, s->hk, s->nk, s->dv};
    const int64_t rows[4] = {s->b, s->hq, s->nq, 1};
    put_new(t, Q, s->dtype, q);
    put_new(t, K, s->dtype, k);
    put_new(t, V, s->dtype, v);
    put_new(t, O, s->o_dtype, o);
    put_new(t, LSE, s->dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32, rows);
    tensor_hash(t->t[Q], 0, 1.0);
    tensor_hash(t->t[K], 1000000, 1.0);
    tensor_hash(t->t[V], 2000000, 1.0);
    if (!s->backward) return;
    put_new(t, DOUT, s->o_dtype, o);
    put_new(t, DQ, s->dtype, q);
    put_new(t, DK, s->dtype, k);
    put_new(t, DV, s->dtype, v);
    tensor_hash(t->t[DOUT], 3000000, 1.0);
}

sample *sample_new(const sample_spec *spec)
{
    sample *t = calloc(1, sizeof *t);
    if (!t) abort();
    sample_spec *s = &t->spec;
    *s = *spec;
    s->b = size(s->b, 1), s->hq = size(s->hq, 1), s->hk = size(s->hk, s->hq);
    s->nq = size(s->nq, 1), s->nk = size(s->nk, s->nq);
    s->dv = size(s->dv, s->d), s->d = size(s->d, 0);
    if (!s->o_dtype) s->o_dtype = s->dtype;
    t->f = ffpa_forward_params_init();
    t->g = ffpa_backward_params_init();
    t->f.flags = FFPA_SCALE;
    t->f.scale = 1.0f;
    add_tensors(t);
    return t;
}

void sample_use_dropout(sample *t, float p, uint64_t seed, uint64_t offset)
{
    t->dropout = (ffpa_dropout){
        .struct_size = sizeof t->dropout, .p = p, .seed = seed, .offset = offset};
    t->f.dropout = &t->dropout;
}

void sample_use_window(sample *t, int64_t left, int64_t right)
{
    t->f.flags |= FFPA_WINDOW;
    t->f.window_left = left;
    t->f.window_right = right;
}

void sample_use_varlen(sample *t, int64_t batch, const int32_t *cu_q, const int32_t *cu_k)
{
    t->varlen = (ffpa_varlen){.struct_size = sizeof t->varlen,
                              .batch = batch,
                              .cu_q = cu_q,
                              .cu_k = cu_k,
                              .index_dtype = FFPA_I32};
    t->f.varlen = &t->varlen;
}

void sample_use_cache(sample *t, const int32_t *lengths)
{
    t->cache = (ffpa_kv_cache){
        .struct_size = sizeof t->cache, .lengths = lengths, .index_dtype = FFPA_I32};
    t->f.kv_cache = &t->cache;
}

void sample_use_mask(sample *t, const int64_t shape[4], const double *keep)
{
    tensor *mask = tensor_new(FFPA_BOOL, shape[0], shape[1], shape[2], shape[3], NULL);
    tensor_values(sample_put(t, MASK, mask), shape[3], keep);
}

sample *sample_copy(const sample *t, int32_t dtype)
{
    sample *c = malloc(sizeof *c);
    if (!c) abort();
    *c = *t;
    if (t->f.dropout) c->f.dropout = &c->dropout;
    if (t->f.varlen) c->f.varlen = &c->varlen;
    if (t->f.kv_cache) c->f.kv_cache = &c->cache;
    if (dtype) c->spec.dtype = c->spec.o_dtype = dtype;
    for (int r = 0; r < ROLES; r++) {
        const bool fixed = r == MASK || r == ALIBI || r == SINK || r == DSINK;
        if (!t->t[r]) continue;
        c->t[r] = tensor_copy(t->t[r], fixed || !dtype ? t->t[r]->view.dtype : dtype);
        if (is_output((role)r)) tensor_poison(c->t[r]);
    }
    return c;
}

void sample_free(sample *t)
{
    for (int r = 0; r < ROLES; r++)
        tensor_free(t->t[r]);
    free(t);
}

static ffpa_tensor view(const sample *t, role r)
{
    const ffpa_tensor absent = {0};
    return t->t[r] ? t->t[r]->view : absent;
}

void sample_wire(sample *t)
{
    ffpa_forward_params *f = &t->f;
    f->q = view(t, Q), f->k = view(t, K), f->v = view(t, V), f->o = view(t, O),
    f->lse = view(t, LSE);
    f->mask = view(t, MASK), f->alibi = view(t, ALIBI), f->sink = view(t, SINK);
    t->cache.k_new = view(t, K_NEW), t->cache.v_new = view(t, V_NEW);
    ffpa_backward_params *g = &t->g;
    g->forward = f;
    g->dout = view(t, DOUT), g->dlse = view(t, DLSE);
    g->dq = view(t, DQ), g->dk = view(t, DK), g->dv = view(t, DV);
    g->dmask = view(t, DMASK), g->dsink = view(t, DSINK);
}

static void check_blank(const tensor *t, const char *name)
{
    if (t->mapped) return;
    tensor *blank = tensor_copy(t, t->view.dtype);
    tensor_poison(blank);
    if (!tensor_same_bits(blank, t)) fail_msg("%s: written by a call that failed", name);
    tensor_free(blank);
}

/* Run with the outputs first..last poisoned; everything else must come out as it went in. */
static ffpa_status run(sample *t, ffpa_context *ctx, role first, role last)
{
    uint64_t before[ROLES] = {0};
    sample_wire(t);
    for (int r = 0; r < ROLES; r++) {
        if (!t->t[r]) continue;
        if (r >= (int)first && r <= (int)last)
            tensor_poison(t->t[r]);
        else
            before[r] = tensor_digest(t->t[r]);
    }
    const ffpa_status status =
        first == O ? judge_forward(ctx, &t->f) : judge_backward(ctx, &t->g);
    for (int r = 0; r < ROLES; r++) {
        const bool output = r >= (int)first && r <= (int)last;
        const bool appended = status == FFPA_OK && t->t[K_NEW] && (r == K || r == V);
        if (!t->t[r]) continue;
        if (output || appended)
            tensor_check_guards(t->t[r], role_name[r]);
        else if (before[r] != tensor_digest(t->t[r]))
            fail_msg("%s: an input was changed by %s", role_name[r], sample_text(t));
        if (output && status != FFPA_OK) check_blank(t->t[r], role_name[r]);
    }
    return status;
}

ffpa_status sample_forward(sample *t, ffpa_context *ctx) { return run(t, ctx, O, LSE); }

ffpa_status sample_backward(sample *t, ffpa_context *ctx) { return run(t, ctx, DQ, DSINK); }

/* ---- description ---- */

static int option_text(const sample *t, char *text, size_t room)
{
    const ffpa_forward_params *f = &t->f;
    int n = 0;
#define SAY(...) n += snprintf(text + n, (size_t)n < room ? room - (size_t)n : 0, __VA_ARGS__)
    if (f->causal) SAY(",%s", f->causal == FFPA_TOP_LEFT ? "causal_tl" : "causal");
    if (f->flags & FFPA_WINDOW)
        SAY(",win%lld:%lld", (long long)f->window_left, (long long)f->window_right);
    if (t->t[MASK]) {
        const int64_t *s = t->t[MASK]->view.shape;
        SAY(",mask=%s:", dtype_name(t->t[MASK]->view.dtype));
        for (int a = 0; a < 4; a++) {
            if (s[a] > 1) SAY("%c", "bhqk"[a]);
        }
    }
    if (f->softcap > 0) SAY(",softcap%g", (double)f->softcap);
    if (t->t[ALIBI]) SAY(",alibi");
    if (t->t[SINK]) SAY(",sink");
    if (f->dropout) SAY(",dropout%g", (double)t->dropout.p);
    if (f->flags & FFPA_SCALE) SAY(",scale%g", (double)f->scale);
    if (f->varlen) SAY(" (varlen of %lld)", (long long)t->varlen.batch);
    if (f->kv_cache) SAY(" (cache%s)", t->cache.block_table ? ", paged" : "");
    if (t->t[K_NEW]) SAY(" (appended)");
    if (t->t[DLSE]) SAY(" (dlse)");
#undef SAY
    return n;
}

const char *sample_text(const sample *t)
{
    static char text[512];
    const sample_spec *s = &t->spec;
    const int n = snprintf(text, sizeof text, "%s,%s,b%lldh%lldk%lld,q%lldk%lld,d%lldv%lld",
                           s->backward ? "bwd" : "fwd", dtype_name(s->dtype), (long long)s->b,
                           (long long)s->hq, (long long)s->hk, (long long)s->nq,
                           (long long)s->nk, (long long)s->d, (long long)s->dv);
    option_text(t, text + n, sizeof text - (size_t)n);
    return text;
}
