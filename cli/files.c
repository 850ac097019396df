/* files.c - whole files in, whole files out. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool refuse(char *why, size_t why_bytes, const char *what)
{
    snprintf(why, why_bytes, "%s: %s", what, strerror(errno));
    return false;
}

static bool read_all(int descriptor, unsigned char *bytes, size_t length)
{
    for (size_t have = 0; have < length;) {
        ssize_t n = read(descriptor, bytes + have, length - have);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* it shrank while we read */
        if (n <= 0) return false;
        have += (size_t)n;
    }
    return true;
}

bool file_read(const char *path, unsigned char **bytes, size_t *length, char *why,
               size_t why_bytes)
{
    struct stat st;
    *bytes = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return refuse(why, why_bytes, "cannot open it");
    bool good = fstat(descriptor, &st) == 0 && S_ISREG(st.st_mode);
    if (!good) snprintf(why, why_bytes, "it is not a regular file");
    if (good) {
        *length = (size_t)st.st_size;
        *bytes = malloc(*length + 1);
        good = *bytes && read_all(descriptor, *bytes, *length);
        if (!good) refuse(why, why_bytes, "cannot read it");
    }
    close(descriptor);
    if (!good) {
        free(*bytes);
        *bytes = NULL;
    }
    return good;
}

/* ---- temporary files, known to the signal handler ---- */

enum { PENDING_MAX = 16 };
static char *volatile pending[PENDING_MAX];

static void remove_pending(int signal_number)
{
    for (int i = 0; i < PENDING_MAX; i++)
        if (pending[i]) unlink(pending[i]);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static bool remember(char *temporary)
{
    static const int FATAL[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof FATAL / sizeof *FATAL; i++) {
        struct sigaction action = {0};
        if (sigaction(FATAL[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
            action.sa_handler = remove_pending;
            sigaction(FATAL[i], &action, NULL);
        }
    }
    for (int i = 0; i < PENDING_MAX; i++)
        if (!pending[i]) {
            pending[i] = temporary;
            return true;
        }
    return false;
}

static void forget(const char *temporary)
{
    for (int i = 0; i < PENDING_MAX; i++)
        if (pending[i] == temporary) pending[i] = NULL;
}

static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

bool output_open(output_file *file, const char *path, char *why, size_t why_bytes)
{
    struct stat st;
    size_t folder = folder_length(path);
    *file = (output_file){NULL, NULL, -1, false};
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        snprintf(why, why_bytes, "it exists and is not a regular file");
        return false;
    }
    file->path = strdup(path);
    file->temporary = malloc(folder + 64);
    if (!file->path || !file->temporary) {
        refuse(why, why_bytes, "cannot create it");
        output_abandon(file);
        return false;
    }
    memcpy(file->temporary, path, folder);
    for (int attempt = 0; attempt < 100 && file->descriptor < 0; attempt++) {
        snprintf(file->temporary + folder, 64, ".ffpa-%ld-%d.tmp", (long)getpid(), attempt);
        file->descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->descriptor < 0 && errno != EEXIST) break;
    }
    if (file->descriptor < 0) {
        refuse(why, why_bytes, "cannot create a file beside it");
        output_abandon(file);
        return false;
    }
    file->created = true;
    signal(SIGXFSZ,
           SIG_IGN); /* a file too large is an error of write(), told like the others */
    if (!remember(file->temporary)) {
        snprintf(why, why_bytes, "too many outputs at once");
        output_abandon(file);
        return false;
    }
    return true;
}

bool output_write(output_file *file, const void *bytes, size_t length, char *why,
                  size_t why_bytes)
{
    const char *at = bytes;
    while (length > 0) {
        ssize_t n = write(file->descriptor, at, length > SSIZE_MAX ? SSIZE_MAX : length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            refuse(why, why_bytes, "cannot write it");
            output_abandon(file);
            return false;
        }
        at += n;
        length -= (size_t)n;
    }
    return true;
}

bool output_finish(output_file *file, char *why, size_t why_bytes)
{
    bool good = fsync(file->descriptor) == 0;
    good = close(file->descriptor) == 0 && good;
    file->descriptor = -1;
    if (!good) {
        refuse(why, why_bytes, "cannot write it");
        output_abandon(file);
    }
    return good;
}

/* A rename lasts once its folder is on disk; not every file system can be asked, so no error. */
static void sync_folder(const char *path)
{
    size_t folder = folder_length(path);
    char *name = folder ? strndup(path, folder) : strdup(".");
    int descriptor = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor >= 0) {
        fsync(descriptor);
        close(descriptor);
    }
    free(name);
}

bool output_commit(output_file *file, char *why, size_t why_bytes)
{
    if (rename(file->temporary, file->path) != 0) {
        refuse(why, why_bytes, "cannot put it in place");
        output_abandon(file);
        return false;
    }
    sync_folder(file->path);
    forget(file->temporary);
    free(file->temporary);
    free(file->path);
    *file = (output_file){NULL, NULL, -1, false};
    return true;
}

void output_abandon(output_file *file)
{
    if (file->descriptor >= 0) close(file->descriptor);
    if (file->created) {
        unlink(file->temporary);
        forget(file->temporary);
    }
    free(file->temporary);
    free(file->path);
    *file = (output_file){NULL, NULL, -1, false};
}
