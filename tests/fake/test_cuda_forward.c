/* test_cuda_forward.c - the forward pass as the driver sees it: which kernels with which arguments, nothing
 * but launches on a warm call, every failure in turn, devices missing or unfit. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include "common/args.h"

#include <stdio.h>
#include <stdlib.h>

static void a_call_becomes_one_launch(void **state)
{
    device_call c;
    fwd_args args;
    FAKE.cc = 80;
    device_call_make(&c, "fwd,bf16,b2h8k2,q300k500,d512,causal,bnhd,scale0.25", 1);
    assert_ok(forward(*state, &c));
    assert_int_equal(FAKE.launch_count, 1);
    const fake_launch *l = &FAKE.launches[0];
    assert_int_equal(l->block, 256);
    assert_ptr_equal(l->stream, c.f.stream);
    memcpy(&args, l->args, sizeof args);
    assert_int_equal(l->grid, args.splits * args.hq * args.tiles);
    assert_ptr_equal(args.q.data, c.f.q.data);
    assert_ptr_equal(args.lse.data, c.f.lse.data);
    assert_int_equal(args.k.sb, 500 * 2 * 512);
    assert_int_equal(args.k.sh, 512);
    assert_int_equal(args.k.sn, 2 * 512);
    assert_int_equal(args.k.sd, 1);
    assert_int_equal(args.hq, 8);
    assert_int_equal(args.hk, 2);
    assert_int_equal(args.group, 4);
    assert_int_equal(args.seq.batch, 2);
    assert_int_equal(args.seq.nq, 300);
    assert_int_equal(args.seq.nk, 500);
    assert_int_equal(args.scores.right, 0);
    assert_int_equal(args.scores.left, -1);
    assert_int_equal(args.scores.top_left, 0);
    assert_true(args.scores.scale == 0.25f);
    assert_null(args.scores.mask.data);
    assert_string_equal(ffpa_last_path(), "cuda/sm80/forward");
}

static void the_tensors_device_is_current_and_only_meanwhile(void **state)
{
    device_call c;
    void *contexts[2];
    for (int device = 0; device < 2; device++) {
        device_call_make(&c, "fwd,f16,b1h2,q70k70,d64", device);
        assert_ok(forward(*state, &c));
        contexts[device] = FAKE.launches[device].context;
        assert_non_null(contexts[device]);
        assert_int_equal(FAKE.depth, 0);
    }
    assert_ptr_not_equal(contexts[0], contexts[1]);
    device_call_make(&c, "fwd,f16,b1h2,q70k70,d64", 2);
    assert_status(forward(*state, &c), FFPA_E_INVALID,
                  "the tensors are on FFPA_CUDA(2), but this process sees 2 devices");
}

/* What a capturing stream allows: after the first call, three driver calls, of which one enqueues. */
static void a_warm_call_only_enqueues(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,f32,b1h32,q2048k512,d256", 0);
    assert_ok(forward(*state, &c));
    const int calls = FAKE.calls, made = fake_allocations(), loads = FAKE.loads;
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.calls, calls + 3);
    assert_int_equal(fake_allocations(), made);
    assert_int_equal(FAKE.loads, loads);
    assert_int_equal(FAKE.launch_count, 2);
}

static void few_rows_and_many_keys_are_split_and_combined(void **state)
{
    device_call c;
    fwd_args args;
    combine_args combine;
    device_call_make(&c, "fwd,bf16,b2h32k4,q1k32768,d512", 0);
    assert_ok(ffpa_forward_workspace(*state, &c.f, &c.f.workspace_bytes));
    assert_true(c.f.workspace_bytes > 0);
    c.f.workspace_bytes--;
    assert_status(ffpa_forward(*state, &c.f), FFPA_E_WORKSPACE, "this plan needs");
    assert_int_equal(FAKE.launch_count, 0);
    c.f.workspace_bytes++;
    assert_ok(ffpa_forward(*state, &c.f));
    assert_int_equal(FAKE.launch_count, 2);
    memcpy(&args, FAKE.launches[0].args, sizeof args);
    memcpy(&combine, FAKE.launches[1].args, sizeof combine);
    assert_true(args.splits > 1);
    assert_int_equal(combine.splits, args.splits);
    assert_int_equal(FAKE.launches[0].grid,
                     args.splits * 4 * args.tiles); /* a group is packed into the rows */
    assert_ptr_equal(args.o_part, c.f.workspace);
    assert_ptr_equal(combine.o_part, args.o_part);
    assert_ptr_equal(combine.lse_part, args.lse_part);
    const char *end = (const char *)args.lse_part + (size_t)args.splits * 32 * 2 * 4;
    assert_true(end <= (const char *)c.f.workspace + c.f.workspace_bytes);
    assert_true((const char *)args.lse_part >=
                (const char *)args.o_part + (size_t)args.splits * 32 * 2 * 512 * 4);
}

static void the_workspace_limit_bounds_the_splits(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,bf16,b2h32k4,q1k32768,d512", 0);
    for (size_t limit = 1 << 16; limit <= 1 << 24; limit *= 4) {
        c.f.workspace_limit_bytes = limit;
        assert_ok(ffpa_forward_workspace(*state, &c.f, &c.f.workspace_bytes));
        assert_true(c.f.workspace_bytes <= limit + 256); /* and padding */
        assert_ok(ffpa_forward(*state, &c.f));
    }
}

static void strides_decide_the_kernel_even_of_a_plan(void **state)
{
    device_call c;
    ffpa_plan *plan;
    device_call_make(&c, "fwd,bf16,b1h2,q128k128,d64", 0);
    assert_ok(ffpa_plan_forward(*state, &c.f, &plan));
    assert_int_equal(FAKE.compiles, 1);
    assert_ok(ffpa_plan_run_forward(plan, &c.f));
    assert_int_equal(FAKE.compiles, 1);
    c.f.k.stride[2] = 65;
    c.f.k.stride[1] = 65 * 128;
    assert_ok(ffpa_plan_run_forward(plan, &c.f));
    assert_int_equal(FAKE.compiles, 2);
    c.f.causal = FFPA_TOP_LEFT;
    assert_status(ffpa_plan_run_forward(plan, &c.f), FFPA_E_INVALID,
                  "differ from the planned ones");
    ffpa_plan_destroy(plan);
}

static void nothing_to_compute_launches_nothing(void **state)
{
    static const char *const problems[] = {"fwd,f16,b0h2,q70k70,d64", "fwd,f16,b1h2,q0k70,d64",
                                           "fwd,f16,b1h0k0,q7k7,d64"};
    device_call c;
    for (size_t i = 0; i < COUNT(problems); i++) {
        device_call_make(&c, problems[i], 0);
        assert_ok(forward(*state, &c));
    }
    assert_int_equal(FAKE.launch_count, 0);
    device_call_make(&c, "fwd,f16,b1h2,q7k0,d64", 0); /* no keys: zeros are written */
    assert_ok(forward(*state, &c));
    assert_int_equal(FAKE.launch_count, 1);
}

static void host_tensors_and_f64_are_refused_with_reasons(void **state)
{
    device_call c;
    ffpa_report report = {.struct_size = sizeof report};
    device_call_make(&c, "fwd,f16,b1h2,q70k70,d64", 0);
    c.f.q.device = c.f.k.device = c.f.v.device = c.f.o.device = c.f.lse.device = FFPA_HOST;
    assert_status(ffpa_forward(*state, &c.f), FFPA_E_UNSUPPORTED,
                  "cuda: the tensors are in host memory");
    device_call_make(&c, "fwd,f64,b1h2,q70k70,d64", 0);
    c.f.lse.dtype = FFPA_F64;
    assert_status(ffpa_forward_supported(*state, &c.f, &report), FFPA_E_UNSUPPORTED,
                  "f64 runs on the reference");
    assert_non_null(strstr(report.refusals, "sm80: f64"));
}

static void a_machine_without_a_usable_gpu_says_why(void **state)
{
    device_call c;
    device_call_make(&c, "fwd,f16,b1h2,q70k70,d64", 0);
    FAKE.no_driver = true;
    assert_status(forward(*state, &c), FFPA_E_NO_DEVICE,
                  "there is no NVIDIA driver: libcuda.so.1: cannot open");
    FAKE.no_driver = false, FAKE.old_driver = true;
    assert_status(forward(*state, &c), FFPA_E_NO_DEVICE, "older than CUDA 12.0");
    FAKE.old_driver = false, FAKE.driver_version = 11080;
    assert_status(forward(*state, &c), FFPA_E_NO_DEVICE,
                  "serves CUDA 11.8; this library needs 12.0");
    FAKE.driver_version = 13000, FAKE.devices = 0;
    assert_status(forward(*state, &c), FFPA_E_NO_DEVICE, "finds no GPU");
    FAKE.devices = 1, FAKE.cc = 75;
    assert_status(forward(*state, &c), FFPA_E_NO_DEVICE,
                  "compute capability 7.5; 8.0 or newer is needed");
    fake_context_free(*state);
    *state = fake_context(NULL, JIT_ON);
    FAKE.cc = 89, FAKE.shared_optin = 101376, FAKE.driver_version = 12040;
    assert_status(forward(*state, &c), FFPA_E_COMPILE,
                  "CUDA 13.0 is newer than the driver's CUDA 12");
    fake_context_free(*state);
    fake_reset();
    FAKE.no_func_load = true; /* CUDA 12.0 to 12.3 */
    *state = fake_context(NULL, JIT_ON);
    assert_ok(forward(*state, &c));
}

/* Failures that a call may survive: the compiler's log is only a comment, and a device that could not be
 * opened when the backend was asked what it supports is opened again when it plans. */
static bool forgiven(const char *name)
{
    static const char *const names[] = {
        "nvrtcGetProgramLog", "cuGetProcAddress", "cuInit",
        "cuDriverGetVersion", "cuDeviceGet",      "cuDevicePrimaryCtxRetain"};
    bool found = false;
    for (size_t i = 0; i < COUNT(names); i++)
        found = found || strncmp(name, names[i], strlen(names[i])) == 0;
    return found;
}

/* Each call of driver and compiler fails once, from a cold start to the launch. */
static void fail_each_call(void **state, const char *text)
{
    device_call c;
    int n = 1;
    device_call_make(&c, text, 0);
    fake_context_free(*state);
    for (;; n++) {
        fake_reset();
        FAKE.fail_at = n;
        *state = fake_context(NULL, JIT_ON);
        const ffpa_status status = forward(*state, &c);
        if (status == FFPA_OK) {
            if (*FAKE.failed && !forgiven(FAKE.failed))
                fail_msg("%s (call %d) was ignored", FAKE.failed, n);
        } else {
            const bool known = status == FFPA_E_DRIVER || status == FFPA_E_NO_DEVICE ||
                               status == FFPA_E_COMPILE;
            if (!known) fail_msg("%s (call %d): %s", FAKE.failed, n, ffpa_status_name(status));
            if (status == FFPA_E_DRIVER)
                assert_non_null(strstr(ffpa_last_error(), "CUDA_ERROR_ON_DEMAND"));
        }
        assert_int_equal(FAKE.depth, 0);
        assert_int_equal(FAKE.programs, 0);
        FAKE.fail_at = 0;
        assert_ok(forward(*state, &c)); /* the next call works */
        if (!*FAKE.failed) break;
        fake_context_free(*state);
        if (FAKE.retained || FAKE.modules || FAKE.libraries || fake_allocations_alive())
            fail_msg("%s (call %d) leaks", FAKE.failed, n);
    }
    assert_true(n > 40);
}

static void every_call_may_fail(void **state)
{
    fail_each_call(state, "fwd,bf16,b2h32k4,q1k32768,d512");
}

static void every_call_with_tensor_maps_may_fail(void **state)
{
    fail_each_call(state, "fwd,bf16,b1h32,q500k500,d512");
    fake_context_free(*state);
    fake_reset();
    *state = fake_context(NULL, JIT_ON);
    fail_each_call(state, "fwd,bf16,b1h32,q500k500,d640");
}

static void every_allocation_may_fail(void **state)
{
    device_call c;
    int n = 0;
    bool reached = true;
    device_call_make(&c, "fwd,bf16,b1h32,q500k500,d512", 0);
    fake_context_free(*state);
    *state = NULL;
    while (reached) {
        fake_allocations_fail_at(++n);
        ffpa_context *ctx = fake_context(NULL, JIT_ON);
        if (ctx) {
            const ffpa_status status = forward(ctx, &c);
            reached = fake_allocations() >= n;
            assert_true(status == FFPA_OK || (reached && status == FFPA_E_OUT_OF_MEMORY));
            fake_allocations_fail_at(0);
            assert_ok(forward(ctx, &c));
        }
        fake_context_free(ctx);
        assert_int_equal(fake_allocations_alive(), 0);
    }
    assert_true(n > 8);
}

static void the_host_needs_microseconds(void **state)
{
    check_host_time(*state, "fwd,bf16,b1h32,q8192k8192,d512,causal");
    check_host_time(*state, "fwd,bf16,b2h32k4,q1k32768,d512");
}

static void merges_go_to_the_tensors_device(void **state)
{
    device_call c;
    merge_args args;
    device_call_make(&c, "fwd,f16,b2h3,q70k70,d64", 1);
    ffpa_merge_params m = ffpa_merge_params_init();
    m.o_a = c.f.o, m.o_b = c.f.q, m.o = c.f.k, m.lse_a = m.lse_b = c.f.lse;
    assert_ok(ffpa_merge(*state, &m));
    assert_string_equal(ffpa_last_path(), "cuda/any/merge");
    memcpy(&args, FAKE.launches[0].args, sizeof args);
    assert_int_equal(FAKE.launches[0].grid, (2 * 3 * 70 + 7) / 8);
    assert_ptr_equal(args.o.data, m.o.data);
    assert_null(args.lse.data);
    const int calls = FAKE.calls, made = fake_allocations();
    assert_ok(ffpa_merge(*state, &m)); /* warm: context in and out, the launch */
    assert_int_equal(FAKE.calls, calls + 3);
    assert_int_equal(fake_allocations(), made);
    m.lse_b.device = FFPA_CUDA(0);
    assert_status(ffpa_merge(*state, &m), FFPA_E_INVALID, "lse_b.device=1, but o_a.device=2");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_call_becomes_one_launch),
        TEST(the_tensors_device_is_current_and_only_meanwhile),
        TEST(a_warm_call_only_enqueues),
        TEST(few_rows_and_many_keys_are_split_and_combined),
        TEST(the_workspace_limit_bounds_the_splits),
        TEST(strides_decide_the_kernel_even_of_a_plan),
        TEST(nothing_to_compute_launches_nothing),
        TEST(host_tensors_and_f64_are_refused_with_reasons),
        TEST(a_machine_without_a_usable_gpu_says_why),
        TEST(every_call_may_fail),
        TEST(every_call_with_tensor_maps_may_fail),
        TEST(every_allocation_may_fail),
        TEST(the_host_needs_microseconds),
        TEST(merges_go_to_the_tensors_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
