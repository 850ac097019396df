/* test_cuda_plans.c - what is planned for a list of problems and architectures, against a golden file: kernels,
 * their config.cuh, shared memory, workspace. FFPA_GOLDEN=write refreshes it; the diff is the review. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include "cuda/config.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *arch, *problem;
} PLANS[] = {
    {"sm_90a", "fwd,bf16,b1h32,q8192k8192,d512"},
    {"sm_90a", "fwd,bf16,b1h32k8,q8192k8192,d320,causal"},
    {"sm_90a", "fwd,bf16,b1h32k8,q8192k8192,d384,causal"},
    {"sm_90a", "fwd,bf16,b1h32k8,q8192k8192,d128,causal"},
    {"sm_90a", "fwd,f16,b1h32,q1024k1024,d192v128"},
    {"sm_90a", "fwd,bf16,b1h1,q9216k9216,d512"},
    {"sm_90a", "fwd,bf16,b1h2,q4096k4096,d256,causal,sink"},
    {"sm_90a", "fwd,f16,b2h16,q1000k1000,d72,mask=bool:bhqk,softcap30,alibi,sink,dropout0.1"},
    {"sm_90a", "fwd,f32,b1h4,q100k100,d1024"},
    {"sm_90a", "fwd,bf16,b8h32k4,q1k32768,d512"},
    {"sm_90a", "fwd,bf16,b2h8k2,q1k3000,d128,varlen=3000+17,page16"},
    {"sm_90a", "bwd,bf16,b1h32,q8192k8192,d512,causal"},
    {"sm_90a", "bwd,bf16,b2h32k8,q4096k4096,d128,causal"},
    {"sm_90a", "bwd,bf16,b1h8k2,q1000k1000,d320,mask=f32:qk,sink,dropout0.1"},
    {"sm_90a", "bwd,f32,b3h4,q700k700,d64,varlen=700+5+300"},
    {"sm_89", "fwd,bf16,b1h32,q8192k8192,d512"},
    {"sm_89", "fwd,bf16,b1h32,q8192k8192,d1024,causal"},
    {"sm_120a", "bwd,f16,b1h32,q8192k8192,d256"},
};

static void print_plan(FILE *out, const char *arch, const char *text)
{
    ffpa_problem ask = {.struct_size = sizeof ask};
    problem p;
    cuda_device device;
    char why[300];
    ffpa_report report = {.struct_size = sizeof report};
    variant_list *list = calloc(1, sizeof *list);
    assert_ok(ffpa_problem_parse(text, &ask));
    assert_ok(problem_of_ask(&p, &ask, "test"));
    problem_move(&p, FFPA_CUDA(0));
    assert_ok(cuda_device_of_arch(arch, &device));
    const family *f = family_for(&p, &device, NULL, why, sizeof why);
    assert_non_null(f);
    void *choice = calloc(1, f->choice_bytes);
    assert_ok(f->choose(&p, &device, choice, list, &report));
    fprintf(out, "==== %s %s: %s, %zu bytes of workspace, %d splits\n", arch, text, f->name,
            report.workspace_bytes, report.splits);
    for (int i = 0; i < list->count; i++) {
        assert_true(config_whole(&list->v[i]));
        assert_true(list->shared[i] <= (unsigned)device.shared_optin);
        fprintf(out, "-- %s, %u bytes of shared memory\n%s", list->v[i].file, list->shared[i],
                list->v[i].config);
    }
    free(choice);
    free(list);
}

static void plans_are_the_golden_ones(void **state)
{
    (void)state;
    char path[DISK_PATH], *text = NULL;
    size_t bytes, golden_bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (size_t i = 0; i < COUNT(PLANS); i++)
        print_plan(out, PLANS[i].arch, PLANS[i].problem);
    fclose(out);
    snprintf(path, sizeof path, "%.*s/../golden/cuda_plans.txt",
             (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__);
    if (getenv("FFPA_GOLDEN")) assert_true(disk_write(path, text, bytes, "", 0));
    char *golden = disk_read(&allocator_default, path, 1 << 20, &golden_bytes);
    assert_non_null(golden);
    if (golden_bytes != bytes || memcmp(golden, text, bytes) != 0) {
        size_t line = 1, at = 0;
        for (; at < bytes && at < golden_bytes && golden[at] == text[at]; at++)
            line += text[at] == '\n';
        fail_msg("plans differ from %s at line %zu: now \"%.60s\"; FFPA_GOLDEN=write refreshes",
                 path, line, text + at);
    }
    mem_free(&allocator_default, golden);
    free(text);
}

/* A family asked for by name is the only one looked at. */
static void one_family_alone(void **state)
{
    (void)state;
    ffpa_problem ask = {.struct_size = sizeof ask};
    char why[300];
    assert_ok(ffpa_problem_parse("fwd,bf16,b1h32,q8192k8192,d512", &ask));
    assert_string_equal(family_on_hopper(&ask, "sm80", why, sizeof why)->name, "sm80");
    assert_null(family_on_hopper(&ask, "sm00", why, sizeof why));
    assert_non_null(strstr(why, "no kernels of sm00"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_are_the_golden_ones),
                                       cmocka_unit_test(one_family_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
