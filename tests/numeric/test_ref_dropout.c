/* test_ref_dropout.c - Philox against its published vectors; the keep decision's statistics, its
 * threshold and what it depends on. */
#include "support/unit.h"

#include "core/dropout.h"

#include <math.h>

static void philox_gives_the_published_words(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t n = 0; n < COUNT(known); n++) {
        uint32_t words[4];
        philox_4x32(known[n].key, known[n].counter, words);
        assert_memory_equal(words, known[n].words, sizeof words);
    }
}

/* The decision spelled out: key and counter as docs and header define them. */
static void decision_reads_the_defined_word(void **state)
{
    (void)state;
    const uint64_t seed = 0x0123456789abcdef, offset = 0xfedcba9876543210;
    const dropout_key k = dropout_key_make(0.5f, seed, offset);
    for (int64_t j = 0; j < 9; j++) {
        const uint32_t key[2] = {0x89abcdef, 0x01234567 ^ 0xfedcba98};
        const uint32_t counter[4] = {(uint32_t)(j / 4), 7, 5, 0x76543210};
        uint32_t words[4];
        philox_4x32(key, counter, words);
        assert_int_equal(dropout_keeps(&k, 5, 7, j), words[j % 4] >= 0x80000000u);
    }
}

static int kept_of(float p, uint64_t seed, uint64_t offset, int64_t bh, int n)
{
    const dropout_key k = dropout_key_make(p, seed, offset);
    int kept = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            kept += dropout_keeps(&k, bh, i, j);
    return kept;
}

static void kept_share_is_within_four_sigma(void **state)
{
    (void)state;
    static const float ps[] = {0.1f, 0.3f, 0.5f, 0.9f};
    enum { N = 200 };
    for (size_t n = 0; n < COUNT(ps); n++) {
        const double p = (double)ps[n], sigma = sqrt(N * N * p * (1 - p));
        for (uint64_t seed = 0; seed < 3; seed++)
            assert_true(fabs(kept_of(ps[n], seed, 0, 0, N) - N * N * (1 - p)) < 4 * sigma);
    }
}

static void zero_keeps_all_and_one_drops_all(void **state)
{
    (void)state;
    assert_int_equal(kept_of(0.0f, 1, 2, 3, 64), 64 * 64);
    assert_int_equal(kept_of(1.0f, 1, 2, 3, 64), 0);
    assert_true(dropout_key_make(0.0f, 1, 2).keep_scale == 1.0f);
    assert_true(dropout_key_make(1.0f, 1, 2).keep_scale == 0.0f);
    assert_true(dropout_key_make(0.75f, 1, 2).keep_scale == 4.0f);
}

/* Two streams of one half agree about half of the time when they are independent. */
static void every_argument_matters(void **state)
{
    (void)state;
    enum { N = 64 };
    const uint64_t high = UINT64_C(1) << 40;
    const dropout_key base = dropout_key_make(0.5f, 11, 22);
    const dropout_key others[] = {
        dropout_key_make(0.5f, 12, 22), dropout_key_make(0.5f, 11, 23),
        dropout_key_make(0.5f, 11 + high, 22), dropout_key_make(0.5f, 11, 22 + high), base};
    for (size_t n = 0; n < COUNT(others); n++) {
        const int64_t other_head = n + 1 == COUNT(others); /* the last one differs in bh only */
        int same = 0;
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                same += dropout_keeps(&base, 0, i, j) ==
                        dropout_keeps(&others[n], other_head, i, j);
        assert_in_range(same, N * N / 2 - 4 * N / 2, N * N / 2 + 4 * N / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words),
        cmocka_unit_test(decision_reads_the_defined_word),
        cmocka_unit_test(kept_share_is_within_four_sigma),
        cmocka_unit_test(zero_keeps_all_and_one_drops_all),
        cmocka_unit_test(every_argument_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
