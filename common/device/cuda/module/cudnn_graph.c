#include "common/device/cuda/module/cudnn_graph.h"

#include "common/device/cuda/module/cudnn_impl.h"

#include <stdlib.h>
#include <string.h>

#if PSRING_HAVE_CUDNN

/* Attributes that cuDNN before 9.10 requires. The headers of later versions deprecate the names. */
enum { ATTR_PLAN_HANDLE = 400, ATTR_GRAPH_HANDLE = 800 };
enum { ALIGNMENT_BYTES = 16, MOST_NOTES = 16 };

static const cudnn_table *table_of_graph(const cudnn_graph *g)
{
    return &g->device->libraries->cudnn;
}

/* ---- descriptors ------------------------------------------------------------------------------ */

static cudnnBackendDescriptor_t make(cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (g->code != CUDNN_STATUS_SUCCESS) return NULL;
    if (g->made_count == GRAPH_DESCRIPTORS)
        g->code = CUDNN_STATUS_NOT_SUPPORTED;
    else
        g->code = table_of_graph(g)->backend_create(type, &made);
    if (g->code == CUDNN_STATUS_SUCCESS) g->made[g->made_count++] = made;
    return g->code == CUDNN_STATUS_SUCCESS ? made : NULL;
}

static void set(cudnn_graph *g, cudnnBackendDescriptor_t d, int name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (g->code == CUDNN_STATUS_SUCCESS)
        g->code = table_of_graph(g)->backend_set(d, (cudnnBackendAttributeName_t)name, type, count, values);
}

static void finalize(cudnn_graph *g, cudnnBackendDescriptor_t d)
{
    if (g->code == CUDNN_STATUS_SUCCESS) g->code = table_of_graph(g)->backend_finalize(d);
}

static void set_desc(cudnn_graph *g, cudnnBackendDescriptor_t d, int name, cudnnBackendDescriptor_t value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(cudnn_graph *g, cudnnBackendDescriptor_t d, int name, cudnnDataType_t value)
{
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void add_operation(cudnn_graph *g, cudnnBackendDescriptor_t d)
{
    finalize(g, d);
    if (g->code != CUDNN_STATUS_SUCCESS) return;
    if (g->operation_count == GRAPH_OPERATIONS)
        g->code = CUDNN_STATUS_NOT_SUPPORTED;
    else
        g->operations[g->operation_count++] = d;
}

cudnn_graph *cudnn_graph_open(cuda_device *d)
{
    cudnn_graph *g = calloc(1, sizeof *g);
    if (g) g->device = d;
    return g;
}

void cudnn_graph_close(cudnn_graph **pointer)
{
    cudnn_graph *g = *pointer;
    if (!g) return;
    if (g->pack) table_of_graph(g)->backend_destroy(g->pack);
    for (int i = g->made_count - 1; i >= 0; i--) table_of_graph(g)->backend_destroy(g->made[i]);
    free(g);
    *pointer = NULL;
}

/* ---- tensors and operations ------------------------------------------------------------------- */

void cudnn_graph_add(cudnn_graph *g, cudnn_graph_tensor *t, cudnn_graph_place place)
{
    int64_t uid = ++g->next_uid,
            alignment = place == GRAPH_BY_VALUE ? (int64_t)sizeof(float) : ALIGNMENT_BYTES;
    bool is_virtual = place == GRAPH_VIRTUAL, by_value = place == GRAPH_BY_VALUE;
    t->desc = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(g, t->desc, CUDNN_ATTR_TENSOR_DATA_TYPE, t->type);
    set(g, t->desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, GRAPH_DIMENSIONS, t->dims);
    set(g, t->desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, GRAPH_DIMENSIONS, t->strides);
    set(g, t->desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, t->desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, t->desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, t->desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, t->desc);
    if (is_virtual) return;
    if (g->bound_count == GRAPH_BOUND)
        g->code = CUDNN_STATUS_NOT_SUPPORTED;
    else
        g->bound[g->bound_count++] = uid;
}

void cudnn_graph_convolution(cudnn_graph *g, op_kind kind, const conv2d_attributes *a,
                             const cudnn_graph_tensor *x, const cudnn_graph_tensor *w,
                             const cudnn_graph_tensor *y)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        int x, w, y, conv, alpha, beta;
    } forward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      data = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      filter = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    __typeof__(&forward) names = kind == OP_conv2d_forward         ? &forward
                                 : kind == OP_conv2d_backward_data ? &data
                                                                   : &filter;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t spatial = 2, pads[2] = {a->pad_h, a->pad_w}, strides[2] = {a->stride, a->stride},
            dilations[2] = {1, 1};
    float one = 1, zero = 0;
    cudnnBackendDescriptor_t conv = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_type(g, conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, pads);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, pads);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, strides);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, dilations);
    finalize(g, conv);
    cudnnBackendDescriptor_t op = make(g, names->type);
    set_desc(g, op, names->x, x->desc);
    set_desc(g, op, names->w, w->desc);
    set_desc(g, op, names->y, y->desc);
    set_desc(g, op, names->conv, conv);
    set(g, op, names->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(g, op, names->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    add_operation(g, op);
}

void cudnn_graph_matmul(cudnn_graph *g, const cudnn_graph_tensor *a, const cudnn_graph_tensor *b,
                        const cudnn_graph_tensor *y)
{
    cudnnBackendDescriptor_t matmul = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, matmul);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
    add_operation(g, op);
}

void cudnn_graph_pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, int64_t axis,
                           const cudnn_graph_tensor *x, const cudnn_graph_tensor *b,
                           const cudnn_graph_tensor *choice, const cudnn_graph_tensor *y)
{
    cudnnBackendDescriptor_t pointwise = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    bool is_float = y->type != CUDNN_DATA_INT32 && y->type != CUDNN_DATA_BOOLEAN;
    set(g, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, is_float ? CUDNN_DATA_FLOAT : y->type);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, pointwise);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x->desc);
    if (b) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->desc);
    if (choice) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, choice->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y->desc);
    add_operation(g, op);
}

void cudnn_graph_reduce(cudnn_graph *g, cudnnReduceTensorOp_t operation, const cudnn_graph_tensor *x,
                        const cudnn_graph_tensor *y)
{
    cudnnBackendDescriptor_t reduction = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
    set_type(g, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, reduction);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    add_operation(g, op);
}

void cudnn_graph_reshape(cudnn_graph *g, const cudnn_graph_tensor *x, const cudnn_graph_tensor *y)
{
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y->desc);
    add_operation(g, op);
}

/* ---- engines and plans ------------------------------------------------------------------------ */

static bool is_allowed(cudnn_graph *g, cudnnBackendDescriptor_t config, bool tensor_cores)
{
    const cudnn_table *t = table_of_graph(g);
    cudnnBackendDescriptor_t engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[MOST_NOTES];
    int64_t count = 0;
    if (!engine ||
        t->backend_get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                       &engine) != CUDNN_STATUS_SUCCESS ||
        t->backend_get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES,
                       &count, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < MOST_NOTES; i++) {
        bool coarse = notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                      notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
            notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION || (coarse && !tensor_cores))
            return false;
    }
    return true;
}

static void list_engines(cudnn_graph *g, cudnnBackendHeurMode_t mode, bool tensor_cores)
{
    cudnnBackendDescriptor_t configs[GRAPH_PLANS], heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t count = 0;
    set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->whole);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, heuristics);
    for (int i = 0; i < GRAPH_PLANS; i++) configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->code == CUDNN_STATUS_SUCCESS)
        g->code = table_of_graph(g)->backend_get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, GRAPH_PLANS, &count, configs);
    for (int64_t i = 0; i < count && g->code == CUDNN_STATUS_SUCCESS && g->plan_count < GRAPH_PLANS; i++)
        if (is_allowed(g, configs[i], tensor_cores)) g->plans[g->plan_count++].config = configs[i];
}

void cudnn_graph_search(cudnn_graph *g, bool tensor_cores)
{
    cudnnHandle_t handle = g->device->cudnn;
    g->whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count,
        g->operations);
    set(g, g->whole, ATTR_GRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, g->whole);
    list_engines(g, CUDNN_HEUR_MODE_A, tensor_cores);
    if (g->plan_count == 0) list_engines(g, CUDNN_HEUR_MODE_FALLBACK, tensor_cores);
}

bool cudnn_graph_plan(cudnn_graph *g, int index)
{
    cudnn_plan *p = &g->plans[index];
    cudnnHandle_t handle = g->device->cudnn;
    int64_t bytes = 0, count = 0;
    if (p->plan || p->refused) return p->plan != NULL;
    cudnnBackendDescriptor_t plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(g, plan, ATTR_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_desc(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, p->config);
    finalize(g, plan);
    if (g->code == CUDNN_STATUS_SUCCESS)
        g->code = table_of_graph(g)->backend_get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                 CUDNN_TYPE_INT64, 1, &count, &bytes);
    p->refused = g->code != CUDNN_STATUS_SUCCESS; /* the error means only that cuDNN refuses this engine */
    g->code = CUDNN_STATUS_SUCCESS;
    if (p->refused) return false;
    p->plan = plan;
    p->workspace = (size_t)bytes;
    return true;
}

/* Sets the addresses if they differ from the addresses of the last run. Most runs have the same addresses. */
static cudnnStatus_t use_addresses(cudnn_graph *g, void *const *addresses, void *workspace)
{
    size_t bytes = (size_t)g->bound_count * sizeof *addresses;
    if (g->pack && memcmp(g->pack_addresses, addresses, bytes) == 0 &&
        g->pack_addresses[g->bound_count] == workspace)
        return CUDNN_STATUS_SUCCESS;
    if (g->pack) table_of_graph(g)->backend_destroy(g->pack);
    g->pack = NULL;
    cudnnBackendDescriptor_t pack = NULL;
    g->code = table_of_graph(g)->backend_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, g->bound_count, g->bound);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, g->bound_count, addresses);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(g, pack);
    cudnnStatus_t code = g->code;
    g->code = CUDNN_STATUS_SUCCESS;
    g->pack = pack;
    memcpy(g->pack_addresses, addresses, bytes);
    g->pack_addresses[g->bound_count] = code == CUDNN_STATUS_SUCCESS ? workspace : g;
    return code;
}

cudnnStatus_t cudnn_graph_run(cudnn_graph *g, int index, cudaStream_t s, void *const *addresses,
                              void *workspace)
{
    cudnnStatus_t code = cudnn_use_stream(g->device, s);
    if (code == CUDNN_STATUS_SUCCESS) code = use_addresses(g, addresses, workspace);
    if (code != CUDNN_STATUS_SUCCESS) return code;
    return table_of_graph(g)->backend_execute(g->device->cudnn, g->plans[index].plan, g->pack);
}

#endif
