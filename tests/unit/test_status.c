/* test_status.c - names and texts of every status; the sentence and the path belong to a
 * thread. */
#include "support/unit.h"

#include "base/status.h"

#include <pthread.h>
#include <stdio.h>

static void every_status_has_name_and_text(void **state)
{
    (void)state;
#define FFPA_X(name, value, text_)                                     \
    assert_int_equal(FFPA_##name, value);                              \
    assert_string_equal(ffpa_status_name(FFPA_##name), "FFPA_" #name); \
    assert_string_equal(ffpa_status_text(FFPA_##name), text_);
    FFPA_STATUS_MAP(FFPA_X)
#undef FFPA_X
}

static void unknown_status_has_name_and_text(void **state)
{
    (void)state;
    for (int unknown = -2; unknown < 1000; unknown++) {
        if (unknown >= FFPA_OK && unknown <= FFPA_E_INTERNAL) continue;
        ffpa_status status;
        memcpy(&status, &unknown, sizeof status);
        assert_string_equal(ffpa_status_name(status), "FFPA_E_UNKNOWN");
        assert_string_equal(ffpa_status_text(status), "unknown status");
    }
}

static void a_sentence_is_cut_not_overrun(void **state)
{
    (void)state;
    char longer[4000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(fail(FFPA_E_INTERNAL, "%s", longer), FFPA_E_INTERNAL);
    const size_t kept = strlen(ffpa_last_error());
    assert_true(kept >= 200 && kept < sizeof longer - 1);
    path_taken(longer);
    assert_true(strlen(ffpa_last_path()) < 64); /* fits ffpa_report.path */
}

typedef struct visit {
    char error_before[8], path_before[8];
    int index;
    int mixed_up;
} visit;

static void *visitor(void *argument)
{
    visit *v = argument;
    snprintf(v->error_before, sizeof v->error_before, "%s", ffpa_last_error());
    snprintf(v->path_before, sizeof v->path_before, "%s", ffpa_last_path());
    for (int round = 0; round < 1000; round++) {
        char error[64], path[64];
        snprintf(error, sizeof error, "thread %d round %d", v->index, round);
        snprintf(path, sizeof path, "path %d/%d", v->index, round);
        (void)fail(FFPA_E_INVALID, "%s", error);
        path_taken(path);
        v->mixed_up +=
            strcmp(error, ffpa_last_error()) != 0 || strcmp(path, ffpa_last_path()) != 0;
    }
    return NULL;
}

static void sentence_and_path_are_per_thread(void **state)
{
    (void)state;
    (void)fail(FFPA_E_INVALID, "main");
    path_taken("main");
    pthread_t thread[4];
    visit visits[4];
    for (int i = 0; i < 4; i++) {
        visits[i] = (visit){.index = i};
        assert_int_equal(pthread_create(&thread[i], NULL, visitor, &visits[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_string_equal(visits[i].error_before, "");
        assert_string_equal(visits[i].path_before, "");
        assert_int_equal(visits[i].mixed_up, 0);
    }
    assert_string_equal(ffpa_last_error(), "main");
    assert_string_equal(ffpa_last_path(), "main");
}

static void version_is_the_headers(void **state)
{
    (void)state;
    assert_int_equal(ffpa_version(),
                     FFPA_VERSION_MAJOR << 16 | FFPA_VERSION_MINOR << 8 | FFPA_VERSION_PATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_and_text),
        cmocka_unit_test(unknown_status_has_name_and_text),
        cmocka_unit_test(a_sentence_is_cut_not_overrun),
        cmocka_unit_test(sentence_and_path_are_per_thread),
        cmocka_unit_test(version_is_the_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
