/* softmax(q k^T / sqrt(width)) v and its gradients as operation graphs, in the form that cuDNN's fused
 * engines recognize (cuDNN Graph API, "Fused Flash Attention"): the scores s = q k^T, scaled and masked; the
 * row maxima m and the sums of exponentials; the probabilities p; the result p v.
 *
 * Transposed k and v are described as the memory of k and v with two strides exchanged. Only p and the
 * gradient of the scores are rounded to bfloat16. */
#include "common/device/cuda/module/cudnn_attention.h"

#include "common/device/cuda/module/cudnn_graph.h"
#include "common/device/cuda/module/cudnn_impl.h"
#include "common/device/cuda/module/trial.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#if PSRING_HAVE_CUDNN

typedef cudnn_graph_tensor tensor;

struct cudnn_attention {
    cuda_device *device;
    op_kind kind;
    attention_attributes shape;
    cudnn_graph *graph;
    int plan;
    float scale, masked, one;
};

/* ---- tensors: [batch, heads, rows, columns] --------------------------------------------------- */

static tensor rows_of(const attention_attributes *a, int64_t stride)
{
    return (tensor){{a->batch, a->heads, a->sequence, a->width},
                    {a->sequence * stride, a->width, stride, 1},
                    CUDNN_DATA_BFLOAT16,
                    NULL};
}

static tensor transposed(tensor t)
{
    int64_t rows = t.dims[2], stride = t.strides[2];
    t.dims[2] = t.dims[3], t.strides[2] = t.strides[3];
    t.dims[3] = rows, t.strides[3] = stride;
    return t;
}

static tensor scores_of(const attention_attributes *a, cudnnDataType_t type)
{
    int64_t s = a->sequence;
    return (tensor){{a->batch, a->heads, s, s}, {a->heads * s * s, s * s, s, 1}, type, NULL};
}

static tensor column_of(const attention_attributes *a)
{
    int64_t s = a->sequence;
    return (tensor){{a->batch, a->heads, s, 1}, {a->heads * s, s, 1, 1}, CUDNN_DATA_FLOAT, NULL};
}

static tensor in_memory(cudnn_graph *g, tensor t)
{
    cudnn_graph_add(g, &t, GRAPH_IN_MEMORY);
    return t;
}

static tensor between(cudnn_graph *g, tensor t)
{
    cudnn_graph_add(g, &t, GRAPH_VIRTUAL);
    return t;
}

static tensor number(cudnn_graph *g)
{
    tensor t = {{1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, NULL};
    cudnn_graph_add(g, &t, GRAPH_BY_VALUE);
    return t;
}

/* Adds a pointwise operation on x and b, and returns its result, which has the dimensions of `shape`. b may
 * be NULL. */
static tensor pointwise(cudnn_graph *g, cudnnPointwiseMode_t mode, const tensor *x, const tensor *b,
                        tensor shape)
{
    tensor y = between(g, shape);
    cudnn_graph_pointwise(g, mode, 0, x, b, NULL, &y);
    return y;
}

static tensor reduced(cudnn_graph *g, cudnnReduceTensorOp_t operation, const tensor *x, tensor shape)
{
    tensor y = between(g, shape);
    cudnn_graph_reduce(g, operation, x, &y);
    return y;
}

static tensor scaled_scores(cudnn_graph *g, const attention_attributes *a, const tensor *q, const tensor *kt,
                            const tensor *scale)
{
    tensor s = between(g, scores_of(a, CUDNN_DATA_FLOAT));
    cudnn_graph_matmul(g, q, kt, &s);
    return pointwise(g, CUDNN_POINTWISE_MUL, &s, scale, scores_of(a, CUDNN_DATA_FLOAT));
}

/* Writes `masked` in place of the scores of keys that the query must not see. */
static tensor causal(cudnn_graph *g, const attention_attributes *a, tensor s, const tensor *masked)
{
    if (!a->causal) return s;
    tensor row = between(g, scores_of(a, CUDNN_DATA_INT32)),
           column = between(g, scores_of(a, CUDNN_DATA_INT32));
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, 2, &s, NULL, NULL, &row);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, 3, &s, NULL, NULL, &column);
    tensor seen = pointwise(g, CUDNN_POINTWISE_CMP_GE, &row, &column, scores_of(a, CUDNN_DATA_BOOLEAN));
    tensor y = between(g, scores_of(a, CUDNN_DATA_FLOAT));
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, 0, &s, masked, &seen, &y);
    return y;
}

/* ---- the graphs; run_plan() has their tensors in the same order -------------------------------- */

static void describe_forward(cudnn_attention *p)
{
    cudnn_graph *g = p->graph;
    const attention_attributes *a = &p->shape;
    tensor scores = scores_of(a, CUDNN_DATA_FLOAT);
    tensor q = in_memory(g, rows_of(a, a->stride)), kt = in_memory(g, transposed(rows_of(a, a->stride)));
    tensor v = in_memory(g, rows_of(a, a->stride)), out = in_memory(g, rows_of(a, a->heads * a->width));
    tensor lse = in_memory(g, column_of(a)), scale = number(g), masked = number(g);
    tensor s = causal(g, a, scaled_scores(g, a, &q, &kt, &scale), &masked);
    tensor most = reduced(g, CUDNN_REDUCE_TENSOR_MAX, &s, column_of(a));
    tensor less = pointwise(g, CUDNN_POINTWISE_SUB, &s, &most, scores);
    tensor e = pointwise(g, CUDNN_POINTWISE_EXP, &less, NULL, scores);
    tensor sum = reduced(g, CUDNN_REDUCE_TENSOR_ADD, &e, column_of(a));
    tensor logarithm = pointwise(g, CUDNN_POINTWISE_LOG, &sum, NULL, column_of(a));
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_ADD, 0, &most, &logarithm, NULL, &lse);
    tensor probability = pointwise(g, CUDNN_POINTWISE_DIV, &e, &sum, scores_of(a, CUDNN_DATA_BFLOAT16));
    cudnn_graph_matmul(g, &probability, &v, &out);
}

/* Describes
 *
 *   delta = dout . out;  p = exp(s - lse);  dv = p^T dout
 *   ds = p (dout v^T - delta) scale;  dk = ds^T q;  dq = ds k */
static void describe_backward(cudnn_attention *p)
{
    cudnn_graph *g = p->graph;
    const attention_attributes *a = &p->shape;
    int64_t hidden = a->heads * a->width;
    tensor scores = scores_of(a, CUDNN_DATA_FLOAT), products = rows_of(a, hidden);
    tensor q = in_memory(g, rows_of(a, a->stride)), kt = in_memory(g, transposed(rows_of(a, a->stride)));
    tensor vt = in_memory(g, transposed(rows_of(a, a->stride))), out = in_memory(g, rows_of(a, hidden));
    tensor lse = in_memory(g, column_of(a)), dout = in_memory(g, rows_of(a, hidden));
    tensor dq = in_memory(g, rows_of(a, a->stride)), dk = in_memory(g, rows_of(a, a->stride));
    tensor dv = in_memory(g, rows_of(a, a->stride)), delta = in_memory(g, column_of(a));
    tensor scale = number(g), masked = number(g), one = number(g);
    products.type = CUDNN_DATA_FLOAT;
    tensor product = pointwise(g, CUDNN_POINTWISE_MUL, &dout, &out, products);
    tensor sum = reduced(g, CUDNN_REDUCE_TENSOR_ADD, &product, column_of(a));
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, 0, &sum, &one, NULL, &delta);
    tensor s = scaled_scores(g, a, &q, &kt, &scale);
    tensor less = causal(g, a, pointwise(g, CUDNN_POINTWISE_SUB, &s, &lse, scores), &masked);
    tensor probability = pointwise(g, CUDNN_POINTWISE_EXP, &less, NULL, scores);
    tensor of_keys = between(g, transposed(scores_of(a, CUDNN_DATA_BFLOAT16)));
    cudnn_graph_reshape(g, &probability, &of_keys);
    cudnn_graph_matmul(g, &of_keys, &dout, &dv);
    tensor dp = between(g, scores);
    cudnn_graph_matmul(g, &dout, &vt, &dp);
    tensor centered = pointwise(g, CUDNN_POINTWISE_SUB, &dp, &delta, scores);
    tensor slope = pointwise(g, CUDNN_POINTWISE_MUL, &centered, &probability, scores);
    tensor ds = pointwise(g, CUDNN_POINTWISE_MUL, &slope, &scale, scores);
    tensor ds_of_keys = between(g, transposed(scores_of(a, CUDNN_DATA_BFLOAT16)));
    cudnn_graph_reshape(g, &ds, &ds_of_keys);
    cudnn_graph_matmul(g, &ds_of_keys, &q, &dk);
    tensor k = between(g, rows_of(a, a->stride));
    cudnn_graph_reshape(g, &kt, &k);
    cudnn_graph_matmul(g, &ds, &k, &dq);
}

static size_t delta_bytes(const cudnn_attention *p)
{
    const attention_attributes *a = &p->shape;
    size_t bytes = (size_t)(a->batch * a->heads * a->sequence) * sizeof(float);
    return p->kind == OP_attention_backward ? (bytes + 255) / 256 * 256 : 0;
}

/* Runs a plan. The workspace holds delta, followed by the plan's workspace. */
static cudnnStatus_t run_plan(const cudnn_attention *p, int plan, const cuda_call *call)
{
    void *const *o = call->operands;
    void *own = (char *)call->workspace + delta_bytes(p), *scale = (void *)&p->scale,
         *masked = (void *)&p->masked;
    void *of_forward[] = {o[ATT_FWD_Q],   o[ATT_FWD_K], o[ATT_FWD_V], o[ATT_FWD_OUT],
                          o[ATT_FWD_LSE], scale,        masked};
    void *of_backward[] = {o[ATT_BWD_Q],    o[ATT_BWD_K],  o[ATT_BWD_V],   o[ATT_BWD_OUT], o[ATT_BWD_LSE],
                           o[ATT_BWD_DOUT], o[ATT_BWD_DQ], o[ATT_BWD_DK],  o[ATT_BWD_DV],  call->workspace,
                           scale,           masked,        (void *)&p->one};
    return cudnn_graph_run(p->graph, plan, call->stream,
                           p->kind == OP_attention_forward ? of_forward : of_backward, own);
}

/* ---- choosing: candidate 0 is the kernel of this module, the others are plans ------------------ */

typedef struct attempt_context {
    const cudnn_attention *p;
    const cuda_kernel *k;
    cuda_run_function *own;
    cuda_trial trial; /* trial.memory holds the operands, then the workspace */
    int operands;
} attempt_context;

static status attempt(void *context, int index, cudaStream_t s, bool *works)
{
    const attempt_context *c = context;
    void *const *memory = c->trial.memory;
    cuda_call call = {c->k, &c->k->base.op, s, memory, NULL, memory[c->operands]};
    *works = true;
    if (index == 0) return c->own(&call);
    *works =
        cudnn_graph_plan(c->p->graph, index - 1) && run_plan(c->p, index - 1, &call) == CUDNN_STATUS_SUCCESS;
    return STATUS_OK;
}

static size_t operand_bytes(const attention_attributes *a, int slot)
{
    int64_t rows = a->batch * a->sequence;
    if (slot == ATT_FWD_LSE) return (size_t)(rows * a->heads) * sizeof(float);
    /* No operand has rows longer than `stride`. */
    return (size_t)(rows * a->stride * dtype_size(DTYPE_BF16));
}

/* Times the candidates. *best is 0 if no plan is faster than the kernel of this module. */
static status time_plans(cudnn_attention *p, const cuda_kernel *k, cuda_run_function *own, int *best)
{
    attempt_context c = {.p = p, .k = k, .own = own};
    size_t bytes[TRIAL_MEMORY], workspace = k->base.workspace;
    float ms;
    for (int i = 0; i < p->graph->plan_count; i++)
        if (cudnn_graph_plan(p->graph, i) && p->graph->plans[i].workspace + delta_bytes(p) > workspace)
            workspace = p->graph->plans[i].workspace + delta_bytes(p);
    c.operands = p->kind == OP_attention_forward ? ATT_FWD_LSE + 1 : ATT_BWD_DV + 1;
    for (int i = 0; i < c.operands; i++) bytes[i] = operand_bytes(&p->shape, i);
    bytes[c.operands] = workspace;
    *best = 0;
    status rc = cuda_trial_open(p->device, c.operands + 1, bytes, &c.trial);
    if (rc == STATUS_OK && c.trial.complete)
        rc = cuda_trial_best(&c.trial, attempt, &c, p->graph->plan_count + 1, best, &ms);
    cuda_trial_close(&c.trial);
    if (*best < 0) *best = 0;
    return rc;
}

static status choose(cudnn_attention *p, const cuda_kernel *k, cuda_run_function *own)
{
    const attention_attributes *a = &p->shape;
    int64_t key[] = {p->kind, a->batch, a->sequence, a->heads, a->width, a->causal, a->stride};
    int best = 0;
    char shape[96], reason[96];
    snprintf(shape, sizeof shape, "%lldx%lldx%lldx%lld%s, bfloat16", (long long)a->batch,
             (long long)a->sequence, (long long)a->heads, (long long)a->width, a->causal ? " causal" : "");
    p->plan = -1;
    if (p->graph->code != CUDNN_STATUS_SUCCESS || p->graph->plan_count == 0) {
        snprintf(reason, sizeof reason, "cuDNN: %s",
                 p->graph->code == CUDNN_STATUS_SUCCESS
                     ? "no deterministic engine"
                     : p->device->libraries->cudnn.status_text(p->graph->code));
        cuda_fall_back(p->device, p->kind, shape, reason, "an own kernel attends");
        return STATUS_OK;
    }
    if (!cuda_recall(p->device, key, sizeof key, &best, sizeof best)) {
        TRY(time_plans(p, k, own, &best));
        TRY(cuda_remember(p->device, key, sizeof key, &best, sizeof best));
    }
    log_debug("%s %s: %s", op_name(p->kind), shape,
              best ? "a plan of cuDNN is the fastest" : "the own kernel is the fastest");
    if (best > 0 && cudnn_graph_plan(p->graph, best - 1)) p->plan = best - 1;
    return STATUS_OK;
}

status cudnn_attention_prepare(const cuda_kernel *k, cuda_run_function *own, cudnn_attention **out)
{
    cuda_device *d = cuda_device_of(k);
    *out = NULL;
    if (!d->cudnn || !d->base.config.benchmark || !k->base.op.bf16) return STATUS_OK;
    cudnn_attention *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for attention");
    *p = (cudnn_attention){
        .device = d, .kind = k->base.op.kind, .shape = k->base.op.u.attention, .masked = -FLT_MAX, .one = 1};
    p->scale = 1.0f / sqrtf((float)p->shape.width);
    if (p->shape.stride == 0) p->shape.stride = p->shape.heads * p->shape.width;
    p->graph = cudnn_graph_open(d);
    status rc = p->graph ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for attention");
    if (rc == STATUS_OK) {
        if (p->kind == OP_attention_forward)
            describe_forward(p);
        else
            describe_backward(p);
        cudnn_graph_search(p->graph, true);
        rc = choose(p, k, own);
    }
    if (rc != STATUS_OK || p->plan < 0) cudnn_attention_release(&p);
    *out = p;
    return rc;
}

void cudnn_attention_release(cudnn_attention **pointer)
{
    if (!*pointer) return;
    cudnn_graph_close(&(*pointer)->graph);
    free(*pointer);
    *pointer = NULL;
}

size_t cudnn_attention_workspace(const cudnn_attention *p)
{
    return p ? delta_bytes(p) + p->graph->plans[p->plan].workspace : 0;
}

status cudnn_attention_run(const cudnn_attention *p, const cuda_call *call)
{
    return cudnn_check(p->device, run_plan(p, p->plan, call), "cudnnBackendExecute");
}

#endif
