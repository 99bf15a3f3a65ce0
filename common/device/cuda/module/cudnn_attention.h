/* Attention through cuDNN, if --benchmark is set and activations are bfloat16. A cudnn_attention is NULL
 * if cuDNN is missing, has no deterministic engine for the shape, or is slower than the kernel of this
 * module. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_ATTENTION_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_ATTENTION_H

#include "common/device/cuda/module/cuda_impl.h"

typedef struct cudnn_attention cudnn_attention;

/* Type of the kernel of this module with which cuDNN competes. The parameters are as in
 * cuda_kernel_entry.run. */
typedef status (*cudnn_attention_rival)(const cuda_kernel *k, cudaStream_t s, void *const *operands,
                                        const op_scalars *scalars, void *workspace);

#if PSRING_HAVE_CUDNN

/* Prepares attention_forward or attention_backward. k->base.workspace is the number of bytes that `own`
 * needs. */
status cudnn_attention_prepare(const cuda_kernel *k, cudnn_attention_rival own, cudnn_attention **out);
void cudnn_attention_release(cudnn_attention **p);
size_t cudnn_attention_workspace(const cudnn_attention *p);
/* Runs the operation. Operands are in the slots of op.h. */
status cudnn_attention_run(const cudnn_attention *p, cudaStream_t s, void *const *operands, void *workspace);

#else

#define cudnn_attention_prepare(k, own, out) ((void)(own), *(out) = NULL, STATUS_OK)
#define cudnn_attention_release(p) (void)(p)
#define cudnn_attention_workspace(p) 0
#define cudnn_attention_run(p, s, operands, workspace)                                                       \
    fail(STATUS_INTERNAL, "this module was built without cuDNN")

#endif
#endif
