/* Operation graphs of cuDNN (its backend interface).
 *
 * The caller describes tensors and operations. cuDNN's heuristics list engines, and a plan of one engine runs
 * the graph. If cuDNN rejects a description, the whole graph fails: `code` keeps the first error, and later
 * calls do nothing. */
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
    cudnnBackendDescriptor_t config, plan; /* plan is NULL until it is built */
    size_t workspace;
    bool refused;
} cudnn_plan;

typedef struct cudnn_graph {
    cuda_device *device;
    cudnnStatus_t code;
    cudnnBackendDescriptor_t made[GRAPH_DESCRIPTORS];
    int made_count;
    cudnnBackendDescriptor_t operations[GRAPH_OPERATIONS], whole;
    int operation_count;
    int64_t next_uid, bound[GRAPH_BOUND]; /* bound holds the ids of the tensors that have an address, in the
                                             order in which they were added */
    int bound_count;
    cudnn_plan plans[GRAPH_PLANS];
    int plan_count;
    cudnnBackendDescriptor_t pack; /* cuDNN's variant pack with the addresses of the last run */
    void *pack_addresses[GRAPH_BOUND + 1];
} cudnn_graph;

typedef struct cudnn_graph_tensor {
    int64_t dims[GRAPH_DIMENSIONS], strides[GRAPH_DIMENSIONS];
    cudnnDataType_t type;
    cudnnBackendDescriptor_t desc;
} cudnn_graph_tensor;

typedef enum cudnn_graph_place {
    GRAPH_IN_MEMORY,
    GRAPH_VIRTUAL, /* intermediate result between two operations */
    GRAPH_BY_VALUE /* a float in host memory */
} cudnn_graph_place;

/* Opens a graph. Returns NULL if memory is exhausted. */
cudnn_graph *cudnn_graph_open(cuda_device *d);
void cudnn_graph_close(cudnn_graph **g);

/* Adds the tensor to the graph, and sets t->desc. */
void cudnn_graph_add(cudnn_graph *g, cudnn_graph_tensor *t, cudnn_graph_place place);

/* Each of the functions below adds an operation that writes `y`. */
void cudnn_graph_convolution(cudnn_graph *g, op_kind kind, const conv2d_attributes *a,
                             const cudnn_graph_tensor *x, const cudnn_graph_tensor *w,
                             const cudnn_graph_tensor *y);
void cudnn_graph_matmul(cudnn_graph *g, const cudnn_graph_tensor *a, const cudnn_graph_tensor *b,
                        const cudnn_graph_tensor *y);
/* Adds a pointwise operation. `b` and `choice` may be NULL. `axis` is used only by
 * CUDNN_POINTWISE_GEN_INDEX. */
void cudnn_graph_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, int64_t axis,
                           const cudnn_graph_tensor *x, const cudnn_graph_tensor *b,
                           const cudnn_graph_tensor *choice, const cudnn_graph_tensor *y);
void cudnn_graph_reduce(cudnn_graph *g, cudnnReduceTensorOp_t operation, const cudnn_graph_tensor *x,
                        const cudnn_graph_tensor *y);
void cudnn_graph_reshape(cudnn_graph *g, const cudnn_graph_tensor *x, const cudnn_graph_tensor *y);

/* Lists the deterministic engines. Must be called after the last operation. Without `tensor_cores`, lists
 * only engines that multiply float32 without rounding. g->plan_count is 0 if there is no engine. */
void cudnn_graph_search(cudnn_graph *g, bool tensor_cores);

/* Builds plan `index` if it has not been built, and sets its workspace. Returns false if the plan cannot be
 * built. */
bool cudnn_graph_plan(cudnn_graph *g, int index);

/* Enqueues plan `index`. `addresses` are the addresses of all tensors except virtual ones, in the order in
 * which they were added. */
cudnnStatus_t cudnn_graph_run(cudnn_graph *g, int index, cudaStream_t s, void *const *addresses,
                              void *workspace);

#endif
#endif
