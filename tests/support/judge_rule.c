/* judge_rule.c - a whole call against the oracle, and the oracle against the plain definition. */
#include "support/judge_rule.h"
#include "support/unit.h"

#include "support/judge_plain.h"

#include <math.h>

/* Past this many multiplications the plain definition is too slow to ask. */
static const double PLAIN_COST = 4e6;

#define FOR_EACH_AT(t)                                       \
    for (int64_t b = 0; b < (t)->view.shape[0]; b++)         \
        for (int64_t h = 0; h < (t)->view.shape[1]; h++)     \
            for (int64_t n = 0; n < (t)->view.shape[2]; n++) \
                for (int64_t d = 0; d < (t)->view.shape[3]; d++)

static bool same_kind(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b)) return a == b;
    return true;
}

/* ---- oracle against definition ---- */

static void check_oracle(const sample *t, const char *repro)
{
    if (plain_cost(t) > PLAIN_COST) return;
    plain p = plain_attention(t);
    for (int r = O; r < ROLES; r++) {
        if (!p.out[r]) continue;
        /* dsink is f32 even here; the rest is double. */
        const double unit = t->t[r]->view.dtype == FFPA_F64 ? 1e-11 : 3e-7;
        const double *want = p.out[r];
        double largest = 1.0;
        for (int64_t n = 0; n < tensor_volume(t->t[r]); n++) {
            if (isfinite(want[n]) && want[n] != plain_unwritten && fabs(want[n]) > largest)
                largest = fabs(want[n]);
        }
        FOR_EACH_AT(t->t[r])
        {
            const double is = tensor_at(t->t[r], b, h, n, d), must = *want++;
            const bool unwritten = tensor_poisoned(t->t[r], b, h, n, d);
            if (unwritten ? must == plain_unwritten
                          : same_kind(is, must) && !(fabs(is - must) > unit * largest))
                continue;
            fail_msg(
                "oracle: %s[%lld,%lld,%lld,%lld] is %.17g%s, by definition %.17g\n  %s\n  %s",
                role_name[r], (long long)b, (long long)h, (long long)n, (long long)d, is,
                unwritten ? " (unwritten)" : "", must, sample_text(t), repro);
        }
    }
    plain_free(&p);
}

/* ---- path against oracle ---- */

typedef struct distance {
    double worst;      /* largest absolute difference from the oracle */
    double difference; /* sums of squares, for the relative error */
    double norm;
} distance;

static distance measure(const tensor *out, const tensor *oracle)
{
    distance m = {0.0, 0.0, 0.0};
    FOR_EACH_AT(out)
    {
        const double a = tensor_at(out, b, h, n, d), r = tensor_at(oracle, b, h, n, d);
        if (!isfinite(a) || !isfinite(r)) continue;
        if (fabs(a - r) > m.worst) m.worst = fabs(a - r);
        m.difference += (a - r) * (a - r);
        m.norm += r * r;
    }
    return m;
}

static void check_pattern(const tensor *out, const tensor *oracle, const char *name,
                          const char *where, const char *text)
{
    FOR_EACH_AT(out)
    {
        const double a = tensor_at(out, b, h, n, d), r = tensor_at(oracle, b, h, n, d);
        const bool blank = tensor_poisoned(out, b, h, n, d);
        if (blank == tensor_poisoned(oracle, b, h, n, d) &&
            same_kind(a, tensor_round(out->view.dtype, r)))
            continue;
        fail_msg("%s: %s[%lld,%lld,%lld,%lld] is %g%s, the oracle has %g\n  %s", where, name,
                 (long long)b, (long long)h, (long long)n, (long long)d, a,
                 blank ? " (unwritten)" : "", r, text);
    }
}

/* The oracle's and the naive path's run of a sample. */
typedef struct yardstick {
    sample *oracle, *naive;
    const char *repro;
} yardstick;

static void check_output(const sample *t, const yardstick *y, role r, const char *where)
{
    if (!t->t[r]) return;
    check_pattern(t->t[r], y->oracle->t[r], role_name[r], where, sample_text(t));
    const distance is = measure(t->t[r], y->oracle->t[r]);
    const double naive = measure(y->naive->t[r], y->oracle->t[r]).worst;
    const double bound = (r <= LSE ? 2.0 : 3.0) * naive + 1e-5;
    if (is.worst <= bound) return;
    fail_msg("%s: %s off by %.3g (relative L2 %.3g), allowed %.3g (naive %.3g)\n  %s\n  %s",
             where, role_name[r], is.worst, sqrt(is.difference / is.norm), bound, naive,
             sample_text(t), y->repro);
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
static void check_cache(const sample *t, const sample *oracle, const char *where)
{
    for (int r = K; r <= (int)V && t->t[K_NEW]; r++) {
        FOR_EACH_AT(t->t[r])
        {
            const double is = tensor_at(t->t[r], b, h, n, d),
                         must_be = tensor_at(oracle->t[r], b, h, n, d);
            if (is == must_be || (isnan(is) && isnan(must_be))) continue;
            fail_msg("%s: cache %s[%lld,%lld,%lld,%lld] is %g, the oracle has %g\n  %s", where,
                     role_name[r], (long long)b, (long long)h, (long long)n, (long long)d, is,
                     must_be, sample_text(t));
        }
    }
}

static void check_path(sample *t, const judge_path *p, const yardstick *y)
{
    run_both(t, p->ctx, p->name, y->repro);
    for (int r = O; r < ROLES; r++)
        check_output(t, y, (role)r, p->name);
    check_cache(t, y->oracle, p->name);
}

static void judge(sample *t, const judge_path *first, int count, const char *repro)
{
    yardstick y = {sample_copy(t, FFPA_F64), sample_copy(t, 0), repro};
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
