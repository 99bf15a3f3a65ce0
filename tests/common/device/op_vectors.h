/* Reads op_vectors.json (made by make_op_vectors.py with PyTorch) and compares tensors with it. */
#ifndef TESTS_COMMON_DEVICE_OP_VECTORS_H
#define TESTS_COMMON_DEVICE_OP_VECTORS_H

#include "common/ops/op.h"

#include <jansson.h>

/* The document; fails the test program where it cannot be read. json_decref it. */
json_t *vectors_load(void);

/* An attribute of a case, 0, 0.0 or false where absent. */
int64_t vector_integer(const json_t *c, const char *name);
double vector_number(const json_t *c, const char *name);
bool vector_flag(const json_t *c, const char *name);
const char *vector_text(const json_t *c, const char *name);

/* "conv2d {"n": 2, ...}": a case's name for a test. Returns `buffer`. */
char *vector_name(const json_t *c, char *buffer, size_t size);

/* Fails unless norm, sum and sampled elements of `values` are PyTorch's, up to 1e-12 of the norm. */
void vector_check(const char *name, const json_t *result, const double *values, int64_t count);

#endif
