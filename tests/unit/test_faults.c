/* test_faults.c - memory that cannot be had: every allocation of every call is refused in turn. Each
 * time the status says so, nothing is leaked, no output is touched, and the next call works. */
#include "support/fault_alloc.h"
#include "support/sample_call.h"
#include "support/unit.h"

#include <stdbool.h>

enum { MAX_ALLOCATIONS = 200 };

static const char *const BACKENDS[] = {"cpu", "reference", "naive"};

typedef void (*attach_fn)(sample_call *s);
static void nothing(sample_call *s) { (void)s; }
static void everything(sample_call *s)
{
    sample_attach_mask(s), sample_attach_alibi(s), sample_attach_sink(s),
        sample_attach_dropout(s);
    s->f.flags = FFPA_WINDOW | FFPA_SCALE;
    s->f.window_left = 2, s->f.scale = 0.5f, s->f.softcap = 3, s->f.causal = FFPA_BOTTOM_RIGHT;
}

typedef ffpa_status (*call_fn)(ffpa_context *ctx, sample_call *s);
static ffpa_status forward(ffpa_context *ctx, sample_call *s)
{
    return ffpa_forward(ctx, &s->f);
}
static ffpa_status backward(ffpa_context *ctx, sample_call *s)
{
    return ffpa_backward(ctx, &s->g);
}
static ffpa_status merge(ffpa_context *ctx, sample_call *s) { return ffpa_merge(ctx, &s->m); }
static ffpa_status planned_forward(ffpa_context *ctx, sample_call *s)
{
    ffpa_plan *plan;
    const ffpa_status status = ffpa_plan_forward(ctx, &s->f, &plan);
    if (status != FFPA_OK) return plan ? FFPA_E_INTERNAL : status;
    const ffpa_status ran = ffpa_plan_run_forward(plan, &s->f);
    ffpa_plan_destroy(plan);
    return ran;
}
static ffpa_status queries(ffpa_context *ctx, sample_call *s)
{
    size_t bytes;
    ffpa_report report = {.struct_size = sizeof report};
    ffpa_status status = ffpa_forward_workspace(ctx, &s->f, &bytes);
    if (status == FFPA_OK) status = ffpa_backward_workspace(ctx, &s->g, &bytes);
    if (status == FFPA_OK) status = ffpa_forward_supported(ctx, &s->f, &report);
    if (status == FFPA_OK) status = ffpa_backward_supported(ctx, &s->g, &report);
    return status;
}

static ffpa_context *open_context(fault_alloc *faults, const char *backend)
{
    ffpa_context *ctx;
    const ffpa_context_options options = fault_options(faults, backend);
    assert_ok(ffpa_context_create(&options, &ctx));
    return ctx;
}

/* Results, and after a run with inputs that it may change (a cache) those too. */
static void right_results(const char *backend, call_fn call, attach_fn attach,
                          sample_memory *right)
{
    static sample_call s;
    fault_alloc faults = {0};
    ffpa_context *ctx = open_context(&faults, backend);
    sample_init(&s);
    attach(&s);
    assert_ok(forward(ctx, &s)); /* o and lse, which backward reads */
    assert_ok(call(ctx, &s));
    *right = s.mem;
    ffpa_context_destroy(ctx);
    assert_int_equal(atomic_load(&faults.live), 0);
}

static void refuse_each(const char *backend, call_fn call, attach_fn attach)
{
    static sample_call s;
    static sample_memory right, before;
    right_results(backend, call, attach, &right);
    for (long n = 1; n < MAX_ALLOCATIONS; n++) {
        fault_alloc faults = {0};
        ffpa_context *ctx =
            open_context(&faults, backend); /* a fresh one: planning fails too */
        sample_init(&s);
        attach(&s);
        if (call != forward && call != planned_forward)
            memcpy(s.mem.o, right.o, sizeof right.o),
                memcpy(s.mem.lse, right.lse, sizeof right.lse);
        before = s.mem;
        fault_refuse(&faults, n);
        const ffpa_status status = call(ctx, &s);
        const bool refused = atomic_load(&faults.asked) >= n;
        if (status != FFPA_OK) {
            assert_true(refused);
            assert_int_equal(status, FFPA_E_OUT_OF_MEMORY);
            assert_int_equal(strncmp(ffpa_last_error(), "ffpa_", 5), 0);
            assert_memory_equal(&before, &s.mem, sizeof before);
            fault_refuse(&faults, 0);
            assert_ok(call(ctx, &s));
        }
        if (call == forward || call == backward || call == planned_forward)
            assert_memory_equal(&right, &s.mem, sizeof right);
        ffpa_context_destroy(ctx);
        assert_int_equal(atomic_load(&faults.live), 0);
        if (!refused) return; /* all of its allocations have failed once */
    }
    fail_msg("%s: more than %d allocations in a call", backend, MAX_ALLOCATIONS);
}

static void forward_without_memory(void **state)
{
    (void)state;
    const attach_fn variants[] = {nothing, everything, sample_attach_varlen,
                                  sample_attach_cache, sample_attach_pages};
    for (size_t b = 0; b < COUNT(BACKENDS); b++)
        for (size_t v = 0; v < COUNT(variants); v++) {
            if (strcmp(BACKENDS[b], "naive") == 0 && v >= 2)
                continue; /* dense only, by design */
            refuse_each(BACKENDS[b], forward, variants[v]);
            refuse_each(BACKENDS[b], planned_forward, variants[v]);
        }
}

static void backward_without_memory(void **state)
{
    (void)state;
    const attach_fn variants[] = {nothing, everything, sample_attach_varlen};
    for (size_t b = 0; b < COUNT(BACKENDS); b++)
        for (size_t v = 0; v < COUNT(variants); v++)
            refuse_each(BACKENDS[b], backward, variants[v]);
}

static void queries_and_merge_without_memory(void **state)
{
    (void)state;
    for (size_t b = 0; b < COUNT(BACKENDS); b++) {
        refuse_each(BACKENDS[b], queries, nothing);
        refuse_each(BACKENDS[b], merge, nothing);
    }
}

static void context_without_memory(void **state)
{
    (void)state;
    for (long n = 1; n < MAX_ALLOCATIONS; n++) {
        fault_alloc faults = {0};
        ffpa_context *ctx = (ffpa_context *)&faults;
        const ffpa_context_options options = fault_options(&faults, "auto");
        fault_refuse(&faults, n);
        const ffpa_status status = ffpa_context_create(&options, &ctx);
        if (status == FFPA_OK) {
            assert_true(n > 1 && atomic_load(&faults.asked) < n);
            ffpa_context_destroy(ctx);
            assert_int_equal(atomic_load(&faults.live), 0);
            return;
        }
        assert_int_equal(status, FFPA_E_OUT_OF_MEMORY);
        assert_non_null(strstr(ffpa_last_error(), "ffpa_context_create: no memory"));
        assert_null(ctx);
        assert_int_equal(atomic_load(&faults.live), 0);
    }
    fail_msg("a context takes more than %d allocations", MAX_ALLOCATIONS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_without_memory),
        cmocka_unit_test(forward_without_memory),
        cmocka_unit_test(backward_without_memory),
        cmocka_unit_test(queries_and_merge_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
