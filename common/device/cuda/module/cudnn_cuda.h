/* Convolutions through cuDNN. Without the library, cudnn_conv_prepare() sets *out to NULL, and its callers
 * use kernels of this module. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_CUDA_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_CUDA_H

#include "common/device/cuda/module/cuda_impl.h"

typedef struct cudnn_conv cudnn_conv;

#if PSRING_HAVE_CUDNN

status cudnn_open(cuda_device *d);
void cudnn_close(cuda_device *d);

/* Prepares a convolution with the first deterministic algorithm of cuDNN's heuristics, or with the fastest
 * one if the device was opened with `benchmark`. *out is NULL if cuDNN is missing or has no deterministic
 * algorithm. If the device multiplies in bfloat16, factors and results are rounded to bfloat16, and sums are
 * float32. */
status cudnn_conv_prepare(cuda_device *d, const op_desc *op, cudnn_conv **out);
void cudnn_conv_release(cudnn_conv **conv);
size_t cudnn_conv_workspace(const cudnn_conv *conv);

/* Runs the convolution. Forward: x, w -> y. Backward data: w, dy -> dx. Backward weights: x, dy -> dw.
 * Operands have the types of op_desc. If `add`, adds the result to `out`. `add` may be set only for backward
 * weights. */
status cudnn_conv_run(const cudnn_conv *conv, cudaStream_t s, const void *first, const void *second,
                      void *out, bool add, void *workspace);

#else /* built without cuDNN */

#define cudnn_open(d) STATUS_OK
#define cudnn_close(d)
#define cudnn_conv_prepare(d, op, out) (*(out) = NULL, STATUS_OK)
#define cudnn_conv_release(conv) (void)(conv)
#define cudnn_conv_workspace(conv) 0
#define cudnn_conv_run(conv, s, first, second, out, add, workspace)                                          \
    ((void)(workspace), fail(STATUS_INTERNAL, "this module was built without cuDNN"))

#endif
#endif
