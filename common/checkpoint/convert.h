/* Floating-point tensors of files as host values. */
#ifndef COMMON_CHECKPOINT_CONVERT_H
#define COMMON_CHECKPOINT_CONVERT_H

#include "common/ops/tensor.h"

/* The host type that holds every value of `type`: float64 for F64, float32 for F32, F16 and BF16;
 * DTYPE_COUNT for types that are no floating point. */
dtype convert_host_type(dtype type);

/* `count` elements of `type` as convert_host_type(type): exact. */
void convert_to_host(void *to, const void *from, dtype type, int64_t count);

/* A matrix [rows, columns] of elements of 4 or 8 bytes as [columns, rows]. */
void convert_transpose(void *to, const void *from, int64_t rows, int64_t columns, int bytes);

#endif
