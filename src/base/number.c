/* number.c - the C library's own conversions, which round correctly, with its locale's decimal point
 * exchanged for ours. Asking printf for that point is safe where localeconv is not. */
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINT_BYTES = 16 };

/* The text between the digits of 0.5. */
static size_t find_point(char point[POINT_BYTES])
{
    const int n = snprintf(point, POINT_BYTES, "%.1f", 0.5);
    const size_t length = n > 2 && n < POINT_BYTES ? (size_t)n - 2 : 0;
    memmove(point, point + 1, length);
    return length;
}

/* Copy `text` with the first `from` become `to`; false when it does not fit. */
static bool exchange(char out[NUMBER_BYTES], const char *text, const char *from, size_t from_n,
                     const char *to, size_t to_n)
{
    const char *at = from_n ? strstr(text, from) : NULL;
    const size_t head = at ? (size_t)(at - text) : strlen(text);
    const char *tail = at ? at + from_n : "";
    if (head + (at ? to_n : 0) + strlen(tail) >= NUMBER_BYTES) return false;
    memcpy(out, text, head);
    if (at) memcpy(out + head, to, to_n);
    strcpy(out + head + (at ? to_n : 0), tail);
    return true;
}

bool number_read(const char *text, size_t length, float *value)
{
    char point[POINT_BYTES], ours[NUMBER_BYTES], theirs[NUMBER_BYTES], *end;
    if (length == 0 || length >= sizeof ours) return false;
    memcpy(ours, text, length);
    ours[length] = 0;
    if (strspn(ours, "+-.eE0123456789") != length) return false;
    const size_t n = find_point(point);
    if (!exchange(theirs, ours, ".", 1, point, n)) return false;
    *value = strtof(theirs, &end);
    return end != theirs && *end == 0;
}

void number_print(char text[NUMBER_BYTES], int digits, float value)
{
    char point[POINT_BYTES], theirs[NUMBER_BYTES];
    const size_t n = find_point(point);
    point[n] = 0;
    snprintf(theirs, sizeof theirs, "%.*g", digits, (double)value);
    if (!exchange(text, theirs, point, n, ".", 1)) text[0] = 0;
}
