/* tensor_element.h - load and store of one element of a test tensor by dtype. */
#ifndef FFPA_TESTS_TENSOR_ELEMENT_H
#define FFPA_TESTS_TENSOR_ELEMENT_H

#include "support/tensor_make.h"

double tensor_load(int32_t dtype, const unsigned char *at);
void tensor_store(int32_t dtype, unsigned char *at, double value);

#endif
