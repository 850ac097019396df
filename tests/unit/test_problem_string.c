/* test_problem_string.c - the text form of a problem: what each part means, its canonical form, and
 * a refusal that names the offending part for everything else. */
#include "support/unit.h"

#include <inttypes.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static ffpa_problem parsed(const char *text)
{
    ffpa_problem p = {.struct_size = sizeof p};
    assert_ok(ffpa_problem_parse(text, &p));
    assert_int_equal(p.struct_size, sizeof p);
    return p;
}

static void the_example_of_the_header(void **state)
{
    (void)state;
    const ffpa_problem p = parsed("bwd,bf16,b2h8k2,q300k301,d512v64,causal");
    assert_int_equal(p.op, FFPA_BACKWARD);
    assert_int_equal(p.dtype, FFPA_BF16);
    assert_int_equal(p.b, 2);
    assert_int_equal(p.hq, 8);
    assert_int_equal(p.hk, 2);
    assert_int_equal(p.nq, 300);
    assert_int_equal(p.nk, 301);
    assert_int_equal(p.d, 512);
    assert_int_equal(p.dv, 64);
    assert_int_equal(p.causal, FFPA_BOTTOM_RIGHT);
    assert_int_equal(p.has_window + p.mask_dtype + p.has_scale + p.alibi + p.sink + p.bnhd, 0);
}

static void every_option(void **state)
{
    (void)state;
    ffpa_problem p =
        parsed("fwd,f16,b1h2,q7k7,d8,causal_tl,win3:-1,mask=bf16:bk,softcap2.5,alibi,sink,"
               "dropout0.25,scale-0.5,bnhd,seed9,varlen=7");
    assert_int_equal(p.hk, 2);
    assert_int_equal(p.dv, 8);
    assert_int_equal(p.causal, FFPA_TOP_LEFT);
    assert_int_equal(p.has_window, 1);
    assert_int_equal(p.window_left, 3);
    assert_true(p.window_right < 0);
    assert_int_equal(p.mask_dtype, FFPA_BF16);
    assert_int_equal(p.mask_axes, 1 | 8);
    assert_true(p.softcap == 2.5f && p.dropout == 0.25f && p.scale == -0.5f);
    assert_int_equal(p.has_scale, 1);
    assert_int_equal(p.alibi + p.sink + p.bnhd, 3);
    assert_int_equal(p.seed, 9);
    assert_int_equal(p.n_lengths, 1);
    assert_int_equal(p.lengths[0], 7);
    assert_int_equal(parsed("fwd,f32,b1h1,q1k1,d1,mask=bool").mask_axes, 4 | 8);
    assert_int_equal(parsed("fwd,f32,b1h1,q1k1,d1,mask=f32:").mask_axes, 0);
    assert_int_equal(parsed("fwd,f64,b1h1,q1k1,d1").dtype, FFPA_F64);
    assert_int_equal(parsed("fwd,f32,b1h1,q1k1,d1,scale0").has_scale, 1);
    p = parsed("fwd,f32,b3h1,q1k9,d4,varlen=4+9+0,page4");
    assert_int_equal(p.page, 4);
    assert_int_equal(p.n_lengths, 3);
    assert_int_equal(p.lengths[2], 0);
}

/* Left: accepted. Right: its canonical form, which must give itself and the same problem. */
static void round_trip(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"fwd,f32,b1h1,q1k1,d1", NULL},
        {"bwd,bf16,b2h8k2,q300k300,d512,causal", NULL},
        {"fwd,f16,b1h4k4,q0k0,d0v0", "fwd,f16,b1h4,q0k0,d0"},
        {"fwd,f16,b001h04k02,q05k6,d7v7", "fwd,f16,b1h4k2,q5k6,d7"},
        {"fwd,f32,b1h1,q2k2,d4,sink,alibi,causal", "fwd,f32,b1h1,q2k2,d4,causal,alibi,sink"},
        {"fwd,f32,b1h1,q2k2,d4,win-1:0", NULL},
        {"fwd,f32,b1h1,q2k2,d4,win-7:-3", "fwd,f32,b1h1,q2k2,d4,win-1:-1"},
        {"fwd,f32,b1h1,q2k2,d4,win9223372036854775807:0", NULL},
        {"fwd,f32,b1h1,q2k2,d4,mask=f32:qk", "fwd,f32,b1h1,q2k2,d4,mask=f32"},
        {"fwd,f32,b1h1,q2k2,d4,mask=bool:kqhb", "fwd,f32,b1h1,q2k2,d4,mask=bool:bhqk"},
        {"fwd,f32,b1h1,q2k2,d4,mask=f16:", NULL},
        {"fwd,f32,b1h1,q2k2,d4,softcap3e1,dropout0.10000000149,scale0",
         "fwd,f32,b1h1,q2k2,d4,softcap30,dropout0.1,scale0"},
        {"fwd,f32,b1h1,q2k2,d4,softcap1e-45,scale-3.4028235e+38", NULL},
        {"fwd,f32,b1h1,q2k2,d4,softcap0,dropout0,seed0", "fwd,f32,b1h1,q2k2,d4"},
        {"fwd,f32,b1h1,q2k2,d4,bnhd,seed18446744073709551615", NULL},
        {"fwd,f32,b3h1,q5k5,d4,varlen=5+0+2", NULL},
        {"fwd,f32,b2h1,q1k9,d4,varlen=9+3,page4", NULL},
        {"fwd,f32,b2h1,q1k9,d4,page4", NULL},
        {"fwd,f32,b65537h1,q1k1099511627776,d4", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ffpa_problem p, again;
        char text[512], twice[512];
        memset(&p, 0x77, sizeof p);
        memset(&again, 0x33, sizeof again);
        p.struct_size = again.struct_size = sizeof p;
        assert_ok(ffpa_problem_parse(cases[i][0], &p));
        assert_ok(ffpa_problem_format(&p, text, sizeof text));
        assert_string_equal(text, cases[i][1] ? cases[i][1] : cases[i][0]);
        assert_ok(ffpa_problem_parse(text, &again));
        if (!strstr(cases[i][0], "win-7")) assert_memory_equal(&p, &again, sizeof p);
        assert_ok(ffpa_problem_format(&again, twice, sizeof twice));
        assert_string_equal(text, twice);
    }
}

static const struct {
    const char *text, *words;
} bad_texts[] = {
    {"", "''"},
    {"fwd", "too short"},
    {"fwd,f32,b1h1,q1k1", "too short"},
    {"forward,f32,b1h1,q1k1,d1", "'forward' at position 0: expected fwd or bwd"},
    {" fwd,f32,b1h1,q1k1,d1", "' fwd' at position 0"},
    {"fwd,f8,b1h1,q1k1,d1", "'f8' at position 4"},
    {"fwd,bool,b1h1,q1k1,d1", "'bool' at position 4"},
    {"fwd,f32x,b1h1,q1k1,d1", "'f32x'"},
    {"fwd,f32,h1,q1k1,d1", "'h1' at position 8"},
    {"fwd,f32,b1,q1k1,d1", "'b1'"},
    {"fwd,f32,b-1h1,q1k1,d1", "'b-1h1'"},
    {"fwd,f32,b1h1k,q1k1,d1", "'b1h1k'"},
    {"fwd,f32,b1h1x,q1k1,d1", "'b1h1x'"},
    {"fwd,f32,b9223372036854775808h1,q1k1,d1", "'b9223372036854775808h1'"},
    {"fwd,f32,b1h1,q1,d1", "'q1' at position 13"},
    {"fwd,f32,b1h1,k1q1,d1", "'k1q1'"},
    {"fwd,f32,b1h1,q1k1,512", "'512' at position 18"},
    {"fwd,f32,b1h1,q1k1,d1v", "'d1v'"},
    {"fwd,f32,b1h1,q1k1,d1,", "'' at position 21"},
    {"fwd,f32,b1h1,q1k1,d1,,causal", "'' at position 21"},
    {"fwd,f32,b1h1,q1k1,d1,causality", "'causality'"},
    {"fwd,f32,b1h1,q1k1,d1,CAUSAL", "'CAUSAL'"},
    {"fwd,f32,b1h1,q1k1,d1,causal,causal", "at most once"},
    {"fwd,f32,b1h1,q1k1,d1,causal,causal_tl", "at most once"},
    {"fwd,f32,b1h1,q1k1,d1,seed1,seed1", "at most once"},
    {"fwd,f32,b1h1,q1k1,d1,win4", "'win4'"},
    {"fwd,f32,b1h1,q1k1,d1,win:4", "'win:4'"},
    {"fwd,f32,b1h1,q1k1,d1,mask", "'mask'"},
    {"fwd,f32,b1h1,q1k1,d1,mask=f64", "'mask=f64'"},
    {"fwd,f32,b1h1,q1k1,d1,mask=bool:kk", "'mask=bool:kk'"},
    {"fwd,f32,b1h1,q1k1,d1,mask=bool:x", "'mask=bool:x'"},
    {"fwd,f32,b1h1,q1k1,d1,softcap", "'softcap'"},
    {"fwd,f32,b1h1,q1k1,d1,softcapnan", "'softcapnan'"},
    {"fwd,f32,b1h1,q1k1,d1,softcap1e999", "softcap"},
    {"fwd,f32,b1h1,q1k1,d1,softcap-1", "softcap=-1"},
    {"fwd,f32,b1h1,q1k1,d1,softcap0x10", "'softcap0x10'"},
    {"fwd,f32,b1h1,q1k1,d1,scaleinf", "'scaleinf'"},
    {"fwd,f32,b1h1,q1k1,d1,scale1.5.5", "'scale1.5.5'"},
    {"fwd,f32,b1h1,q1k1,d1,dropout1.01", "dropout"},
    {"fwd,f32,b1h1,q1k1,d1,dropout-0.1", "dropout"},
    {"fwd,f32,b1h1,q1k1,d1,seed-1", "'seed-1'"},
    {"fwd,f32,b1h1,q1k1,d1,varlen=", "'varlen='"},
    {"fwd,f32,b1h1,q1k1,d1,varlen=1+", "'varlen=1+'"},
    {"fwd,f32,b1h1,q4k4,d1,varlen=3", "longest varlen length is 3"},
    {"fwd,f32,b2h1,q4k4,d1,varlen=4", "1 lengths for B=2"},
    {"fwd,f32,b1h1,q1k1,d1,page0", "'page0'"},
    {"fwd,f32,b1h1,q1k1,d1,page-1", "'page-1'"},
    {"bwd,f32,b1h1,q1k4,d1,page4", "no backward"},
    {"fwd,f32,b1h1,q1k1,d1025", "D=1025"},
    {"fwd,f32,b1h1,q1k1,d1v1025", "Dv=1025"},
    {"fwd,f32,b1h8k3,q1k1,d1", "does not divide"},
    {"fwd,f32,b1h8k0,q1k1,d1", "does not divide"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_texts); i++) {
        ffpa_problem p, before;
        memset(&p, 0x77, sizeof p);
        before = p;
        const ffpa_status got = ffpa_problem_parse(bad_texts[i].text, &p);
        if (got != FFPA_E_INVALID || !strstr(ffpa_last_error(), bad_texts[i].words))
            fail_msg("\"%s\": %s \"%s\", wanted \"%s\"", bad_texts[i].text,
                     ffpa_status_name(got), ffpa_last_error(), bad_texts[i].words);
        assert_memory_equal(&p, &before, sizeof p);
    }
}

static void too_many_lengths_and_too_long_a_text(void **state)
{
    (void)state;
    char text[2000] = "fwd,f32,b33h1,q1k1,d1,varlen=1";
    for (int i = 0; i < 32; i++)
        strcat(text, "+1");
    ffpa_problem p = {.struct_size = sizeof p};
    assert_status(ffpa_problem_parse(text, &p), FFPA_E_INVALID, "at most 32");
    memset(text, ',', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_status(ffpa_problem_parse(text, &p), FFPA_E_INVALID, "longer than 1023");
}

/* A capacity too small gives an empty string, never half of one, and writes nothing past it. */
static void every_capacity(void **state)
{
    (void)state;
    const char *const canonical =
        "fwd,bf16,b1h32k8,q4096k4096,d512v256,causal,win5:-1,softcap30";
    const ffpa_problem p = parsed(canonical);
    for (size_t capacity = 1; capacity < 100; capacity++) {
        char text[128];
        memset(text, 'x', sizeof text);
        if (capacity > strlen(canonical)) {
            assert_ok(ffpa_problem_format(&p, text, capacity));
            assert_string_equal(text, canonical);
        } else {
            assert_status(ffpa_problem_format(&p, text, capacity), FFPA_E_INVALID, "capacity=");
            assert_int_equal(text[0], '\0');
        }
        for (size_t i = capacity; i < sizeof text; i++)
            assert_int_equal(text[i], 'x');
    }
    char one;
    assert_status(ffpa_problem_format(&p, &one, 0), FFPA_E_INVALID, "capacity is 0");
    assert_status(ffpa_problem_format(&p, NULL, 9), FFPA_E_INVALID, "text is NULL");
}

/* Every number as long as it can be. */
static void the_longest_problem_fits(void **state)
{
    (void)state;
    ffpa_problem p = parsed(
                     "fwd,bf16,b32h1,q1k1,d1000v1001,causal_tl,win1:1,mask=bool:bhqk,"
                     "softcap1.00000001e-30,alibi,sink,dropout1.23456789e-30,"
                     "scale-1.23456789e-30,bnhd,seed18446744073709551615,page2147483647"),
                 again = p;
    p.nk = p.nq = p.hq = INT64_MAX, p.hk = 1;
    p.window_left = p.window_right = INT64_MAX;
    p.n_lengths = FFPA_MAX_LENGTHS;
    for (int i = 0; i < FFPA_MAX_LENGTHS; i++)
        p.lengths[i] = INT64_MAX;
    char text[1024];
    assert_ok(ffpa_problem_format(&p, text, sizeof text));
    assert_true(strlen(text) > 900);
    assert_ok(ffpa_problem_parse(text, &again));
    assert_memory_equal(&p, &again, sizeof p);
}

/* A problem made by hand may hold anything; format refuses what parse would never make. */
static void format_checks_its_problem(void **state)
{
    (void)state;
    const ffpa_problem good = parsed("fwd,f32,b2h4k2,q5k6,d8");
    char text[512];
    ffpa_problem p = good;
    p.op = 3;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "op=3");
    p = good, p.dtype = FFPA_I32;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "dtype");
    p = good, p.dtype = FFPA_E5M2;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_UNSUPPORTED, "e5m2");
    p = good, p.nq = -1;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "Nq=-1");
    p = good, p.mask_axes = 4;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "mask_axes=4");
    p = good, p.n_lengths = FFPA_MAX_LENGTHS + 1;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "33 lengths");
    p = good, p.n_lengths = -1;
    assert_status(ffpa_problem_format(&p, text, sizeof text), FFPA_E_INVALID, "-1 lengths");
}

/* A program's locale may write 0,5: problem strings never do. Where no such locale is installed, one is
 * made if the machine can. */
static bool comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "comma"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (setlocale(LC_ALL, names[i]) && localeconv()->decimal_point[0] == ',') return true;
    char folder[] = "/tmp/ffpa-locale-XXXXXX", command[200];
    if (!mkdtemp(folder)) return false;
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/comma >/dev/null 2>&1",
             folder);
    bool made = system(command) == 0 && setenv("LOCPATH", folder, 1) == 0 &&
                setlocale(LC_ALL, "comma") && localeconv()->decimal_point[0] == ',';
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 && made;
}

static void numbers_have_points_in_every_locale(void **state)
{
    if (!comma_locale()) skip();
    char half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);
    assert_string_equal(half, "0,5");
    round_trip(state);
    every_option(state);
    refusals(state);
    ffpa_problem p = {.struct_size = sizeof p};
    assert_status(ffpa_problem_parse("fwd,f32,b1h1,q1k1,d1,softcap0,5", &p), FFPA_E_INVALID,
                  "'5'");
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_header),
        cmocka_unit_test(every_option),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(refusals),
        cmocka_unit_test(too_many_lengths_and_too_long_a_text),
        cmocka_unit_test(every_capacity),
        cmocka_unit_test(format_checks_its_problem),
        cmocka_unit_test(the_longest_problem_fits),
        cmocka_unit_test(numbers_have_points_in_every_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
