/* run_input.c - tensors of `ffpa run` from files. */
#include "run_files.h"

#include "files.h"
#include "npy.h"
#include "program.h"
#include "scalar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const ROLE_NAMES[ROLE_COUNT] = {"q",     "k",    "v",    "mask",
                                            "alibi", "sink", "dout", "dlse"};

bool path_ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* The header, then what it says. */
static int read_header(input_file *file, size_t length, char *why, size_t why_bytes)
{
    unsigned char prefix[NPY_PREFIX], *header = NULL;
    size_t have = length < sizeof prefix ? length : sizeof prefix, bytes;
    if (!file_read_part(file->descriptor, prefix, have, 0, why, why_bytes)) return BAD_FILE;
    bool good = file->npy ? npy_header_bytes(prefix, length, &bytes, why, why_bytes)
                          : safetensors_header_bytes(prefix, length, &bytes, why, why_bytes);
    if (!good) return BAD_FILE;
    header = malloc(bytes);
    if (!header) {
        snprintf(why, why_bytes, "out of memory for its header of %zu bytes", bytes);
        return LIB_FAILED;
    }
    good = file_read_part(file->descriptor, header, bytes, 0, why, why_bytes) &&
           (file->npy ? npy_read(&file->single, header, length, why, why_bytes)
                      : safetensors_read(&file->tensors, header, length, why, why_bytes));
    free(header);
    return good ? DONE : BAD_FILE;
}

int input_open(input_file *file, const char *path)
{
    char why[512];
    size_t length;
    *file = (input_file){.path = path, .descriptor = -1, .npy = path_ends_with(path, ".npy")};
    if (!file->npy && !path_ends_with(path, ".safetensors"))
        return complain(BAD_FILE, "%s: its name ends in neither .safetensors nor .npy", path);
    int code = file_open(path, &file->descriptor, &length, why, sizeof why)
                   ? read_header(file, length, why, sizeof why)
                   : BAD_FILE;
    if (code == DONE) return DONE;
    input_close(file);
    return complain(code, "%s: %s", path, why);
}

void input_close(input_file *file)
{
    if (!file->npy) safetensors_free(&file->tensors);
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

const array *input_find(const input_file *file, const char *name)
{
    return file->npy ? &file->single : safetensors_find(&file->tensors, name);
}

bool role_has_layout(enum role role)
{
    return role == ROLE_Q || role == ROLE_K || role == ROLE_V || role == ROLE_DOUT;
}

/* Where each logical axis [B, H, N, D] is among the array's axes, -1 = of size 1. */
static bool place_axes(int axis[4], enum role role, int rank, bool bnhd)
{
    bool per_head = role == ROLE_ALIBI || role == ROLE_SINK;
    bool row_values = role == ROLE_DLSE;
    axis[0] = axis[1] = axis[2] = axis[3] = -1;
    if (per_head && rank < 4) { /* [H] or [B, H] */
        axis[1] = rank - 1;
        axis[0] = rank == 2 ? 0 : -1;
        return rank == 1 || rank == 2;
    }
    if (row_values && rank < 4)
        rank++; /* as if it had D = 1 */
    else
        row_values = false;
    if (rank < 2 || rank > 4) return false;
    for (int i = 0; i < rank; i++)
        axis[3 - i] = rank - 1 - i;
    if (row_values) axis[3] = -1;
    if (bnhd && role_has_layout(role) && rank > 2) {
        int heads = axis[2];
        axis[2] = axis[1];
        axis[1] = heads;
    }
    return true;
}

/* The dtype to hand to the library: the stored one, or what the options and the role ask for. */
static int32_t wanted_dtype(enum role role, const array *a, const view_options *options)
{
    bool floating = a->dtype == FFPA_F32 || a->dtype == FFPA_F16 || a->dtype == FFPA_BF16 ||
                    a->dtype == FFPA_F64;
    if (role_has_layout(role) && options->dtype && floating) return options->dtype;
    if (role == ROLE_DLSE && floating) return options->wide ? FFPA_F64 : FFPA_F32;
    if ((role == ROLE_ALIBI || role == ROLE_SINK || role == ROLE_MASK) && floating &&
        (role != ROLE_MASK || a->dtype == FFPA_F64))
        return FFPA_F32;
    return a->dtype;
}

int input_tensor(arena *memory, ffpa_tensor *t, enum role role, const input_file *file,
                 const array *a, const view_options *options)
{
    int axis[4];
    size_t size = scalar_bytes(a->dtype);
    const char *name = ROLE_NAMES[role];
    if (size == 0)
        return complain(BAD_FILE, "%s: tensor '%s' has dtype %s, which attention cannot take",
                        file->path, name, a->stored);
    if (!place_axes(axis, role, a->rank, options->bnhd))
        return complain(BAD_FILE, "%s: tensor '%s' has rank %d; %s", file->path, name, a->rank,
                        role == ROLE_ALIBI || role == ROLE_SINK
                            ? "it must be [H], [B,H] or of rank 4"
                            : "it must be 4 [B,H,N,D], 3 or 2");
    *t = (ffpa_tensor){.dtype = a->dtype};
    for (int i = 0; i < 4; i++) {
        t->shape[i] = axis[i] < 0 ? 1 : a->shape[axis[i]];
        t->stride[i] = axis[i] < 0 ? 0 : a->stride[axis[i]];
    }
    char why[512];
    t->data = arena_alloc(memory, a->bytes);
    if (!t->data) return complain(LIB_FAILED, "out of memory for tensor '%s'", name);
    if (!file_read_part(file->descriptor, t->data, a->bytes, a->offset, why, sizeof why))
        return complain(BAD_FILE, "%s: %s", file->path, why);
    int32_t dtype = wanted_dtype(role, a, options);
    ffpa_tensor stored = *t;
    if (dtype != a->dtype && !tensor_convert(memory, t, &stored, dtype))
        return complain(LIB_FAILED, "out of memory for tensor '%s'", name);
    return DONE;
}
