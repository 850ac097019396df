/* test_jit.c - the kernel cache: memory, disk, compiler; damage, modes, prebuilt entries, many threads and
 * processes at a cold cache, every failure in turn. */
#include "fake/fake_cuda.h"
#include "support/unit.h"

#include "cuda/jit_entry.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static variant make_variant(const char *name)
{
    variant v = {.arch = "sm_90a", .file = "sm80/fwd_sm80.cuh"};
    snprintf(v.name, sizeof v.name, "%s", name);
    snprintf(v.config, sizeof v.config, "// %s\n#define FFPA_D 64\n", name);
    return v;
}

static ffpa_status get(ffpa_context *ctx, const variant *v, jit_code *code)
{
    return jit_get(ctx->cuda->jit, &v, 1, code);
}

/* Get one variant in a fresh context, as a new process would. */
static void get_fresh(const char *folder, jit_mode mode, const variant *v)
{
    jit_code code;
    fake_log[0] = 0;
    ffpa_context *ctx = fake_context(folder, mode);
    assert_ok(get(ctx, v, &code));
    assert_memory_equal(code.cubin, "code of ", 8);
    assert_string_equal((const char *)code.cubin + 8, v->name);
    fake_context_free(ctx);
}

static int set_up(void **state)
{
    static char folder[64];
    fake_reset();
    fake_allocations_fail_at(0);
    fake_folder_new(folder);
    *state = folder;
    return 0;
}

static int tear_down(void **state)
{
    fake_folder_remove(*state);
    return FAKE.programs != 0 || FAKE.libraries != 0 || FAKE.modules != 0 ||
           fake_allocations_alive() != 0;
}

static void memory_then_disk_then_compiler(void **state)
{
    const variant v = make_variant("first"), w = make_variant("second");
    jit_code a, b;
    ffpa_context *ctx = fake_context(*state, JIT_ON);
    assert_ok(get(ctx, &v, &a));
    assert_int_equal(FAKE.compiles, 1);
    assert_ok(get(ctx, &v, &b));
    assert_int_equal(FAKE.compiles, 1);
    assert_ptr_equal(a.cubin, b.cubin);
    assert_ok(get(ctx, &w, &b));
    assert_int_equal(FAKE.compiles, 2);
    fake_context_free(ctx);
    get_fresh(*state, JIT_ON, &v);
    get_fresh(*state, JIT_ON, &w);
    assert_int_equal(FAKE.compiles, 2);
    assert_int_equal(fake_folder_count(*state, ".cubin"), 2);
    assert_int_equal(fake_folder_count(*state, ".tmp"), 0);
}

static void a_disk_hit_says_nothing_a_compilation_says_what(void **state)
{
    const variant v = make_variant("spoken");
    get_fresh(*state, JIT_ON, &v);
    assert_non_null(strstr(fake_log, "compiling spoken for sm_90a with NVRTC 13.0"));
    assert_non_null(strstr(fake_log, "compiled spoken: "));
    get_fresh(*state, JIT_ON, &v);
    assert_string_equal(fake_log, "");
}

static void everything_that_matters_is_in_the_key(void **state)
{
    (void)state;
    const embedded_file one[] = {{"a.cuh", "text", 4}, {NULL, NULL, 0}};
    const embedded_file other[] = {{"a.cuh", "texT", 4}, {NULL, NULL, 0}};
    const embedded_file renamed[] = {{"b.cuh", "text", 4}, {NULL, NULL, 0}};
    const variant v = make_variant("key");
    variant arch = v, config = v, file = v;
    snprintf(arch.arch, sizeof arch.arch, "sm_80");
    snprintf(config.config, sizeof config.config, "%s", "#define FFPA_D 65\n");
    file.file = "any/merge.cuh";
    const jit_key keys[] = {jit_key_of(&v, one, "13.0"),      jit_key_of(&v, one, "13.1"),
                            jit_key_of(&v, one, "any"),       jit_key_of(&v, other, "13.0"),
                            jit_key_of(&v, renamed, "13.0"),  jit_key_of(&arch, one, "13.0"),
                            jit_key_of(&config, one, "13.0"), jit_key_of(&file, one, "13.0")};
    for (size_t i = 0; i < COUNT(keys); i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof keys[i]);
    const jit_key again = jit_key_of(&v, one, "13.0");
    assert_memory_equal(&keys[0], &again, sizeof again);
}

static void entry_path(char path[DISK_PATH], const char *folder, const variant *v)
{
    char name[300];
    FILE *listing;
    snprintf(name, sizeof name, "ls %s/%s.*.cubin", folder, v->name);
    listing = popen(name, "r");
    assert_non_null(fgets(path, DISK_PATH, listing));
    pclose(listing);
    path[strcspn(path, "\n")] = 0;
}

/* A process that was killed as it wrote. Whoever writes next cleans up; whoever only reads leaves the folder alone. */
static void writers_sweep_what_killed_ones_left(void **state)
{
    const variant v = make_variant("swept"), w = make_variant("reader");
    const struct timespec old[2] = {{time(NULL) - 7200, 0}, {time(NULL) - 7200, 0}};
    char path[DISK_PATH], left[DISK_PATH + 20];
    get_fresh(*state, JIT_ON, &v);
    entry_path(path, *state, &v);
    snprintf(left, sizeof left, "%s.77.0.tmp", path);
    assert_true(disk_write(left, "half", 4, "", 0));
    assert_int_equal(utimensat(AT_FDCWD, left, old, 0), 0);
    get_fresh(*state, JIT_ON, &v);
    get_fresh(*state, JIT_READ_ONLY, &w);
    assert_int_equal(fake_folder_count(*state, ".tmp"), 1);
    get_fresh(*state, JIT_ON, &w);
    assert_int_equal(fake_folder_count(*state, ".tmp"), 0);
    assert_int_equal(fake_folder_count(*state, ".cubin"), 2);
}

static void macros_of_every_kernel_are_in_config_and_key(void **state)
{
    const variant v = make_variant("watched");
    get_fresh(*state, JIT_ON, &v);
    FAKE.defines = " FFPA_WATCHDOG=1000  FFPA_EVERY_LANE=1";
    get_fresh(*state, JIT_ON, &v);
    assert_int_equal(FAKE.compiles, 2);
    assert_string_equal(FAKE.config,
                        "// watched\n#define FFPA_D 64\n#define FFPA_WATCHDOG 1000\n"
                        "#define FFPA_EVERY_LANE 1\n");
    get_fresh(*state, JIT_ON, &v);
    FAKE.defines = NULL;
    get_fresh(*state, JIT_ON, &v);
    assert_int_equal(FAKE.compiles, 2);
}

static void words_that_define_nothing_are_refused(void **state)
{
    static const char *const wrong[] = {"FFPA_WATCHDOG", "FFPA_WATCHDOG=",    "FFPA_WATCHDOG=x",
                                        "WATCHDOG=1",    "FFPA_A=1;FFPA_B=2", "FFPA_D=1 ="};
    char many[600];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        FAKE.defines = wrong[i];
        assert_null(fake_context(NULL, JIT_ON));
        assert_non_null(strstr(ffpa_last_error(), "' is not FFPA_NAME=NUMBER"));
    }
    memset(many, '1', sizeof many - 1);
    memcpy(many, "FFPA_A=", 7);
    many[sizeof many - 1] = 0;
    FAKE.defines = many;
    assert_null(fake_context(NULL, JIT_ON));
    assert_non_null(strstr(ffpa_last_error(), "makes more than 511 characters"));
    FAKE.defines = NULL;
}

static void damaged_entries_are_rebuilt(void **state)
{
    const variant v = make_variant("damaged");
    char path[DISK_PATH];
    size_t bytes;
    get_fresh(*state, JIT_ON, &v);
    entry_path(path, *state, &v);
    char *good = disk_read(&allocator_default, path, 1000, &bytes);
    assert_non_null(good);
    for (size_t at = 0; at <= bytes; at++) { /* one bit anywhere, then cut short */
        char *bad = malloc(bytes);
        memcpy(bad, good, bytes);
        if (at < bytes) bad[at] ^= 1;
        assert_true(disk_write(path, "", 0, bad, at < bytes ? bytes : bytes - 1));
        free(bad);
        const int before = FAKE.compiles;
        get_fresh(*state, JIT_ON, &v);
        assert_int_equal(FAKE.compiles, before + 1);
        assert_non_null(strstr(fake_log, "is damaged; building it again"));
        get_fresh(*state, JIT_ON, &v);
        assert_int_equal(FAKE.compiles, before + 1);
    }
    assert_true(disk_write(path, "", 0, "", 0));
    get_fresh(*state, JIT_ON, &v);
    mem_free(&allocator_default, good);
}

static void read_only_reads_and_off_does_neither(void **state)
{
    const variant v = make_variant("modes");
    get_fresh(*state, JIT_READ_ONLY, &v);
    get_fresh(*state, JIT_OFF, &v);
    assert_int_equal(fake_folder_count(*state, ""), 0);
    get_fresh(*state, JIT_ON, &v);
    assert_int_equal(FAKE.compiles, 3);
    get_fresh(*state, JIT_READ_ONLY, &v);
    assert_int_equal(FAKE.compiles, 3);
    get_fresh(*state, JIT_OFF, &v);
    assert_int_equal(FAKE.compiles, 4);
    get_fresh(NULL, JIT_ON, &v);
    assert_int_equal(FAKE.compiles, 5);
}

static void a_folder_that_cannot_be_written_is_said_once(void **state)
{
    const variant v = make_variant("one"), w = make_variant("two");
    char file[DISK_PATH], folder[DISK_PATH];
    jit_code code;
    assert_true(disk_join(file, *state, "file") && disk_join(folder, file, "cache"));
    assert_true(disk_write(file, "x", 1, "", 0));
    fake_log[0] = 0;
    ffpa_context *ctx = fake_context(folder, JIT_ON);
    assert_ok(get(ctx, &v, &code));
    assert_ok(get(ctx, &w, &code));
    const char *said = strstr(fake_log, "cannot write to the kernel cache");
    assert_non_null(said);
    assert_non_null(strstr(said, "Not a directory"));
    assert_null(strstr(said + 1, "cannot write"));
    fake_context_free(ctx);
}

static void prebuilt_entries_need_no_compiler(void **state)
{
    const variant v = make_variant("packed");
    jit_code code;
    ffpa_context *ctx = fake_context(NULL, JIT_ON);
    assert_ok(jit_prebuild(ctx->cuda->jit, &v, *state));
    assert_ok(jit_prebuild(ctx->cuda->jit, &v, *state)); /* already there */
    assert_int_equal(FAKE.compiles, 1);
    FAKE.no_compiler = true;
    fake_context_free(ctx);
    get_fresh(*state, JIT_ON, &v);
    get_fresh(*state, JIT_READ_ONLY, &v);
    ctx = fake_context(*state, JIT_ON);
    const variant w = make_variant("not packed");
    assert_status(get(ctx, &w, &code), FFPA_E_COMPILE, "leads to no usable NVRTC");
    FAKE.no_compiler = false; /* installed meanwhile */
    assert_ok(get(ctx, &w, &code));
    const int compiles = FAKE.compiles;
    assert_status(jit_prebuild(ctx->cuda->jit, &w, "/dev/null/pack"), FFPA_E_INVALID,
                  "cannot make directory '/dev/null/pack': Not a directory");
    assert_int_equal(FAKE.compiles, compiles); /* seconds, for nothing */
    fake_context_free(ctx);
}

static int permissions(const char *folder)
{
    struct stat info;
    assert_int_equal(stat(folder, &info), 0);
    return info.st_mode & 0777;
}

/* The cache is its user's; a pack is for whoever it is handed to, as the umask has it. */
static void a_pack_may_be_shared(void **state)
{
    char cache[DISK_PATH], pack[DISK_PATH];
    jit_code code;
    const variant v = make_variant("shared");
    assert_true(disk_join(cache, *state, "cache") && disk_join(pack, *state, "pack"));
    const mode_t before = umask(022);
    ffpa_context *ctx = fake_context(cache, JIT_ON);
    assert_ok(get(ctx, &v, &code));
    assert_ok(jit_prebuild(ctx->cuda->jit, &v, pack));
    umask(before);
    fake_context_free(ctx);
    assert_int_equal(permissions(cache), 0700);
    assert_int_equal(permissions(pack), 0755);
    fake_folder_remove(cache);
    fake_folder_remove(pack);
}

static void unknown_architectures_are_named(void **state)
{
    variant v = make_variant("arch");
    jit_code code;
    snprintf(v.arch, sizeof v.arch, "sm_120a");
    ffpa_context *ctx = fake_context(*state, JIT_ON);
    assert_status(get(ctx, &v, &code), FFPA_E_COMPILE,
                  "NVRTC 13.0 cannot compile for sm_120a; it knows sm_80 sm_89 sm_90");
    fake_context_free(ctx);
}

static void the_first_failure_of_several_is_told(void **state)
{
    const variant a = make_variant("a"), c = make_variant("c");
    variant b = make_variant("b");
    b.file = "no/such.cuh";
    const variant *all[] = {&a, &b, &c};
    jit_code codes[3];
    ffpa_context *ctx = fake_context(*state, JIT_ON);
    assert_status(jit_get(ctx->cuda->jit, all, 3, codes), FFPA_E_INTERNAL, "no/such.cuh");
    assert_ok(jit_get(ctx->cuda->jit, (const variant *[]){&a, &c}, 2, codes));
    fake_context_free(ctx);
}

/* Each call of the compiler fails once: a status, a sentence, nothing left over, and the next call works. */
static void every_compiler_call_may_fail(void **state)
{
    const variant v = make_variant("failing");
    jit_code code;
    int n = 1;
    for (;; n++) {
        fake_reset();
        FAKE.log = "a warning";
        FAKE.fail_at = n;
        ffpa_context *ctx = fake_context(*state, JIT_OFF);
        const ffpa_status status = get(ctx, &v, &code);
        const bool harmless =
            strncmp(FAKE.failed, "nvrtcGetProgramLog", 18) == 0; /* only the log is lost */
        if (*FAKE.failed && !harmless) {
            assert_int_equal(status, FFPA_E_COMPILE);
            assert_true(strncmp(ffpa_last_error(), "nvrtc: ", 7) == 0);
        } else {
            assert_int_equal(status, FFPA_OK);
        }
        assert_ok(get(ctx, &v, &code));
        fake_context_free(ctx);
        assert_int_equal(FAKE.programs, 0);
        assert_int_equal(FAKE.libraries, 0);
        if (!*FAKE.failed) break;
    }
    assert_true(n > 8);
}

static void every_allocation_may_fail(void **state)
{
    const variant v = make_variant("allocating");
    jit_code code;
    int n = 0;
    bool reached = true;
    while (reached) {
        fake_allocations_fail_at(++n);
        ffpa_context *ctx = fake_context(*state, JIT_OFF);
        if (ctx) {
            const ffpa_status status = get(ctx, &v, &code);
            reached = fake_allocations() >= n;
            assert_true(status == FFPA_OK || (reached && status == FFPA_E_OUT_OF_MEMORY));
            fake_allocations_fail_at(0);
            assert_ok(get(ctx, &v, &code));
        }
        fake_context_free(ctx);
        assert_int_equal(fake_allocations_alive(), 0);
        assert_int_equal(FAKE.programs, 0);
    }
    assert_true(n > 6);
    fake_allocations_fail_at(0);
}

typedef struct getter {
    ffpa_context *ctx;
    int failures;
} getter;

static void *get_many(void *argument)
{
    getter *g = argument;
    for (int i = 0; i < 12; i++) {
        char name[20];
        jit_code code;
        snprintf(name, sizeof name, "v%d", i % 4);
        const variant v = make_variant(name);
        g->failures += get(g->ctx, &v, &code) != FFPA_OK ||
                       strcmp((const char *)code.cubin + 8, name) != 0;
    }
    return NULL;
}

static void threads_compile_each_variant_once(void **state)
{
    pthread_t threads[8];
    getter getters[8];
    FAKE.compile_ms = 5;
    ffpa_context *ctx = fake_context(*state, JIT_ON);
    for (int i = 0; i < 8; i++) {
        getters[i] = (getter){ctx, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, get_many, &getters[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(getters[i].failures, 0);
    }
    assert_int_equal(FAKE.compiles, 4);
    fake_context_free(ctx);
}

static void sixteen_processes_meet_at_a_cold_cache(void **state)
{
    const variant v = make_variant("crowded");
    pid_t children[16];
    fflush(NULL);
    FAKE.compile_ms = 20;
    for (int i = 0; i < 16; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        jit_code code;
        ffpa_context *ctx = fake_context(*state, JIT_ON);
        const bool good = get(ctx, &v, &code) == FFPA_OK &&
                          strcmp((const char *)code.cubin + 8, "crowded") == 0;
        fake_context_free(ctx);
        _exit(good ? 0 : 1);
    }
    for (int i = 0; i < 16; i++) {
        int result;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    }
    assert_int_equal(fake_folder_count(*state, ".cubin"), 1);
    assert_int_equal(fake_folder_count(*state, ".tmp"), 0);
    get_fresh(*state, JIT_ON, &v);
    assert_int_equal(FAKE.compiles, 0); /* of this process */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(memory_then_disk_then_compiler),
        TEST(a_disk_hit_says_nothing_a_compilation_says_what),
        TEST(everything_that_matters_is_in_the_key),
        TEST(writers_sweep_what_killed_ones_left),
        TEST(macros_of_every_kernel_are_in_config_and_key),
        TEST(words_that_define_nothing_are_refused),
        TEST(damaged_entries_are_rebuilt),
        TEST(read_only_reads_and_off_does_neither),
        TEST(a_folder_that_cannot_be_written_is_said_once),
        TEST(prebuilt_entries_need_no_compiler),
        TEST(a_pack_may_be_shared),
        TEST(unknown_architectures_are_named),
        TEST(the_first_failure_of_several_is_told),
        TEST(every_compiler_call_may_fail),
        TEST(every_allocation_may_fail),
        TEST(threads_compile_each_variant_once),
        TEST(sixteen_processes_meet_at_a_cold_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
