/* What the files of convolutions through cuDNN share. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_IMPL_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_IMPL_H

#include "common/device/cuda/module/cudnn_cuda.h"
#include "common/device/cuda/module/cudnn_graph.h"
#include "common/device/cuda/module/libraries.h"

#if PSRING_HAVE_CUDNN

/* How a convolution runs: by one of the algorithms that cuDNN's older interface lists, or by a plan of its
 * graph. */
typedef struct cudnn_choice {
    int algorithm; /* cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t; of a plan -1 */
    int plan;
    cudnnMathType_t math;
    size_t workspace;
} cudnn_choice;

enum { CUDNN_FIRST, CUDNN_SECOND, CUDNN_OUT, CUDNN_OPERANDS }; /* as in cudnn_conv_run() */

struct cudnn_conv {
    cuda_device *device;
    op_kind kind;
    conv2d_attributes shape;
    dtype type;                    /* of the tensors that cuDNN sees: float32, or bfloat16 */
    dtype outside[CUDNN_OPERANDS]; /* of the operands: what differs passes through the workspace */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnMathType_t math; /* required of algorithms */
    cudnn_choice choice;
    cudnn_choice adding; /* where the result is added to what is there: plans do not do that */
    cudnn_graph *graph;  /* NULL: only algorithms */
    int64_t elements[CUDNN_OPERANDS];
};

status cudnn_check(const cuda_device *d, cudnnStatus_t code, const char *what);

/* cudnn_cuda.c: gives the handle the stream, unless it has it. */
cudnnStatus_t cudnn_use_stream(cuda_device *d, cudaStream_t s);

/* cudnn_cuda.c: calls cuDNN on operands of the convolution's own type. */
cudnnStatus_t cudnn_call(const cudnn_conv *p, const cudnn_choice *choice, cudaStream_t s, const void *first,
                         const void *second, void *out, bool add, void *workspace);

static inline const cudnn_table *table_of_conv(const cudnn_conv *p)
{
    return &p->device->libraries->cudnn;
}

/* cudnn_search.c: fills p->choice and p->adding; *found is false where cuDNN has no deterministic algorithm:
 * *why is its error. */
status cudnn_choose(cudnn_conv *p, bool *found, cudnnStatus_t *why);

#endif
#endif
