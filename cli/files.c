/* files.c - files in, whole files out. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
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

bool file_open(const char *path, int *descriptor, size_t *length, char *why, size_t why_bytes)
{
    struct stat st;
    /* without O_NONBLOCK a pipe would wait here for a writer */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0) return refuse(why, why_bytes, "cannot open it");
    if (fstat(*descriptor, &st) == 0 && S_ISREG(st.st_mode)) {
        *length = (size_t)st.st_size;
        return true;
    }
    snprintf(why, why_bytes, "it is not a regular file");
    close(*descriptor);
    *descriptor = -1;
    return false;
}

bool file_read_part(int descriptor, void *bytes, size_t length, size_t offset, char *why,
                    size_t why_bytes)
{
    for (size_t have = 0; have < length;) {
        ssize_t n =
            pread(descriptor, (char *)bytes + have, length - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* it shrank while we read */
        if (n <= 0) return refuse(why, why_bytes, "cannot read it");
        have += (size_t)n;
    }
    return true;
}

static bool read_to_end(int descriptor, char **text, size_t *length)
{
    enum { TEXT_MAX = 64 << 20 };
    size_t room = 4096;
    *length = 0;
    for (;;) {
        char *more = realloc(*text, room + 1);
        if (!more) return false;
        *text = more;
        ssize_t n = read(descriptor, *text + *length, room - *length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        *length += (size_t)n;
        (*text)[*length] = 0;
        if (n == 0) return true;
        if (*length == TEXT_MAX) {
            errno = EFBIG;
            return false;
        }
        if (*length == room) room *= 2;
    }
}

bool file_read_text(const char *path, char **text, size_t *length, char *why, size_t why_bytes)
{
    *text = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return refuse(why, why_bytes, "cannot open it");
    bool good = read_to_end(descriptor, text, length);
    if (!good) {
        refuse(why, why_bytes, "cannot read it");
        free(*text);
        *text = NULL;
    }
    close(descriptor);
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
    /* all that end a program unless it says otherwise, but KILL, which nobody can catch, and XFSZ below */
    static const int FATAL[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGABRT,   SIGALRM,
                                SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU, SIGVTALRM, SIGPROF,
                                SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGSYS,    SIGTRAP};
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

/* The file that a path leads to through links, which may not exist yet. malloc'd, NULL with errno. */
static char *follow_links(const char *path)
{
    enum { LINKS_MAX = 40 };
    char target[4096], *at = strdup(path);
    for (int i = 0; at; i++) {
        ssize_t n = readlink(at, target, sizeof target);
        if (n < 0) return at; /* no link, or nothing there yet */
        if (i == LINKS_MAX || n == (ssize_t)sizeof target) {
            errno = ELOOP;
            break;
        }
        size_t folder =
            target[0] == '/' ? 0 : folder_length(at); /* relative to the link's own */
        char *next = malloc(folder + (size_t)n + 1);
        if (!next) break;
        memcpy(next, at, folder);
        memcpy(next + folder, target, (size_t)n);
        next[folder + (size_t)n] = 0;
        free(at);
        at = next;
    }
    free(at);
    return NULL;
}

/* Create file->temporary beside file->path. */
static bool create_beside(output_file *file)
{
    size_t folder = folder_length(file->path);
    file->temporary = malloc(folder + 64);
    if (!file->temporary) return false;
    memcpy(file->temporary, file->path, folder);
    for (int attempt = 0; attempt < 100 && file->descriptor < 0; attempt++) {
        snprintf(file->temporary + folder, 64, ".ffpa-%ld-%d.tmp", (long)getpid(), attempt);
        file->descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->descriptor < 0 && errno != EEXIST) break;
    }
    file->created = file->descriptor >= 0;
    return file->created;
}

/* Signals wait meanwhile: the handler must know of a file as soon as there is one. The library's
 * threads take no signals, so blocking them here blocks them for the process. */
static bool create_remembered(output_file *file, bool *remembered)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool created = create_beside(file);
    *remembered = created && remember(file->temporary);
    int cause = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = cause;
    return created;
}

static bool open_all(output_file *file, const char *path, char *why, size_t why_bytes)
{
    struct stat st;
    file->path = follow_links(path);
    if (!file->path) return refuse(why, why_bytes, "cannot create it");
    bool exists = stat(file->path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) {
        snprintf(why, why_bytes, "it exists and is not a regular file");
        return false;
    }
    bool remembered;
    if (!create_remembered(file, &remembered))
        return refuse(why, why_bytes, "cannot create a file beside it");
    if (!remembered) {
        snprintf(why, why_bytes, "too many outputs at once");
        return false;
    }
    if (exists && fchmod(file->descriptor, st.st_mode & 0777) != 0)
        return refuse(why, why_bytes, "cannot give it its permissions");
    return true;
}

bool output_open(output_file *file, const char *path, char *why, size_t why_bytes)
{
    *file = (output_file){NULL, NULL, -1, false};
    signal(SIGXFSZ,
           SIG_IGN); /* a file too large is an error of write(), told like the others */
    bool good = open_all(file, path, why, why_bytes);
    if (!good) output_abandon(file);
    return good;
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
