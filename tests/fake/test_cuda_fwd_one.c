/* test_cuda_fwd_one.c - small heads on Hopper: which problems it takes, with which tiles and arguments, and why it
 * refuses the others. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static fwd_one_args run(ffpa_context *ctx, device_call *c, const char *text)
{
    fwd_one_args args;
    device_call_make(c, text, 0);
    const int before = FAKE.launch_count;
    assert_ok(forward(ctx, c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_one/forward");
    assert_int_equal(FAKE.launch_count, before + 1);
    memcpy(&args, FAKE.launches[before].args, sizeof args);
    return args;
}

static uint32_t box_rows(const k_map *map)
{
    uint32_t box[2];
    memcpy(box, map->opaque + 8, sizeof box);
    return box[1];
}

static void a_call_becomes_one_launch_of_resident_blocks(void **state)
{
    device_call c;
    const fwd_one_args a = run(*state, &c, "fwd,bf16,b2h8k2,q1500k2500,d128,bnhd,scale0.25");
    assert_int_equal(FAKE.launches[0].grid, 128); /* 16 heads of 8 tiles of 192 rows */
    assert_int_equal(FAKE.launches[0].block, 512);
    assert_int_equal(a.f.tiles, 8);
    assert_null(a.counter);
    assert_int_equal(a.heads, 16);
    assert_int_equal(a.f.group, 4);
    assert_int_equal(a.f.scores.right, -1);
    assert_true(a.unit > 0.25f * 1.4426f && a.unit < 0.25f * 1.4428f);
    assert_true(fabs((double)a.back + a.back_rest - 0.25 / a.unit) < 1e-14);
    assert_true(a.wide);
    assert_int_equal(box_rows(&a.q_map), 64);
    assert_int_equal(box_rows(&a.k_map), 80);
    assert_int_equal(box_rows(&a.v_map), 80);
    void *data;
    memcpy(&data, a.v_map.opaque, sizeof data);
    assert_ptr_equal(data, c.f.v.data);
}

/* A warm call: make current, clear the counter, launch, put back. */
static void more_tiles_than_processors_are_counted_out(void **state)
{
    device_call c;
    const fwd_one_args a = run(*state, &c, "fwd,f16,b4h16,q4096k4096,d256");
    assert_int_equal(a.f.tiles, 32);
    assert_int_equal(FAKE.launches[0].grid, FAKE.sms);
    assert_int_equal(FAKE.launches[0].block, 384);
    assert_ptr_equal(a.counter, c.f.workspace);
    assert_true(c.f.workspace_bytes >= 4);
    assert_int_equal(FAKE.memsets, 1);
    const int calls = FAKE.calls, maps = FAKE.maps;
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.calls, calls + 4);
    assert_int_equal(FAKE.maps, maps);
}

/* The tile that leaves the fewest processors idle. */
static void few_tiles_are_smaller(void **state)
{
    device_call c;
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32,q8192k8192,d128").f.tiles,
                     43);                                                           /* of 192 */
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32,q1024k1024,d128").f.tiles, 8); /* of 128 */
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32,q8192k8192,d128,alibi").f.tiles, 64);
}

/* Above 256 columns O leaves room for 48 scores a row, and for 32 beside the registers that options take. */
static void wide_rows_take_short_blocks(void **state)
{
    device_call c;
    fwd_one_args a = run(*state, &c, "fwd,bf16,b1h32,q1000k1000,d320");
    assert_int_equal(box_rows(&a.k_map), 48);
    a = run(*state, &c, "fwd,bf16,b4h16,q1000k1000,d200v264,varlen=1000+17+64+300");
    assert_int_equal(box_rows(&a.v_map), 48);
    a = run(*state, &c, "fwd,bf16,b1h32,q1000k1000,d320,causal,softcap30");
    assert_int_equal(box_rows(&a.k_map), 32);
}

static void few_rows_run_elsewhere(void **state)
{
    device_call c;
    char why[300] = "";
    device_call_make(&c, "fwd,bf16,b8h32,q16k4096,d128", 0);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
    assert_non_null(family_on_hopper(&c.ask, NULL, why, sizeof why));
    assert_non_null(strstr(why, "16 query rows leave a tile of 128 mostly empty"));
    assert_non_null(
        family_on_hopper(&c.ask, "sm90_one", why, sizeof why)); /* where it must, it can */
    run(*state, &c, "fwd,bf16,b1h67,q100k1000,d320");
}

/* 64 tiles for 132 processors: two parts of the keys of each, then a launch that joins them. */
static void keys_of_few_tiles_are_cut(void **state)
{
    device_call c;
    fwd_one_args a;
    join_args join;
    device_call_make(&c, "fwd,bf16,b1h8k2,q1024k8192,d256,bnhd", 0);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_one/forward");
    assert_int_equal(FAKE.launch_count, 2);
    assert_int_equal(FAKE.memsets, 0); /* no more items than processors */
    memcpy(&a, FAKE.launches[0].args, sizeof a);
    assert_int_equal(a.parts.splits, 2);
    assert_int_equal(FAKE.launches[0].grid, 128);
    assert_ptr_equal(a.parts.o, (char *)c.f.workspace + 256);
    assert_true(is(&FAKE.launches[1], "fwd_combine_sm90_bf16"));
    assert_int_equal(FAKE.launches[1].grid, 8 * 1024 * 2 / 8);
    memcpy(&join, FAKE.launches[1].args, sizeof join);
    assert_int_equal(join.hq, 8);
    assert_int_equal(join.dv, 256);
    assert_int_equal(join.seq.total_q, 1024);
}

/* Heads walked together are whole groups whose K and V fit the L2, and no more than there are. */
static void heads_are_walked_by_what_the_cache_holds(void **state)
{
    device_call c;
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32,q8192k8192,d256").head_group, 1);
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32,q8192k8192,d256,causal").head_group, 8);
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h32k4,q8192k8192,d256,causal").head_group, 32);
    assert_int_equal(run(*state, &c, "fwd,bf16,b1h24,q99999k99999,d256,causal").head_group, 1);
}

static void packed_sequences_make_lines_of_tiles(void **state)
{
    device_call c;
    const fwd_one_args a =
        run(*state, &c, "fwd,bf16,b3h16,q3000k3000,d128,varlen=3000+17+1000");
    assert_int_equal(a.heads, 16);
    assert_int_equal(a.f.tiles, 4017 / 192 + 3);
}

static void rows_of_o_may_be_anywhere(void **state)
{
    device_call c;
    fwd_one_args a;
    device_call_make(&c, "fwd,bf16,b1h16,q1024k1024,d64", 0);
    c.f.o.stride[2] = 66, c.f.o.stride[1] = 66 * 1024;
    assert_ok(forward(*state, &c));
    memcpy(&a, FAKE.launches[0].args, sizeof a);
    assert_false(a.wide);
}

static void what_it_refuses_runs_elsewhere(void **state)
{
    static const struct {
        const char *problem, *reason;
    } refused[] = {
        {"fwd,f32,b1h16,q1024k1024,d64", "sm90_one: takes bf16 and f16"},
        {"fwd,bf16,b1h16,q1024k1024,d328", "sm90_one: takes D and Dv from 1 to 320"},
        {"fwd,bf16,b1h16,q1024k1024,d100", "sm90_one: q, k and v must have dense rows"},
        {"fwd,bf16,b2h8k2,q128k3000,d128,varlen=3000+17,page16",
         "sm90_one: takes no paged cache"},
        {"fwd,bf16,b1h16,q1024k0,d64", "sm90_one: needs rows and keys"},
    };
    device_call c;
    for (size_t i = 0; i < COUNT(refused); i++) {
        device_call_make(&c, refused[i].problem, 0);
        assert_ok(forward(*state, &c));
        assert_null(strstr(ffpa_last_path(), "sm90_one"));
        char why[300] = "";
        assert_null(family_on_hopper(&c.ask, "sm90_one", why, sizeof why));
        if (!strstr(why, refused[i].reason))
            fail_msg("%s: \"%s\", expected \"%s\"", refused[i].problem, why, refused[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_becomes_one_launch_of_resident_blocks,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(more_tiles_than_processors_are_counted_out, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(few_tiles_are_smaller, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(wide_rows_take_short_blocks, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(few_rows_run_elsewhere, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(keys_of_few_tiles_are_cut, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(heads_are_walked_by_what_the_cache_holds, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(packed_sequences_make_lines_of_tiles, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(rows_of_o_may_be_anywhere, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(what_it_refuses_runs_elsewhere, fake_set_up,
                                        fake_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
