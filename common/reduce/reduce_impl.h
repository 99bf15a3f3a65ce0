/* The kernels of one instruction set. Only this folder includes this header. */
#ifndef COMMON_REDUCE_REDUCE_IMPL_H
#define COMMON_REDUCE_REDUCE_IMPL_H

#include "common/base/processor.h"
#include "common/reduce/reduce.h"

typedef void (*reduce_pair_kernel)(void *out, const void *a, const void *b, int64_t count);
typedef void (*reduce_many_kernel)(void *const *outs, int out_count, const void *const *ins, int in_count,
                                   int64_t count, int64_t divisor);
typedef void (*reduce_divide_kernel)(void *out, const void *in, int64_t count, double divisor);

/* An entry is NULL if its type does not support the operation. */
typedef struct reduce_kernels {
    const char *name;
    reduce_pair_kernel pair[DTYPE_COUNT][REDUCE_OP_COUNT];
    reduce_many_kernel many[DTYPE_COUNT][REDUCE_OP_COUNT];
    reduce_divide_kernel convert[DTYPE_COUNT][DTYPE_COUNT]; /* [to][from]; a conversion also divides */
} reduce_kernels;

#define REDUCE_KERNELS(name) extern const reduce_kernels reduce_kernels_##name;
PROCESSOR_ISA_LIST(REDUCE_KERNELS)
#undef REDUCE_KERNELS

#endif
