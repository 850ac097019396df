/* fuzz_npy.c - .npy files: an accepted array lies inside the file, and its rewritten header says the
 * same. */
#include "harness.h"

#include "npy.h"

static void check_inside(const array *a, size_t bytes, size_t item)
{
    size_t count = 1;
    int64_t last = 0; /* index of the farthest element */
    for (int i = 0; i < a->rank; i++) {
        MUST(a->shape[i] >= 0 && a->stride[i] >= 0);
        count *= (size_t)a->shape[i];
        last += a->stride[i] * (a->shape[i] - 1);
    }
    MUST(a->offset <= bytes && a->bytes == bytes - a->offset);
    MUST(a->bytes == count * item);
    if (count > 0) MUST((size_t)last + 1 == count);
}

static void check_header(const array *a)
{
    unsigned char header[NPY_HEADER_MAX];
    char why[200];
    array again;
    const size_t head = npy_header(a, header);
    MUST(head > 0 && head <= sizeof header && head % 64 == 0);
    MUST(npy_read(&again, header, head + a->bytes, why, sizeof why)); /* of the header alone */
    MUST(again.dtype == a->dtype && again.rank == a->rank && again.bytes == a->bytes);
    MUST(memcmp(again.shape, a->shape, sizeof a->shape) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char why[200] = "";
    array a;
    if (!npy_read(&a, data, bytes, why, sizeof why)) {
        MUST(why[0] && memchr(why, 0, sizeof why));
        return 0;
    }
    const size_t item = a.stored[2] == '8'   ? 8
                        : a.stored[2] == '4' ? 4
                        : a.stored[2] == '2' ? 2
                                             : 1;
    check_inside(&a, bytes, item);
    check_header(&a);
    return 0;
}
