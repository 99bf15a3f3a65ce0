/* Functions that the builders of a model share. */
#ifndef COMMON_NN_MODEL_BUILD_H
#define COMMON_NN_MODEL_BUILD_H

#include "common/nn/model.h"

/* Sets `failed`, records the error unless an error has been recorded before, and returns NN_NONE. */
nn_ref model_broken(nn_model *m, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes room for one more element in an array that has `count` elements of `size` bytes. Returns false if
 * memory is short. */
bool model_grow(nn_model *m, void **array, int count, int *capacity, size_t size);

static inline int64_t model_columns(shape s)
{
    return s.dims[s.rank - 1];
}

#endif
