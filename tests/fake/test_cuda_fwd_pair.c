/* test_cuda_fwd_pair.c - forward on pairs of blocks, as the driver sees it: what is launched, what a warm call costs
 * it, which problems are taken, refused, or left to another family. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include "common/shapes.h"

#include <string.h>

static void box_of(const k_map *map, int32_t box[5]) { memcpy(box, map->opaque + 8, 20); }

static void a_call_is_one_launch_of_pairs(void **state)
{
    device_call c;
    fwd_pair_args args;
    device_call_make(&c, "fwd,bf16,b2h8k2,q1000k1500,d512,causal,bnhd,scale0.25", 1);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_pair/forward");
    assert_int_equal(FAKE.launch_count, 1);
    assert_int_equal(FAKE.memsets, 1); /* the tile counter */
    const fake_launch *l = &FAKE.launches[0];
    assert_int_equal(l->block, 384);
    assert_int_equal(l->grid, 132); /* a pair on every two processors stays */
    assert_int_equal(l->shared, pair_shared_bytes(512, 512, 16, 8));
    memcpy(&args, l->args, sizeof args);
    assert_ptr_equal(mapped(&args.q), c.f.q.data);
    assert_ptr_equal(mapped(&args.k), c.f.k.data);
    assert_ptr_equal(mapped(&args.v), c.f.v.data);
    assert_ptr_equal(args.counter, c.f.workspace);
    assert_int_equal(args.hq, 8);
    assert_int_equal(args.group, 4);
    assert_int_equal(args.tiles, 2 * 8);
    assert_int_equal(args.total, 2 * 8 * 8);
    assert_int_equal(args.scores.right, 0);
    assert_true(args.scale_log2 > 0.36067f && args.scale_log2 < 0.36068f);
}

static void few_tiles_are_few_pairs(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,f16,b1h3,q1000k300,d384", 0);
    assert_ok(forward(*state, &c));
    assert_int_equal(FAKE.launches[0].grid, 2 * 3 * 8);
}

/* Half of the pairs would idle: two parts of the keys of each tile, then a launch that joins them. */
static void keys_of_few_tiles_are_cut(void **state)
{
    device_call c;
    fwd_pair_args args;
    join_args join;
    device_call_make(&c, "fwd,bf16,b1h1,q4096k4096,d512,sink", 0);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_pair/forward");
    assert_int_equal(FAKE.launch_count, 2);
    assert_int_equal(FAKE.memsets, 1);
    const fake_launch *l = FAKE.launches;
    assert_int_equal(l[0].grid, 2 * 64);
    memcpy(&args, l[0].args, sizeof args);
    assert_int_equal(args.tiles, 32);
    assert_int_equal(args.total, 64);
    assert_int_equal(args.parts.splits, 2);
    assert_int_equal(args.parts.whole, 0);
    char *workspace = c.f.workspace;
    assert_ptr_equal(args.parts.o, workspace + 256);
    assert_ptr_equal(args.parts.lse, workspace + 256 + (size_t)2 * 4096 * 512 * 4);
    assert_int_equal(c.f.workspace_bytes, 256 + 2 * 4096 * 512 * 4 + 2 * 4096 * 4);
    assert_true(is(&l[1], "fwd_combine_sm90_bf16"));
    assert_int_equal(l[1].grid, 4096 * 4 / 8);
    assert_int_equal(l[1].block, 256);
    memcpy(&join, l[1].args, sizeof join);
    assert_memory_equal(&join.parts, &args.parts, sizeof join.parts);
    assert_ptr_equal(join.o.data, c.f.o.data);
    assert_ptr_equal(join.sink, c.f.sink.data);
}

/* One round of pairs takes whole tiles; only those of the second, six of 66, are cut. */
static void a_last_round_of_tiles_is_cut(void **state)
{
    device_call c;
    fwd_pair_args args;
    device_call_make(&c, "fwd,bf16,b1h1,q9216k9216,d512", 0);
    assert_ok(forward(*state, &c));
    memcpy(&args, FAKE.launches[0].args, sizeof args);
    assert_int_equal(args.parts.whole, 66);
    assert_int_equal(args.parts.first_row, 66 * 128);
    assert_int_equal(args.total, 66 + 6 * args.parts.splits);
    assert_int_equal(FAKE.launches[1].grid, 6 * 128 * 4 / 8);
}

/* As many parts as the limit holds, or none. */
static void parts_keep_the_workspace_limit(void **state)
{
    device_call c;
    fwd_pair_args args;
    device_call_make(&c, "fwd,bf16,b1h1,q2048k2048,d512", 0);
    c.f.workspace_limit_bytes = 3 * 2048 * 513 * 4 + 1024;
    assert_ok(forward(*state, &c));
    memcpy(&args, FAKE.launches[0].args, sizeof args);
    assert_int_equal(args.parts.splits, 3);
    assert_true(c.f.workspace_bytes <= c.f.workspace_limit_bytes);
    c.f.workspace_limit_bytes = 2048 * 512 * 4;
    assert_ok(forward(*state, &c));
    memcpy(&args, FAKE.launches[2].args, sizeof args);
    assert_int_equal(args.parts.splits, 1);
    assert_int_equal(FAKE.launch_count, 3);
}

static void boxes_follow_the_columns(void **state)
{
    static const struct {
        const char *problem;
        int v[5], half[4];
    } cases[] = {
        {"fwd,bf16,b1h16,q500k500,d328v320", {64, 32, 2, 1, 1}, {64, 32, 1, 1}},
        {"fwd,bf16,b1h32,q500k500,d512", {64, 16, 4, 1, 1}, {64, 16, 1, 1}},
        {"fwd,bf16,b1h32,q500k500,d576", {64, 16, 4, 1, 1}, {64, 64, 1, 1}},
        {"fwd,bf16,b1h32,q500k500,d488",
         {64, 16, 1, 1},
         {64, 16, 1, 1}}, /* a chunk at a time */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        fwd_pair_args args;
        int32_t box[5];
        device_call_make(&c, cases[i].problem, 0);
        assert_ok(forward(*state, &c));
        memcpy(&args, FAKE.launches[i].args, sizeof args);
        box_of(&args.v, box);
        assert_memory_equal(box, cases[i].v, sizeof box);
        box_of(&args.v_half, box);
        assert_memory_equal(box, cases[i].half, 16);
    }
}

/* Context in and out, the counter's memset, the launch: nothing is encoded, allocated or compiled. */
static void a_warm_call_only_enqueues(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b1h32,q2048k512,d512", 0);
    assert_ok(forward(*state, &c));
    const int calls = FAKE.calls, made = fake_allocations(), maps = FAKE.maps;
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.calls, calls + 4);
    assert_int_equal(FAKE.maps, maps);
    assert_int_equal(fake_allocations(), made);
    c.f.k.data = (char *)c.f.k.data + 4096;
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.maps, 2 * maps);
}

static void what_it_does_not_take_runs_on_sm80(void **state)
{
    static const struct {
        const char *problem, *reason;
    } cases[] = {
        {"fwd,f32,b1h32,q500k500,d512", "sm90_pair: takes f16 and bf16"},
        {"fwd,bf16,b1h4,q64k500,d512,softcap5", "up to D and Dv of 448"},
        {"fwd,bf16,b1h32,q500k500,d512v500", "Dv a multiple of 8"},
        {"fwd,bf16,b1h32,q500k500,d324v512", "need rows at 16 bytes"},
        {"fwd,bf16,b1h32,q500k500,d512,scale-1", "no scale of zero or below"},
        {"fwd,bf16,b1h32,q16k8192,d512", "16 query rows leave a tile of 128 mostly empty"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        char why[300];
        device_call_make(&c, cases[i].problem, 0);
        assert_ok(forward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
        assert_string_equal(family_on_hopper(&c.ask, NULL, why, sizeof why)->name, "sm80");
        if (!strstr(why, cases[i].reason))
            fail_msg("%s: '%s' does not say '%s'", cases[i].problem, why, cases[i].reason);
    }
}

static void strides_that_no_box_follows_run_on_sm80(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b2h32k1,q500k500,d512", 0);
    c.f.k.stride[0] = 0; /* one K for all sequences */
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
    device_call_make(&c, "fwd,bf16,b2h32,q500k500,d512", 0);
    c.f.o.data = (char *)c.f.o.data + 2;
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_is_one_launch_of_pairs, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(few_tiles_are_few_pairs, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(keys_of_few_tiles_are_cut, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(a_last_round_of_tiles_is_cut, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(parts_keep_the_workspace_limit, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(boxes_follow_the_columns, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(a_warm_call_only_enqueues, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(what_it_does_not_take_runs_on_sm80, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(strides_that_no_box_follows_run_on_sm80, fake_set_up,
                                        fake_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
