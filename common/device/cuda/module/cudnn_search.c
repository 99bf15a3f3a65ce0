/* Which of cuDNN's algorithms a convolution uses: of the deterministic ones the one that
 * the heuristics put first, or with --cudnn-benchmark the one that was fastest when each ran a few times. */
#include "common/device/cuda/module/cudnn_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if PSRING_HAVE_CUDNN

enum { MOST_WORKSPACE = 1 << 30, MOST_ALGORITHMS = 16, TIMED = 3 };

/* What was chosen by timing: a model repeats its convolutions, and both programs of a run must agree. */
struct cudnn_chosen {
    op_kind kind;
    dtype type;
    conv2d_attributes shape;
    cudnn_choice choice;
    struct cudnn_chosen *next;
};

/* Whether an algorithm that works with `found` may be used. Without TF32 the convolution stays
 * restricted to plain multiply-adds, which algorithms of tensor cores do not have. */
static bool allowed(const cudnn_conv *p, cudnnMathType_t found)
{
    return p->math != CUDNN_FMA_MATH || (found != CUDNN_TENSOR_OP_MATH && found != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
}

/* The three kinds of results have the same members. */
#define TAKE_USABLE(results, count, p, out, used)                                                            \
    for (int i = 0; i < (count); i++) {                                                                      \
        bool usable = (results)[i].status == CUDNN_STATUS_SUCCESS && (results)[i].memory <= MOST_WORKSPACE && \
                      (results)[i].determinism == CUDNN_DETERMINISTIC && allowed((p), (results)[i].mathType); \
        if (!usable) continue;                                                                               \
        cudnnMathType_t math = (p)->math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : (results)[i].mathType;         \
        (out)[(used)++] = (cudnn_choice){(int)(results)[i].algo, math, (results)[i].memory};                 \
    }

/* Best first, by cuDNN's heuristics; none where it does not know the shape. */
static int list_usable(const cudnn_conv *p, cudnn_choice *out)
{
    const cudnn_table *t = &p->device->libraries->cudnn;
    cudnnHandle_t h = p->device->cudnn;
    int count = 0, used = 0;
    cudnnStatus_t code;
    if (p->kind == OP_conv2d_forward) {
        cudnnConvolutionFwdAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->forward_find(h, p->x, p->w, p->conv, p->y, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_USABLE(results, count, p, out, used)
    } else if (p->kind == OP_conv2d_backward_data) {
        cudnnConvolutionBwdDataAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->data_find(h, p->w, p->y, p->conv, p->x, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_USABLE(results, count, p, out, used)
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->filter_find(h, p->x, p->y, p->conv, p->w, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_USABLE(results, count, p, out, used)
    }
    return used;
}

static const char *name_of(cudnnMathType_t math)
{
    return math == CUDNN_FMA_MATH ? "multiply-adds" : math == CUDNN_DEFAULT_MATH ? "multiply-adds or TF32" : "tensor cores";
}

/* For --log-level debug. */
static void say(const cudnn_conv *p, const cudnn_choice *choice, const char *what, double ms)
{
    const conv2d_attributes *a = &p->shape;
    char time[32] = "";
    if (ms > 0) snprintf(time, sizeof time, " %.3f ms", ms);
    log_debug("%s in %s, %lldx%lldx%lldx%lld to %lld, %lldx%lld: algorithm %d (%s, %zu bytes of workspace) %s%s",
              op_name(p->kind), dtype_name(p->type), (long long)a->n, (long long)a->h, (long long)a->w, (long long)a->c,
              (long long)a->k, (long long)a->r, (long long)a->s, choice->algorithm, name_of(choice->math),
              choice->workspace, what, time);
}

/* ---- timing ----------------------------------------------------------------------------------- */

/* Memory and events for a few runs; freed before the first step. */
typedef struct trial {
    void *operands[CUDNN_OPERANDS], *workspace;
    cudaEvent_t begin, end;
} trial;

static void close_trial(trial *t)
{
    for (int i = 0; i < CUDNN_OPERANDS; i++) cudaFree(t->operands[i]);
    cudaFree(t->workspace);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
}

/* *workspace becomes what could be had for the largest of the algorithms, or for none. */
static status open_trial(const cudnn_conv *p, const cudnn_choice *list, int count, trial *t, size_t *workspace)
{
    const cuda_device *d = p->device;
    *t = (trial){0};
    *workspace = 0;
    for (int i = 0; i < CUDNN_OPERANDS; i++) {
        size_t bytes = (size_t)(p->elements[i] * dtype_size(p->type));
        TRY(cuda_check(d, cudaMalloc(&t->operands[i], bytes), "memory to time a convolution"));
        TRY(cuda_zero(d, t->operands[i], bytes));
    }
    for (int i = 0; i < count; i++)
        if (list[i].workspace > *workspace) *workspace = list[i].workspace;
    if (*workspace && cudaMalloc(&t->workspace, *workspace) != cudaSuccess) {
        cudaGetLastError();
        *workspace = 0;
    }
    TRY(cuda_check(d, cudaEventCreate(&t->begin), "cudaEventCreate"));
    return cuda_check(d, cudaEventCreate(&t->end), "cudaEventCreate");
}

/* The shortest of a few runs after an untimed one; *works is false where cuDNN refuses. */
static status time_one(const cudnn_conv *p, const cudnn_choice *choice, const trial *t, float *best, bool *works)
{
    const cuda_device *d = p->device;
    cudaStream_t s = d->anchor_stream;
    *works = true;
    for (int i = 0; i <= TIMED; i++) {
        float ms = 0;
        TRY(cuda_check(d, cudaEventRecord(t->begin, s), "cudaEventRecord"));
        if (cudnn_call(p, choice, s, t->operands[CUDNN_FIRST], t->operands[CUDNN_SECOND], t->operands[CUDNN_OUT], false,
                       t->workspace) != CUDNN_STATUS_SUCCESS) {
            *works = false;
            return STATUS_OK;
        }
        TRY(cuda_check(d, cudaEventRecord(t->end, s), "cudaEventRecord"));
        TRY(cuda_check(d, cudaEventSynchronize(t->end), "a convolution that is timed"));
        TRY(cuda_check(d, cudaEventElapsedTime(&ms, t->begin, t->end), "cudaEventElapsedTime"));
        if (i == 1 || (i > 1 && ms < *best)) *best = ms;
    }
    return STATUS_OK;
}

/* *best_at is -1 where none could be run. */
static status time_all(const cudnn_conv *p, const cudnn_choice *list, int count, int *best_at)
{
    trial t;
    size_t workspace;
    float best = 0;
    *best_at = -1;
    status rc = open_trial(p, list, count, &t, &workspace);
    for (int i = 0; i < count && rc == STATUS_OK; i++) {
        float ms = 0;
        bool works;
        if (list[i].workspace > workspace) continue;
        rc = time_one(p, &list[i], &t, &ms, &works);
        if (rc != STATUS_OK || !works) continue;
        say(p, &list[i], "takes", (double)ms);
        if (*best_at >= 0 && ms >= best) continue;
        best = ms;
        *best_at = i;
    }
    close_trial(&t);
    return rc;
}

static bool same_shape(const conv2d_attributes *a, const conv2d_attributes *b)
{
    return a->n == b->n && a->h == b->h && a->w == b->w && a->c == b->c && a->k == b->k && a->r == b->r && a->s == b->s &&
           a->stride == b->stride && a->pad == b->pad;
}

static struct cudnn_chosen *recall(const cudnn_conv *p)
{
    struct cudnn_chosen *c = p->device->chosen;
    while (c && !(c->kind == p->kind && c->type == p->type && same_shape(&c->shape, &p->shape))) c = c->next;
    return c;
}

static status remember(const cudnn_conv *p)
{
    struct cudnn_chosen *c = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "no memory for a convolution");
    *c = (struct cudnn_chosen){p->kind, p->type, p->shape, p->choice, p->device->chosen};
    p->device->chosen = c;
    return STATUS_OK;
}

void cudnn_forget(cuda_device *d)
{
    while (d->chosen) {
        struct cudnn_chosen *next = d->chosen->next;
        free(d->chosen);
        d->chosen = next;
    }
}

status cudnn_choose(cudnn_conv *p, bool *found)
{
    cudnn_choice list[MOST_ALGORITHMS];
    int count = list_usable(p, list), at = 0;
    bool timed = p->device->base.config.benchmark && count > 1;
    const struct cudnn_chosen *known = timed ? recall(p) : NULL;
    *found = count > 0;
    if (!*found) return STATUS_OK;
    if (known) {
        p->choice = known->choice;
        return STATUS_OK;
    }
    if (timed) TRY(time_all(p, list, count, &at));
    p->choice = list[at < 0 ? 0 : at];
    say(p, &p->choice, "is taken", 0);
    return timed ? remember(p) : STATUS_OK;
}

#endif
