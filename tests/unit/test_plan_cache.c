/* test_plan_cache.c - choosing a backend and keeping plans, with backends made for the purpose: hits,
 * eviction, failures, and many threads on one context. */
#include "support/unit.h"

#include "core/plan.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic int planned, unplanned;

static bool fake_supports(const ffpa_context *ctx, const problem *p, char *why,
                          size_t why_bytes)
{
    (void)ctx;
    if (p->ask.d <= 100) return true;
    snprintf(why, why_bytes, "D=%d is above 100", (int)p->ask.d);
    return false;
}

/* plan->impl repeats what the plan is for, so a mix-up shows. D = 13 cannot be planned. */
static ffpa_status fake_plan(ffpa_plan *plan)
{
    if (plan->prob.ask.d == 13) return fail(FFPA_E_OUT_OF_MEMORY, "fake: no plan for D=13");
    int64_t *size = mem_raw(&plan->ctx->alloc, sizeof *size);
    if (!size) return fail(FFPA_E_OUT_OF_MEMORY, "fake: no memory");
    *size = plan->prob.ask.nq;
    plan->impl = size;
    snprintf(plan->report.path, sizeof plan->report.path, "%s", plan->be->name);
    atomic_fetch_add(&planned, 1);
    return FFPA_OK;
}

static void fake_unplan(ffpa_plan *plan)
{
    if (!plan->impl) return;
    mem_free(&plan->ctx->alloc, plan->impl);
    atomic_fetch_add(&unplanned, 1);
}

static const backend fast = {
    .name = "fast", .supports = fake_supports, .plan = fake_plan, .unplan = fake_unplan};
static const backend other = {
    .name = "other", .supports = fake_supports, .plan = fake_plan, .unplan = fake_unplan};
static const backend slow = {.name = "slow",
                             .slow = true,
                             .supports = fake_supports,
                             .plan = fake_plan,
                             .unplan = fake_unplan};

static void open_context(ffpa_context *ctx)
{
    *ctx = (ffpa_context){.alloc = allocator_default, .list = {&fast, &other, &slow}};
    ctx->plans = plan_cache_new(&ctx->alloc);
    assert_non_null(ctx->plans);
    atomic_store(&planned, 0);
    atomic_store(&unplanned, 0);
}

/* Every plan made has been given back. */
static void close_context(ffpa_context *ctx)
{
    plan_cache_free(ctx->plans);
    assert_int_equal(atomic_load(&planned), atomic_load(&unplanned));
}

static problem problem_of(int64_t nq, int64_t d)
{
    problem p;
    const ffpa_problem ask = {.struct_size = sizeof ask,
                              .op = FFPA_FORWARD,
                              .dtype = FFPA_F32,
                              .b = 1,
                              .hq = 1,
                              .hk = 1,
                              .nq = nq,
                              .nk = 4,
                              .d = d,
                              .dv = d};
    assert_ok(problem_of_ask(&p, &ask, "test"));
    return p;
}

static ffpa_plan *get(ffpa_context *ctx, int64_t nq)
{
    ffpa_plan *plan;
    const problem p = problem_of(nq, 8);
    assert_ok(plan_get(ctx, &p, "test", &plan));
    assert_int_equal(plan->prob.ask.nq, nq);
    assert_int_equal(*(int64_t *)plan->impl, nq);
    return plan;
}

static void a_hit_is_the_same_plan(void **state)
{
    (void)state;
    ffpa_context ctx;
    open_context(&ctx);
    ffpa_plan *first = get(&ctx, 5), *again = get(&ctx, 5), *different = get(&ctx, 6);
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, different);
    assert_int_equal(atomic_load(&planned), 2);
    plan_release(first), plan_release(again), plan_release(different);
    plan_release(NULL);
    close_context(&ctx);
}

static void the_least_recently_used_leaves(void **state)
{
    (void)state;
    ffpa_context ctx;
    open_context(&ctx);
    ffpa_plan *held = get(&ctx, 1); /* never asked for again: evicted, but ours is still good */
    plan_release(get(&ctx, 2));
    for (int64_t nq = 10; nq < 2010; nq++) {
        plan_release(get(&ctx, nq));
        plan_release(get(&ctx, 2)); /* always in use: never evicted */
    }
    assert_int_equal(atomic_load(&planned), 2002);
    const int alive = atomic_load(&planned) - atomic_load(&unplanned);
    assert_in_range(alive, 16, 1024); /* bounded */
    plan_release(get(&ctx, 2009));
    assert_int_equal(atomic_load(&planned), 2002);
    plan_release(get(&ctx, 10));
    assert_int_equal(atomic_load(&planned), 2003);
    assert_int_equal(*(int64_t *)held->impl, 1);
    plan_release(held);
    close_context(&ctx);
}

static void a_failed_plan_leaves_nothing(void **state)
{
    (void)state;
    ffpa_context ctx;
    ffpa_plan *plan = (ffpa_plan *)&ctx;
    const problem p = problem_of(3, 13);
    open_context(&ctx);
    for (int i = 0; i < 3; i++) {
        assert_status(plan_get(&ctx, &p, "test", &plan), FFPA_E_OUT_OF_MEMORY,
                      "fake: no plan for D=13");
        assert_null(plan);
    }
    plan_release(get(&ctx, 3));
    close_context(&ctx);
}

static void refusals_are_listed(void **state)
{
    (void)state;
    ffpa_context ctx;
    ffpa_plan *plan;
    ffpa_report report = {.struct_size = sizeof report};
    const problem wide = problem_of(3, 200), narrow = problem_of(3, 8);
    open_context(&ctx);
    assert_status(plan_make(&ctx, &wide, "test", &plan, &report), FFPA_E_UNSUPPORTED, "test: ");
    assert_non_null(strstr(ffpa_last_error(), "fast: D=200 is above 100"));
    assert_non_null(strstr(ffpa_last_error(), "slow: slow path"));
    assert_string_equal(report.refusals,
                        "fast: D=200 is above 100\nother: D=200 is above 100\n"
                        "slow: slow path; ask for it by name or set policy FFPA_ALLOW_SLOW\n");
    ctx.policy = FFPA_ALLOW_SLOW;
    assert_status(plan_get(&ctx, &wide, "test", &plan), FFPA_E_UNSUPPORTED,
                  "slow: D=200 is above 100");
    ctx.only = &slow;
    ctx.policy = FFPA_STRICT; /* asked for by name: no policy needed */
    assert_ok(plan_make(&ctx, &narrow, "test", &plan, &report));
    assert_string_equal(plan->report.path, "slow");
    plan_release(plan);
    close_context(&ctx);
}

typedef struct user {
    ffpa_context *ctx;
    unsigned seed;
    int rounds, wrong;
    _Atomic int stop;
} user;

static void *use_plans(void *argument)
{
    user *u = argument;
    for (int round = 0; round < u->rounds && !atomic_load(&u->stop); round++) {
        ffpa_plan *plan;
        u->seed = u->seed * 1664525u + 1013904223u;
        const int64_t nq = (u->seed >> 8) % 400; /* more than the cache holds */
        const ffpa_problem ask = {.op = FFPA_FORWARD,
                                  .dtype = FFPA_F32,
                                  .b = 1,
                                  .hq = 1,
                                  .hk = 1,
                                  .nq = nq,
                                  .nk = 4,
                                  .d = 8,
                                  .dv = 8};
        problem p;
        if (problem_of_ask(&p, &ask, "test") != FFPA_OK ||
            plan_get(u->ctx, &p, "test", &plan) != FFPA_OK) {
            u->wrong++;
            continue;
        }
        u->wrong += plan->prob.ask.nq != nq || *(int64_t *)plan->impl != nq;
        plan_release(plan);
    }
    return NULL;
}

static void many_threads_share_a_context(void **state)
{
    (void)state;
    ffpa_context ctx;
    open_context(&ctx);
    pthread_t thread[6];
    user users[6];
    for (unsigned i = 0; i < 6; i++) {
        users[i] = (user){.ctx = &ctx, .seed = i * 977u, .rounds = 4000};
        assert_int_equal(pthread_create(&thread[i], NULL, use_plans, &users[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(users[i].wrong, 0);
    }
    close_context(&ctx);
}

/* The lock is held at many of these forks, by a thread that the child does not have. */
static void a_child_forked_in_the_middle_of_a_lookup(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their own allocators have locks that a fork in the middle leaves locked */
#endif
    ffpa_context ctx;
    open_context(&ctx);
    pthread_t thread[2];
    user users[2];
    for (unsigned i = 0; i < 2; i++) {
        users[i] = (user){.ctx = &ctx, .seed = i * 977u, .rounds = 200000};
        assert_int_equal(pthread_create(&thread[i], NULL, use_plans, &users[i]), 0);
    }
    int wrong = 0;
    for (int round = 0; round < 300 && !wrong; round++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20); /* a hang ends the child, and the test fails */
            user mine = {.ctx = &ctx, .seed = (unsigned)round, .rounds = 3};
            use_plans(&mine);
            plan_cache_free(ctx.plans);
            _exit(mine.wrong);
        }
        int status = 1;
        wrong = child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&users[i].stop, 1);
        pthread_join(thread[i], NULL);
        assert_int_equal(users[i].wrong, 0);
    }
    assert_false(wrong);
    close_context(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_the_same_plan),
        cmocka_unit_test(the_least_recently_used_leaves),
        cmocka_unit_test(a_failed_plan_leaves_nothing),
        cmocka_unit_test(refusals_are_listed),
        cmocka_unit_test(many_threads_share_a_context),
        cmocka_unit_test(a_child_forked_in_the_middle_of_a_lookup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
