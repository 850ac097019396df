/* fuzz_safetensors.c - .safetensors files: accepted arrays lie inside the file and apart from each
 * other, and a rewritten header says the same. */
#include "harness.h"

#include "safetensors.h"

static void check_inside(const safetensors *f, const uint8_t *data, size_t bytes)
{
    const unsigned char *end = data;
    for (int i = 0; i < f->count; i++) {
        const array *a = &f->arrays[i];
        MUST(a->data >= end && a->data + a->bytes <= data + bytes);
        MUST(a->rank >= 0 && a->rank <= ARRAY_RANK_MAX);
        int64_t last = 0;
        for (int j = 0; j < a->rank; j++)
            last += a->stride[j] * (a->shape[j] - 1);
        if (a->bytes) MUST(last >= 0 && (size_t)last < a->bytes);
        const array *found = safetensors_find(f, a->name);
        MUST(found == a);
        end = a->data + a->bytes;
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
    unsigned char *file = malloc(total), *at = file + head;
    MUST(file);
    memcpy(file, header, head);
    for (int i = 0; i < f->count; at += f->arrays[i++].bytes)
        memcpy(at, f->arrays[i].data, f->arrays[i].bytes);
    MUST(safetensors_read(&again, file, total, why, sizeof why));
    MUST(again.count == f->count);
    for (int i = 0; i < f->count; i++) {
        const array *a = &f->arrays[i], *b = safetensors_find(&again, a->name);
        MUST(b && b->dtype == a->dtype && b->bytes == a->bytes && b->rank == a->rank);
        MUST(memcmp(a->shape, b->shape, sizeof a->shape) == 0);
    }
    safetensors_free(&again);
    free(file);
    free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char why[300] = "";
    safetensors file;
    if (safetensors_read(&file, data, bytes, why, sizeof why)) {
        check_inside(&file, data, bytes);
        check_header(&file);
    } else {
        MUST(why[0] && memchr(why, 0, sizeof why));
    }
    safetensors_free(&file);
    return 0;
}
