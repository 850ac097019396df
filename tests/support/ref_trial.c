/* ref_trial.c - tensors, options and runs of a trial. */
#include "support/ref_trial.h"

#include "core/plan.h"
#include "cpu/element.h"
#include "support/poison_alloc.h"
#include "support/unit.h"

#include <stdlib.h>

/* ---- elements ------------------------------------------------------------------------------ */

static void *element_of(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const int64_t offset =
        b * t->stride[0] + h * t->stride[1] + n * t->stride[2] + d * t->stride[3];
    return (char *)t->data + offset * (t->dtype == FFPA_BOOL ? 1 : element_bytes(t->dtype));
}

double tensor_get(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const void *at = element_of(t, b, h, n, d);
    return t->dtype == FFPA_BOOL ? *(const char *)at != 0 : element_load(at, t->dtype);
}

void tensor_set(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d, double value)
{
    void *at = element_of(t, b, h, n, d);
    if (t->dtype == FFPA_BOOL)
        *(char *)at = value != 0.0;
    else
        element_store(at, t->dtype, value);
}

int64_t tensor_count(const ffpa_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

double tensor_nth(const ffpa_tensor *t, int64_t n)
{
    const int64_t row = n / t->shape[3], head = row / t->shape[2];
    return tensor_get(t, head / t->shape[1], head % t->shape[1], row % t->shape[2],
                      n % t->shape[3]);
}

void tensor_set_nth(const ffpa_tensor *t, int64_t n, double value)
{
    const int64_t row = n / t->shape[3], head = row / t->shape[2];
    tensor_set(t, head / t->shape[1], head % t->shape[1], row % t->shape[2], n % t->shape[3],
               value);
}

void tensor_set_all(const ffpa_tensor *t, const double *values)
{
    for (int64_t n = 0; n < tensor_count(t); n++)
        tensor_set_nth(t, n, values[n]);
}

void tensor_fill(const ffpa_tensor *t, double value)
{
    for (int64_t n = 0; n < tensor_count(t); n++)
        tensor_set_nth(t, n, value);
}

void tensor_set_identity(const ffpa_tensor *v)
{
    for (int64_t b = 0; b < v->shape[0]; b++)
        for (int64_t h = 0; h < v->shape[1]; h++)
            for (int64_t j = 0; j < v->shape[2]; j++)
                for (int64_t d = 0; d < v->shape[3]; d++)
                    tensor_set(v, b, h, j, d, j == d);
}

static bool close_to(double got, double wanted, double tolerance)
{
    if (isnan(got) || isnan(wanted)) return isnan(got) && isnan(wanted);
    if (isinf(got) || isinf(wanted)) return got == wanted;
    return fabs(got - wanted) <= tolerance;
}

void assert_elements(const char *name, const ffpa_tensor *t, const double *wanted,
                     double tolerance)
{
    for (int64_t n = 0; n < tensor_count(t); n++) {
        const double got = tensor_nth(t, n);
        if (!close_to(got, wanted[n], tolerance))
            fail_msg("%s[%lld]=%.9g, wanted %.9g", name, (long long)n, got, wanted[n]);
    }
}

void assert_constant(const char *name, const ffpa_tensor *t, double wanted)
{
    for (int64_t n = 0; n < tensor_count(t); n++) {
        const double got = tensor_nth(t, n);
        if (!close_to(got, wanted, 0))
            fail_msg("%s[%lld]=%.9g, wanted %.9g", name, (long long)n, got, wanted);
    }
}

double tensor_distance(const ffpa_tensor *a, const ffpa_tensor *b)
{
    double largest = 0;
    for (int64_t n = 0; n < tensor_count(a); n++) {
        const double x = tensor_nth(a, n), y = tensor_nth(b, n);
        if (isnan(x) && isnan(y)) continue;
        if (x == y) continue;
        if (!isfinite(x) || !isfinite(y)) return (double)INFINITY;
        if (fabs(x - y) > largest) largest = fabs(x - y);
    }
    return largest;
}

const way ways[WAYS] = {
    {&reference_backend, FFPA_F64}, {&reference_backend, FFPA_F32}, {&naive_backend, FFPA_F32}};

/* ---- trials -------------------------------------------------------------------------------- */

/* A fixed stream of numbers in -1/2..1/2, the same in every language. */
static double fill_at(int64_t n)
{
    return (double)(uint32_t)(2654435761u * (uint64_t)(n + 1)) / 4294967296.0 - 0.5;
}

ffpa_tensor trial_tensor(trial *t, ffpa_dtype dtype, const int64_t shape[4], int64_t offset,
                         double factor)
{
    ffpa_tensor tensor = ffpa_tensor_4d(NULL, dtype, shape[0], shape[1], shape[2], shape[3]);
    tensor.data = calloc((size_t)tensor_count(&tensor) + 1, sizeof(double));
    assert_non_null(tensor.data);
    assert_true(t->n_owned < (int)COUNT(t->owned));
    t->owned[t->n_owned++] = tensor.data;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t n = 0; n < shape[2]; n++)
                for (int64_t d = 0; d < shape[3]; d++)
                    tensor_set(&tensor, b, h, n, d, factor * fill_at(offset++));
    return tensor;
}

trial *trial_new(trial_size z, ffpa_dtype dtype)
{
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    ffpa_forward_params *f = &t->c.f;
    ffpa_backward_params *g = &t->c.g;
    const ffpa_dtype wide = dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32;
    const int64_t q[4] = {z.b, z.hq, z.nq, z.d}, k[4] = {z.b, z.hk, z.nk, z.d};
    const int64_t v[4] = {z.b, z.hk, z.nk, z.dv}, o[4] = {z.b, z.hq, z.nq, z.dv};
    const int64_t lse[4] = {z.b, z.hq, z.nq, 1};
    const double none = (double)NAN;
    t->size = z;
    t->threads = 2;
    f->flags = FFPA_SCALE;
    f->scale = 1;
    f->q = trial_tensor(t, dtype, q, 0, 1);
    f->k = trial_tensor(t, dtype, k, 1000000, 1);
    f->v = trial_tensor(t, dtype, v, 2000000, 1);
    g->dout = trial_tensor(t, dtype, o, 3000000, 1);
    f->o = trial_tensor(t, dtype, o, 0, none);
    f->lse = trial_tensor(t, wide, lse, 0, none);
    g->dq = trial_tensor(t, dtype, q, 0, none);
    g->dk = trial_tensor(t, dtype, k, 0, none);
    g->dv = trial_tensor(t, dtype, v, 0, none);
    return t;
}

trial *trial_probe(trial_size size, ffpa_dtype dtype)
{
    trial *t = trial_new(size, dtype);
    tensor_fill(&t->c.f.q, 0);
    tensor_set_identity(&t->c.f.v);
    tensor_fill(&t->c.g.dout, 1);
    return t;
}

void trial_free(trial *t)
{
    for (int i = 0; i < t->n_owned; i++)
        free(t->owned[i]);
    free(t);
}

void trial_use_dlse(trial *t)
{
    t->c.g.dlse = trial_tensor(t, (ffpa_dtype)t->c.f.lse.dtype, t->c.f.lse.shape, 4000000, 1);
}

void trial_use_mask(trial *t, ffpa_dtype dtype, int64_t b, int64_t h, int64_t q, int64_t k)
{
    const int64_t shape[4] = {b, h, q, k};
    t->c.f.mask = trial_tensor(t, dtype, shape, 5000000, 1);
    for (int64_t n = 0; dtype == FFPA_BOOL && n < b * h * q * k; n++)
        tensor_set_nth(&t->c.f.mask, n, fill_at(5000000 + n) > -0.2);
    if (dtype != FFPA_BOOL)
        t->c.g.dmask = trial_tensor(t, t->c.f.q.dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32, shape,
                                    0, (double)NAN);
}

void trial_use_alibi(trial *t)
{
    const int64_t shape[4] = {t->size.b, t->size.hq, 1, 1};
    t->c.f.alibi = trial_tensor(t, FFPA_F32, shape, 6000000, 1);
}

void trial_use_sink(trial *t)
{
    const int64_t shape[4] = {1, t->size.hq, 1, 1};
    t->c.f.sink = trial_tensor(t, FFPA_F32, shape, 7000000, 1);
    t->c.g.dsink = trial_tensor(t, t->c.f.q.dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32, shape, 0,
                                (double)NAN);
}

void trial_use_dropout(trial *t, float p, uint64_t seed, uint64_t offset)
{
    t->c.dropout = (ffpa_dropout){
        .struct_size = sizeof t->c.dropout, .p = p, .seed = seed, .offset = offset};
    t->c.f.dropout = &t->c.dropout;
}

static void run(trial *t, const backend *be, ffpa_op op)
{
    const ffpa_backward_params gradients = t->c.g;
    ffpa_context context = {
        .alloc = {poison_alloc, poison_free, NULL}, .policy = FFPA_ALLOW_SLOW, .list = {be}};
    problem p;
    ffpa_plan *plan;
    context.pool = pool_new(&context.alloc, t->threads);
    assert_non_null(context.pool);
    t->c.op = op;
    if (op == FFPA_FORWARD) memset(&t->c.g, 0, sizeof t->c.g);
    assert_ok(problem_of_call(&p, &t->c, "trial"));
    assert_ok(plan_make(&context, &p, "trial", &plan, NULL));
    assert_ok(plan_run(plan, &t->c, "trial"));
    t->c.g = gradients;
    plan_release(plan);
    pool_free(context.pool);
}

void trial_forward(trial *t, const backend *be) { run(t, be, FFPA_FORWARD); }
void trial_backward(trial *t, const backend *be)
{
    run(t, be, FFPA_FORWARD); /* backward reads O and LSE */
    run(t, be, FFPA_BACKWARD);
}
