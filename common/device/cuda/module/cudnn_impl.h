#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_IMPL_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_IMPL_H

#include "common/device/cuda/module/cudnn_cuda.h"
#include "common/device/cuda/module/cudnn_graph.h"
#include "common/device/cuda/module/libraries.h"

#if PSRING_HAVE_CUDNN

/* How a convolution runs: with an algorithm of cuDNN's older interface, or with a plan of the convolution's
 * graph. */
typedef struct cudnn_choice {
    int algorithm; /* cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t; -1 for a plan */
    int plan;
    cudnnMathType_t math;
    size_t workspace;
} cudnn_choice;

/* The operands in the order of cudnn_conv_run(). */
enum { CUDNN_FIRST, CUDNN_SECOND, CUDNN_OUT, CUDNN_OPERANDS };

struct cudnn_conv {
    cuda_device *device;
    op_kind kind;
    conv2d_attributes shape;
    dtype type; /* type of the tensors that cuDNN sees: float32 or bfloat16 */
    /* Types of the operands. An operand whose type is not `type` is converted in the workspace. */
    dtype outside[CUDNN_OPERANDS];
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnMathType_t math; /* required math type of algorithms */
    cudnn_choice choice;
    cudnn_choice adding; /* choice for adding to the output; never a plan, because plans cannot add */
    cudnn_graph *graph;  /* NULL if the convolution has no plans */
    int64_t elements[CUDNN_OPERANDS];
};

status cudnn_check(const cuda_device *d, cudnnStatus_t code, const char *what);

/* Sets the stream of cuDNN's handle to `s`, unless it is already set to `s`. */
cudnnStatus_t cudnn_use_stream(cuda_device *d, cudaStream_t s);

/* Calls cuDNN. All operands must have the type p->type. */
cudnnStatus_t cudnn_call(const cudnn_conv *p, const cudnn_choice *choice, cudaStream_t s, const void *first,
                         const void *second, void *out, bool add, void *workspace);

static inline const cudnn_table *table_of_conv(const cudnn_conv *p)
{
    return &p->device->libraries->cudnn;
}

/* Sets p->choice and p->adding. If cuDNN has no deterministic algorithm, sets *found to false and *why to
 * cuDNN's error. */
status cudnn_choose(cudnn_conv *p, bool *found, cudnnStatus_t *why);

#endif
#endif
