/* disk.h - files as wholes: read one, write one so that nobody ever sees half of it. */
#ifndef FFPA_BASE_DISK_H
#define FFPA_BASE_DISK_H

#include "base/alloc.h"

#include <stdbool.h>

enum { DISK_PATH = 1024 };

/* The whole file, NUL-terminated beyond its `*bytes`; the caller frees it with mem_free. `limit` is
 * the most it may hold. NULL when absent, unreadable, larger, or when there is no memory: errno tells. */
void *disk_read(const allocator *a, const char *path, size_t limit, size_t *bytes);

/* Write a file under a temporary name in its folder, flush it to the disk, rename it. On failure
 * nothing is left behind and errno tells why. Two writers of one path: the later rename wins. */
bool disk_write(const char *path, const void *head, size_t head_bytes, const void *body,
                size_t body_bytes);

/* What writers of files so `ending` left behind in the folder of `path` when they died: temporary files an hour older
 * than `path`, which has just been written, so that one clock tells. No file takes an hour to write. */
void disk_sweep(const char *path, const char *ending);

/* Make a folder and the ones above it, with these permissions less the umask. True when it is there afterwards, else
 * errno tells why. */
bool disk_make_folder(const char *path, unsigned mode);

/* "folder/name" into `out` of DISK_PATH bytes; false with errno when it does not fit. */
bool disk_join(char out[DISK_PATH], const char *folder, const char *name);

#endif
