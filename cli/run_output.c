/* run_output.c - tensors of `ffpa run` to files. */
#include "run_files.h"

#include "files.h"
#include "npy.h"
#include "program.h"
#include "scalar.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OUTPUTS_MAX = 8, CHUNK = 1 << 16, PATH_BYTES = 4096 };

/* Memory order of the file is that of the logical axes, N and H of data swapped with `bnhd`. */
static ffpa_tensor file_order(const named_tensor *n, bool bnhd)
{
    ffpa_tensor t = n->tensor;
    if (bnhd && role_has_layout(n->role) && n->rank > 2) {
        t.shape[1] = n->tensor.shape[2];
        t.shape[2] = n->tensor.shape[1];
        t.stride[1] = n->tensor.stride[2];
        t.stride[2] = n->tensor.stride[1];
    }
    return t;
}

/* Header view of one output; `npy` files hold bf16 as f32, exactly. */
static array describe(const named_tensor *n, bool bnhd, bool npy)
{
    ffpa_tensor t = file_order(n, bnhd);
    array a = {.name = n->name, .dtype = t.dtype};
    bool row_values = n->role == ROLE_DLSE; /* no last axis */
    int last = row_values ? 3 : 4;
    if (npy && t.dtype == FFPA_BF16) a.dtype = FFPA_F32;
    a.rank = row_values ? n->rank - 1 : n->rank;
    for (int i = 0; i < a.rank; i++)
        a.shape[i] = t.shape[last - a.rank + i];
    a.bytes = (size_t)tensor_elements(&t) * scalar_bytes(a.dtype);
    return a;
}

static bool write_data(output_file *file, const ffpa_tensor *t, int32_t dtype, char why[512])
{
    static unsigned char chunk[CHUNK];
    int64_t at[4] = {0}, held = 0, fits = CHUNK / (int64_t)scalar_bytes(dtype);
    if (tensor_elements(t) == 0) return true;
    bool more;
    do {
        scalar_set(chunk, dtype, held++, tensor_get(t, at));
        more = tensor_next(t, at);
        if (held == fits || !more) {
            if (!output_write(file, chunk, (size_t)held * scalar_bytes(dtype), why, 512))
                return false;
            held = 0;
        }
    } while (more);
    return true;
}

static bool write_safetensors(output_file *file, const char *path, const named_tensor *outputs,
                              const array *arrays, int count, char why[512])
{
    size_t bytes;
    unsigned char *header = safetensors_header(arrays, count, &bytes);
    if (!header) {
        snprintf(why, 512, "out of memory for its header");
        return false;
    }
    bool good =
        output_open(file, path, why, 512) && output_write(file, header, bytes, why, 512);
    free(header);
    for (int i = 0; good && i < count; i++)
        good = write_data(file, &outputs[i].tensor, arrays[i].dtype, why);
    return good && output_finish(file, why, 512);
}

static bool write_npy(output_file *file, const char *path, const named_tensor *output,
                      const array *a, char why[512])
{
    unsigned char header[NPY_HEADER_MAX];
    size_t bytes = npy_header(a, header);
    return output_open(file, path, why, 512) && output_write(file, header, bytes, why, 512) &&
           write_data(file, &output->tensor, a->dtype, why) && output_finish(file, why, 512);
}

static bool is_folder(const char *path)
{
    struct stat st;
    return path_ends_with(path, "/") || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

int outputs_check_path(const char *path, int count)
{
    if (is_folder(path) || path_ends_with(path, ".safetensors")) return DONE;
    if (!path_ends_with(path, ".npy"))
        return complain(BAD_USAGE, "-o %s: end it in .safetensors, .npy or / (a folder)", path);
    if (count != 1)
        return complain(BAD_USAGE, "-o %s: one .npy holds one tensor, not %d; give a folder",
                        path, count);
    return DONE;
}

/* Path of an output: the file itself, or a .npy in the folder. False when it does not fit: cut off, it would name
 * another file. */
static bool path_of(char out[PATH_BYTES], const char *path, const char *name)
{
    int n = is_folder(path) ? snprintf(out, PATH_BYTES, "%s%s%s.npy", path,
                                       path_ends_with(path, "/") ? "" : "/", name)
                            : snprintf(out, PATH_BYTES, "%s", path);
    return n >= 0 && n < PATH_BYTES;
}

/* Every file is complete on disk before the first is put in place. */
int outputs_write(const char *path, const named_tensor *outputs, int count, bool bnhd)
{
    output_file files[OUTPUTS_MAX];
    named_tensor ordered[OUTPUTS_MAX];
    array arrays[OUTPUTS_MAX];
    char why[512] = "its name is too long", name[PATH_BYTES];
    bool npy = is_folder(path) || path_ends_with(path, ".npy"), good = true;
    int opened = 0, parts = npy ? count : 1;
    for (int i = 0; i < count; i++) {
        arrays[i] = describe(&outputs[i], bnhd, npy);
        ordered[i] = outputs[i];
        ordered[i].tensor = file_order(&outputs[i], bnhd);
    }
    for (int i = 0; good && i < parts; i++) {
        good = path_of(name, path, outputs[i].name) &&
               (npy ? write_npy(&files[i], name, &ordered[i], &arrays[i], why)
                    : write_safetensors(&files[i], name, ordered, arrays, count, why));
        opened += good;
    }
    for (int i = 0; good && i < parts; i++)
        good =
            path_of(name, path, outputs[i].name) && output_commit(&files[i], why, sizeof why);
    if (good) return DONE;
    for (int i = 0; i < opened; i++)
        output_abandon(&files[i]);
    return complain(BAD_FILE, "%s: %s", name, why);
}
