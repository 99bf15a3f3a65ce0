#include "common/device/cuda/module/cudnn_cuda.h"

#include "common/device/cuda/module/libraries.h"

#include <stdio.h>
#include <stdlib.h>

#if PSRING_HAVE_CUDNN

enum { MOST_WORKSPACE = 1 << 30, MOST_ALGORITHMS = 16 };

struct cudnn_conv {
    cuda_device *device;
    op_kind kind;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    int algorithm;
    cudnnMathType_t math;
    size_t workspace;
};

static const cudnn_table *table_of(const cuda_device *d)
{
    return &d->libraries->cudnn;
}

static status check(const cuda_device *d, cudnnStatus_t code, const char *what)
{
    if (code == CUDNN_STATUS_SUCCESS) return STATUS_OK;
    return fail(STATUS_SYSTEM, "rank %d, GPU %d: %s: %s", d->base.config.rank, d->gpu, what,
                table_of(d)->status_text(code));
}

void cudnn_describe(const cuda_libraries *libraries, char *out, size_t size)
{
    out[0] = '\0';
    if (libraries->why_cudnn[0]) return;
    size_t v = libraries->cudnn.version();
    snprintf(out, size, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

status cudnn_open(cuda_device *d)
{
    cudnnHandle_t handle;
    if (d->libraries->why_cudnn[0]) {
        log_warn("cuDNN: %s; own convolutions run in its place, many times slower", d->libraries->why_cudnn);
        return STATUS_OK;
    }
    TRY(check(d, table_of(d)->create(&handle), "cudnnCreate"));
    d->cudnn = handle;
    return STATUS_OK;
}

void cudnn_close(cuda_device *d)
{
    if (d->cudnn) table_of(d)->destroy(d->cudnn);
    d->cudnn = NULL;
}

/* ---- preparing -------------------------------------------------------------------------------- */

static status set_tensor(const cuda_device *d, cudnnTensorDescriptor_t *out, int64_t n, int64_t c, int64_t h, int64_t w)
{
    TRY(check(d, table_of(d)->tensor_create(out), "cudnnCreateTensorDescriptor"));
    return check(d,
                 table_of(d)->tensor_set(*out, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, (int)n, (int)c, (int)h, (int)w),
                 "cudnnSetTensor4dDescriptor");
}

/* CUDNN_DEFAULT_MATH lets float32 be multiplied as TF32; CUDNN_FMA_MATH does not. */
static status describe(cudnn_conv *p, const conv2d_attributes *a)
{
    const cuda_device *d = p->device;
    const cudnn_table *t = table_of(d);
    p->math = d->base.config.precision == DEVICE_PRECISION_F32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
    TRY(set_tensor(d, &p->x, a->n, a->c, a->h, a->w));
    TRY(set_tensor(d, &p->y, a->n, a->k, a->p, a->q));
    TRY(check(d, t->filter_create(&p->w), "cudnnCreateFilterDescriptor"));
    TRY(check(d,
              t->filter_set(p->w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, (int)a->k, (int)a->c, (int)a->r, (int)a->s),
              "cudnnSetFilter4dDescriptor"));
    TRY(check(d, t->conv_create(&p->conv), "cudnnCreateConvolutionDescriptor"));
    TRY(check(d,
              t->conv_set(p->conv, (int)a->pad, (int)a->pad, (int)a->stride, (int)a->stride, 1, 1,
                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor"));
    return check(d, t->conv_set_math(p->conv, p->math), "cudnnSetConvolutionMathType");
}

/* Whether an algorithm may be taken that cuDNN says works with `found`. Without TF32 the convolution stays
 * restricted to plain multiply-adds, which algorithms of tensor cores do not have. */
static bool allowed(const cudnn_conv *p, cudnnMathType_t found)
{
    return p->math != CUDNN_FMA_MATH || (found != CUDNN_TENSOR_OP_MATH && found != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
}

/* The three kinds of results have the same members. */
#define TAKE_FIRST(results, count, p, found)                                                                 \
    for (int i = 0; i < (count) && !(found); i++) {                                                          \
        bool usable = (results)[i].status == CUDNN_STATUS_SUCCESS && (results)[i].memory <= MOST_WORKSPACE && \
                      (results)[i].determinism == CUDNN_DETERMINISTIC &&                                     \
                      allowed((p), (results)[i].mathType);                                                   \
        if (!usable) continue;                                                                               \
        (p)->algorithm = (int)(results)[i].algo;                                                             \
        (p)->workspace = (results)[i].memory;                                                                \
        if ((p)->math != CUDNN_FMA_MATH) (p)->math = (results)[i].mathType;                                  \
        (found) = true;                                                                                      \
    }

static status find_algorithm(cudnn_conv *p, bool *found)
{
    const cudnn_table *t = table_of(p->device);
    cudnnHandle_t h = p->device->cudnn;
    int count = 0;
    cudnnStatus_t code;
    if (p->kind == OP_conv2d_forward) {
        cudnnConvolutionFwdAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->forward_find(h, p->x, p->w, p->conv, p->y, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_FIRST(results, count, p, *found)
    } else if (p->kind == OP_conv2d_backward_data) {
        cudnnConvolutionBwdDataAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->data_find(h, p->w, p->y, p->conv, p->x, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_FIRST(results, count, p, *found)
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[MOST_ALGORITHMS];
        code = t->filter_find(h, p->x, p->y, p->conv, p->w, MOST_ALGORITHMS, &count, results);
        if (code == CUDNN_STATUS_SUCCESS) TAKE_FIRST(results, count, p, *found)
    }
    if (!*found) return STATUS_OK;
    return check(p->device, t->conv_set_math(p->conv, p->math), "cudnnSetConvolutionMathType");
}

status cudnn_conv_prepare(cuda_device *d, const op_desc *op, cudnn_conv **out)
{
    bool found = false;
    *out = NULL;
    if (d->base.config.precision == DEVICE_PRECISION_BF16)
        return fail(STATUS_CONFIG, "found --bf16, allowed for convolutions are float32 and --tf32");
    if (!d->cudnn) return STATUS_OK;
    cudnn_conv *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a convolution");
    p->device = d;
    p->kind = op->kind;
    status rc = describe(p, &op->u.conv2d);
    if (rc == STATUS_OK) rc = find_algorithm(p, &found);
    if (rc != STATUS_OK || !found) cudnn_conv_release(&p);
    if (rc == STATUS_OK && !found)
        log_debug("cuDNN has no deterministic algorithm for a %s: an own one runs", op_name(op->kind));
    *out = p;
    return rc;
}

void cudnn_conv_release(cudnn_conv **pointer)
{
    cudnn_conv *p = *pointer;
    if (!p) return;
    const cudnn_table *t = table_of(p->device);
    if (p->x) t->tensor_destroy(p->x);
    if (p->y) t->tensor_destroy(p->y);
    if (p->w) t->filter_destroy(p->w);
    if (p->conv) t->conv_destroy(p->conv);
    free(p);
    *pointer = NULL;
}

size_t cudnn_conv_workspace(const cudnn_conv *p)
{
    return p ? p->workspace : 0;
}

status cudnn_conv_run(cudnn_conv *p, cudaStream_t s, const float *first, const float *second, float *out, bool add,
                      void *workspace)
{
    const cuda_device *d = p->device;
    const cudnn_table *t = table_of(d);
    cudnnHandle_t h = d->cudnn;
    float one = 1, beta = add ? 1 : 0;
    TRY(check(d, t->set_stream(h, s), "cudnnSetStream"));
    if (p->kind == OP_conv2d_forward)
        return check(d,
                     t->forward(h, &one, p->x, first, p->w, second, p->conv,
                                (cudnnConvolutionFwdAlgo_t)p->algorithm, workspace, p->workspace, &beta, p->y, out),
                     "cudnnConvolutionForward");
    if (p->kind == OP_conv2d_backward_data)
        return check(d,
                     t->backward_data(h, &one, p->w, first, p->y, second, p->conv,
                                      (cudnnConvolutionBwdDataAlgo_t)p->algorithm, workspace, p->workspace, &beta,
                                      p->x, out),
                     "cudnnConvolutionBackwardData");
    return check(d,
                 t->backward_filter(h, &one, p->x, first, p->y, second, p->conv,
                                    (cudnnConvolutionBwdFilterAlgo_t)p->algorithm, workspace, p->workspace, &beta,
                                    p->w, out),
                 "cudnnConvolutionBackwardFilter");
}

#else /* built without cuDNN: no convolution is ever made */

void cudnn_describe(const cuda_libraries *libraries, char *out, size_t size)
{
    (void)libraries, (void)size;
    out[0] = '\0';
}

status cudnn_open(cuda_device *d)
{
    (void)d;
    return STATUS_OK;
}

void cudnn_close(cuda_device *d)
{
    (void)d;
}

status cudnn_conv_prepare(cuda_device *d, const op_desc *op, cudnn_conv **out)
{
    (void)op;
    *out = NULL;
    if (d->base.config.precision == DEVICE_PRECISION_BF16)
        return fail(STATUS_CONFIG, "found --bf16, allowed for convolutions are float32 and --tf32");
    return STATUS_OK;
}

void cudnn_conv_release(cudnn_conv **conv)
{
    *conv = NULL;
}

size_t cudnn_conv_workspace(const cudnn_conv *conv)
{
    (void)conv;
    return 0;
}

status cudnn_conv_run(cudnn_conv *conv, cudaStream_t s, const float *first, const float *second, float *out, bool add,
                      void *workspace)
{
    (void)conv, (void)s, (void)first, (void)second, (void)out, (void)add, (void)workspace;
    return fail(STATUS_INTERNAL, "this module was built without cuDNN");
}

#endif
