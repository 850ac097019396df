/* judge_rule.c - a whole call against the oracle, and the oracle against the plain definition. */
#include "support/judge_rule.h"
#include "support/judge_device.h"
#include "support/unit.h"

#include "support/judge_plain.h"
#include "support/tensor_element.h"

#include <math.h>
#include <stdlib.h>

/* Past this many multiplications the plain definition is too slow to ask. */
static const double PLAIN_COST = 4e6, PLAIN_COST_QUICK = 1e5;

static bool same_kind(double a, double b)
{
    if (a == tensor_blank || b == tensor_blank) return a == b;
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b)) return a == b;
    return true;
}

static bool counts(double a) { return isfinite(a) && a != tensor_blank; }

/* "dq[0,1,7,3] is ..." */
static void complain(const sample *t, role r, int64_t flat, const char *where,
                     const double is_must[2], const char *repro)
{
    const int64_t *n = t->t[r]->view.shape;
    const double is = is_must[0], must = is_must[1];
    fail_msg("%s: %s[%lld,%lld,%lld,%lld] is %.17g%s, must be %.17g%s\n  %s\n  %s", where,
             role_name[r], (long long)(flat / n[3] / n[2] / n[1]),
             (long long)(flat / n[3] / n[2] % n[1]), (long long)(flat / n[3] % n[2]),
             (long long)(flat % n[3]), is, is == tensor_blank ? " (unwritten)" : "", must,
             must == tensor_blank ? " (unwritten)" : "", sample_text(t), repro);
}

/* ---- oracle against definition ---- */

static void check_oracle(const sample *t, const char *repro)
{
    if (plain_cost(t) > (judge_quick() ? PLAIN_COST_QUICK : PLAIN_COST)) return;
    plain p = plain_attention(t);
    for (int r = O; r < ROLES; r++) {
        if (!p.out[r]) continue;
        /* dsink is f32 even here; the rest is double. */
        const double unit = t->t[r]->view.dtype == FFPA_F64 ? 1e-11 : 3e-7;
        const int64_t count = tensor_volume(t->t[r]);
        const double *want = p.out[r];
        double *is = tensor_doubles(t->t[r]), largest = 1.0;
        for (int64_t n = 0; n < count; n++) {
            if (counts(want[n]) && fabs(want[n]) > largest) largest = fabs(want[n]);
        }
        for (int64_t n = 0; n < count; n++) {
            if (!same_kind(is[n], want[n]) || fabs(is[n] - want[n]) > unit * largest)
                complain(t, (role)r, n, "oracle", (double[]){is[n], want[n]}, repro);
        }
        free(is);
    }
    plain_free(&p);
}

/* ---- path against oracle ---- */

/* The oracle's and the naive path's run of a sample. */
typedef struct yardstick {
    sample *oracle, *naive;
    const char *repro;
    bool device; /* the path is a GPU's */
} yardstick;

typedef struct distance {
    double worst;    /* largest absolute difference from the oracle */
    double relative; /* ||out - oracle|| / ||oracle|| */
} distance;

static distance measure(const double *out, const double *oracle, int64_t count)
{
    double worst = 0.0, difference = 0.0, norm = 0.0;
    for (int64_t n = 0; n < count; n++) {
        if (!counts(out[n]) || !counts(oracle[n])) continue;
        const double d = out[n] - oracle[n];
        if (fabs(d) > worst) worst = fabs(d);
        difference += d * d;
        norm += oracle[n] * oracle[n];
    }
    return (distance){worst, sqrt(difference / (norm > 0.0 ? norm : 1.0))};
}

static double largest(const double *x, int64_t count)
{
    double most = 0.0;
    for (int64_t n = 0; n < count; n++)
        if (counts(x[n]) && fabs(x[n]) > most) most = fabs(x[n]);
    return most;
}

/* What a GPU's arithmetic adds to the bound (docs/numerics.md): its matrix products cut sums off where they add,
 * 8 columns of D at a time, and the gradient of a mask sums rows whose LSE are rounded to f32. */
static double device_allowance(const sample *t, const sample *oracle, role r)
{
    const double half_ulp = 0x1p-24;
    double allowed = 0.0;
    if (r == LSE) {
        double *lse = tensor_doubles(oracle->t[LSE]);
        allowed = half_ulp * largest(lse, tensor_volume(oracle->t[LSE])) *
                  ((double)t->spec.d / 8 + 1);
        free(lse);
    }
    if (r == DMASK) {
        const int64_t *m = t->t[DMASK]->view.shape, *q = t->t[Q]->view.shape;
        allowed = half_ulp * (double)(q[0] * q[1] * q[2]) / (double)(m[0] * m[1] * m[2]);
    }
    return allowed;
}

static void check_output(const sample *t, const yardstick *y, role r, const char *where)
{
    if (!t->t[r] || (r >= DQ && !t->spec.backward)) return;
    const int64_t count = tensor_volume(t->t[r]);
    double *out = tensor_doubles(t->t[r]), *oracle = tensor_doubles(y->oracle->t[r]);
    double *naive = tensor_doubles(y->naive->t[r]);
    for (int64_t n = 0; n < count; n++) {
        const double must = oracle[n] == tensor_blank
                                ? oracle[n]
                                : tensor_round(t->t[r]->view.dtype, oracle[n]);
        if (!same_kind(out[n], must))
            complain(t, r, n, where, (double[]){out[n], must}, y->repro);
    }
    const distance is = measure(out, oracle, count), yard = measure(naive, oracle, count);
    double bound = (r <= LSE ? 2.0 : 3.0) * yard.worst + 1e-5;
    if (y->device) bound += device_allowance(t, y->oracle, r);
    if (is.worst > bound)
        fail_msg("%s: %s off by %.3g (relative L2 %.3g), allowed %.3g (naive %.3g)\n  %s\n  %s",
                 where, role_name[r], is.worst, is.relative, bound, yard.worst, sample_text(t),
                 y->repro);
    free(out);
    free(oracle);
    free(naive);
}

static void must(ffpa_status status, const sample *t, const char *where, const char *repro)
{
    if (status != FFPA_OK)
        fail_msg("%s: %s: %s\n  %s\n  %s", where, ffpa_status_name(status), ffpa_last_error(),
                 sample_text(t), repro);
}

static void run_both(sample *t, ffpa_context *ctx, const char *where, const char *repro)
{
    must(sample_forward(t, ctx), t, where, repro);
    if (t->spec.backward) must(sample_backward(t, ctx), t, where, repro);
}

/* Rows appended to a cache must be copies of what was handed in. */
static void check_cache(const sample *t, const yardstick *y, const char *where)
{
    for (int r = K; r <= (int)V && t->t[K_NEW]; r++) {
        double *is = tensor_doubles(t->t[r]), *must_be = tensor_doubles(y->oracle->t[r]);
        for (int64_t n = 0; n < tensor_volume(t->t[r]); n++) {
            if (is[n] != must_be[n] && !(isnan(is[n]) && isnan(must_be[n])))
                complain(t, (role)r, n, where, (double[]){is[n], must_be[n]}, y->repro);
        }
        free(is);
        free(must_be);
    }
}

/* Backward on a GPU reads O as forward rounded it: delta = <dO, O> - dLSE. The oracle, which makes its own O, gets
 * the same delta through dLSE. */
static sample *oracle_of_rounded_o(const sample *t, const yardstick *y)
{
    sample *exact = sample_copy(t, FFPA_F64);
    const int64_t *n = t->t[O]->view.shape;
    double *is = tensor_doubles(t->t[O]), *must_be = tensor_doubles(y->oracle->t[O]),
           *dout = tensor_doubles(t->t[DOUT]);
    if (!exact->t[DLSE])
        tensor_all(sample_put(exact, DLSE, tensor_new(FFPA_F64, n[0], n[1], n[2], 1, NULL)), 0);
    for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++) {
        double shift = 0;
        for (int64_t at = row * n[3]; at < (row + 1) * n[3]; at++)
            if (counts(is[at]) && counts(must_be[at]) && isfinite(dout[at]))
                shift += dout[at] * (is[at] - must_be[at]);
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], i = row % n[2];
        tensor_put(exact->t[DLSE], b, h, i, 0, tensor_at(exact->t[DLSE], b, h, i, 0) - shift);
    }
    free(is);
    free(must_be);
    free(dout);
    run_both(exact, judge_reference(), "oracle", y->repro);
    return exact;
}

static void check_path(sample *t, const judge_path *p, const yardstick *yard)
{
    yardstick y = *yard;
    y.device = judge_on_device(p->ctx);
    run_both(t, p->ctx, p->name, y.repro);
    for (int r = O; r <= (int)LSE; r++)
        check_output(t, &y, (role)r, p->name);
    if (y.device && t->spec.backward) y.oracle = oracle_of_rounded_o(t, yard);
    for (int r = DQ; r < ROLES; r++)
        check_output(t, &y, (role)r, p->name);
    if (y.oracle != yard->oracle) sample_free(y.oracle);
    check_cache(t, yard, p->name);
}

static void judge(sample *t, const judge_path *first, int count, const char *repro)
{
    yardstick y = {sample_copy(t, FFPA_F64), sample_copy(t, 0), repro, false};
    run_both(y.oracle, judge_reference(), "oracle", repro);
    check_oracle(y.oracle, repro);
    run_both(y.naive, judge_naive(), "naive", repro);
    for (int i = 0; i < count && first[i].ctx; i++)
        check_path(t, &first[i], &y);
    sample_free(y.oracle);
    sample_free(y.naive);
}

void judge_sample(sample *t, const char *repro) { judge(t, judge_paths(), 99, repro); }

void judge_sample_on(sample *t, const judge_path *path, const char *repro)
{
    judge(t, path, 1, repro);
}
