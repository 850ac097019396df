/* files.h - files in, whole or in parts; whole files out: an output appears complete or not at all. */
#ifndef FFPA_CLI_FILES_H
#define FFPA_CLI_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* Read text to its end, from a pipe too, at most 64 MiB. malloc'd, with a 0 after it; false with a clause
 * in `why`. */
bool file_read_text(const char *path, char **text, size_t *length, char *why, size_t why_bytes);

/* Open a regular file to read parts of it; false with a clause in `why`. Close `descriptor`. */
bool file_open(const char *path, int *descriptor, size_t *length, char *why, size_t why_bytes);
bool file_read_part(int descriptor, void *bytes, size_t length, size_t offset, char *why,
                    size_t why_bytes);

/* A file being written beside its final name. */
typedef struct output_file {
    char *path;
    char *temporary;
    int descriptor;
    bool created; /* `temporary` exists and is ours */
} output_file;

/* Open, write, then put in place: until output_commit the final name is untouched, and
 * output_abandon (or a signal that ends the program) removes every trace. A link is followed, and a file
 * that is there gives the new one its permissions. Each returns false with a clause in `why` and leaves
 * the file abandoned. */
bool output_open(output_file *file, const char *path, char *why, size_t why_bytes);
bool output_write(output_file *file, const void *bytes, size_t length, char *why,
                  size_t why_bytes);
bool output_finish(output_file *file, char *why,
                   size_t why_bytes); /* on disk, not yet in place */
bool output_commit(output_file *file, char *why, size_t why_bytes);
void output_abandon(output_file *file);

#endif
