/* Attention through cuDNN, if --benchmark is set and activations are bfloat16. A cudnn_attention is NULL
 * if cuDNN is missing, has no deterministic engine for the shape, or is slower than the kernel of this
 * module. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_ATTENTION_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_ATTENTION_H

#include "common/device/cuda/module/cuda_impl.h"

typedef struct cudnn_attention cudnn_attention;

#if PSRING_HAVE_CUDNN

/* Prepares attention_forward or attention_backward. `own` is the kernel of this module that is timed against
 * cuDNN, and k->base.workspace is the number of workspace bytes that `own` needs. */
status cudnn_attention_prepare(const cuda_kernel *k, cuda_run_function *own, cudnn_attention **out);
void cudnn_attention_release(cudnn_attention **p);
size_t cudnn_attention_workspace(const cudnn_attention *p);
status cudnn_attention_run(const cudnn_attention *p, const cuda_call *call);

#else

#define cudnn_attention_prepare(k, own, out) ((void)(own), *(out) = NULL, STATUS_OK)
#define cudnn_attention_release(p) (void)(p)
#define cudnn_attention_workspace(p) 0
#define cudnn_attention_run(p, call) fail(STATUS_INTERNAL, "this module was built without cuDNN")

#endif
#endif
