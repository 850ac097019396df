/* npy.c - reader and header writer of .npy. Its header is a Python dict literal; the few forms that
 * NumPy writes are read, anything else is refused with a sentence. */
#include "npy.h"

#include "ffpa/ffpa.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const unsigned char MAGIC[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

static const struct npy_dtype {
    char name[4];
    int32_t dtype;
    size_t bytes;
} DTYPES[] = {{"<f4", FFPA_F32, 4},  {"<f2", FFPA_F16, 2}, {"<f8", FFPA_F64, 8},
              {"|b1", FFPA_BOOL, 1}, {"<i4", FFPA_I32, 4}, {"<i8", FFPA_I64, 8}};

/* The header text being read. */
typedef struct scanner {
    const char *p, *end;
    char *why;
    size_t why_bytes;
} scanner;

__attribute__((format(printf, 2, 3))) static bool refuse(scanner *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->why, s->why_bytes, format, args);
    va_end(args);
    return false;
}

static void skip_space(scanner *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

static bool take(scanner *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c) return false;
    s->p++;
    return true;
}

static bool take_word(scanner *s, const char *word)
{
    size_t length = strlen(word);
    skip_space(s);
    if ((size_t)(s->end - s->p) < length || memcmp(s->p, word, length) != 0) return false;
    s->p += length;
    return true;
}

static bool take_string(scanner *s, char *text, size_t capacity)
{
    skip_space(s);
    if (s->p == s->end || (*s->p != '\'' && *s->p != '"')) return false;
    char quote = *s->p++;
    size_t n = 0;
    while (s->p < s->end && *s->p != quote) {
        if (n + 1 == capacity) return false;
        text[n++] = *s->p++;
    }
    text[n] = 0;
    return s->p++ < s->end;
}

static bool take_count(scanner *s, int64_t *value)
{
    skip_space(s);
    const char *start = s->p;
    *value = 0;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++) {
        if (*value > (INT64_MAX - 9) / 10) return false;
        *value = *value * 10 + (*s->p - '0');
    }
    return s->p > start;
}

static bool read_descr(scanner *s, array *a, size_t *item_bytes)
{
    char text[16];
    if (!take_string(s, text, sizeof text))
        return refuse(s, "its descr is not a plain type such as '<f4'");
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
        if (strcmp(text, DTYPES[i].name) == 0) {
            a->stored = DTYPES[i].name;
            a->dtype = DTYPES[i].dtype;
            *item_bytes = DTYPES[i].bytes;
            return true;
        }
    return refuse(
        s, "its descr '%s' is none of <f2 <f4 <f8 <i4 <i8 |b1%s", text,
        strstr(text, "V2") ? " (bf16 has no .npy type: save f32 and pass --dtype bf16)" : "");
}

static bool read_shape(scanner *s, array *a)
{
    if (!take(s, '(')) return refuse(s, "its shape is not a tuple");
    while (!take(s, ')')) {
        if (a->rank == ARRAY_RANK_MAX)
            return refuse(s, "it has more than %d dimensions", ARRAY_RANK_MAX);
        if (!take_count(s, &a->shape[a->rank]))
            return refuse(s, "shape[%d] is not a whole number from 0 to 2^63", a->rank);
        a->rank++;
        if (!take(s, ',') && (s->p == s->end || *s->p != ')'))
            return refuse(s, "its shape is not a tuple");
    }
    return true;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } in any order, each key once */
static bool read_dict(scanner *s, array *a, size_t *item_bytes, bool *column_major)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    char key[16];
    int seen = 0;
    if (!take(s, '{')) return refuse(s, "its header is not a dict");
    while (!take(s, '}')) {
        if (!take_string(s, key, sizeof key) || !take(s, ':'))
            return refuse(s, "its header is not a dict of descr, fortran_order and shape");
        int which = strcmp(key, "descr") == 0           ? DESCR
                    : strcmp(key, "fortran_order") == 0 ? ORDER
                    : strcmp(key, "shape") == 0         ? SHAPE
                                                        : 0;
        if (which == 0 || (seen & which))
            return refuse(s, "its header has %s key '%s'", which ? "a second" : "an unknown",
                          key);
        seen |= which;
        if (which == DESCR && !read_descr(s, a, item_bytes)) return false;
        if (which == SHAPE && !read_shape(s, a)) return false;
        if (which == ORDER) {
            *column_major = take_word(s, "True");
            if (!*column_major && !take_word(s, "False"))
                return refuse(s, "its fortran_order is neither True nor False");
        }
        take(s, ',');
    }
    skip_space(s);
    if (s->p != s->end) return refuse(s, "its header goes on after the dict");
    return seen == ALL || refuse(s, "its header lacks one of descr, fortran_order and shape");
}

/* A header takes a hundred bytes; NumPy itself refuses to look at more than 10000. */
static const size_t HEADER_MAX = 1 << 16;

bool npy_header_bytes(const unsigned char *bytes, size_t length, size_t *header, char *why,
                      size_t why_bytes)
{
    scanner s = {NULL, NULL, why, why_bytes};
    if (length < 10 || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return refuse(&s, "it does not begin as a .npy file");
    if (bytes[6] < 1 || bytes[6] > 3)
        return refuse(&s, "its .npy version %d is none of 1, 2, 3", bytes[6]);
    size_t field = bytes[6] == 1 ? 2 : 4, start = 8 + field, says = 0;
    if (length < start) return refuse(&s, "it ends within its header");
    for (size_t i = 0; i < field; i++)
        says |= (size_t)bytes[8 + i] << (8 * i);
    if (says > length - start)
        return refuse(&s, "it says its header has %zu bytes, but it holds %zu after the length",
                      says, length - start);
    if (says > HEADER_MAX)
        return refuse(&s, "it says its header has %zu bytes, more than %zu", says, HEADER_MAX);
    *header = start + says;
    return true;
}

bool npy_read(array *a, const unsigned char *bytes, size_t length, char *why, size_t why_bytes)
{
    scanner s = {NULL, NULL, why, why_bytes};
    size_t item = 0;
    bool column_major = false;
    *a = (array){.name = "", .stored = ""};
    if (!npy_header_bytes(bytes, length, &a->offset, why, why_bytes)) return false;
    s.p = (const char *)bytes + (bytes[6] == 1 ? 10 : 12);
    s.end = (const char *)bytes + a->offset;
    if (!read_dict(&s, a, &item, &column_major)) return false;
    if (!array_bytes(a->shape, a->rank, item, &a->bytes))
        return refuse(&s, "its shape overflows");
    if (a->bytes != length - a->offset)
        return refuse(&s, "shape and descr take %zu bytes, the file holds %zu", a->bytes,
                      length - a->offset);
    array_strides(a, column_major);
    return true;
}

size_t npy_header(const array *a, unsigned char header[NPY_HEADER_MAX])
{
    const char *descr = "";
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
        if (DTYPES[i].dtype == a->dtype) descr = DTYPES[i].name;
    char *text = (char *)header + 10;
    int n = snprintf(text, NPY_HEADER_MAX - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < a->rank; i++)
        n += snprintf(text + n, (size_t)(NPY_HEADER_MAX - 10 - n), i ? " %lld," : "%lld,",
                      (long long)a->shape[i]);
    n += snprintf(text + n, (size_t)(NPY_HEADER_MAX - 10 - n), "), }");
    while ((10 + n + 1) % 64 != 0)
        text[n++] = ' ';
    text[n++] = '\n';
    memcpy(header, MAGIC, sizeof MAGIC);
    header[6] = 1;
    header[7] = 0;
    header[8] = (unsigned char)(n & 255);
    header[9] = (unsigned char)(n >> 8);
    return (size_t)(10 + n);
}
