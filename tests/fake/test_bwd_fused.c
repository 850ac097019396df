/* test_bwd_fused.c - the fused backward pass of Hopper as the driver sees it: which problems it takes, its launches, its maps. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include "common/shapes.h"

static fused_args fused_of(const fake_launch *l)
{
    fused_args args;
    assert_true(is(l, "bwd_fused"));
    memcpy(&args, l->args, sizeof args);
    return args;
}

static void keys_then_queries(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b2h32k8,q700k900,d64,causal", 0);
    assert_ok(backward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_fused/backward");
    assert_int_equal(FAKE.launch_count, 3);
    assert_true(is(&FAKE.launches[0], "delta_bf16"));
    assert_true(is(&FAKE.launches[1], "bwd_fused_sm90_keys_bf16_d64v64_n96_range"));
    assert_true(is(&FAKE.launches[2], "bwd_fused_sm90_queries_bf16_d64v64_n128_range"));
    assert_true(FAKE.launches[1].overlaps && FAKE.launches[2].overlaps);
    assert_int_equal(FAKE.launches[1].grid, 2 * 8 * 8);
    assert_int_equal(FAKE.launches[2].grid, 2 * 32 * 6);
    const fused_args k = fused_of(&FAKE.launches[1]), q = fused_of(&FAKE.launches[2]);
    assert_ptr_equal(mapped(&k.own1), c.f.k.data);
    assert_ptr_equal(mapped(&k.own2), c.f.v.data);
    assert_ptr_equal(mapped(&k.walk1), c.f.q.data);
    assert_ptr_equal(mapped(&k.walk2), c.g.dout.data);
    assert_ptr_equal(mapped(&q.own1), c.f.q.data);
    assert_ptr_equal(mapped(&q.own2), c.g.dout.data);
    assert_ptr_equal(mapped(&q.walk1), c.f.k.data);
    assert_ptr_equal(mapped(&q.walk2), c.f.v.data);
    assert_ptr_equal(k.out1.data, c.g.dk.data);
    assert_ptr_equal(k.out2.data, c.g.dv.data);
    assert_ptr_equal(q.out1.data, c.g.dq.data);
    assert_null(q.out2.data);
    assert_true(k.wide1 && k.wide2 && q.wide1);
    assert_true(!k.joins && q.joins);
    assert_ptr_equal(k.delta, c.g.workspace);
    assert_true(c.g.workspace_bytes <
                2 * 32 * 700 * 4 + 4096); /* delta, and next to nothing else */
}

static void maps_are_made_once(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,f16,b4h8,q700k700,d128", 0);
    assert_ok(backward(*state, &c));
    const int made = FAKE.maps;
    assert_int_equal(made, 8);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.maps, made);
}

static void only_what_is_asked_for_is_launched(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b4h32,q700k700,d64", 0);
    c.g.dq = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 2);
    assert_true(is(&FAKE.launches[1], "bwd_fused_sm90_keys"));
    FAKE.launch_count = 0;
    device_call_make(&c, "bwd,bf16,b4h32,q700k700,d64", 0);
    c.g.dk = c.g.dv = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 2);
    assert_true(is(&FAKE.launches[1], "bwd_fused_sm90_queries"));
    assert_false(fused_of(&FAKE.launches[1]).joins); /* it waits for delta itself */
    FAKE.launch_count = 0;
    device_call_make(&c, "bwd,bf16,b4h32,q700k700,d64", 0);
    c.g.dv = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 3);
    assert_null(fused_of(&FAKE.launches[1]).out2.data);
}

static void what_it_does_not_take_goes_on(void **state)
{
    static const char *const others[] = {
        "bwd,bf16,b4h32,q700k700,d192", "bwd,bf16,b4h32,q700k700,d64,mask=bool",
        "bwd,bf16,b4h32,q700k700,d64,dropout0.1", "bwd,bf16,b4h32,q700k700,d64,softcap5",
        "bwd,bf16,b4h32,q700k700,d64,alibi"};
    device_call c;
    for (size_t i = 0; i < COUNT(others); i++) {
        device_call_make(&c, others[i], 0);
        assert_ok(backward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm90/backward");
    }
    device_call_make(&c, "bwd,bf16,b4h32,q700k700,d65", 0); /* rows at odd addresses */
    assert_ok(backward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/backward");
}

/* Gradients that do not start at 16 bytes are stored two elements at a time. */
static void gradients_may_start_anywhere(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b4h32,q700k700,d64", 0);
    c.g.dv.data = (char *)c.g.dv.data + 2;
    assert_ok(backward(*state, &c));
    const fused_args k = fused_of(&FAKE.launches[1]);
    assert_true(k.wide1 && !k.wide2);
}

static void packed_sequences_need_no_lengths_on_the_host(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b3h16k2,q700k700,d128,causal,varlen=700+5+300", 0);
    assert_ok(backward(*state, &c));
    const fused_args k = fused_of(&FAKE.launches[1]), q = fused_of(&FAKE.launches[2]);
    assert_ptr_equal(k.seq.cu_q, c.varlen.cu_q);
    assert_int_equal(k.tiles, 1005 / 128 + 3);
    assert_int_equal(k.heads, 2);
    assert_int_equal(q.heads, 16);
}

static void every_call_may_fail(void **state)
{
    check_every_call_may_fail(*state, "bwd,bf16,b2h32k8,q700k900,d64,causal", (size_t)64 << 20);
}

static void the_host_needs_microseconds(void **state)
{
    check_host_time(*state, "bwd,bf16,b1h32,q1024k1024,d64,causal");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(keys_then_queries),
        TEST(maps_are_made_once),
        TEST(only_what_is_asked_for_is_launched),
        TEST(what_it_does_not_take_goes_on),
        TEST(gradients_may_start_anywhere),
        TEST(packed_sequences_need_no_lengths_on_the_host),
        TEST(every_call_may_fail),
        TEST(the_host_needs_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
