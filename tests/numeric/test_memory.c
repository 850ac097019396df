/* test_memory.c - memory is O(N D): N = 65536, D = 512, one head, within 1 GiB above inputs and
 * outputs, by what the library allocates and by the size of the process. */
#include "support/judge_rule.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { D = 512 };
static const size_t LIMIT = (size_t)1 << 30;

/* ---- an allocator that counts ---- */

static _Atomic size_t held, most;

typedef struct header {
    void *block;
    size_t bytes;
} header;

static void *counting_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    char *block = malloc(bytes + alignment + sizeof(header));
    if (!block) return NULL;
    char *memory = block + sizeof(header) + alignment;
    memory -= (size_t)memory % alignment;
    *((header *)(void *)memory - 1) = (header){block, bytes};
    const size_t now = atomic_fetch_add(&held, bytes) + bytes;
    size_t before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {
    }
    return memory;
}

static void counting_free(void *user, void *memory)
{
    (void)user;
    if (!memory) return;
    const header h = *((header *)memory - 1);
    atomic_fetch_sub(&held, h.bytes);
    free(h.block);
}

static ffpa_context *counting_context(void)
{
    ffpa_context_options options = {.struct_size = sizeof options, .threads = 2};
    options.alloc = counting_alloc, options.free = counting_free;
    ffpa_context *ctx;
    assert_ok(ffpa_context_create(&options, &ctx));
    atomic_store(&most, 0);
    return ctx;
}

/* ---- the problem ---- */

static size_t resident_peak(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (size_t)usage.ru_maxrss * 1024;
}

static ffpa_tensor rows(int64_t n, int64_t columns, float first)
{
    float *data = malloc((size_t)(n * columns) * sizeof *data);
    assert_non_null(data);
    for (int64_t x = 0; x < n * columns; x++)
        data[x] = first + (float)(x * 2654435761u % 1024) / 4096.0f;
    return ffpa_tensor_4d(data, FFPA_F32, 1, 1, n, columns);
}

typedef struct problem {
    ffpa_forward_params f;
    ffpa_backward_params g;
} problem;

static problem new_problem(int64_t n)
{
    problem p = {ffpa_forward_params_init(), ffpa_backward_params_init()};
    p.f.q = rows(n, D, -.1f), p.f.k = rows(n, D, -.15f), p.f.v = rows(n, D, 1);
    p.f.o = rows(n, D, 0), p.f.lse = rows(n, 1, 0);
    p.g.dout = rows(n, D, 0), p.g.dq = rows(n, D, 0), p.g.dk = rows(n, D, 0),
    p.g.dv = rows(n, D, 0);
    return p;
}

static void free_problem(problem *p)
{
    ffpa_tensor *all[] = {&p->f.q,    &p->f.k,  &p->f.v,  &p->f.o, &p->f.lse,
                          &p->g.dout, &p->g.dq, &p->g.dk, &p->g.dv};
    for (size_t x = 0; x < COUNT(all); x++)
        free(all[x]->data);
}

static void check_grown(size_t before, const char *what)
{
    const size_t grown = resident_peak() - before, allocated = atomic_load(&most);
    if (allocated > LIMIT || grown > LIMIT)
        fail_msg("%s: %zu MiB allocated, the process grew by %zu MiB; at most 1024", what,
                 allocated >> 20, grown >> 20);
}

/* Values lie in 1..1.25, and so must every mean of them. */
static void check_range(const ffpa_tensor *o)
{
    const float *data = o->data;
    for (int64_t x = 0; x < o->shape[2] * D; x++)
        assert_true(data[x] >= .999f && data[x] <= 1.251f);
}

/* Every query and key, but few pairs: the memory is that of the full problem, the time is not. */
static void narrow_window(void **state)
{
    (void)state;
    ffpa_context *ctx = counting_context();
    problem p = new_problem(judge_quick() ? 8192 : 65536);
    p.f.flags = FFPA_WINDOW;
    p.f.window_left = 63;
    size_t before = resident_peak();
    assert_ok(ffpa_forward(ctx, &p.f));
    check_grown(before, "forward");
    check_range(&p.f.o);
    p.g.forward = &p.f;
    before = resident_peak();
    assert_ok(ffpa_backward(ctx, &p.g));
    check_grown(before, "backward");
    free_problem(&p);
    ffpa_context_destroy(ctx);
    assert_int_equal(atomic_load(&held), 0);
}

/* Few queries against all keys, and all queries against few keys. */
static void one_side_long(void **state)
{
    (void)state;
    ffpa_context *ctx = counting_context();
    problem p = new_problem(judge_quick() ? 8192 : 65536);
    p.g.forward = &p.f;
    for (int side = 0; side < 2; side++) {
        ffpa_forward_params f = p.f;
        ffpa_backward_params g = p.g;
        g.forward = &f;
        ffpa_tensor *few[] = {&f.q, &f.o, &f.lse, &g.dout, &g.dq},
                    *keys[] = {&f.k, &f.v, &g.dk, &g.dv};
        for (size_t x = 0; side == 0 && x < COUNT(few); x++)
            few[x]->shape[2] = 64;
        for (size_t x = 0; side == 1 && x < COUNT(keys); x++)
            keys[x]->shape[2] = 64;
        const size_t before = resident_peak();
        assert_ok(ffpa_forward(ctx, &f));
        assert_ok(ffpa_backward(ctx, &g));
        check_grown(before, side ? "few keys" : "few queries");
        check_range(&f.o);
    }
    free_problem(&p);
    ffpa_context_destroy(ctx);
    assert_int_equal(atomic_load(&held), 0);
}

/* The whole causal problem: 2.2e12 multiplications, so only with FFPA_TEST_SCALE above 1. */
static void all_pairs(void **state)
{
    (void)state;
    const int64_t n = judge_scale() > 1 ? 65536 : judge_quick() ? 1024 : 8192;
    ffpa_context *ctx = counting_context();
    problem p = new_problem(n);
    p.f.causal = FFPA_BOTTOM_RIGHT;
    const size_t before = resident_peak();
    assert_ok(ffpa_forward(ctx, &p.f));
    check_grown(before, "forward");
    /* Nothing that grows with Nq x Nk is far below Nq x Nk itself. */
    assert_true((double)atomic_load(&most) < 64e6 + 8.0 * (double)n * D);
    check_range(&p.f.o);
    free_problem(&p);
    ffpa_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow_window),
        cmocka_unit_test(one_side_long),
        cmocka_unit_test(all_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
