/* safetensors.c - reader and header writer of .safetensors. The bytes are a stranger's: every number
 * is checked before it is used. */
#include "safetensors.h"

#include "ffpa/ffpa.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_FIELD = 8 };
static const uint64_t HEADER_MAX = 100u << 20; /* the format's own limit */

/* What the header says, and where to put the sentence when it lies. */
typedef struct reading {
    const unsigned char *data; /* after the header */
    size_t bytes;
    char *why;
    size_t why_bytes;
} reading;

static const struct stored_dtype {
    const char *name;
    int32_t dtype; /* 0 = read past, of no use here */
    size_t bytes;
} STORED[] = {
    {"F32", FFPA_F32, 4},
    {"F16", FFPA_F16, 2},
    {"BF16", FFPA_BF16, 2},
    {"F64", FFPA_F64, 8},
    {"BOOL", FFPA_BOOL, 1},
    {"I32", FFPA_I32, 4},
    {"I64", FFPA_I64, 8},
    {"U8", 0, 1},
    {"I8", 0, 1},
    {"U16", 0, 2},
    {"I16", 0, 2},
    {"U32", 0, 4},
    {"U64", 0, 8},
    {"F8_E4M3", FFPA_E4M3, 1},
    {"F8_E5M2", FFPA_E5M2, 1},
};

static const struct stored_dtype *stored_find(const char *name)
{
    for (size_t i = 0; i < sizeof STORED / sizeof *STORED; i++)
        if (strcmp(STORED[i].name, name) == 0) return &STORED[i];
    return NULL;
}

static const struct stored_dtype *stored_of(int32_t dtype)
{
    for (size_t i = 0; i < sizeof STORED / sizeof *STORED; i++)
        if (STORED[i].dtype == dtype) return &STORED[i];
    return NULL;
}

__attribute__((format(printf, 2, 3))) static bool refuse(const reading *r, const char *format,
                                                         ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, r->why_bytes, format, args);
    va_end(args);
    return false;
}

/* A JSON number as a count. JSON numbers are doubles here: beyond 2^53 they are not exact. */
static bool count_of(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
        item->valuedouble > 9007199254740992.0 || floor(item->valuedouble) != item->valuedouble)
        return false;
    *value = (int64_t)item->valuedouble;
    return true;
}

static bool read_shape(const reading *r, array *a, const cJSON *shape)
{
    if (!cJSON_IsArray(shape)) return refuse(r, "tensor '%s' has no shape list", a->name);
    const cJSON *dim;
    cJSON_ArrayForEach(dim, shape)
    {
        if (a->rank == ARRAY_RANK_MAX)
            return refuse(r, "tensor '%s' has more than %d dimensions", a->name,
                          ARRAY_RANK_MAX);
        if (!count_of(dim, &a->shape[a->rank]))
            return refuse(r, "tensor '%s': shape[%d] is not a whole number >= 0", a->name,
                          a->rank);
        a->rank++;
    }
    return true;
}

static bool read_span(const reading *r, array *a, const cJSON *offsets, size_t item_bytes)
{
    int64_t begin, end;
    size_t need;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !count_of(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !count_of(cJSON_GetArrayItem(offsets, 1), &end))
        return refuse(r, "tensor '%s': data_offsets is not two whole numbers >= 0", a->name);
    if (end < begin || (uint64_t)end > r->bytes)
        return refuse(
            r, "tensor '%s': data_offsets [%lld, %lld] leave the file's %zu bytes of data",
            a->name, (long long)begin, (long long)end, r->bytes);
    if (!array_bytes(a->shape, a->rank, item_bytes, &need))
        return refuse(r, "tensor '%s': its shape overflows", a->name);
    if (need != (size_t)(end - begin))
        return refuse(r, "tensor '%s': shape and dtype take %zu bytes, data_offsets hold %lld",
                      a->name, need, (long long)(end - begin));
    a->data = r->data + begin;
    a->bytes = need;
    return true;
}

static bool read_tensor(const reading *r, array *a, const cJSON *entry)
{
    a->name = entry->string;
    if (!cJSON_IsObject(entry))
        return refuse(r, "the header's entry '%s' is not an object", a->name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype)) return refuse(r, "tensor '%s' has no dtype", a->name);
    const struct stored_dtype *stored = stored_find(dtype->valuestring);
    if (!stored)
        return refuse(r, "tensor '%s' has an unknown dtype '%s'", a->name, dtype->valuestring);
    a->stored = stored->name;
    a->dtype = stored->dtype;
    if (!read_shape(r, a, cJSON_GetObjectItemCaseSensitive(entry, "shape")) ||
        !read_span(r, a, cJSON_GetObjectItemCaseSensitive(entry, "data_offsets"),
                   stored->bytes))
        return false;
    array_strides(a, false);
    return true;
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const array *)x)->name, ((const array *)y)->name);
}

static int by_position(const void *x, const void *y)
{
    const array *a = x, *b = y;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones first */
}

/* The format wants the data covered exactly once; so do we, since a hole or an overlap means that
 * header and data do not belong together. */
static bool check_together(const reading *r, safetensors *file)
{
    size_t count = (size_t)file->count;
    if (count > 0) qsort(file->arrays, count, sizeof *file->arrays, by_name);
    for (int i = 1; i < file->count; i++)
        if (strcmp(file->arrays[i - 1].name, file->arrays[i].name) == 0)
            return refuse(r, "tensor '%s' appears twice", file->arrays[i].name);
    if (count > 0) qsort(file->arrays, count, sizeof *file->arrays, by_position);
    const unsigned char *end = r->data;
    for (int i = 0; i < file->count; i++) {
        const array *a = &file->arrays[i];
        if (a->data < end)
            return refuse(r, "tensor '%s' overlaps tensor '%s'", a->name,
                          file->arrays[i - 1].name);
        if (a->data > end)
            return refuse(r, "there is a hole of %zu bytes before tensor '%s'",
                          (size_t)(a->data - end), a->name);
        end = a->data + a->bytes;
    }
    if (end != r->data + r->bytes)
        return refuse(r, "%zu bytes follow the last tensor",
                      (size_t)(r->data + r->bytes - end));
    return true;
}

static bool read_header(const reading *r, safetensors *file, const cJSON *header)
{
    int entries = cJSON_GetArraySize(header);
    file->arrays = calloc((size_t)entries + 1, sizeof *file->arrays);
    if (!file->arrays) return refuse(r, "out of memory for its header");
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header)
    {
        if (strcmp(entry->string, "__metadata__") == 0) continue;
        if (!read_tensor(r, &file->arrays[file->count++], entry)) return false;
    }
    return check_together(r, file);
}

bool safetensors_read(safetensors *file, const unsigned char *bytes, size_t length, char *why,
                      size_t why_bytes)
{
    *file = (safetensors){0};
    reading r = {NULL, 0, why, why_bytes};
    if (length < LENGTH_FIELD)
        return refuse(&r, "it has %zu bytes, not even a header length", length);
    uint64_t header = 0;
    for (int i = 0; i < LENGTH_FIELD; i++)
        header |= (uint64_t)bytes[i] << (8 * i);
    if (header > HEADER_MAX || header > length - LENGTH_FIELD)
        return refuse(&r,
                      "it says its header has %llu bytes, but it holds %zu after the length",
                      (unsigned long long)header, length - LENGTH_FIELD);
    r.data = bytes + LENGTH_FIELD + header;
    r.bytes = length - LENGTH_FIELD - (size_t)header;

    const char *end = NULL;
    cJSON *json =
        cJSON_ParseWithLengthOpts((const char *)bytes + LENGTH_FIELD, (size_t)header, &end, 0);
    file->json = json;
    if (!cJSON_IsObject(json)) {
        safetensors_free(file);
        return refuse(&r, "its header is not a JSON object");
    }
    for (const char *p = end; p < (const char *)r.data; p++)
        if (*p != ' ' && *p != '\n' && *p != '\r' && *p != '\t') {
            safetensors_free(file);
            return refuse(&r, "its header goes on after the JSON object");
        }
    if (!read_header(&r, file, json)) {
        safetensors_free(file);
        return false;
    }
    return true;
}

void safetensors_free(safetensors *file)
{
    free(file->arrays);
    cJSON_Delete(file->json);
    *file = (safetensors){0};
}

const array *safetensors_find(const safetensors *file, const char *name)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->arrays[i].name, name) == 0) return &file->arrays[i];
    return NULL;
}

static bool add_entry(cJSON *json, const array *a, size_t begin)
{
    cJSON *entry = cJSON_AddObjectToObject(json, a->name);
    cJSON *shape = entry ? cJSON_CreateArray() : NULL;
    double span[2] = {(double)begin, (double)(begin + a->bytes)};
    if (!shape || !cJSON_AddStringToObject(entry, "dtype", stored_of(a->dtype)->name))
        return false;
    for (int i = 0; i < a->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)a->shape[i]));
    return cJSON_AddItemToObject(entry, "shape", shape) &&
           cJSON_AddItemToObject(entry, "data_offsets", cJSON_CreateDoubleArray(span, 2));
}

unsigned char *safetensors_header(const array *arrays, int count, size_t *bytes)
{
    cJSON *json = cJSON_CreateObject();
    bool good = json != NULL;
    size_t position = 0;
    for (int i = 0; good && i < count; i++) {
        good = add_entry(json, &arrays[i], position);
        position += arrays[i].bytes;
    }
    char *text = good ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    if (!text) return NULL;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    unsigned char *header = malloc(LENGTH_FIELD + padded);
    if (header) {
        for (int i = 0; i < LENGTH_FIELD; i++)
            header[i] = (unsigned char)((uint64_t)padded >> (8 * i));
        memset(header + LENGTH_FIELD, ' ', padded);
        memcpy(header + LENGTH_FIELD, text, length);
        *bytes = LENGTH_FIELD + padded;
    }
    cJSON_free(text);
    return header;
}
