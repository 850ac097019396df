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

static const uint64_t HEADER_MAX = 100u << 20; /* the format's own limit */

/* What the header says, and where to put the sentence when it lies. */
typedef struct reading {
    size_t start, bytes; /* of the data after the header */
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
            return refuse(r, "tensor '%s': shape[%d] is not a whole number from 0 to 2^53",
                          a->name, a->rank);
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
        return refuse(r, "tensor '%s': data_offsets is not two whole numbers from 0 to 2^53",
                      a->name);
    if (end < begin || (uint64_t)end > r->bytes)
        return refuse(
            r, "tensor '%s': data_offsets [%lld, %lld] leave the file's %zu bytes of data",
            a->name, (long long)begin, (long long)end, r->bytes);
    if (item_bytes == 0)
        need = (size_t)(end - begin); /* no telling for an unknown dtype */
    else if (!array_bytes(a->shape, a->rank, item_bytes, &need))
        return refuse(r, "tensor '%s': its shape overflows", a->name);
    if (need != (size_t)(end - begin))
        return refuse(r, "tensor '%s': shape and dtype take %zu bytes, data_offsets hold %lld",
                      a->name, need, (long long)(end - begin));
    a->offset = r->start + (size_t)begin;
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
    a->stored = dtype->valuestring;
    a->dtype = stored ? stored->dtype : 0;
    if (!read_shape(r, a, cJSON_GetObjectItemCaseSensitive(entry, "shape")) ||
        !read_span(r, a, cJSON_GetObjectItemCaseSensitive(entry, "data_offsets"),
                   stored ? stored->bytes : 0))
        return false;
    if (stored) array_strides(a, false); /* which cannot overflow, as the sizes do not */
    return true;
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const array *)x)->name, ((const array *)y)->name);
}

static int by_position(const void *x, const void *y)
{
    const array *a = x, *b = y;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
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
    size_t end = r->start;
    for (int i = 0; i < file->count; i++) {
        const array *a = &file->arrays[i];
        if (a->offset < end)
            return refuse(r, "tensor '%s' overlaps tensor '%s'", a->name,
                          file->arrays[i - 1].name);
        if (a->offset > end)
            return refuse(r, "there is a hole of %zu bytes before tensor '%s'", a->offset - end,
                          a->name);
        end = a->offset + a->bytes;
    }
    if (end != r->start + r->bytes)
        return refuse(r, "%zu bytes follow the last tensor", r->start + r->bytes - end);
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

bool safetensors_header_bytes(const unsigned char *bytes, size_t length, size_t *header,
                              char *why, size_t why_bytes)
{
    const reading r = {0, 0, why, why_bytes};
    uint64_t says = 0;
    if (length < SAFETENSORS_PREFIX)
        return refuse(&r, "it has %zu bytes, not even a header length", length);
    for (int i = 0; i < SAFETENSORS_PREFIX; i++)
        says |= (uint64_t)bytes[i] << (8 * i);
    if (says > HEADER_MAX || says > length - SAFETENSORS_PREFIX)
        return refuse(&r,
                      "it says its header has %llu bytes, but it holds %zu after the length",
                      (unsigned long long)says, length - SAFETENSORS_PREFIX);
    *header = SAFETENSORS_PREFIX + (size_t)says;
    return true;
}

bool safetensors_read(safetensors *file, const unsigned char *bytes, size_t length, char *why,
                      size_t why_bytes)
{
    *file = (safetensors){0};
    reading r = {0, 0, why, why_bytes};
    if (!safetensors_header_bytes(bytes, length, &r.start, why, why_bytes)) return false;
    r.bytes = length - r.start;

    const char *text = (const char *)bytes + SAFETENSORS_PREFIX, *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, r.start - SAFETENSORS_PREFIX, &end, 0);
    file->json = json;
    if (!cJSON_IsObject(json)) {
        safetensors_free(file);
        return refuse(&r, "its header is not a JSON object");
    }
    for (const char *p = end; p < (const char *)bytes + r.start; p++)
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
    unsigned char *header = malloc(SAFETENSORS_PREFIX + padded);
    if (header) {
        for (int i = 0; i < SAFETENSORS_PREFIX; i++)
            header[i] = (unsigned char)((uint64_t)padded >> (8 * i));
        memset(header + SAFETENSORS_PREFIX, ' ', padded);
        memcpy(header + SAFETENSORS_PREFIX, text, length);
        *bytes = SAFETENSORS_PREFIX + padded;
    }
    cJSON_free(text);
    return header;
}
