/* test_cuda_backward.c - the backward pass of sm_80 as the driver sees it: its stages, its chunks under every limit
 * (each line of each head once, keys' sums opened and closed once), and every failure in turn. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>

/* The kernels that every architecture has, on the oldest. */
static int set_up(void **state)
{
    const int failed = fake_set_up(state);
    FAKE.cc = 80;
    return failed;
}

static void five_kernels_when_all_fits(void **state)
{
    static const char *const kinds[] = {"delta_bf16", "pds_sm80_bf16_d512v512",
                                        "gemm_sm80_bf16_keys", "gemm_sm80_bf16_keys",
                                        "gemm_sm80_bf16_queries"};
    device_call c;
    gemm_args dv, dk, dq;
    device_call_make(&c, "bwd,bf16,b2h8k2,q300k500,d512,causal", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 5);
    for (int i = 0; i < 5; i++) {
        assert_true(is(&FAKE.launches[i], kinds[i]));
        assert_int_equal(FAKE.launches[i].block, 256);
    }
    assert_int_equal(FAKE.loads, 4); /* dV and dK are one kernel */
    memcpy(&dv, FAKE.launches[2].args, sizeof dv);
    memcpy(&dk, FAKE.launches[3].args, sizeof dk);
    memcpy(&dq, FAKE.launches[4].args, sizeof dq);
    assert_ptr_equal(dv.b.data, c.g.dout.data);
    assert_ptr_equal(dv.out.data, c.g.dv.data);
    assert_ptr_equal(dk.b.data, c.f.q.data);
    assert_ptr_equal(dq.b.data, c.f.k.data);
    assert_ptr_not_equal(dv.a, dk.a);
    assert_ptr_equal(dk.a, dq.a);
    assert_true(dv.alpha == 1.0f && dk.alpha == dq.alpha && dk.alpha < 0.05f);
    assert_true(dv.first && dv.last && !dv.partial);
    assert_int_equal(dv.chunk.nh, 8);
    assert_int_equal(dv.chunk.nt, 2 * 3);
    assert_int_equal(dv.key_tiles, 2 * 4);
    assert_true(dv.chunk.ld == 512);
    assert_string_equal(ffpa_last_path(), "cuda/sm80/backward");
}

static void only_what_is_asked_for_is_computed(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b1h2,q300k300,d64", 0);
    c.g.dk = c.g.dq = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 3);
    assert_true(is(&FAKE.launches[2], "gemm_sm80_bf16_keys"));
}

static void masks_and_sinks_have_gradients(void **state)
{
    device_call c;
    dmask_args dmask;
    pds_args pds;
    device_call_make(&c, "bwd,f16,b2h4,q100k200,d64,mask=f32:hqk,sink", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 8);
    assert_true(is(&FAKE.launches[1], "dsink"));
    assert_true(is(&FAKE.launches[3], "renorm"));
    assert_int_equal(FAKE.launches[3].grid, 8 * 128 / 8);
    assert_true(is(&FAKE.launches[7], "dmask"));
    memcpy(&pds, FAKE.launches[2].args, sizeof pds);
    memcpy(&dmask, FAKE.launches[7].args, sizeof dmask);
    assert_ptr_equal(pds.dbias, dmask.dbias);
    assert_non_null(pds.dbias);
    assert_int_equal(dmask.mb, 1);
    assert_int_equal(dmask.mh, 4);
    assert_true(dmask.dmask.sb == 0);
    assert_true(dmask.first && dmask.last && !dmask.partial);
    assert_int_equal(FAKE.launches[7].grid, 4 * 100);
}

/* Keeps the book on which lines of which heads a run covers, from the arguments of its launches. */
static void check_chunks(const device_call *c, int lines)
{
    static chunk_book book;
    book = (chunk_book){.lines = lines};
    const char *begin = c->g.workspace, *end = begin + c->g.workspace_bytes;
    assert_true(FAKE.launch_count <= FAKE_LAUNCHES);
    for (int i = 0; i < FAKE.launch_count; i++) {
        gemm_args g;
        if (!is(&FAKE.launches[i], "gemm")) continue;
        memcpy(&g, FAKE.launches[i].args, sizeof g);
        const k_chunk k = g.chunk;
        const size_t bytes = (size_t)k.nh * (size_t)k.nt * 128 * (size_t)k.ld * 2;
        assert_true((const char *)g.a >= begin && (const char *)g.a + bytes <= end);
        if (g.out.data == c->g.dq.data) book_lines(&book, &k);
        if (g.out.data != c->g.dk.data) continue;
        assert_true(g.partial || (g.first && g.last));
        if (g.partial)
            assert_true((const char *)g.partial > begin && (const char *)g.partial < end);
        book_sums(&book, &k, g.group, g.first, g.last);
    }
    book_check(&book, c);
}

static void chunks_cover_everything_once_within_the_limit(void **state)
{
    static const struct {
        const char *problem;
        int lines;
    } cases[] = {{"bwd,bf16,b1h8k2,q4096k4096,d64", 32},
                 {"bwd,bf16,b1h6k2,q4096k4096,d64,causal", 32},
                 {"bwd,bf16,b1h2k1,q5000k16384,d64", 40},
                 {"bwd,bf16,b2h3k3,q2048k4000,d64,mask=bf16:qk", 32}};
    device_call c;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t limit = (size_t)64 << 20; limit <= (size_t)1 << 30; limit *= 2) {
            device_call_make(&c, cases[i].problem, 0);
            c.g.workspace_limit_bytes = limit;
            FAKE.launch_count = 0;
            assert_ok(backward(*state, &c));
            assert_true(c.g.workspace_bytes <= limit);
            check_chunks(&c, cases[i].lines);
        }
}

static void a_limit_below_the_floor_is_the_floor(void **state)
{
    device_call c;
    size_t floor_bytes, least;
    device_call_make(&c, "bwd,bf16,b1h8k2,q4096k4096,d64", 0);
    c.g.workspace_limit_bytes = (size_t)64 << 20;
    assert_ok(ffpa_backward_workspace(*state, &c.g, &floor_bytes));
    c.g.workspace_limit_bytes = 1;
    assert_ok(ffpa_backward_workspace(*state, &c.g, &least));
    assert_int_equal(least, floor_bytes);
    c.g.workspace_bytes = least - 1;
    assert_status(ffpa_backward(*state, &c.g), FFPA_E_WORKSPACE, "this plan needs");
    assert_int_equal(FAKE.launch_count, 0);
}

static void without_queries_the_keys_gradients_are_still_written(void **state)
{
    device_call c;
    gemm_args g;
    device_call_make(&c, "bwd,bf16,b1h2,q0k300,d64", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 2); /* dV, dK */
    memcpy(&g, FAKE.launches[0].args, sizeof g);
    assert_true(g.first && g.last && g.chunk.nt == 0);
    FAKE.launch_count = 0;
    device_call_make(&c, "bwd,bf16,b1h2,q300k0,d64", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 2); /* delta, dQ */
}

static void packed_sequences_need_no_lengths_on_the_host(void **state)
{
    device_call c;
    pds_args pds;
    device_call_make(&c, "bwd,bf16,b3h4k2,q700k700,d128,causal,varlen=700+5+300", 0);
    assert_ok(backward(*state, &c));
    memcpy(&pds, FAKE.launches[1].args, sizeof pds);
    assert_true(is(&FAKE.launches[1], "pds"));
    assert_ptr_equal(pds.seq.cu_q, c.varlen.cu_q);
    assert_int_equal(pds.seq.nq, 1005);
    assert_int_equal(pds.chunk.nt, 1005 / 128 + 3);
    assert_true(pds.chunk.ld == 1024);
}

/* The bytes of a kv group's P are 2^64. */
/* Where a kernel would need more blocks than a grid has, the plan says so, not the launch. */
static void sizes_beyond_any_memory_are_planned_or_refused(void **state)
{
    (void)state;
    static const char *const only[] = {"sm80", "sm90", "sm90_fused"};
    for (int i = 0; i < 3; i++) {
        check_planned("bwd,bf16,b1h16k1,q536870911k536870911,d64", only[i], NULL);
        check_planned("bwd,bf16,b1h127k1,q536870911k536870911,d64,causal", only[i], NULL);
        check_planned("bwd,bf16,b1h128k1,q536870911k536870911,d64,causal", only[i],
                      "delta_bf16 would need 2147483648 blocks, at most 2147483647 fit a grid");
        if (i < 2) check_planned("bwd,bf16,b1h1,q536870911k4096,d512", only[i], NULL);
    }
    check_planned("bwd,f32,b1h8,q536870911k64,d64,mask=f32:hqk", "sm80",
                  "dmask_f32 would need 4294967288 blocks");
    check_planned("bwd,bf16,b16777216h127,q0k1,d64", "sm80", NULL);
    check_planned("bwd,bf16,b16777216h128,q0k1,d64", "sm80", "gemm_sm80_bf16_keys");
}

static void every_call_may_fail(void **state)
{
    check_every_call_may_fail(*state, "bwd,bf16,b1h8k2,q4096k4096,d64", (size_t)64 << 20);
}

static void the_host_needs_microseconds(void **state)
{
    check_host_time(*state, "bwd,bf16,b1h8,q1024k1024,d512,causal");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(five_kernels_when_all_fits),
        TEST(only_what_is_asked_for_is_computed),
        TEST(masks_and_sinks_have_gradients),
        TEST(chunks_cover_everything_once_within_the_limit),
        TEST(a_limit_below_the_floor_is_the_floor),
        TEST(without_queries_the_keys_gradients_are_still_written),
        TEST(packed_sequences_need_no_lengths_on_the_host),
        TEST(sizes_beyond_any_memory_are_planned_or_refused),
        TEST(every_call_may_fail),
        TEST(the_host_needs_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
