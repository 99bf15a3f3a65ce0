#include "common/device/cuda/module/cudnn_impl.h"

#include <stdio.h>
#include <stdlib.h>

#if PSRING_HAVE_CUDNN

static const cudnn_table *table_of(const cuda_device *d)
{
    return &d->libraries->cudnn;
}

status cudnn_check(const cuda_device *d, cudnnStatus_t code, const char *what)
{
    if (code == CUDNN_STATUS_SUCCESS) return STATUS_OK;
    return fail(STATUS_SYSTEM, "rank %d, GPU %d: %s: %s", d->base.config.rank, d->gpu, what,
                table_of(d)->status_text(code));
}

status cudnn_open(cuda_device *d)
{
    cudnnHandle_t handle;
    if (d->libraries->cudnn_found.why[0]) {
        log_warn("cuDNN: %s; own convolutions run in its place, many times slower",
                 d->libraries->cudnn_found.why);
        return STATUS_OK;
    }
    TRY(cudnn_check(d, table_of(d)->create(&handle), "cudnnCreate"));
    d->cudnn = handle;
    return STATUS_OK;
}

void cudnn_close(cuda_device *d)
{
    if (d->cudnn) table_of(d)->destroy(d->cudnn);
    d->cudnn = NULL;
}

/* ---- preparing -------------------------------------------------------------------------------- */

static cudnnDataType_t data_type(const cudnn_conv *p)
{
    return p->type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

static status set_tensor(const cudnn_conv *p, cudnnTensorDescriptor_t *out, int64_t n, int64_t c, int64_t h,
                         int64_t w)
{
    const cuda_device *d = p->device;
    TRY(cudnn_check(d, table_of(d)->tensor_create(out), "cudnnCreateTensorDescriptor"));
    return cudnn_check(
        d, table_of(d)->tensor_set(*out, CUDNN_TENSOR_NHWC, data_type(p), (int)n, (int)c, (int)h, (int)w),
        "cudnnSetTensor4dDescriptor");
}

/* Returns the math type. CUDNN_DEFAULT_MATH multiplies float32 as TF32, CUDNN_FMA_MATH does not. bfloat16
 * uses tensor cores only with CUDNN_TENSOR_OP_MATH. */
static cudnnMathType_t math_of(const cudnn_conv *p)
{
    if (p->type == DTYPE_BF16) return CUDNN_TENSOR_OP_MATH;
    return p->device->base.config.precision == DEVICE_PRECISION_F32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

static status describe(cudnn_conv *p)
{
    const cuda_device *d = p->device;
    const cudnn_table *t = table_of(d);
    const conv2d_attributes *a = &p->shape;
    p->math = math_of(p);
    TRY(set_tensor(p, &p->x, a->n, a->c, a->h, a->w));
    TRY(set_tensor(p, &p->y, a->n, a->k, a->p, a->q));
    TRY(cudnn_check(d, t->filter_create(&p->w), "cudnnCreateFilterDescriptor"));
    TRY(cudnn_check(
        d, t->filter_set(p->w, data_type(p), CUDNN_TENSOR_NHWC, (int)a->k, (int)a->c, (int)a->r, (int)a->s),
        "cudnnSetFilter4dDescriptor"));
    TRY(cudnn_check(d, t->conv_create(&p->conv), "cudnnCreateConvolutionDescriptor"));
    TRY(cudnn_check(d,
                    t->conv_set(p->conv, (int)a->pad_h, (int)a->pad_w, (int)a->stride, (int)a->stride, 1, 1,
                                CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
                    "cudnnSetConvolution2dDescriptor"));
    return cudnn_check(d, t->conv_set_math(p->conv, p->math), "cudnnSetConvolutionMathType");
}

static void count_elements(cudnn_conv *p)
{
    const conv2d_attributes *a = &p->shape;
    int64_t x = a->n * a->h * a->w * a->c, w = a->k * a->r * a->s * a->c, y = a->n * a->p * a->q * a->k;
    p->elements[CUDNN_FIRST] = p->kind == OP_conv2d_backward_data ? w : x;
    p->elements[CUDNN_SECOND] = p->kind == OP_conv2d_forward ? w : y;
    p->elements[CUDNN_OUT] = p->kind == OP_conv2d_forward ? y : p->kind == OP_conv2d_backward_data ? x : w;
}

static void describe_outside(cudnn_conv *p, const op_desc *op)
{
    dtype stored = op->bf16 ? DTYPE_BF16 : DTYPE_F32;
    for (int i = 0; i < CUDNN_OPERANDS; i++) p->outside[i] = stored;
    if (op->x_f32) p->outside[CUDNN_FIRST] = DTYPE_F32;
    if (op->kind == OP_conv2d_backward_weights) p->outside[CUDNN_OUT] = DTYPE_F32;
}

static void fall_back(const cudnn_conv *p, cudnnStatus_t why, const char *instead)
{
    const conv2d_attributes *a = &p->shape;
    char shape[96], reason[96];
    snprintf(shape, sizeof shape, "%lldx%lldx%lldx%lld to %lld, %lldx%lld, %s", (long long)a->n,
             (long long)a->h, (long long)a->w, (long long)a->c, (long long)a->k, (long long)a->r,
             (long long)a->s, dtype_name(p->type));
    snprintf(reason, sizeof reason, "cuDNN: %s",
             why == CUDNN_STATUS_SUCCESS ? "no deterministic algorithm"
                                         : table_of(p->device)->status_text(why));
    cuda_fall_back(p->device, p->kind, shape, reason, instead);
}

/* Prepares a convolution of tensors of `type`. If cuDNN has no deterministic algorithm for them, *out is
 * NULL, and a fallback is counted. `instead` names the method that will run. */
static status prepare_in(cuda_device *d, const op_desc *op, dtype type, const char *instead, cudnn_conv **out)
{
    bool found = false;
    cudnnStatus_t why = CUDNN_STATUS_SUCCESS;
    cudnn_conv *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a convolution");
    *p = (cudnn_conv){.device = d, .kind = op->kind, .shape = op->u.conv2d, .type = type};
    count_elements(p);
    describe_outside(p, op);
    status rc = describe(p);
    if (rc == STATUS_OK) rc = cudnn_choose(p, &found, &why);
    if (rc == STATUS_OK && !found) fall_back(p, why, instead);
    if (rc != STATUS_OK || !found) cudnn_conv_release(&p);
    *out = p;
    return rc;
}

/* If cuDNN does not support a shape in bfloat16 (three channels, for example), multiplies in TF32, which has
 * a longer mantissa. */
status cudnn_conv_prepare(cuda_device *d, const op_desc *op, cudnn_conv **out)
{
    *out = NULL;
    if (!d->cudnn) return STATUS_OK;
    if (d->base.config.precision == DEVICE_PRECISION_BF16)
        TRY(prepare_in(d, op, DTYPE_BF16, "TF32 multiplies", out));
    return *out ? STATUS_OK : prepare_in(d, op, DTYPE_F32, "an own kernel multiplies", out);
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
    cudnn_graph_close(&p->graph);
    free(p);
    *pointer = NULL;
}

/* ---- running ---------------------------------------------------------------------------------- */

/* The workspace holds cuDNN's workspace, then the converted operands, each at a multiple of 256 bytes. */
static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t bytes_of(const cudnn_conv *p, int operand)
{
    return p->outside[operand] == p->type ? 0 : rounded((size_t)(p->elements[operand] * dtype_size(p->type)));
}

static size_t library_bytes(const cudnn_conv *p)
{
    return rounded(p->choice.workspace > p->adding.workspace ? p->choice.workspace : p->adding.workspace);
}

size_t cudnn_conv_workspace(const cudnn_conv *p)
{
    if (!p) return 0;
    return library_bytes(p) + bytes_of(p, CUDNN_FIRST) + bytes_of(p, CUDNN_SECOND) + bytes_of(p, CUDNN_OUT);
}

cudnnStatus_t cudnn_use_stream(cuda_device *d, cudaStream_t s)
{
    if (d->cudnn_stream == s) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t code = table_of(d)->set_stream(d->cudnn, s);
    d->cudnn_stream = code == CUDNN_STATUS_SUCCESS ? s : NULL;
    return code;
}

cudnnStatus_t cudnn_call(const cudnn_conv *p, const cudnn_choice *choice, cudaStream_t s, const void *first,
                         const void *second, void *out, bool add, void *workspace)
{
    const cudnn_table *t = table_of(p->device);
    cudnnHandle_t h = p->device->cudnn;
    void *addresses[] = {(void *)first, (void *)second, out};
    if (choice->algorithm < 0) return cudnn_graph_run(p->graph, choice->plan, s, addresses, workspace);
    float one = 1, beta = add ? 1 : 0;
    size_t bytes = choice->workspace;
    cudnnStatus_t code = cudnn_use_stream(p->device, s);
    if (code != CUDNN_STATUS_SUCCESS) return code;
    if (p->kind == OP_conv2d_forward)
        return t->forward(h, &one, p->x, first, p->w, second, p->conv,
                          (cudnnConvolutionFwdAlgo_t)choice->algorithm, workspace, bytes, &beta, p->y, out);
    if (p->kind == OP_conv2d_backward_data)
        return t->backward_data(h, &one, p->w, first, p->y, second, p->conv,
                                (cudnnConvolutionBwdDataAlgo_t)choice->algorithm, workspace, bytes, &beta,
                                p->x, out);
    return t->backward_filter(h, &one, p->x, first, p->y, second, p->conv,
                              (cudnnConvolutionBwdFilterAlgo_t)choice->algorithm, workspace, bytes, &beta,
                              p->w, out);
}

static status run_chosen(const cudnn_conv *p, cudaStream_t s, const void *first, const void *second,
                         void *out, bool add, void *workspace)
{
    const char *what = p->kind == OP_conv2d_forward         ? "cudnnConvolutionForward"
                       : p->kind == OP_conv2d_backward_data ? "cudnnConvolutionBackwardData"
                                                            : "cudnnConvolutionBackwardFilter";
    return cudnn_check(
        p->device, cudnn_call(p, add ? &p->adding : &p->choice, s, first, second, out, add, workspace), what);
}

static status cast(const cudnn_conv *p, cudaStream_t s, int operand, dtype from_type, const void *from,
                   void *to, bool add)
{
    if (from_type == DTYPE_F32) return cuda_f32_to_bf16(p->device, s, p->elements[operand], from, to);
    return cuda_bf16_to_f32(p->device, s, p->elements[operand], from, to, add);
}

/* Runs the convolution. In bfloat16, cuDNN sums in float32 (its PSEUDO_BFLOAT16_CONFIG) and rounds each
 * result once. Weight gradients are then added over micro-batches in float32. */
status cudnn_conv_run(const cudnn_conv *p, cudaStream_t s, const void *first, const void *second, void *out,
                      bool add, void *workspace)
{
    char *a = (char *)workspace + library_bytes(p), *b = a + bytes_of(p, CUDNN_FIRST);
    char *c = b + bytes_of(p, CUDNN_SECOND);
    bool cast_a = p->outside[CUDNN_FIRST] != p->type, cast_b = p->outside[CUDNN_SECOND] != p->type;
    bool cast_c = p->outside[CUDNN_OUT] != p->type;
    if (cast_a) TRY(cast(p, s, CUDNN_FIRST, p->outside[CUDNN_FIRST], first, a, false));
    if (cast_b) TRY(cast(p, s, CUDNN_SECOND, p->outside[CUDNN_SECOND], second, b, false));
    TRY(run_chosen(p, s, cast_a ? a : first, cast_b ? b : second, cast_c ? c : out, add && !cast_c,
                   workspace));
    return cast_c ? cast(p, s, CUDNN_OUT, p->type, c, out, add) : STATUS_OK;
}

#endif
