/* cost.c - operations and bytes of a problem. */
#include "core/cost.h"

#include <math.h>

/* Sum over i in [0, n) of i + a clipped to [0, top]. In doubles: sizes may be anything. */
static double clipped_sum(double n, double a, double top)
{
    const double rise = fmin(fmax(-a, 0), n), flat = fmin(fmax(top - a, rise), n);
    return (flat - rise) * (a + (rise + flat - 1) / 2) + (n - flat) * top;
}

/* Allowed pairs of one head of one sequence, masks not counted: the ends of all key ranges less their
 * beginnings, as key_range_of has them. */
static double pairs(const ffpa_problem *a, int64_t nq, int64_t nk)
{
    const double n = (double)nq, top = (double)nk,
                 shift = a->causal == FFPA_TOP_LEFT ? 0 : top - n;
    double right = INFINITY, left = INFINITY; /* keys after and before the centre */
    if (a->causal != FFPA_CAUSAL_NONE) right = 0;
    if (a->has_window && a->window_right >= 0) right = fmin(right, (double)a->window_right);
    if (a->has_window && a->window_left >= 0) left = (double)a->window_left;
    const double ends = isinf(right) ? n * top : clipped_sum(n, shift + right + 1, top);
    return ends - (isinf(left) ? 0 : clipped_sum(n, shift - left, top));
}

amounts problem_amounts(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    if (a->n_lengths == 0)
        return (amounts){(double)p->total_q, (double)p->total_k,
                         (double)a->b * pairs(a, a->nq, a->nk)};
    amounts n = {(double)p->total_q, 0, 0};
    for (int i = 0; i < a->n_lengths; i++) {
        n.keys += (double)a->lengths[i];
        n.pairs += pairs(a, a->page ? a->nq : a->lengths[i], a->lengths[i]);
    }
    return n;
}

amounts call_amounts(const problem *p, const call *c)
{
    if (p->sources == 0) return problem_amounts(p);
    amounts n = {0, 0, 0};
    for (int64_t b = 0; b < sequence_count(c); b++) {
        const sequence s = sequence_get(c, b);
        n.queries += (double)s.nq;
        n.keys += (double)s.nk;
        n.pairs += pairs(&p->ask, s.nq, s.nk);
    }
    return n;
}

double cost_flop(const problem *p, const amounts *n)
{
    const ffpa_problem *a = &p->ask;
    return n->pairs * (double)a->hq * 2.0 * (double)(a->d + a->dv) *
           (a->op == FFPA_BACKWARD ? 2.5 : 1.0);
}

static double mask_elements(const ffpa_problem *a)
{
    const int64_t size[4] = {a->b, a->hq, a->nq, a->nk};
    double n = 1;
    for (int i = 0; i < 4; i++)
        if (a->mask_axes >> i & 1) n *= (double)size[i];
    return n;
}

/* Bytes of an element; 0 for an absent tensor, whose dtype is 0. */
static double bytes_of(int32_t dtype) { return (double)dtype_bytes(dtype); }

/* What forward and backward read alike. */
static double inputs(const problem *p, const amounts *n)
{
    const ffpa_problem *a = &p->ask;
    const double hq = (double)a->hq, hk = (double)a->hk;
    const double heads = hq * (double)((a->alibi != 0) + (a->sink != 0));
    return (n->queries * hq * (double)a->d + n->keys * hk * (double)(a->d + a->dv)) *
               bytes_of(a->dtype) +
           mask_elements(a) * bytes_of(a->mask_dtype) + heads * bytes_of(FFPA_F32);
}

double cost_bytes(const problem *p, const amounts *n)
{
    const ffpa_problem *a = &p->ask;
    const double rows = n->queries * (double)a->hq, keys = n->keys * (double)a->hk;
    const double o = rows * (double)a->dv, q = rows * (double)a->d;
    const double lse = rows * bytes_of(a->dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32);
    const double sum = inputs(p, n) + o * bytes_of(p->o_dtype);
    if (a->op == FFPA_FORWARD) return sum + (p->outputs & OUT_LSE ? lse : 0);
    return sum + lse * (p->dlse ? 2 : 1) + o * bytes_of(p->dout_dtype) +
           q * bytes_of(p->dq_dtype) + keys * (double)a->d * bytes_of(p->dk_dtype) +
           keys * (double)a->dv * bytes_of(p->dv_dtype) +
           mask_elements(a) * bytes_of(p->dmask_dtype) +
           (p->outputs & OUT_DSINK ? (double)a->hq * bytes_of(FFPA_F32) : 0);
}
