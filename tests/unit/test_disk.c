/* test_disk.c - whole files: written all or not at all, folders made on the way; libraries by table. */
#include "support/unit.h"

#include "base/disk.h"
#include "base/dynlib.h"
#include "fake/fake_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void written_files_read_back(void **state)
{
    (void)state;
    char folder[64], path[DISK_PATH];
    size_t bytes;
    fake_folder_new(folder);
    assert_true(disk_join(path, folder, "entry"));
    assert_true(disk_write(path, "head", 4, "body", 4));
    char *text = disk_read(&allocator_default, path, 100, &bytes);
    assert_non_null(text);
    assert_int_equal(bytes, 8);
    assert_string_equal(text, "headbody");
    mem_free(&allocator_default, text);
    assert_null(disk_read(&allocator_default, path, 7, &bytes));
    assert_int_equal(errno, EFBIG);
    assert_true(disk_write(path, "", 0, "", 0));
    text = disk_read(&allocator_default, path, 7, &bytes);
    assert_non_null(text);
    assert_int_equal(bytes, 0);
    mem_free(&allocator_default, text);
    assert_null(disk_read(&allocator_default, folder, 100, &bytes)); /* a folder is no file */
    fake_folder_remove(folder);
    assert_null(disk_read(&allocator_default, path, 100, &bytes));
    assert_int_equal(errno, ENOENT);
}

static void a_failed_write_leaves_nothing(void **state)
{
    (void)state;
    char folder[64], file[DISK_PATH], inside[DISK_PATH];
    fake_folder_new(folder);
    assert_true(disk_join(file, folder, "file"));
    assert_true(disk_write(file, "x", 1, "", 0));
    assert_true(disk_join(inside, file, "inside"));
    assert_false(disk_write(inside, "x", 1, "", 0)); /* its folder is a file */
    assert_int_equal(errno, ENOTDIR);
    assert_false(disk_make_folder(inside, 0700));
    assert_true(disk_join(inside, folder, "folder"));
    assert_true(disk_make_folder(inside, 0700));
    assert_false(
        disk_write(inside, "x", 1, "", 0)); /* the name is taken by a folder: rename fails */
    assert_int_equal(fake_folder_count(folder, ".tmp"), 0);
    rmdir(inside);
    fake_folder_remove(folder);
}

/* Another machine's process of this number may be writing them. */
static void other_writers_files_are_left_alone(void **state)
{
    (void)state;
    enum { TAKEN = 500 };
    char folder[64], path[DISK_PATH], name[DISK_PATH + 40];
    size_t bytes;
    fake_folder_new(folder);
    assert_true(disk_join(path, folder, "entry"));
    for (int i = 0; i < TAKEN; i++) {
        snprintf(name, sizeof name, "%s.%ld.%d.tmp", path, (long)getpid(), i);
        FILE *other = fopen(name, "w");
        assert_non_null(other);
        fclose(other);
    }
    assert_true(disk_write(path, "mine", 4, "", 0));
    assert_int_equal(fake_folder_count(folder, ".tmp"), TAKEN);
    mem_free(&allocator_default, disk_read(&allocator_default, path, 100, &bytes));
    assert_int_equal(bytes, 4);
    fake_folder_remove(folder);
}

/* An empty file, last changed so many seconds before now. */
static void put_old(const char *folder, const char *name, long age)
{
    char path[DISK_PATH];
    const struct timespec when[2] = {{time(NULL) - age, 0}, {time(NULL) - age, 0}};
    assert_true(disk_join(path, folder, name));
    assert_true(disk_write(path, "", 0, "", 0));
    assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
}

static void what_dead_writers_left_is_swept(void **state)
{
    (void)state;
    static const char *const swept[] = {"a.kept.12.0.tmp", "b.c.kept.4194304.99.tmp"};
    static const char *const stay[] = {
        "a.kept.12.tmp",    "a.kept.tmp",        ".kept.1.2.tmp",
        "a.other.12.0.tmp", "a.kept.12.0.tmp.x", "a.kept.x1.0.tmp",
        "a.kept.12..tmp",   "12.0.tmp",          "old.kept"};
    char folder[64], path[DISK_PATH];
    fake_folder_new(folder);
    for (size_t i = 0; i < COUNT(swept); i++)
        put_old(folder, swept[i], 2 * 3600);
    for (size_t i = 0; i < COUNT(stay); i++)
        put_old(folder, stay[i], 2 * 3600);
    put_old(folder, "young.kept.12.0.tmp", 1800); /* somebody may be writing it */
    assert_true(disk_join(path, folder, "old.kept"));
    disk_sweep(path, ".kept"); /* written as long ago as they were */
    assert_int_equal(fake_folder_count(folder, ""), COUNT(swept) + COUNT(stay));
    assert_true(disk_join(path, folder, "new.kept"));
    disk_sweep(path, ".kept"); /* not there */
    assert_int_equal(fake_folder_count(folder, ""), COUNT(swept) + COUNT(stay));
    assert_true(disk_write(path, "", 0, "", 0));
    disk_sweep(path, ".kept");
    for (size_t i = 0; i < COUNT(swept); i++) {
        assert_true(disk_join(path, folder, swept[i]));
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_int_equal(fake_folder_count(folder, ""),
                     COUNT(stay) + 1); /* less a hidden one, and two */
    assert_true(disk_join(path, folder, ".kept.1.2.tmp"));
    assert_int_equal(unlink(path), 0);
    fake_folder_remove(folder);
}

static void folders_are_made_on_the_way(void **state)
{
    (void)state;
    char folder[64], path[DISK_PATH], longer[2 * DISK_PATH];
    fake_folder_new(folder);
    assert_true(disk_join(path, folder, "a//b/"));
    assert_true(disk_make_folder(path, 0700));
    assert_true(disk_make_folder(path, 0700)); /* again */
    assert_int_equal(access(path, W_OK), 0);
    assert_true(disk_make_folder("/", 0700));
    assert_false(disk_make_folder("", 0700));
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_false(disk_make_folder(longer, 0700));
    assert_false(disk_join(path, longer, "y"));
    assert_true(disk_join(path, folder, "a/b"));
    rmdir(path);
    assert_true(disk_join(path, folder, "a"));
    rmdir(path);
    fake_folder_remove(folder);
}

typedef struct writer {
    const char *path;
    char letter;
} writer;

static void *write_often(void *argument)
{
    const writer *w = argument;
    char body[5000];
    memset(body, w->letter, sizeof body);
    for (int i = 0; i < 20; i++)
        disk_write(w->path, "", 0, body, sizeof body);
    return NULL;
}

static void readers_never_see_a_half_written_file(void **state)
{
    (void)state;
    char folder[64], path[DISK_PATH];
    size_t bytes;
    fake_folder_new(folder);
    assert_true(disk_join(path, folder, "shared"));
    writer writers[3] = {{path, 'a'}, {path, 'b'}, {path, 'c'}};
    pthread_t threads[3];
    write_often(&writers[0]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_often, &writers[i]), 0);
    for (int i = 0; i < 200; i++) {
        char *text = disk_read(&allocator_default, path, 10000, &bytes);
        assert_non_null(text);
        assert_int_equal(bytes, 5000);
        for (size_t x = 1; x < bytes; x++)
            assert_int_equal(text[x], text[0]);
        mem_free(&allocator_default, text);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(fake_folder_count(folder, ".tmp"), 0);
    fake_folder_remove(folder);
}

static void libraries_open_or_say_why(void **state)
{
    (void)state;
    char why[200] = "";
    assert_null(dynlib_system.open("libffpa-there-is-none.so.1", false, why, sizeof why));
    assert_non_null(strstr(why, "libffpa-there-is-none.so.1"));
    void *library = dynlib_system.open("libc.so.6", false, why, sizeof why);
    assert_non_null(library);
    size_t (*length)(const char *);
    dynlib_store(&length, dynlib_system.symbol(library, "strlen"));
    assert_non_null(length);
    assert_int_equal(length("four"), 4);
    assert_null(dynlib_system.symbol(library, "ffpa_there_is_none"));
    dynlib_system.close(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(a_failed_write_leaves_nothing),
        cmocka_unit_test(other_writers_files_are_left_alone),
        cmocka_unit_test(what_dead_writers_left_is_swept),
        cmocka_unit_test(folders_are_made_on_the_way),
        cmocka_unit_test(readers_never_see_a_half_written_file),
        cmocka_unit_test(libraries_open_or_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
