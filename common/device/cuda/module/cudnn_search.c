/* Chooses the algorithm of a convolution from cuDNN's deterministic algorithms: the first one that the
 * heuristics list, or with --benchmark the one that was fastest in a few runs. */
#include "common/device/cuda/module/cudnn_impl.h"
#include "common/device/cuda/module/trial.h"

#include <stdio.h>

#if PSRING_HAVE_CUDNN

enum { MOST_WORKSPACE = 1 << 30, MOST_ALGORITHMS = 16 };

/* Returns true if an algorithm with math type `found` may be used. If TF32 is not allowed, only algorithms
 * with plain multiply-adds may be used, and no algorithm for tensor cores. */
static bool allowed(const cudnn_conv *p, cudnnMathType_t found)
{
    return p->math != CUDNN_FMA_MATH ||
           (found != CUDNN_TENSOR_OP_MATH && found != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
}

/* Lists the usable algorithms in the order of cuDNN's heuristics, the best one first. If there is none, sets
 * *why to the first error, or to CUDNN_STATUS_SUCCESS if cuDNN has only algorithms that are not allowed. */
static int list_usable(const cudnn_conv *p, cudnn_choice *out, cudnnStatus_t *why)
{
    const cudnn_table *t = table_of_conv(p);
    cudnnHandle_t h = p->device->cudnn;
    int count = 0, used = 0;
    union {
        cudnnConvolutionFwdAlgoPerf_t all[MOST_ALGORITHMS];
        cudnnConvolutionBwdDataAlgoPerf_t data[MOST_ALGORITHMS];
        cudnnConvolutionBwdFilterAlgoPerf_t filter[MOST_ALGORITHMS];
    } found; /* a union is possible, because the three types have the same members */
    if (p->kind == OP_conv2d_forward)
        *why = t->forward_find(h, p->x, p->w, p->conv, p->y, MOST_ALGORITHMS, &count, found.all);
    else if (p->kind == OP_conv2d_backward_data)
        *why = t->data_find(h, p->w, p->y, p->conv, p->x, MOST_ALGORITHMS, &count, found.data);
    else
        *why = t->filter_find(h, p->x, p->y, p->conv, p->w, MOST_ALGORITHMS, &count, found.filter);
    if (*why != CUDNN_STATUS_SUCCESS) return 0;
    for (int i = 0; i < count; i++) {
        cudnnMathType_t math = p->math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : found.all[i].mathType;
        bool usable = found.all[i].status == CUDNN_STATUS_SUCCESS && found.all[i].memory <= MOST_WORKSPACE &&
                      found.all[i].determinism == CUDNN_DETERMINISTIC && allowed(p, found.all[i].mathType);
        if (usable) out[used++] = (cudnn_choice){(int)found.all[i].algo, 0, math, found.all[i].memory};
    }
    for (int i = 0; i < count && used == 0 && *why == CUDNN_STATUS_SUCCESS; i++) *why = found.all[i].status;
    return used;
}

static const char *name_of(cudnnMathType_t math)
{
    return math == CUDNN_FMA_MATH       ? "multiply-adds"
           : math == CUDNN_DEFAULT_MATH ? "multiply-adds or TF32"
                                        : "tensor cores";
}

static void say(const cudnn_conv *p, const cudnn_choice *choice, const char *what, double ms)
{
    const conv2d_attributes *a = &p->shape;
    char time[32] = "";
    if (ms > 0) snprintf(time, sizeof time, " %.3f ms", ms);
    bool planned = choice->algorithm < 0;
    log_debug("%s in %s, %lldx%lldx%lldx%lld to %lld, %lldx%lld: %s %d (%s, %zu bytes of workspace) %s%s",
              op_name(p->kind), dtype_name(p->type), (long long)a->n, (long long)a->h, (long long)a->w,
              (long long)a->c, (long long)a->k, (long long)a->r, (long long)a->s,
              planned ? "plan" : "algorithm", planned ? choice->plan : choice->algorithm,
              name_of(choice->math), choice->workspace, what, time);
}

/* ---- timing ----------------------------------------------------------------------------------- */

typedef struct trial_conv {
    const cudnn_conv *p;
    const cudnn_choice *list;
    cuda_trial trial; /* trial.memory holds the operands, then the workspace */
    size_t workspace;
} trial_conv;

static status attempt(void *context, int index, cudaStream_t s, bool *works)
{
    const trial_conv *c = context;
    const cudnn_choice *choice = &c->list[index];
    void *const *memory = c->trial.memory;
    *works = memory[CUDNN_FIRST] && memory[CUDNN_SECOND] && memory[CUDNN_OUT] &&
             choice->workspace <= c->workspace &&
             table_of_conv(c->p)->conv_set_math(c->p->conv, choice->math) == CUDNN_STATUS_SUCCESS &&
             cudnn_call(c->p, choice, s, memory[CUDNN_FIRST], memory[CUDNN_SECOND], memory[CUDNN_OUT], false,
                        memory[CUDNN_OPERANDS]) == CUDNN_STATUS_SUCCESS;
    return STATUS_OK;
}

/* Times all choices. *best is -1 if none could run. */
static status time_all(const cudnn_conv *p, const cudnn_choice *list, int count, int *best)
{
    trial_conv c = {.p = p, .list = list};
    size_t bytes[CUDNN_OPERANDS + 1] = {0};
    float ms;
    *best = -1;
    for (int i = 0; i < CUDNN_OPERANDS; i++) bytes[i] = (size_t)(p->elements[i] * dtype_size(p->type));
    for (int i = 0; i < count; i++)
        if (list[i].workspace > bytes[CUDNN_OPERANDS]) bytes[CUDNN_OPERANDS] = list[i].workspace;
    status rc = cuda_trial_open(p->device, CUDNN_OPERANDS + 1, bytes, &c.trial);
    if (c.trial.memory[CUDNN_OPERANDS]) c.workspace = bytes[CUDNN_OPERANDS];
    if (rc == STATUS_OK) rc = cuda_trial_best(&c.trial, attempt, &c, count, best, &ms);
    if (rc == STATUS_OK && *best >= 0) say(p, &list[*best], "is the fastest:", (double)ms);
    cuda_trial_close(&c.trial);
    return rc;
}

/* ---- plans of the convolution as a graph ------------------------------------------------------- */

static cudnn_graph_tensor image(const cudnn_conv *p, int64_t n, int64_t c, int64_t h, int64_t w)
{
    cudnnDataType_t type = p->type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    return (cudnn_graph_tensor){{n, c, h, w}, {h * w * c, 1, w * c, c}, type, NULL};
}

/* Describes the convolution as a graph, with its tensors in the order of cudnn_call()'s arguments. */
static void describe_graph(cudnn_conv *p)
{
    const conv2d_attributes *a = &p->shape;
    cudnn_graph_tensor x = image(p, a->n, a->c, a->h, a->w), w = image(p, a->k, a->c, a->r, a->s);
    cudnn_graph_tensor y = image(p, a->n, a->k, a->p, a->q);
    cudnn_graph_tensor *of_forward[] = {&x, &w, &y}, *of_data[] = {&w, &y, &x}, *of_filter[] = {&x, &y, &w};
    cudnn_graph_tensor **order = p->kind == OP_conv2d_forward         ? of_forward
                                 : p->kind == OP_conv2d_backward_data ? of_data
                                                                      : of_filter;
    for (int i = 0; i < CUDNN_OPERANDS; i++) cudnn_graph_add(p->graph, order[i], GRAPH_IN_MEMORY);
    cudnn_graph_convolution(p->graph, p->kind, a, &x, &w, &y);
    cudnn_graph_search(p->graph, p->math != CUDNN_FMA_MATH);
}

/* Appends the plans that can be built to the list. A graph that cuDNN rejects has no plans. */
static int list_plans(cudnn_conv *p, cudnn_choice *list, int count)
{
    p->graph = cudnn_graph_open(p->device);
    if (!p->graph) return count;
    describe_graph(p);
    for (int i = 0; i < p->graph->plan_count; i++)
        if (cudnn_graph_plan(p->graph, i) && p->graph->plans[i].workspace <= MOST_WORKSPACE)
            list[count++] = (cudnn_choice){-1, i, p->math, p->graph->plans[i].workspace};
    if (p->graph->code != CUDNN_STATUS_SUCCESS)
        log_debug("%s: no graph: %s", op_name(p->kind), table_of_conv(p)->status_text(p->graph->code));
    return count;
}

static status choose_timed(cudnn_conv *p, cudnn_choice *list, int count)
{
    const conv2d_attributes *a = &p->shape;
    int64_t key[] = {p->kind, p->type, a->n, a->h,      a->w,     a->c,
                     a->k,    a->r,    a->s, a->stride, a->pad_h, a->pad_w};
    int best;
    if (cuda_recall(p->device, key, sizeof key, &p->choice, sizeof p->choice)) {
        if (p->choice.algorithm >= 0) return STATUS_OK;
        p->graph = cudnn_graph_open(p->device);
        if (p->graph) describe_graph(p);
        bool built =
            p->graph && p->choice.plan < p->graph->plan_count && cudnn_graph_plan(p->graph, p->choice.plan);
        if (!built) p->choice = list[0];
        return STATUS_OK;
    }
    count = list_plans(p, list, count);
    if (count < 2) return STATUS_OK;
    TRY(time_all(p, list, count, &best));
    p->choice = list[best < 0 ? 0 : best];
    if (p->choice.algorithm >= 0) cudnn_graph_close(&p->graph);
    return cuda_remember(p->device, key, sizeof key, &p->choice, sizeof p->choice);
}

status cudnn_choose(cudnn_conv *p, bool *found, cudnnStatus_t *why)
{
    cudnn_choice list[MOST_ALGORITHMS + GRAPH_PLANS];
    int count = list_usable(p, list, why);
    *found = count > 0;
    if (!*found) return STATUS_OK;
    p->choice = list[0];
    if (p->device->base.config.benchmark) TRY(choose_timed(p, list, count));
    p->adding = p->choice.algorithm < 0 ? list[0] : p->choice;
    say(p, &p->choice, "is taken", 0);
    return cudnn_check(p->device, table_of_conv(p)->conv_set_math(p->conv, p->adding.math),
                       "cudnnSetConvolutionMathType");
}

#endif
