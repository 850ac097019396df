/* jit_entry.c - keys, names and heads of cache entries. */
#include "cuda/jit_entry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_CUBIN = 64 << 20 };
static const char MAGIC[8] = {'f', 'f', 'p', 'a', 'c', 'u', 'b', '1'};

typedef struct entry_head {
    char magic[8];
    uint64_t bytes; /* of the code that follows */
    jit_key key;    /* a renamed file is no entry */
    jit_key sum;
} entry_head;
_Static_assert(sizeof(entry_head) == JIT_HEAD_BYTES,
               "the head of a cache entry is a file format");

static jit_key key_of_hash(XXH128_hash_t hash)
{
    jit_key key;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(key.bytes, canonical.digest, sizeof key.bytes);
    return key;
}

void jit_compile_options(const variant *v, char arch_option[40],
                         const char *options[JIT_OPTION_COUNT])
{
    snprintf(arch_option, 40, "--gpu-architecture=%s", v->arch);
    options[0] = arch_option;
    options[1] = "--std=c++17";
    options[2] = "-default-device";
}

/* Terminated by its NUL, so that no two lists of strings run together alike. */
static void add_text(XXH3_state_t *state, const char *text)
{
    XXH3_128bits_update(state, text, strlen(text) + 1);
}

jit_key jit_key_of(const variant *v, const embedded_file *files, const char *compiler)
{
    XXH3_state_t state;
    char arch_option[40];
    const char *options[JIT_OPTION_COUNT];
    XXH3_128bits_reset(&state);
    jit_compile_options(v, arch_option, options);
    add_text(&state, compiler);
    add_text(&state, v->file);
    add_text(&state, v->config);
    for (int i = 0; i < JIT_OPTION_COUNT; i++)
        add_text(&state, options[i]);
    for (const embedded_file *f = files; f->name; f++) {
        add_text(&state, f->name);
        add_text(&state, f->text);
    }
    return key_of_hash(XXH3_128bits_digest(&state));
}

bool jit_entry_path(char path[DISK_PATH], const char *folder, const variant *v,
                    const jit_key *key)
{
    char name[sizeof v->name + sizeof v->arch + 48], hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)key->bytes[i]);
    snprintf(name, sizeof name, "%s.%s.%s.cubin", v->name, v->arch, hex);
    return disk_join(path, folder, name);
}

bool jit_entry_good(const void *file, size_t bytes, const unsigned char key[16])
{
    entry_head head;
    if (bytes < sizeof head) return false;
    memcpy(&head, file, sizeof head);
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 || memcmp(head.key.bytes, key, 16) != 0)
        return false;
    if (head.bytes == 0 || head.bytes != bytes - sizeof head) return false;
    const jit_key sum =
        key_of_hash(XXH3_128bits((const char *)file + sizeof head, (size_t)head.bytes));
    return memcmp(sum.bytes, head.sum.bytes, 16) == 0;
}

jit_found jit_entry_read(const allocator *a, const char *path, const jit_key *key, void **cubin,
                         size_t *bytes)
{
    size_t file_bytes;
    char *file = disk_read(a, path, MAX_CUBIN, &file_bytes);
    if (!file) return errno == EFBIG || errno == EIO ? JIT_DAMAGED : JIT_ABSENT;
    if (!jit_entry_good(file, file_bytes, key->bytes)) {
        mem_free(a, file);
        return JIT_DAMAGED;
    }
    *bytes = file_bytes - JIT_HEAD_BYTES;
    memmove(file, file + JIT_HEAD_BYTES, *bytes);
    *cubin = file;
    return JIT_GOOD;
}

bool jit_entry_write(const char *path, const jit_key *key, const void *cubin, size_t bytes)
{
    entry_head head = {.bytes = bytes, .key = *key};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    head.sum = key_of_hash(XXH3_128bits(cubin, bytes));
    return disk_write(path, &head, sizeof head, cubin, bytes);
}
