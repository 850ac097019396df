/* test_nvrtc_find.c - where the run-time compiler is looked for, in which order, and what is passed over: empty files in
 * the layouts of its packages, opened by the fake machine. */
#include "fake/fake_cuda.h"
#include "support/unit.h"

#include "cuda/nvrtc.h"

#include <stdio.h>
#include <stdlib.h>

static int set_up(void **state)
{
    static char folder[64];
    fake_reset();
    fake_folder_new(folder);
    *state = folder;
    return 0;
}

static int tear_down(void **state)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", (const char *)*state);
    return system(command) != 0 || FAKE.libraries != 0;
}

/* An empty file, with the folders above it. */
static void put(const char *folder, const char *name)
{
    char path[DISK_PATH], above[DISK_PATH];
    assert_true(disk_join(path, folder, name));
    snprintf(above, sizeof above, "%s", path);
    *strrchr(above, '/') = 0;
    assert_true(disk_make_folder(above, 0700));
    assert_true(disk_write(path, "", 0, "", 0));
}

static void expect(const nvrtc_search *search, const char *folder, const char *name, int major,
                   int minor, bool companion)
{
    nvrtc_place place;
    char path[DISK_PATH];
    assert_ok(nvrtc_find(&fake_dynlib, search, &place));
    assert_true(disk_join(path, folder, name));
    assert_string_equal(place.path, path);
    assert_int_equal(place.major, major);
    assert_int_equal(place.minor, minor);
    assert_int_equal(*place.builtins != 0, companion);
}

static const char
    NEW[] = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
    NEW_BUILTINS[] = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
    OLD[] = "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    OLD_BUILTINS[] =
        "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
    TORCH[] = "lib/python3.12/site-packages/torch/lib/libnvrtc-b51b459d.so.12";

static void packages_in_their_order(void **state)
{
    const char *folder = *state;
    const nvrtc_search search = {NULL, folder, 0};
    put(folder,
        TORCH); /* its companion's name has no version: opened to be asked, the fake one says 13.0 */
    put(folder, "lib/python3.12/site-packages/torch/lib/libnvrtc-builtins.so.12.1.x");
    put(folder, "lib/python3.12/site-packages/torch/lib/libnvrtc-builtins.so.12.2");
    expect(&search, folder, TORCH, 13, 0, false);
    put(folder, OLD), put(folder, OLD_BUILTINS);
    expect(&search, folder, OLD, 12, 8, true);
    put(folder, NEW), put(folder, NEW_BUILTINS);
    expect(&search, folder, NEW, 13, 0, true);
}

static void the_drivers_version_is_kept_to(void **state)
{
    const char *folder = *state;
    const nvrtc_search search = {NULL, folder, 12};
    put(folder, NEW), put(folder, NEW_BUILTINS);
    put(folder, OLD), put(folder, OLD_BUILTINS);
    expect(&search, folder, OLD, 12, 8, true);
}

static void prefixes_in_their_order(void **state)
{
    char first[DISK_PATH], second[DISK_PATH], both[2 * DISK_PATH + 10];
    assert_true(disk_join(first, *state, "first") && disk_join(second, *state, "second"));
    put(second, NEW), put(second, NEW_BUILTINS);
    snprintf(both, sizeof both, ":%s::%s:", first, second);
    const nvrtc_search search = {NULL, both, 0};
    expect(&search, second, NEW, 13, 0, true);
    put(first, OLD), put(first, OLD_BUILTINS);
    expect(&search, first, OLD, 12, 8, true);
}

/* What is special to a shell is a name like any other. */
static void folders_with_strange_names(void **state)
{
    char folder[DISK_PATH], path[DISK_PATH];
    assert_true(disk_join(folder, *state, "a[b]*?\\c"));
    put(folder, NEW), put(folder, NEW_BUILTINS);
    const nvrtc_search prefix = {NULL, folder, 0}, given = {folder, NULL, 0};
    expect(&prefix, folder, NEW, 13, 0, true);
    expect(&given, folder, NEW, 13, 0, true);
    assert_true(disk_join(path, folder, NEW));
    const nvrtc_search file = {path, NULL, 0};
    expect(&file, folder, NEW, 13, 0, true);
}

static void a_given_place_is_the_only_one(void **state)
{
    char given[DISK_PATH];
    nvrtc_place place;
    const char *folder = *state;
    put(folder, NEW), put(folder, NEW_BUILTINS);
    assert_true(disk_join(given, folder, "lib64/libnvrtc.so"));
    put(folder, "lib64/libnvrtc.so");
    const nvrtc_search toolkit = {folder, "/nowhere", 0};
    expect(&toolkit, folder, "lib64/libnvrtc.so", 13, 0, false);
    const nvrtc_search absent = {"/no/such/place", folder, 0}, newer = {given, NULL, 12};
    assert_status(nvrtc_find(&fake_dynlib, &newer, &place), FFPA_E_COMPILE,
                  "CUDA 13.0 is newer than the driver's CUDA 12");
    FAKE.no_compiler = true;
    assert_status(
        nvrtc_find(&fake_dynlib, &absent, &place), FFPA_E_COMPILE,
        "'/no/such/place' leads to no usable NVRTC; /no/such/place: cannot be opened");
    const nvrtc_search none = {NULL, "/nowhere", 0};
    assert_status(nvrtc_find(&fake_dynlib, &none, &place), FFPA_E_COMPILE,
                  "no usable NVRTC among the Python packages (/nowhere)");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(packages_in_their_order),       TEST(the_drivers_version_is_kept_to),
        TEST(prefixes_in_their_order),       TEST(folders_with_strange_names),
        TEST(a_given_place_is_the_only_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
