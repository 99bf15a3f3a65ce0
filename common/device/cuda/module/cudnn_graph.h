/* Operation graphs of cuDNN (its backend interface): tensors and operations are described, cuDNN's heuristics
 * list engines, and a plan of one of them runs the graph. A description that cuDNN refuses makes the whole
 * graph fail: `code` keeps the first error, and what follows does nothing. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDNN_GRAPH_H
#define COMMON_DEVICE_CUDA_MODULE_CUDNN_GRAPH_H

#include "common/device/cuda/module/libraries.h"

#if PSRING_HAVE_CUDNN

enum {
    GRAPH_DIMENSIONS = 4,
    GRAPH_DESCRIPTORS = 192,
    GRAPH_OPERATIONS = 24,
    GRAPH_BOUND = 16,
    GRAPH_PLANS = 12
};

typedef struct cudnn_plan {
    cudnnBackendDescriptor_t config, plan; /* plan NULL: not built */
    size_t workspace;
    bool refused;
} cudnn_plan;

typedef struct cudnn_graph {
    cuda_device *device;
    cudnnStatus_t code;
    cudnnBackendDescriptor_t made[GRAPH_DESCRIPTORS]; /* in the order of their making */
    int made_count;
    cudnnBackendDescriptor_t operations[GRAPH_OPERATIONS], whole;
    int operation_count;
    int64_t next_uid, bound[GRAPH_BOUND]; /* tensors that lie in memory, in the order of their description */
    int bound_count;
    cudnn_plan plans[GRAPH_PLANS];
    int plan_count;
    cudnnBackendDescriptor_t pack; /* of the last run: its plan's addresses, which rarely change */
    void *pack_addresses[GRAPH_BOUND + 1];
} cudnn_graph;

typedef struct cudnn_graph_tensor {
    int64_t dims[GRAPH_DIMENSIONS], strides[GRAPH_DIMENSIONS];
    cudnnDataType_t type;
    cudnnBackendDescriptor_t desc;
} cudnn_graph_tensor;

typedef enum cudnn_graph_place {
    GRAPH_IN_MEMORY,
    GRAPH_VIRTUAL, /* between two operations */
    GRAPH_BY_VALUE /* a float of the host */
} cudnn_graph_place;

/* NULL where there is no memory. */
cudnn_graph *cudnn_graph_open(cuda_device *d);
void cudnn_graph_close(cudnn_graph **g);

/* Describes the tensor: sets t->desc. */
void cudnn_graph_add(cudnn_graph *g, cudnn_graph_tensor *t, cudnn_graph_place place);

/* The operations; `y` is written. */
void cudnn_graph_convolution(cudnn_graph *g, op_kind kind, const conv2d_attributes *a,
                             const cudnn_graph_tensor *x, const cudnn_graph_tensor *w,
                             const cudnn_graph_tensor *y);
void cudnn_graph_matmul(cudnn_graph *g, const cudnn_graph_tensor *a, const cudnn_graph_tensor *b,
                        const cudnn_graph_tensor *y);
/* `b` and `choice` may be NULL; `axis` is of CUDNN_POINTWISE_GEN_INDEX. */
void cudnn_graph_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, int64_t axis,
                           const cudnn_graph_tensor *x, const cudnn_graph_tensor *b,
                           const cudnn_graph_tensor *choice, const cudnn_graph_tensor *y);
void cudnn_graph_reduce(cudnn_graph *g, cudnnReduceTensorOp_t operation, const cudnn_graph_tensor *x,
                        const cudnn_graph_tensor *y);
void cudnn_graph_reshape(cudnn_graph *g, const cudnn_graph_tensor *x, const cudnn_graph_tensor *y);

/* After the last operation: lists the engines that give the same result every time, and without
 * `tensor_cores` those that multiply float32 as it is. g->plan_count is 0 where there is none. */
void cudnn_graph_search(cudnn_graph *g, bool tensor_cores);

/* Whether plan `index` can be built, unless it has been; its workspace is then known. */
bool cudnn_graph_plan(cudnn_graph *g, int index);

/* Enqueues plan `index`; addresses are of the tensors in memory and by value, in the order of their
 * description. */
cudnnStatus_t cudnn_graph_run(cudnn_graph *g, int index, cudaStream_t s, void *const *addresses,
                              void *workspace);

#endif
#endif
