/* Reads op_vectors.json (made by make_op_vectors.py with PyTorch) and compares tensors with it. */
#ifndef TESTS_COMMON_DEVICE_OP_VECTORS_H
#define TESTS_COMMON_DEVICE_OP_VECTORS_H

#include "common/ops/op.h"

#include <jansson.h>

/* Returns the document, which the caller frees with json_decref(). Fails the test program if the document
 * cannot be read. */
json_t *vectors_load(void);

/* Returns an attribute of a case, or 0, 0.0 or false if the case does not have it. */
int64_t vector_integer(const json_t *c, const char *name);
double vector_number(const json_t *c, const char *name);
bool vector_flag(const json_t *c, const char *name);
const char *vector_text(const json_t *c, const char *name);

/* Writes the name of a case for the list of tests, such as conv2d {"n": 2, ...}. Returns `buffer`. */
char *vector_name(const json_t *c, char *buffer, size_t size);

/* Fails unless the norm, the sum and the sampled elements of `values` equal PyTorch's up to 1e-12 of the
 * norm. */
void vector_check(const char *name, const json_t *result, const double *values, int64_t count);

#endif
