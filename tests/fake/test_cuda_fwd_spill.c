/* test_cuda_fwd_spill.c - forward with P in the workspace, as the driver sees it: chunks of heads and rows, the layout of the
 * workspace, what is taken and what is left to another family. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include <stdint.h>
#include <string.h>

static fwd_spill_args args_of(int launch)
{
    fwd_spill_args args;
    memcpy(&args, FAKE.launches[launch].args, sizeof args);
    return args;
}

static void use_cache(device_call *c)
{
    c->cache = (ffpa_kv_cache){.struct_size = sizeof c->cache,
                               .lengths = (char *)c->f.lse.data + ((uintptr_t)1 << 34),
                               .index_dtype = FFPA_I32};
    c->f.kv_cache = &c->cache;
}

static void two_kernels_a_chunk(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b2h4k2,q1000k1500,d640,causal,bnhd", 1);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90_spill/forward");
    assert_int_equal(FAKE.launch_count, 2);
    assert_int_equal(FAKE.memsets, 1); /* the block of zeros */
    assert_non_null(strstr(FAKE.launches[0].kernel, "fwd_spill_p_"));
    assert_non_null(strstr(FAKE.launches[1].kernel, "fwd_spill_pv_"));
    const fwd_spill_args args = args_of(0);
    assert_int_equal(args.heads, 8);
    assert_int_equal(args.group, 2);
    assert_int_equal(args.q_tiles, 8);
    assert_int_equal(args.k_blocks, 24);
    assert_int_equal(args.k_tiles, 8);
    /* of the first tile, which sees 628 keys, and the last, 1500 */
    assert_int_equal(args.run_blocks, 3 * (4 + 8));
    assert_int_equal(args.side, 8);
    assert_ptr_equal(args.p, c.f.workspace);
    /* P, zeros, tickets, flags, factors, inverses and bases follow one another and fit */
    const char *at = args.p;
    assert_true((const char *)args.zero >= at + (size_t)8 * 4 * 2 * 36 * 8192);
    assert_true((const char *)args.tickets >= (const char *)args.zero + 8192);
    assert_true(args.moved >= args.tickets + 2);
    assert_true((const char *)args.factor >= (const char *)(args.moved + (size_t)8 * 16 * 9));
    assert_true(args.inverse >= args.factor + (size_t)8 * 16 * 8 * 64);
    assert_true(args.base >= args.inverse + (size_t)8 * 16 * 64);
    assert_true((const char *)(args.base + (size_t)8 * 16 * 64) <= at + c.f.workspace_bytes);
}

static void chunks_cover_every_head_and_row_once(void **state)
{
    static const uint64_t limits[] = {(uint64_t)1 << 22, (uint64_t)1 << 24, (uint64_t)1 << 26,
                                      (uint64_t)1 << 30};
    int fewest = 1 << 30;
    for (size_t i = 0; i < COUNT(limits); i++) {
        device_call c;
        int seen[8][8] = {{0}}; /* head, tile of 128 rows */
        FAKE.launch_count = 0;
        device_call_make(&c, "fwd,bf16,b2h4,q1000k1500,d1024", 0);
        c.f.workspace_limit_bytes = limits[i];
        assert_ok(forward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm90_spill/forward");
        assert_true(c.f.workspace_bytes <= limits[i]);
        for (int l = 0; l < FAKE.launch_count; l += 2) {
            const fwd_spill_args a = args_of(l);
            assert_int_equal(a.row0 % 384, 0);
            for (int h = 0; h < a.heads; h++)
                for (int t = 0; t < a.q_tiles; t++)
                    seen[a.head0 + h][a.row0 / 128 + t]++;
        }
        for (int x = 0; x < 64; x++)
            assert_int_equal(seen[x / 8][x % 8], 1);
        assert_true(FAKE.launch_count <= fewest);
        fewest = FAKE.launch_count;
    }
    assert_int_equal(fewest, 2);
}

/* Heads that are walked side by side fill the GPU twice over; where rows differ in length, chunks are whole groups of them. */
static void chunks_of_causal_calls_are_whole_groups(void **state)
{
    static const struct {
        const char *problem;
        int side, heads, launches;
    } cases[] = {
        {"fwd,bf16,b1h32,q8192k8192,d1024,causal", 4, 12, 6},
        {"fwd,bf16,b1h32,q16384k16384,d640,causal", 2, 2, 32},
        {"fwd,bf16,b1h3,q8192k8192,d1024,causal", 3, 3, 2},
        {"fwd,bf16,b1h32,q8192k8192,d1024", 4, 6, 12},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        device_call_make(&c, cases[i].problem, 0);
        FAKE.launch_count = 0;
        assert_ok(forward(*state, &c));
        assert_int_equal(FAKE.launch_count, cases[i].launches);
        assert_int_equal(args_of(0).side, cases[i].side);
        assert_int_equal(args_of(0).heads, cases[i].heads);
        assert_true(c.f.workspace_bytes <= (size_t)1 << 30);
    }
}

static void a_warm_call_only_enqueues(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,f16,b1h32,q2048k512,d768", 0);
    assert_ok(forward(*state, &c));
    const int calls = FAKE.calls, made = fake_allocations();
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.calls, calls + 5); /* context in and out, memset, two launches */
    assert_int_equal(fake_allocations(), made);
}

static void what_it_does_not_take_runs_on_sm80(void **state)
{
    static const struct {
        const char *problem, *reason;
    } cases[] = {
        {"fwd,bf16,b2h32,q500k500,d640,varlen=500+400,softcap5", "takes no packed sequences"},
        {"fwd,bf16,b1h32,q500k500,d640,scale0", "no scale of zero or below"},
        {"fwd,bf16,b1h32,q500k500,d300v1024", "takes D from 321 to 1024"},
        {"fwd,bf16,b1h1,q500k500,d640", "4 tiles of 128 rows of 500 do not fill the GPU"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        char why[300];
        device_call_make(&c, cases[i].problem, 0);
        assert_ok(forward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
        assert_null(family_on_hopper(&c.ask, "sm90_pair", why, sizeof why));
        family_on_hopper(&c.ask, NULL, why, sizeof why);
        if (!strstr(why, cases[i].reason))
            fail_msg("%s: '%s' does not say '%s'", cases[i].problem, why, cases[i].reason);
    }
}

/* A variant each; a mask is read wide where its keys lie side by side from aligned addresses. */
static void options_are_told(void **state)
{
    static const struct {
        const char *problem, *variant;
        int wide;
    } cases[] = {
        {"fwd,bf16,b1h32,q500k500,d512,softcap5,causal", "d512v512_range_softcap", 0},
        {"fwd,bf16,b1h32,q500k500,d576,alibi", "d576v576_alibi", 0},
        {"fwd,bf16,b1h32,q500k500,d384,alibi", "d384v384_alibi", 0},
        {"fwd,f16,b1h32,q500k500,d1024,dropout0.5", "d1024v1024_dropout", 0},
        {"fwd,bf16,b2h32,q500k512,d640,mask=bool:qk", "d640v640_mask", 1},
        {"fwd,bf16,b2h32,q500k500,d640,mask=bool:qk", "d640v640_mask", 0},
        {"fwd,bf16,b2h32,q500k500,d640,mask=f32:qk", "d640v640_mask", 1},
        {"fwd,bf16,b2h32,q500k501,d640,mask=bf16:qk", "d640v640_mask", 0},
        {"fwd,bf16,b2h32,q500k512,d640,mask=bool:bhq", "d640v640_mask", 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        device_call_make(&c, cases[i].problem, 0);
        FAKE.launch_count = 0;
        assert_ok(forward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm90_spill/forward");
        assert_non_null(strstr(FAKE.launches[0].kernel, cases[i].variant));
        const fwd_spill_args args = args_of(0);
        assert_int_equal(args.mask_wide, cases[i].wide);
        assert_ptr_equal(args.scores.mask.data, c.f.mask.data);
        assert_true(args.bend == (c.f.softcap > 0 ? args.scores.scale / c.f.softcap : 0.0f));
        assert_true(args.dropout.keep_scale == (c.f.dropout ? 2.0f : 1.0f));
    }
}

/* Fewer keys than a cache has room for: the device knows how many, so P has room for what 128 rows see at most. */
static void lengths_are_read_on_the_device(void **state)
{
    static const struct {
        const char *problem, *variant;
        int run_blocks;
    } cases[] = {
        {"fwd,bf16,b4h8k2,q1000k1500,d640", "d640v640_cache", 24},
        {"fwd,bf16,b4h8k2,q1000k1500,d640,causal", "d640v640_range_cache", 24},
        {"fwd,bf16,b4h8k2,q1000k1500,d1024,win100:60", "d1024v1024_range_cache", 9},
        {"fwd,f16,b4h8k2,q1000k1500,d512", "d512v512_cache", 24},
        {"fwd,bf16,b4h8k2,q1000k1500,d384,alibi", "d384v384_alibi_cache", 24},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        device_call c;
        device_call_make(&c, cases[i].problem, 0);
        use_cache(&c);
        FAKE.launch_count = 0;
        assert_ok(forward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm90_spill/forward");
        assert_int_equal(FAKE.launch_count, 2);
        for (int l = 0; l < 2; l++)
            assert_non_null(strstr(FAKE.launches[l].kernel, cases[i].variant));
        const fwd_spill_args args = args_of(0);
        assert_ptr_equal(args.seq.lengths, c.cache.lengths);
        assert_int_equal(args.seq.nk, 1500);
        assert_int_equal(args.seq.batch, 4);
        assert_int_equal(args.run_blocks, cases[i].run_blocks);
        assert_int_equal(args.heads * args.q_tiles, 32 * 8);
        const size_t blocks = (size_t)32 * 8 * 2 * (size_t)cases[i].run_blocks;
        assert_true((const char *)args.zero >= (const char *)args.p + blocks * 8192);
    }
}

static void appended_keys_run_on_sm80(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b4h8k2,q1000k1500,d640", 0);
    use_cache(&c);
    c.cache.k_new = c.cache.v_new = c.f.k;
    c.cache.k_new.shape[2] = c.cache.v_new.shape[2] = 1;
    c.cache.k_new.data = (char *)c.f.o.data + ((uintptr_t)1 << 34); /* where nothing else is */
    c.cache.v_new.data = (char *)c.f.o.data + ((uintptr_t)1 << 35);
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
}

static void sizes_beyond_any_memory_are_planned_or_refused(void **state)
{
    (void)state;
    check_planned("fwd,bf16,b400000h2000,q128k128,d1024", "sm90_spill", NULL);
    check_planned("fwd,bf16,b4000000h2000,q128k128,d1024", "sm90_spill",
                  "takes at most 2^30 tiles");
    check_planned("fwd,bf16,b1h1000,q536870911k536870911,d512", "sm90_pair",
                  "takes at most 2^30 tiles");
}

static void too_small_a_workspace_is_left_to_sm80(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b1h32,q1000k100000,d640", 0);
    c.f.workspace_limit_bytes = 1 << 20;
    assert_ok(forward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_kernels_a_chunk, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(chunks_cover_every_head_and_row_once, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(chunks_of_causal_calls_are_whole_groups, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(a_warm_call_only_enqueues, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(what_it_does_not_take_runs_on_sm80, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(options_are_told, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(lengths_are_read_on_the_device, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(appended_keys_run_on_sm80, fake_set_up, fake_tear_down),
        cmocka_unit_test(sizes_beyond_any_memory_are_planned_or_refused),
        cmocka_unit_test_setup_teardown(too_small_a_workspace_is_left_to_sm80, fake_set_up,
                                        fake_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
