/* Emulates operation graphs of cuDNN. Descriptors keep the attributes that they are given. Executing a plan
 * computes one operation after another in double precision, and rounds each result to the type of its tensor.
 *
 * Heuristics list three engines: the first is not deterministic, the second uses tensor cores, and the third
 * needs a workspace and no tensor cores. The emulator refuses calls that cuDNN would refuse: attributes that
 * are set after finalizing, operations whose dimensions are incompatible, bfloat16 without tensor cores,
 * addresses that are missing or not in device memory, a missing workspace. Convolutions in bfloat16 with an
 * odd number of channels are not supported, as in cudnn.c. */
#include "common/reduce/half.h"
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/cudnn_impl.h"
#include "tests/gpu/emulator/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ATTRIBUTES = 10,
    DIMS = 4,
    ENGINES = 3,
    MOST_TENSORS = 64,
    MOST_BOUND = 16,
    GRAPH_WORKSPACE = 512
};
enum { NOT_DETERMINISTIC_ENGINE, TENSOR_CORE_ENGINE, PLAIN_ENGINE };

typedef struct attribute {
    int name, type;
    int64_t count;
    void *values;
} attribute;

struct emulated_descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    attribute attributes[MOST_ATTRIBUTES];
    int count;
    int engine;                           /* Engine of a configuration, or of an engine descriptor. */
    const struct emulated_descriptor *of; /* Graph of a configuration. */
};

typedef const struct emulated_descriptor *descriptor;

static const size_t size_of_type[] = {[CUDNN_TYPE_HANDLE] = sizeof(void *),
                                      [CUDNN_TYPE_DATA_TYPE] = sizeof(cudnnDataType_t),
                                      [CUDNN_TYPE_BOOLEAN] = sizeof(bool),
                                      [CUDNN_TYPE_INT64] = sizeof(int64_t),
                                      [CUDNN_TYPE_FLOAT] = sizeof(float),
                                      [CUDNN_TYPE_VOID_PTR] = sizeof(void *),
                                      [CUDNN_TYPE_CONVOLUTION_MODE] = sizeof(int),
                                      [CUDNN_TYPE_HEUR_MODE] = sizeof(int),
                                      [CUDNN_TYPE_NUMERICAL_NOTE] = sizeof(int),
                                      [CUDNN_TYPE_POINTWISE_MODE] = sizeof(int),
                                      [CUDNN_TYPE_BACKEND_DESCRIPTOR] = sizeof(void *),
                                      [CUDNN_TYPE_REDUCTION_OPERATOR_TYPE] = sizeof(int)};

/* ---- descriptors ------------------------------------------------------------------------------ */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return CUDNN_STATUS_NOT_SUPPORTED;
    (*out)->type = type;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    for (int i = 0; i < d->count; i++) free(d->attributes[i].values);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    size_t bytes = (size_t)count * size_of_type[type];
    if (!d || d->final || !values || count < 1 || d->count == MOST_ATTRIBUTES) return CUDNN_STATUS_BAD_PARAM;
    attribute *a = &d->attributes[d->count++];
    *a = (attribute){name, type, count, malloc(bytes)};
    if (!a->values) abort();
    memcpy(a->values, values, bytes);
    return CUDNN_STATUS_SUCCESS;
}

/* Returns an attribute, or NULL if the descriptor does not have it. */
static const void *find(descriptor d, int name, int64_t *count)
{
    for (int i = 0; d && i < d->count; i++)
        if (d->attributes[i].name == name) {
            if (count) *count = d->attributes[i].count;
            return d->attributes[i].values;
        }
    return NULL;
}

static descriptor find_desc(descriptor d, int name)
{
    const descriptor *found = find(d, name, NULL);
    return found ? *found : NULL;
}

static int find_int(descriptor d, int name)
{
    const int *found = find(d, name, NULL);
    return found ? *found : -1;
}

/* ---- what goes together ----------------------------------------------------------------------- */

static const int64_t *dims_of(descriptor tensor)
{
    return find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, NULL);
}

static const int64_t *strides_of(descriptor tensor)
{
    return find(tensor, CUDNN_ATTR_TENSOR_STRIDES, NULL);
}

static bool is_tensor(descriptor d)
{
    return d && d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && d->final;
}

static bool spreads(descriptor from, descriptor to)
{
    for (int i = 0; i < DIMS; i++)
        if (dims_of(from)[i] != dims_of(to)[i] && dims_of(from)[i] != 1) return false;
    return true;
}

static bool matmul_fits(descriptor op)
{
    descriptor a = find_desc(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
               b = find_desc(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    descriptor c = find_desc(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    if (!is_tensor(a) || !is_tensor(b) || !is_tensor(c) || !find_desc(op, CUDNN_ATTR_OPERATION_MATMUL_DESC))
        return false;
    const int64_t *m = dims_of(a), *n = dims_of(b), *p = dims_of(c);
    return m[0] == n[0] && m[0] == p[0] && m[1] == n[1] && m[1] == p[1] && m[2] == p[2] && m[3] == n[2] &&
           n[3] == p[3];
}

static bool pointwise_fits(descriptor op)
{
    descriptor x = find_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
               b = find_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    descriptor t = find_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
               y = find_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    if (!is_tensor(x) || !is_tensor(y) || !spreads(x, y)) return false;
    return (!b || (is_tensor(b) && spreads(b, y))) && (!t || (is_tensor(t) && spreads(t, y)));
}

static bool reduction_fits(descriptor op)
{
    descriptor x = find_desc(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
               y = find_desc(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    return is_tensor(x) && is_tensor(y) && spreads(y, x);
}

static bool reshape_fits(descriptor op)
{
    descriptor x = find_desc(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
               y = find_desc(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int64_t elements[2] = {1, 1};
    if (!is_tensor(x) || !is_tensor(y)) return false;
    for (int i = 0; i < DIMS; i++) elements[0] *= dims_of(x)[i], elements[1] *= dims_of(y)[i];
    return elements[0] == elements[1];
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    bool fits = !d->final;
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        fits = fits && dims_of(d) && strides_of(d) && find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, NULL);
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        fits = fits && matmul_fits(d);
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        fits = fits && pointwise_fits(d);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        fits = fits && reduction_fits(d);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        fits = fits && reshape_fits(d);
        break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        fits = fits && find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, NULL);
        break;
    default:
        break;
    }
    d->final = fits;
    return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* ---- convolutions ----------------------------------------------------------------------------- */

static bool is_convolution(descriptor op, int *first)
{
    int names[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA};
    *first = op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? names[0]
             : op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? names[1]
                                                                                        : names[2];
    return op->type >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
           op->type <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
}

/* Returns x, w and y of a convolution. */
static void convolution_tensors(descriptor op, descriptor out[3])
{
    if (op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
        out[0] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
        out[1] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
        out[2] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
    } else if (op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
        out[0] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
        out[1] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
        out[2] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
    } else {
        out[0] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
        out[1] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
        out[2] = find_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
    }
}

static struct emulated_tensor plain_tensor(descriptor d)
{
    const int64_t *dims = dims_of(d);
    return (struct emulated_tensor){(cudnnDataType_t)find_int(d, CUDNN_ATTR_TENSOR_DATA_TYPE), (int)dims[0],
                                    (int)dims[1], (int)dims[2], (int)dims[3]};
}

static bool is_channels_last(descriptor d)
{
    const int64_t *n = dims_of(d), *s = strides_of(d);
    return s[1] == 1 && s[3] == n[1] && s[2] == n[3] * n[1] && s[0] == n[2] * s[2];
}

/* ---- engines and plans ------------------------------------------------------------------------ */

static descriptor first_operation(descriptor graph)
{
    const descriptor *list = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, NULL);
    return list[0];
}

/* Returns whether the engine can run the graph. An engine without tensor cores cannot run it if all tensors
 * of the first operation are bfloat16. */
static bool is_supported(descriptor graph, int engine)
{
    descriptor op = first_operation(graph), of[3];
    int first;
    if (emulator_control.fails_search) return false;
    if (!is_convolution(op, &first)) return engine != PLAIN_ENGINE;
    convolution_tensors(op, of);
    for (int i = 0; i < 3; i++)
        if (!is_tensor(of[i]) || !is_channels_last(of[i])) return false;
    bool bf16 = plain_tensor(of[0]).type == CUDNN_DATA_BFLOAT16;
    return bf16 ? plain_tensor(of[0]).c % 2 == 0 && engine != PLAIN_ENGINE : true;
}

static cudnnStatus_t get_engines(descriptor heuristics, int64_t asked, int64_t *count, void *values)
{
    cudnnBackendDescriptor_t *configs = values;
    descriptor graph = find_desc(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    *count = 0;
    if (!graph || !graph->final) return CUDNN_STATUS_BAD_PARAM;
    for (int e = 0; e < ENGINES && *count < asked; e++) {
        if (!is_supported(graph, e)) continue;
        configs[*count]->engine = e;
        configs[*count]->of = graph;
        configs[(*count)++]->final = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t asked, int64_t *count,
                                       void *values)
{
    (void)type;
    if (!d->final) return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) return get_engines(d, asked, count, values);
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        cudnnBackendDescriptor_t engine = *(cudnnBackendDescriptor_t *)values;
        engine->engine = d->engine;
        engine->final = true;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        *count = d->engine == PLAIN_ENGINE ? 0 : 1;
        if (*count)
            *(int *)values = d->engine == TENSOR_CORE_ENGINE ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE
                                                             : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = GRAPH_WORKSPACE;
    } else {
        return CUDNN_STATUS_BAD_PARAM;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- running ---------------------------------------------------------------------------------- */

/* A graph that is enqueued, or recorded. Numbers that are passed by value are read when the graph is
 * enqueued. */
typedef struct graph_work {
    descriptor graph;
    int64_t uids[MOST_BOUND], count;
    void *addresses[MOST_BOUND];
    float numbers[MOST_BOUND];
} graph_work;

/* A tensor while a graph runs: its storage in double precision. */
typedef struct stored {
    descriptor of;
    const int64_t *dims, *strides; /* Dimensions and strides of the cuDNN tensor. */
    int type;
    double *values;
    int64_t extent;
} stored;

typedef struct run_state {
    const graph_work *work;
    stored tensors[MOST_TENSORS];
    int count;
} run_state;

static int64_t uid_of(descriptor tensor)
{
    return *(const int64_t *)find(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, NULL);
}

static bool has_flag(descriptor tensor, int name)
{
    const bool *flag = find(tensor, name, NULL);
    return flag && *flag;
}

static int64_t extent_of(descriptor tensor)
{
    int64_t last = 0;
    for (int i = 0; i < DIMS; i++) last += (dims_of(tensor)[i] - 1) * strides_of(tensor)[i];
    return last + 1;
}

static void *address_of(const graph_work *k, descriptor tensor, const float **number)
{
    for (int i = 0; i < k->count; i++)
        if (k->uids[i] == uid_of(tensor)) {
            if (number) *number = &k->numbers[i];
            return k->addresses[i];
        }
    return NULL;
}

static double as_type(int type, double value)
{
    return type == CUDNN_DATA_BFLOAT16 ? bf16_to_float(bf16_from_float((float)value)) : (double)(float)value;
}

/* Returns the position in the storage of the element with four indices. If a dimension is one, all indices in
 * it have the same element. */
static int64_t place(const stored *t, const int64_t *at)
{
    int64_t i = 0;
    for (int n = 0; n < DIMS; n++) i += (t->dims[n] == 1 ? 0 : at[n]) * t->strides[n];
    return i;
}

/* Calls visit for all indices of `dims`. */
typedef void visit_function(void *context, const int64_t *at);
static void for_all(const int64_t *dims, visit_function *visit, void *context)
{
    int64_t at[DIMS];
    for (at[0] = 0; at[0] < dims[0]; at[0]++)
        for (at[1] = 0; at[1] < dims[1]; at[1]++)
            for (at[2] = 0; at[2] < dims[2]; at[2]++)
                for (at[3] = 0; at[3] < dims[3]; at[3]++) visit(context, at);
}

typedef struct transfer {
    stored *t;
    void *memory;
    bool write;
} transfer;

static void move(void *context, const int64_t *at)
{
    const transfer *m = context;
    int64_t i = place(m->t, at);
    bool bf16 = m->t->type == CUDNN_DATA_BFLOAT16;
    if (m->write && bf16)
        ((uint16_t *)m->memory)[i] = bf16_from_float((float)m->t->values[i]);
    else if (m->write)
        ((float *)m->memory)[i] = (float)m->t->values[i];
    else
        m->t->values[i] = bf16 ? bf16_to_float(((uint16_t *)m->memory)[i]) : ((float *)m->memory)[i];
}

static stored *storage(run_state *s, descriptor tensor)
{
    const float *number = NULL;
    for (int i = 0; i < s->count; i++)
        if (s->tensors[i].of == tensor) return &s->tensors[i];
    if (s->count == MOST_TENSORS) abort();
    stored *t = &s->tensors[s->count++];
    *t = (stored){tensor, dims_of(tensor),  strides_of(tensor), find_int(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE),
                  NULL,   extent_of(tensor)};
    t->values = calloc((size_t)t->extent, sizeof *t->values);
    if (!t->values) abort();
    void *memory = address_of(s->work, tensor, &number);
    if (has_flag(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        t->values[0] = *number;
    else if (memory)
        for_all(dims_of(tensor), move, &(transfer){t, memory, false});
    return t;
}

typedef struct element {
    stored *x, *b, *t, *y;
    int mode, type;
    int64_t axis, terms;
} element;

static void put(const element *e, const int64_t *at, double value)
{
    e->y->values[place(e->y, at)] = as_type(e->type, value);
}

static void pointwise(void *context, const int64_t *at)
{
    const element *e = context;
    double x = e->x->values[place(e->x, at)], b = e->b ? e->b->values[place(e->b, at)] : 0;
    switch (e->mode) {
    case CUDNN_POINTWISE_ADD:
        put(e, at, x + b);
        break;
    case CUDNN_POINTWISE_MUL:
        put(e, at, x * b);
        break;
    case CUDNN_POINTWISE_DIV:
        put(e, at, x / b);
        break;
    case CUDNN_POINTWISE_SUB:
        put(e, at, x - b);
        break;
    case CUDNN_POINTWISE_EXP:
        put(e, at, exp(x));
        break;
    case CUDNN_POINTWISE_LOG:
        put(e, at, log(x));
        break;
    case CUDNN_POINTWISE_CMP_GE:
        put(e, at, x >= b);
        break;
    case CUDNN_POINTWISE_GEN_INDEX:
        put(e, at, (double)at[e->axis]);
        break;
    case CUDNN_POINTWISE_BINARY_SELECT:
        put(e, at, e->t->values[place(e->t, at)] != 0 ? x : b);
        break;
    default:
        abort();
    }
}

static void multiply(void *context, const int64_t *at)
{
    const element *e = context;
    double sum = 0;
    for (int64_t k = 0; k < e->terms; k++)
        sum += e->x->values[place(e->x, (int64_t[]){at[0], at[1], at[2], k})] *
               e->b->values[place(e->b, (int64_t[]){at[0], at[1], k, at[3]})];
    put(e, at, sum);
}

static void reduce(void *context, const int64_t *at)
{
    const element *e = context;
    double x = e->x->values[place(e->x, at)], *y = &e->y->values[place(e->y, at)];
    if (e->mode == CUDNN_REDUCE_TENSOR_MAX)
        *y = x > *y ? x : *y;
    else
        *y += x;
}

static stored *operand(run_state *s, descriptor op, int name)
{
    descriptor tensor = find_desc(op, name);
    return tensor ? storage(s, tensor) : NULL;
}

static void run_reduction(run_state *s, descriptor op)
{
    element e = {.x = operand(s, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                 .y = operand(s, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC)};
    e.mode = find_int(find_desc(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
    for (int64_t i = 0; i < e.y->extent; i++)
        e.y->values[i] = e.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
    for_all(dims_of(e.x->of), reduce, &e);
    for (int64_t i = 0; i < e.y->extent; i++) e.y->values[i] = (double)(float)e.y->values[i];
}

/* Gives the output the storage of the input, with other strides. */
static void run_reshape(run_state *s, descriptor op)
{
    stored *x = operand(s, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
           *y = operand(s, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int type = find_int(y->of, CUDNN_ATTR_TENSOR_DATA_TYPE);
    if (x->extent != y->extent) abort();
    for (int64_t i = 0; i < y->extent; i++) y->values[i] = as_type(type, x->values[i]);
}

static void run_operation(run_state *s, descriptor op)
{
    element e = {0};
    descriptor pw = find_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    switch (op->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        e.x = operand(s, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        e.b = operand(s, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        e.y = operand(s, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        e.terms = dims_of(e.x->of)[3];
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        e.x = operand(s, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        e.b = operand(s, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        e.t = operand(s, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        e.y = operand(s, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        e.mode = find_int(pw, CUDNN_ATTR_POINTWISE_MODE);
        e.axis = e.mode == CUDNN_POINTWISE_GEN_INDEX
                     ? *(const int64_t *)find(pw, CUDNN_ATTR_POINTWISE_AXIS, NULL)
                     : 0;
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        run_reduction(s, op);
        return;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        run_reshape(s, op);
        return;
    default:
        abort();
    }
    e.type = find_int(e.y->of, CUDNN_ATTR_TENSOR_DATA_TYPE);
    for_all(dims_of(e.y->of), op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ? multiply : pointwise,
            &e);
}

static void run_convolution(const graph_work *k, descriptor op)
{
    descriptor of[3], conv = NULL;
    int first;
    is_convolution(op, &first);
    conv = find_desc(op, first + 2);
    convolution_tensors(op, of);
    const int64_t *pads = find(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, NULL);
    const int64_t *strides = find(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, NULL);
    emulated_convolution_work work = {
        plain_tensor(of[0]),
        plain_tensor(of[1]),
        plain_tensor(of[2]),
        {(int)pads[0], (int)pads[1], (int)strides[0], (int)strides[1], CUDNN_DATA_FLOAT,
         CUDNN_TENSOR_OP_MATH},
        {address_of(k, of[0], NULL), address_of(k, of[1], NULL), address_of(k, of[2], NULL)},
        op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? FORWARD
        : op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? BACKWARD_DATA
                                                                                   : BACKWARD_FILTER,
        1,
        0};
    emulator_convolve(&work);
}

/* Runs the operations, then writes their results to memory. */
static void run_graph(void *context)
{
    const graph_work *k = context;
    run_state s = {.work = k};
    int64_t count = 0;
    int first;
    const descriptor *ops = find(k->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, &count);
    if (is_convolution(ops[0], &first)) {
        run_convolution(k, ops[0]);
        return;
    }
    emulator_open_memory();
    for (int64_t i = 0; i < count; i++) run_operation(&s, ops[i]);
    for (int i = 0; i < s.count; i++) {
        stored *t = &s.tensors[i];
        bool lies =
            !has_flag(t->of, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && !has_flag(t->of, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
        if (lies) for_all(dims_of(t->of), move, &(transfer){t, address_of(k, t->of, NULL), true});
        free(t->values);
    }
    emulator_close_memory();
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    graph_work k = {0};
    int64_t addresses = 0;
    descriptor config = find_desc(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const int64_t *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &k.count);
    void *const *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses);
    void *const *workspace = find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, NULL);
    if (!plan->final || !pack->final || !config || addresses != k.count || k.count > MOST_BOUND)
        return CUDNN_STATUS_BAD_PARAM;
    if (config->engine == NOT_DETERMINISTIC_ENGINE || !workspace || !emulator_owns(*workspace))
        return CUDNN_STATUS_BAD_PARAM;
    k.graph = config->of;
    for (int64_t i = 0; i < k.count; i++) {
        k.uids[i] = uids[i];
        k.addresses[i] = pointers[i];
        if (!emulator_owns(pointers[i])) memcpy(&k.numbers[i], pointers[i], sizeof k.numbers[i]);
    }
    emulator_count(&emulator_control.graphs);
    if (!emulator_record(handle->stream, run_graph, &k, sizeof k)) run_graph(&k);
    return CUDNN_STATUS_SUCCESS;
}
