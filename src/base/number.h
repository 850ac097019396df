/* number.h - decimal text of numbers with a point, whatever the program's locale writes. */
#ifndef FFPA_BASE_NUMBER_H
#define FFPA_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

enum { NUMBER_BYTES = 64 };

/* Read the first `length` characters, all of them: digits, sign, point, exponent; not nan, inf or hex. */
bool number_read(const char *text, size_t length, float *value);

/* As "%.<digits>g". */
void number_print(char text[NUMBER_BYTES], int digits, float value);

#endif
