/* fake_checks.c - see fake_checks.h. */
#include "fake/fake_checks.h"

#include "support/unit.h"

#include <stdlib.h>
#include <time.h>

ffpa_status forward(ffpa_context *ctx, device_call *c)
{
    TRY(ffpa_forward_workspace(ctx, &c->f, &c->f.workspace_bytes));
    return ffpa_forward(ctx, &c->f);
}

ffpa_status backward(ffpa_context *ctx, device_call *c)
{
    TRY(ffpa_backward_workspace(ctx, &c->g, &c->g.workspace_bytes));
    return ffpa_backward(ctx, &c->g);
}

bool is(const fake_launch *l, const char *kind)
{
    return strncmp(l->kernel, kind, strlen(kind)) == 0;
}

void *mapped(const k_map *map)
{
    void *address;
    memcpy(&address, map->opaque, sizeof address);
    return address;
}

const family *family_on_hopper(const ffpa_problem *ask, const char *only, char *why,
                               size_t why_bytes)
{
    problem p;
    cuda_device device;
    assert_ok(problem_of_ask(&p, ask, "test"));
    problem_move(&p, FFPA_CUDA(0));
    assert_ok(cuda_device_of_arch("sm_90a", &device));
    return family_for(&p, &device, only, why, why_bytes);
}

void check_planned(const char *text, const char *only, const char *reason)
{
    ffpa_problem ask = {.struct_size = sizeof ask};
    problem p;
    cuda_device device;
    char why[300];
    ffpa_report report = {.struct_size = sizeof report};
    assert_ok(ffpa_problem_parse(text, &ask));
    const family *f = family_on_hopper(&ask, only, why, sizeof why);
    if (!f) {
        assert_non_null(reason);
        if (!strstr(why, reason)) fail_msg("%s: '%s' does not say '%s'", text, why, reason);
        return;
    }
    assert_ok(problem_of_ask(&p, &ask, "test"));
    problem_move(&p, FFPA_CUDA(0));
    assert_ok(cuda_device_of_arch("sm_90a", &device));
    void *choice = calloc(1, f->choice_bytes);
    variant_list *list = calloc(1, sizeof *list);
    const clock_t begin = clock();
    const ffpa_status status = f->choose(&p, &device, choice, list, &report);
    assert_true(clock() - begin < CLOCKS_PER_SEC);
    if (reason)
        assert_status(status, FFPA_E_UNSUPPORTED, reason);
    else
        assert_ok(status);
    free(choice);
    free(list);
}

/* In microseconds: the fastest batch. */
static double host_microseconds(ffpa_context *ctx, const device_call *c)
{
    enum { CALLS = 1000, BATCHES = 9 };
    double best = 1e9;
    int failed = 0;
    for (int b = 0; b < BATCHES; b++) {
        const clock_t begin = clock();
        for (int i = 0; i < CALLS; i++)
            failed += (c->ask.op == FFPA_FORWARD ? ffpa_forward(ctx, &c->f)
                                                 : ffpa_backward(ctx, &c->g)) != FFPA_OK;
        const double us = (double)(clock() - begin) * 1e6 / CLOCKS_PER_SEC / CALLS;
        if (us < best) best = us;
    }
    assert_int_equal(failed, 0);
    return best;
}

void check_host_time(ffpa_context *ctx, const char *text)
{
    device_call c;
    FAKE.launches_off = true;
    device_call_make(&c, text, 0);
    assert_ok(c.ask.op == FFPA_FORWARD ? forward(ctx, &c) : backward(ctx, &c));
    const double us = host_microseconds(ctx, &c);
    print_message("host time per warm call: %.2f us  %s, %s\n", us, text, ffpa_last_path());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(us <= 5.0);
#endif
}

void check_every_call_may_fail(ffpa_context *ctx, const char *text, size_t workspace_limit)
{
    device_call c;
    bool reached = true;
    int n = 0;
    device_call_make(&c, text, 0);
    c.g.workspace_limit_bytes = workspace_limit;
    assert_ok(backward(ctx, &c));
    while (reached) { /* of a warm call: pushes, launches, pops */
        FAKE.calls = 0;
        FAKE.failed[0] = 0;
        FAKE.fail_at = ++n;
        const ffpa_status status = ffpa_backward(ctx, &c.g);
        reached = *FAKE.failed;
        assert_int_equal(status, reached ? FFPA_E_DRIVER : FFPA_OK);
        assert_int_equal(FAKE.depth, 0);
        FAKE.fail_at = 0;
        FAKE.launch_count = 0;
        assert_ok(ffpa_backward(ctx, &c.g));
    }
    assert_true(n > 5); /* a push, three launches, a pop */
}

void book_lines(chunk_book *book, const k_chunk *k)
{
    for (int h = k->h0; h < k->h0 + k->nh; h++)
        for (int t = k->t0; t < k->t0 + k->nt; t++)
            book->covered[h * book->lines + t]++;
}

void book_sums(chunk_book *book, const k_chunk *k, int group, int first, int last)
{
    for (int h = k->h0 / group; h <= (k->h0 + k->nh - 1) / group; h++) {
        assert_int_equal(book->opened[h], first ? 0 : 1); /* opened before it goes on */
        book->opened[h] = 1;
        assert_int_equal(book->closed[h], 0);
        book->closed[h] = last;
    }
}

void book_check(const chunk_book *book, const device_call *c)
{
    for (int h = 0; h < c->f.q.shape[1]; h++)
        for (int t = 0; t < book->lines; t++)
            assert_int_equal(book->covered[h * book->lines + t], 1);
    for (int h = 0; h < c->f.k.shape[1]; h++)
        assert_true(book->opened[h] && book->closed[h]);
}
