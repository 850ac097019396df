/* fuzz_safetensors.c - arbitrary bytes as a .safetensors file: refused with a sentence, or every
 * tensor lies within them. */
#include "harness.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    safetensors file;
    char why[256] = "";
    if (!safetensors_read(&file, data, bytes, why, sizeof why)) {
        MUST(why[0] != 0);
        return 0;
    }
    size_t total = 0;
    unsigned sum = 0;
    for (int i = 0; i < file.count; i++) {
        const array *a = &file.arrays[i];
        MUST(a->data >= data && a->data + a->bytes <= data + bytes);
        MUST(safetensors_find(&file, a->name) == a);
        for (size_t b = 0; b < a->bytes; b++)
            sum += a->data[b];
        total += a->bytes;
    }
    MUST(total + 8 <= bytes && sum < UINT32_MAX);
    safetensors_free(&file);
    return 0;
}
