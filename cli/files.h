/* files.h - whole files in, whole files out: an output appears complete or not at all. */
#ifndef FFPA_CLI_FILES_H
#define FFPA_CLI_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* Read a file. malloc'd, with one spare byte at the end; false with a clause in `why`. */
bool file_read(const char *path, unsigned char **bytes, size_t *length, char *why,
               size_t why_bytes);

/* A file being written beside its final name. */
typedef struct output_file {
    char *path;
    char *temporary;
    int descriptor;
    bool created; /* `temporary` exists and is ours */
} output_file;

/* Open, write, then put in place: until output_commit the final name is untouched, and
 * output_abandon (or a signal that ends the program) removes every trace. Each returns false with a
 * clause in `why` and leaves the file abandoned. */
bool output_open(output_file *file, const char *path, char *why, size_t why_bytes);
bool output_write(output_file *file, const void *bytes, size_t length, char *why,
                  size_t why_bytes);
bool output_finish(output_file *file, char *why,
                   size_t why_bytes); /* on disk, not yet in place */
bool output_commit(output_file *file, char *why, size_t why_bytes);
void output_abandon(output_file *file);

#endif
