/* run_files.h - the tensors of `ffpa run`: from files to the library's views, and back. */
#ifndef FFPA_CLI_RUN_FILES_H
#define FFPA_CLI_RUN_FILES_H

#include "array.h"
#include "safetensors.h"
#include "tensors.h"

/* What a file may hold for a call, by role. */
enum role {
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_MASK,
    ROLE_ALIBI,
    ROLE_SINK,
    ROLE_DOUT,
    ROLE_DLSE,
    ROLE_COUNT
};
extern const char *const ROLE_NAMES[ROLE_COUNT];

/* One opened input: a .safetensors file, or a .npy file as a single unnamed array. */
typedef struct input_file {
    const char *path;
    int descriptor;
    safetensors tensors;
    array single; /* .npy */
    bool npy;
} input_file;

/* Does a path end so? Names alone tell .safetensors from .npy. */
bool path_ends_with(const char *path, const char *end);

/* Read its header. DONE, or BAD_FILE or LIB_FAILED after a complaint. */
int input_open(input_file *file, const char *path);
void input_close(input_file *file);

/* The array of this name, or the .npy's only one; NULL when there is none. */
const array *input_find(const input_file *file, const char *name);

/* How arrays become tensors. */
typedef struct view_options {
    int32_t dtype; /* convert q k v dout to it; 0 = as stored */
    bool bnhd;     /* files hold [B, N, H, D] */
    bool wide;     /* lse-like ones become f64, as beside f64 data, not f32 */
} view_options;

/* Do files hold N and H of this role in the order that view_options say? Data does; biases and statistics
 * are always [B, H, ...]. */
bool role_has_layout(enum role role);

/* Read an array as [B, H, N, D]: rank 4, or 3 or 2 with leading ones added; lse-like roles lack D. DONE or
 * a code after a complaint that names file and tensor. */
int input_tensor(arena *memory, ffpa_tensor *t, enum role role, const input_file *file,
                 const array *a, const view_options *options);

/* One tensor to write or compare: its name and the shape that files give it. */
typedef struct named_tensor {
    const char *name;
    ffpa_tensor tensor;
    int rank; /* of the file's array; 1s in front and, for lse, the last axis are left out */
    enum role role; /* whose form it has: that of what it is the gradient of, of dlse for lse */
} named_tensor;

/* Write all of them, or nothing, to a .safetensors file, one .npy file, or a folder of .npy files.
 * DONE or BAD_FILE, LIB_FAILED after a complaint. */
int outputs_write(const char *path, const named_tensor *outputs, int count, bool bnhd);

/* Whether `path` can hold `count` tensors; DONE or BAD_USAGE after a complaint. */
int outputs_check_path(const char *path, int count);

#endif
