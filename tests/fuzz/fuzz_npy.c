/* fuzz_npy.c - arbitrary bytes as a .npy file: refused with a sentence, or the array lies within. */
#include "harness.h"
#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    array a;
    char why[256] = "";
    if (!npy_read(&a, data, bytes, why, sizeof why)) {
        MUST(why[0] != 0);
        return 0;
    }
    MUST(a.rank <= ARRAY_RANK_MAX && a.data + a.bytes == data + bytes);
    int64_t last = 0;
    for (int i = 0; i < a.rank; i++) {
        MUST(a.shape[i] >= 0 && a.stride[i] > 0);
        if (a.shape[i] > 0) last += (a.shape[i] - 1) * a.stride[i];
    }
    MUST(a.bytes == 0 || (size_t)last < a.bytes);
    return 0;
}
