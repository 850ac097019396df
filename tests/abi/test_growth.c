/* test_growth.c - params structs may grow. An old program hands a shorter struct to this library: it
 * reads zeros for what is missing. A newer program hands a longer one: fine as long as it leaves the
 * fields that this library lacks at zero, FFPA_E_NEWER once it uses one. */
#include "support/sample_call.h"
#include "support/unit.h"

#include "core/call.h"

#include <stdlib.h>

enum { TAIL = 40 };

/* A copy of a struct as a newer header would have it: TAIL more bytes, zero but for one of them. */
static void *newer(const void *params, size_t bytes, int used)
{
    const size_t longer = bytes + TAIL;
    char *copy = calloc(1, longer); /* exactly as long as it says: a read past it is an error */
    assert_non_null(copy);
    memcpy(copy, params, bytes);
    memcpy(copy, &longer, sizeof longer);
    if (used >= 0) copy[bytes + (size_t)used] = 1;
    return copy;
}

/* Call with the struct as it is, with an unused longer one, and with a used longer one. */
#define CHECK_NEWER(params, call, what)                             \
    do {                                                            \
        for (int used_ = -1; used_ < TAIL; used_ += 13) {           \
            void *longer = newer(&(params), sizeof(params), used_); \
            if (used_ < 0)                                          \
                assert_ok(call);                                    \
            else                                                    \
                assert_status(call, FFPA_E_NEWER, what);            \
            free(longer);                                           \
        }                                                           \
    } while (0)

static ffpa_context *open_context(void)
{
    ffpa_context *ctx;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .backend = "reference", .threads = 1};
    assert_ok(ffpa_context_create(&options, &ctx));
    return ctx;
}

static void newer_params(void **state)
{
    (void)state;
    static sample_call s;
    ffpa_context *ctx = open_context();
    sample_init(&s);
    CHECK_NEWER(s.f, ffpa_forward(ctx, longer), "params");
    CHECK_NEWER(s.g, ffpa_backward(ctx, longer), "params");
    CHECK_NEWER(s.m, ffpa_merge(ctx, longer), "params");
    CHECK_NEWER(s.f, (s.g.forward = longer, ffpa_backward(ctx, &s.g)), "params");
    ffpa_context_destroy(ctx);
}

static void newer_side_structs(void **state)
{
    (void)state;
    static sample_call s;
    ffpa_context *ctx = open_context();
    sample_init(&s);
    CHECK_NEWER(s.dropout, (s.f.dropout = longer, ffpa_forward(ctx, &s.f)), "dropout");
    sample_init(&s);
    CHECK_NEWER(s.rows, (s.f.rows = longer, ffpa_forward(ctx, &s.f)), "rows");
    sample_init(&s);
    sample_attach_varlen(&s);
    CHECK_NEWER(s.varlen, (s.f.varlen = longer, ffpa_forward(ctx, &s.f)), "varlen");
    sample_init(&s);
    sample_attach_cache(&s);
    CHECK_NEWER(s.cache, (s.f.kv_cache = longer, ffpa_forward(ctx, &s.f)), "kv_cache");
    sample_init(&s);
    void *quant =
        newer(&s.quant, sizeof s.quant, 3); /* refused in either case, but for its tail first */
    s.f.quant = quant;
    assert_status(ffpa_forward(ctx, &s.f), FFPA_E_NEWER, "quant");
    free(quant);
    ffpa_context_destroy(ctx);
}

static ffpa_status create_and_destroy(const ffpa_context_options *options)
{
    ffpa_context *ctx;
    const ffpa_status status = ffpa_context_create(options, &ctx);
    ffpa_context_destroy(ctx);
    return status;
}

static void newer_options_problem_and_report(void **state)
{
    (void)state;
    ffpa_context *ctx = open_context();
    const ffpa_context_options options = {.struct_size = sizeof options};
    ffpa_problem problem = {.struct_size = sizeof problem};
    char text[512];
    CHECK_NEWER(options, create_and_destroy(longer), "options");
    assert_ok(ffpa_problem_parse("fwd,f32,b1h1,q2k2,d4", &problem));
    CHECK_NEWER(problem, ffpa_problem_format(longer, text, sizeof text), "problem");
    ffpa_report report = {.struct_size = sizeof report};
    CHECK_NEWER(problem, ffpa_explain(ctx, longer, &report), "problem");

    /* A report is filled by the library: as much of it as the caller's struct has, not a byte more. */
    struct {
        ffpa_report report;
        char later[TAIL];
    } longer_report = {.report.struct_size = sizeof longer_report};
    memset(longer_report.later, 0x77, TAIL);
    assert_ok(ffpa_explain(ctx, &problem, &longer_report.report));
    assert_string_equal(longer_report.report.path, "reference/forward");
    for (int i = 0; i < TAIL; i++)
        assert_int_equal(longer_report.later[i], 0x77);
    assert_int_equal(longer_report.report.struct_size, sizeof longer_report);
    memset(&report, 0x77, sizeof report);
    report.struct_size = offsetof(ffpa_report, tile_q);
    assert_ok(ffpa_explain(ctx, &problem, &report));
    assert_true(report.flop == 2.0 * 4 * (4 + 4));
    assert_int_equal(report.tile_q, 0x77777777);
    ffpa_context_destroy(ctx);
}

/* A problem string fills a struct of the caller's version: no byte past its end, zeros past what this library
 * knows, nothing at all when it is too short for what the text asks for. */
static void problem_strings_fill_any_version(void **state)
{
    (void)state;
    const char *const text = "fwd,f32,b1h1,q2k2,d4,causal";
    ffpa_problem p = {.struct_size = sizeof p};
    struct {
        ffpa_problem today;
        char later[TAIL], beyond;
    } newer;
    memset(&newer, 0x77, sizeof newer);
    const size_t bytes = sizeof p + TAIL;
    newer.today.struct_size = bytes;
    assert_ok(ffpa_problem_parse(text, &newer.today));
    assert_int_equal(newer.today.struct_size, bytes);
    assert_int_equal(newer.today.causal, FFPA_BOTTOM_RIGHT);
    for (int i = 0; i < TAIL; i++)
        assert_int_equal(newer.later[i], 0);
    assert_int_equal(newer.beyond, 0x77);

    p.struct_size = 0;
    assert_status(ffpa_problem_parse(text, &p), FFPA_E_INVALID,
                  "problem.struct_size=0 is below");
    p.struct_size = SIZE_MAX;
    assert_status(ffpa_problem_parse(text, &p), FFPA_E_INVALID, "problem.struct_size=");
}

/* This library's structs in a later library: the ones that a program compiled today hands over. */
typedef struct later_params {
    ffpa_forward_params today;
    int64_t added[4];
} later_params;

static void todays_program_in_a_later_library(void **state)
{
    (void)state;
    static sample_call s;
    later_params read;
    sample_init(&s);
    memset(&read, 0x77, sizeof read);
    ffpa_forward_params *today = malloc(sizeof *today);
    assert_non_null(today);
    *today = s.f;
    assert_ok(params_read(&read, sizeof read, sizeof *today, today, "fn", "params"));
    free(today);
    for (int i = 0; i < 4; i++)
        assert_int_equal(read.added[i], 0);
    assert_int_equal(read.today.struct_size, sizeof read);
    read.today.struct_size = s.f.struct_size;
    assert_memory_equal(&read.today, &s.f, sizeof s.f);
}

/* What a later library fills of a struct that a program compiled today hands over. */
static void a_later_library_fills_todays_struct(void **state)
{
    (void)state;
    later_params ours = {.today.causal = FFPA_TOP_LEFT};
    ffpa_forward_params *today = malloc(sizeof *today); /* a write past it is an error */
    assert_non_null(today);
    *today = ffpa_forward_params_init();
    assert_ok(params_give(today, sizeof *today, &ours, sizeof ours, "fn", "params"));
    assert_int_equal(today->causal, FFPA_TOP_LEFT);
    assert_int_equal(today->struct_size, sizeof *today);
    ours.added[2] = 1;
    today->causal = FFPA_BOTTOM_RIGHT;
    assert_status(params_give(today, sizeof *today, &ours, sizeof ours, "fn", "params"),
                  FFPA_E_INVALID, "fn: this needs byte 768 of params");
    assert_int_equal(today->causal, FFPA_BOTTOM_RIGHT);
    free(today);
}

static void sizes_out_of_reason(void **state)
{
    (void)state;
    later_params dst;
    ffpa_forward_params src = ffpa_forward_params_init();
    const size_t min = sizeof src;
    src.struct_size = min - 1;
    assert_status(params_read(&dst, sizeof dst, min, &src, "fn", "params"), FFPA_E_INVALID,
                  "fn: params.struct_size=751 is below 752");
    src.struct_size = SIZE_MAX;
    assert_status(params_read(&dst, sizeof dst, min, &src, "fn", "params"), FFPA_E_INVALID,
                  "fn: params.struct_size=");
    assert_status(params_read(&dst, sizeof dst, min, NULL, "fn", "params"), FFPA_E_INVALID,
                  "fn: params is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newer_params),
        cmocka_unit_test(newer_side_structs),
        cmocka_unit_test(newer_options_problem_and_report),
        cmocka_unit_test(problem_strings_fill_any_version),
        cmocka_unit_test(todays_program_in_a_later_library),
        cmocka_unit_test(a_later_library_fills_todays_struct),
        cmocka_unit_test(sizes_out_of_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
