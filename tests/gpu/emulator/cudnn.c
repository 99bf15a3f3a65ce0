/* Convolutions of cuDNN, emulated: plain loops in double precision over NHWC tensors of float32 or bfloat16.
 *
 * Of the algorithms that the heuristics list the first is not deterministic, and the last needs no workspace.
 * Odd numbers of channels are not supported in bfloat16, so that the callers' alternatives are tested.
 * Everything that the real library would refuse is refused: mixed types, another compute type, a workspace
 * that is too small. */
#include "common/device/cuda/module/libraries.h"
#include "common/reduce/half.h"
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/cudnn_impl.h"
#include "tests/gpu/emulator/memory.h"

#include <stdbool.h>
#include <stdlib.h>

enum { NOT_DETERMINISTIC, WITH_WORKSPACE, WITHOUT_WORKSPACE, ALGORITHMS, WORKSPACE_BYTES = 640 };

void emulator_fill_cudnn(cudnn_table *out);

/* ---- descriptors ------------------------------------------------------------------------------ */

static cudnnStatus_t make(void *out, size_t bytes)
{
    void *made = calloc(1, bytes);
    *(void **)out = made;
    return made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t drop(void *made)
{
    free(made);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    return make(out, sizeof **out);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    return drop(handle);
}

size_t cudnnGetVersion(void)
{
    return 90000;
}

const char *cudnnGetErrorString(cudnnStatus_t code)
{
    return code == CUDNN_STATUS_SUCCESS     ? "CUDNN_STATUS_SUCCESS"
           : code == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                                            : "CUDNN_STATUS_NOT_SUPPORTED";
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t s)
{
    emulator_count(&emulator_control.set_streams);
    handle->stream = s;
    return s ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    return make(out, sizeof **out);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t)
{
    return drop(t);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    *t = (struct emulated_tensor){type, n, c, h, w};
    return format == CUDNN_TENSOR_NHWC ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    return make(out, sizeof **out);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t t)
{
    return drop(t);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t t, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    return cudnnSetTensor4dDescriptor(t, format, type, k, c, h, w);
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    return make(out, sizeof **out);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t conv)
{
    return drop(conv);
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t conv, int pad_h, int pad_w, int u,
                                              int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute)
{
    *conv = (struct emulated_convolution){pad_h, pad_w, u, v, compute, CUDNN_DEFAULT_MATH};
    bool plain = dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION;
    return plain ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t conv, cudnnMathType_t math)
{
    conv->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- algorithms ------------------------------------------------------------------------------- */

static int outputs(int size, int pad, int window, int stride)
{
    return (size + 2 * pad - window) / stride + 1;
}

static cudnnStatus_t check(const struct emulated_tensor *x, const struct emulated_tensor *w,
                           const struct emulated_tensor *y, const struct emulated_convolution *conv)
{
    bool fits = x->c == w->c && y->c == w->n && x->n == y->n &&
                y->h == outputs(x->h, conv->pad_h, w->h, conv->stride_h) &&
                y->w == outputs(x->w, conv->pad_w, w->w, conv->stride_w);
    if (!fits || x->type != w->type || x->type != y->type || conv->compute != CUDNN_DATA_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    bool bf16 = x->type == CUDNN_DATA_BFLOAT16, tensor_cores = conv->math == CUDNN_TENSOR_OP_MATH;
    return bf16 && (x->c % 2 || !tensor_cores) ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t list(const struct emulated_tensor *x, const struct emulated_tensor *w,
                          const struct emulated_tensor *y, const struct emulated_convolution *conv, int asked,
                          int *count, struct emulated_performance *out)
{
    cudnnStatus_t code = check(x, w, y, conv);
    *count = 0;
    if (emulator_control.fails_search) return CUDNN_STATUS_NOT_SUPPORTED;
    *count = asked < ALGORITHMS ? asked : ALGORITHMS;
    for (int i = 0; i < *count; i++)
        out[i] = (struct emulated_performance){.algo = i,
                                               .status = code,
                                               .memory = i == WITHOUT_WORKSPACE ? 0 : WORKSPACE_BYTES,
                                               .determinism = i == NOT_DETERMINISTIC ? CUDNN_NON_DETERMINISTIC
                                                                                     : CUDNN_DETERMINISTIC,
                                               .mathType = conv->math};
    return code == CUDNN_STATUS_BAD_PARAM ? code : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int asked, int *count,
                                                     cudnnConvolutionFwdAlgoPerf_t *out)
{
    (void)handle;
    return list(x, w, y, conv, asked, count, out);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int asked, int *count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *out)
{
    (void)handle;
    return list(dx, w, dy, conv, asked, count, out);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int asked, int *count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *out)
{
    (void)handle;
    return list(x, dw, dy, conv, asked, count, out);
}

/* ---- running ---------------------------------------------------------------------------------- */

static int64_t at(const struct emulated_tensor *t, int n, int h, int w, int c)
{
    return (((int64_t)n * t->h + h) * t->w + w) * t->c + c;
}

static double get(cudnnDataType_t type, const void *data, int64_t i)
{
    return type == CUDNN_DATA_FLOAT ? ((const float *)data)[i] : bf16_to_float(((const uint16_t *)data)[i]);
}

typedef emulated_convolution_work work;

/* Adds the products of one output pixel's window, for all channels, to the sums of the result that is
 * computed. */
static void visit(const work *k, const int pixel[3], double *sums)
{
    const struct emulated_tensor *xd = &k->x, *wd = &k->w, *yd = &k->y;
    int n = pixel[0], p = pixel[1], q = pixel[2];
    for (int r = 0; r < wd->h; r++)
        for (int s = 0; s < wd->w; s++) {
            int h = p * k->conv.stride_h + r - k->conv.pad_h, v = q * k->conv.stride_w + s - k->conv.pad_w;
            if (h < 0 || h >= xd->h || v < 0 || v >= xd->w) continue;
            for (int to = 0; to < yd->c; to++)
                for (int c = 0; c < xd->c; c++) {
                    int64_t xi = at(xd, n, h, v, c), wi = at(wd, to, r, s, c), yi = at(yd, n, p, q, to);
                    if (k->way == FORWARD)
                        sums[yi] += get(xd->type, k->data[0], xi) * get(wd->type, k->data[1], wi);
                    else if (k->way == BACKWARD_DATA)
                        sums[xi] += get(yd->type, k->data[2], yi) * get(wd->type, k->data[1], wi);
                    else
                        sums[wi] += get(xd->type, k->data[0], xi) * get(yd->type, k->data[2], yi);
                }
        }
}

static void store(const struct emulated_tensor *t, const double *sums, double alpha, double beta, void *out)
{
    int64_t count = (int64_t)t->n * t->c * t->h * t->w;
    for (int64_t i = 0; i < count; i++) {
        double value = alpha * sums[i] + (beta != 0 ? beta * get(t->type, out, i) : 0);
        if (t->type == CUDNN_DATA_FLOAT)
            ((float *)out)[i] = (float)value;
        else
            ((uint16_t *)out)[i] = bf16_from_float((float)value);
    }
}

void emulator_convolve(void *context)
{
    const work *k = context;
    const struct emulated_tensor *out = k->way == FORWARD ? &k->y : k->way == BACKWARD_DATA ? &k->x : &k->w;
    double *sums = calloc((size_t)out->n * (size_t)out->c * (size_t)out->h * (size_t)out->w, sizeof *sums);
    if (!sums) abort();
    emulator_open_memory();
    for (int n = 0; n < k->y.n; n++)
        for (int p = 0; p < k->y.h; p++)
            for (int q = 0; q < k->y.w; q++) visit(k, (const int[]){n, p, q}, sums);
    store(out, sums, k->alpha, k->beta, k->data[k->way == FORWARD ? 2 : k->way == BACKWARD_DATA ? 0 : 1]);
    emulator_close_memory();
    free(sums);
}

static cudnnStatus_t enqueue(cudnnHandle_t handle, const work *k, int algorithm, const void *workspace,
                             size_t bytes)
{
    cudnnStatus_t code = check(&k->x, &k->w, &k->y, &k->conv);
    bool room = algorithm == WITHOUT_WORKSPACE || (workspace && bytes >= WORKSPACE_BYTES);
    if (code != CUDNN_STATUS_SUCCESS) return code;
    if (algorithm <= NOT_DETERMINISTIC || algorithm >= ALGORITHMS || !room) return CUDNN_STATUS_BAD_PARAM;
    emulator_be_slow(handle->stream);
    work copy = *k;
    if (!emulator_record(handle->stream, emulator_convolve, &copy, sizeof copy)) emulator_convolve(&copy);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                      const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t bytes, const void *beta,
                                      cudnnTensorDescriptor_t y_desc, void *y)
{
    work k = {*x_desc,
              *w_desc,
              *y_desc,
              *conv,
              {(void *)x, (void *)w, y},
              FORWARD,
              *(const float *)alpha,
              *(const float *)beta};
    return enqueue(handle, &k, algorithm, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           cudnnFilterDescriptor_t w_desc, const void *w,
                                           cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace,
                                           size_t bytes, const void *beta, cudnnTensorDescriptor_t dx_desc,
                                           void *dx)
{
    work k = {*dx_desc,
              *w_desc,
              *dy_desc,
              *conv,
              {dx, (void *)w, (void *)dy},
              BACKWARD_DATA,
              *(const float *)alpha,
              *(const float *)beta};
    return enqueue(handle, &k, algorithm, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             cudnnTensorDescriptor_t x_desc, const void *x,
                                             cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace,
                                             size_t bytes, const void *beta, cudnnFilterDescriptor_t dw_desc,
                                             void *dw)
{
    work k = {*x_desc,
              *dw_desc,
              *dy_desc,
              *conv,
              {(void *)x, dw, (void *)dy},
              BACKWARD_FILTER,
              *(const float *)alpha,
              *(const float *)beta};
    return enqueue(handle, &k, algorithm, workspace, bytes);
}

#define FUNCTION(member, symbol) .member = symbol,
void emulator_fill_cudnn(cudnn_table *out)
{
    *out = (cudnn_table){CUDNN_FUNCTIONS(FUNCTION)};
}
