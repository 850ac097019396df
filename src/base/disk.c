/* disk.c - whole files by POSIX calls. */
#include "base/disk.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool disk_join(char out[DISK_PATH], const char *folder, const char *name)
{
    const int n = snprintf(out, DISK_PATH, "%s/%s", folder, name);
    if (n > 0 && n < DISK_PATH) return true;
    errno = ENAMETOOLONG;
    return false;
}

/* Fill `out` from the file; false with errno set, EIO when the file became shorter meanwhile. */
static bool read_all(int fd, char *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = read(fd, out + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static char *read_open_file(const allocator *a, int fd, size_t limit, size_t *bytes)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return NULL;
    if (!S_ISREG(info.st_mode) || info.st_size < 0 || (uint64_t)info.st_size > limit) {
        errno = EFBIG;
        return NULL;
    }
    *bytes = (size_t)info.st_size;
    char *data = mem_raw(a, *bytes + 1);
    if (!data) {
        errno = ENOMEM;
        return NULL;
    }
    if (!read_all(fd, data, *bytes)) {
        const int reason = errno;
        mem_free(a, data);
        errno = reason;
        return NULL;
    }
    data[*bytes] = 0;
    return data;
}

void *disk_read(const allocator *a, const char *path, size_t limit, size_t *bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *data = read_open_file(a, fd, limit, bytes);
    const int reason = errno;
    close(fd);
    errno = reason;
    return data;
}

static bool write_all(int fd, const char *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(fd, data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* Where the digits before `end` begin, and the '.' before them; NULL when there are none. */
static const char *before_number(const char *name, const char *end)
{
    const char *p = end;
    while (p > name && isdigit((unsigned char)p[-1]))
        p--;
    return p < end && p > name && p[-1] == '.' ? p - 1 : NULL;
}

/* Is it a name that open_temporary gives for a file that ends in `ending`? */
static bool is_temporary(const char *name, const char *ending)
{
    const size_t length = strlen(name), tail = strlen(ending);
    if (length < 4 || strcmp(name + length - 4, ".tmp") != 0) return false;
    const char *end = before_number(name, name + length - 4);
    if (end) end = before_number(name, end);
    return end && (size_t)(end - name) > tail && memcmp(end - tail, ending, tail) == 0;
}

void disk_sweep(const char *path, const char *ending)
{
    enum { HOUR = 3600 };
    char folder[DISK_PATH];
    struct stat written, found;
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) + 1 : 2; /* with its '/', for "/" */
    if (length >= sizeof folder || stat(path, &written) != 0) return;
    memcpy(folder, slash ? path : "./", length);
    folder[length] = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        if (is_temporary(e->d_name, ending) &&
            fstatat(dirfd(entries), e->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(found.st_mode) && found.st_mtime < written.st_mtime - HOUR)
            unlinkat(dirfd(entries), e->d_name, 0);
    }
    if (entries) closedir(entries);
}

/* A new file beside `path`; -1 with errno. Names that dead processes, other threads or other machines with this one's
 * process number have taken are passed over. */
static int open_temporary(const char *path, char *temporary, size_t bytes)
{
    enum { TRIES = 1000 };
    static _Atomic unsigned serial;
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < TRIES && fd < 0 && errno == EEXIST; i++) {
        const int n = snprintf(temporary, bytes, "%s.%ld.%u.tmp", path, (long)getpid(),
                               atomic_fetch_add(&serial, 1));
        if (n < 0 || (size_t)n >= bytes) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    }
    return fd;
}

bool disk_write(const char *path, const void *head, size_t head_bytes, const void *body,
                size_t body_bytes)
{
    char temporary[DISK_PATH + 64];
    const int fd = open_temporary(path, temporary, sizeof temporary);
    if (fd < 0) return false;
    bool good =
        write_all(fd, head, head_bytes) && write_all(fd, body, body_bytes) && fsync(fd) == 0;
    int reason = errno;
    if (close(fd) != 0 && good) good = false, reason = errno;
    if (good && rename(temporary, path) != 0) good = false, reason = errno;
    if (!good) unlink(temporary);
    errno = reason;
    return good;
}

bool disk_make_folder(const char *path, unsigned mode)
{
    char part[DISK_PATH];
    const size_t length = strlen(path);
    if (length == 0 || length >= sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        part[i] = 0;
        if (mkdir(part, mode) != 0 && errno != EEXIST && errno != EISDIR && errno != EROFS)
            return false;
        part[i] = path[i];
    }
    struct stat info;
    if (stat(path, &info) != 0) return false;
    if (!S_ISDIR(info.st_mode)) errno = ENOTDIR;
    return S_ISDIR(info.st_mode);
}
