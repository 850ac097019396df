/* fuzz_safetensors.c - .safetensors files: accepted arrays lie inside the file and apart from each
 * other, and a rewritten header says the same. */
#include "harness.h"

#include "safetensors.h"

static void check_inside(const safetensors *f, size_t bytes)
{
    size_t end = 0;
    for (int i = 0; i < f->count; i++) {
        const array *a = &f->arrays[i];
        MUST(a->offset >= end && a->offset <= bytes && a->bytes <= bytes - a->offset);
        MUST(a->rank >= 0 && a->rank <= ARRAY_RANK_MAX);
        int64_t last = 0;
        for (int j = 0; j < a->rank; j++)
            last += a->stride[j] * (a->shape[j] - 1);
        if (a->bytes && a->dtype) MUST(last >= 0 && (size_t)last < a->bytes);
        const array *found = safetensors_find(f, a->name);
        MUST(found == a);
        end = a->offset + a->bytes;
    }
    MUST(!safetensors_find(f, "no such name \x01"));
}

static void check_header(const safetensors *f)
{
    char why[300];
    safetensors again;
    size_t head;
    for (int i = 0; i < f->count; i++)
        if (f->arrays[i].dtype == 0) return; /* read past, but never written */
    if (f->count == 0) return;
    unsigned char *header = safetensors_header(f->arrays, f->count, &head);
    MUST(header && head % 8 == 0);
    size_t total = head;
    for (int i = 0; i < f->count; i++)
        total += f->arrays[i].bytes;
    MUST(safetensors_read(&again, header, total, why, sizeof why)); /* of the header alone */
    MUST(again.count == f->count);
    for (int i = 0; i < f->count; i++) {
        const array *a = &f->arrays[i], *b = safetensors_find(&again, a->name);
        MUST(b && b->dtype == a->dtype && b->bytes == a->bytes && b->rank == a->rank);
        MUST(memcmp(a->shape, b->shape, sizeof a->shape) == 0);
    }
    safetensors_free(&again);
    free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char why[300] = "";
    safetensors file;
    if (safetensors_read(&file, data, bytes, why, sizeof why)) {
        check_inside(&file, bytes);
        check_header(&file);
    } else {
        MUST(why[0] && memchr(why, 0, sizeof why));
    }
    safetensors_free(&file);
    return 0;
}
