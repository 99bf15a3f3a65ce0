/* oneDNN's convolutions on NHWC images. If a pass needs a layout of the weights that differs from the arena's
 * layout, the weights are reordered in the workspace before or after the pass. */
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"
#include "common/device/cpu/onednn.h"

#include <stdlib.h>
#include <string.h>

enum { X, W, Y }; /* arguments of the convolution */

struct conv2d_primitive {
    onednn_primitive convolution;
    onednn_primitive reorder; /* Reorders the weights before forward and backward_data, or their gradient
                                 after backward_weights. */
    conv2d_pass pass;
    /* Sizes of the parts of the workspace, in this order. The last two parts hold bfloat16 copies of x and
     * y. */
    size_t scratchpad_bytes, weights_bytes, gradient_bytes, x_bytes, y_bytes;
    int64_t weights, inputs, outputs; /* numbers of elements */
};

/* Stores a description of the convolution in *out, and a description of the weights in the arena in *arena.
 * The factors of a multiplication may be bfloat16; the result of a pass is float32. */
static void describe(const host_kernel *kernel, onednn_convolution *out, onednn_tensor *arena)
{
    static const dnnl_prop_kind_t passes[] = {dnnl_forward_training, dnnl_backward_data,
                                              dnnl_backward_weights};
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const conv2d_state *state = kernel->state;
    conv2d_pass pass = state->pass;
    dnnl_data_type_t factor = cpu_device_of(kernel)->bf16 ? dnnl_bf16 : dnnl_f32,
                     x_type = pass == CONV2D_BACKWARD_DATA ? dnnl_f32 : factor,
                     w_type = pass == CONV2D_BACKWARD_WEIGHTS ? dnnl_f32 : factor,
                     y_type = pass == CONV2D_FORWARD ? dnnl_f32 : factor;
    dnnl_format_tag_t tag = state->block == 16  ? dnnl_OIhw16i16o
                            : state->block == 8 ? dnnl_OIhw8i8o
                                                : dnnl_hwio;
    *out = (onednn_convolution){.pass = passes[pass],
                                .x = {4, {a->n, a->c, a->h, a->w}, x_type, dnnl_nhwc},
                                .w = {4, {a->k, a->c, a->r, a->s}, w_type, dnnl_format_tag_any},
                                .y = {4, {a->n, a->k, a->p, a->q}, y_type, dnnl_nhwc},
                                .strides = {a->stride, a->stride},
                                .padding = {a->pad_h, a->pad_w}};
    if (a->bias && pass == CONV2D_FORWARD) out->b = (onednn_tensor){1, {a->k}, dnnl_f32, dnnl_a};
    *arena = (onednn_tensor){4, {a->k, a->c, a->r, a->s}, dnnl_f32, tag};
}

/* oneDNN needs a forward primitive as a hint for the backward passes. */
static status open_desc(dnnl_engine_t engine, const onednn_convolution *c, bool bf16,
                        dnnl_primitive_desc_t *out)
{
    if (c->pass == dnnl_forward_training) return onednn_convolution_desc(engine, c, NULL, out);
    onednn_convolution forward = *c;
    forward.pass = dnnl_forward_training;
    forward.w.tag = dnnl_format_tag_any;
    forward.x.type = forward.w.type = bf16 ? dnnl_bf16 : dnnl_f32;
    forward.y.type = dnnl_f32;
    dnnl_primitive_desc_t hint = NULL;
    TRY(onednn_convolution_desc(engine, &forward, NULL, &hint));
    status rc = onednn_convolution_desc(engine, c, hint, out);
    dnnl_primitive_desc_destroy(hint);
    return rc;
}

/* Returns false if oneDNN would use its reference loops or im2col with sgemm. Both take longer than
 * reordering the weights and running a fast kernel. */
static bool is_fast(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
    return strncmp(name, "ref", 3) != 0 && !strstr(name, "gemm:");
}

static status choose_desc(dnnl_engine_t engine, const onednn_convolution *c, const onednn_tensor *arena,
                          bool bf16, dnnl_primitive_desc_t *out)
{
    if (!bf16) {
        onednn_convolution in_place = *c;
        in_place.w = *arena;
        TRY(open_desc(engine, &in_place, bf16, out));
        if (is_fast(*out)) return STATUS_OK;
        dnnl_primitive_desc_destroy(*out);
        *out = NULL;
    }
    return open_desc(engine, c, bf16, out);
}

static status create(conv2d_primitive *d, const onednn_convolution *c, const onednn_tensor *arena,
                     dnnl_engine_t engine, const_dnnl_primitive_desc_t desc)
{
    static const int arguments[][4] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
                                       {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                       {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    bool gradient = d->pass == CONV2D_BACKWARD_WEIGHTS;
    TRY(onednn_primitive_open(engine, desc, c->b.rank ? 4 : 3, arguments[d->pass], &d->convolution));
    TRY(onednn_reorder_open(engine, &d->convolution, W, arena, gradient, &d->reorder));
    size_t bytes = d->convolution.scratchpad_bytes;
    if (bytes < d->reorder.scratchpad_bytes) bytes = d->reorder.scratchpad_bytes;
    d->scratchpad_bytes = (bytes + 63) / 64 * 64;
    if (d->reorder.primitive) d->weights_bytes = (onednn_argument_bytes(&d->convolution, W) + 63) / 64 * 64;
    if (gradient) d->gradient_bytes = ((size_t)d->weights * sizeof(float) + 63) / 64 * 64;
    if (c->x.type == dnnl_bf16) d->x_bytes = cpu_bf16_bytes(d->inputs);
    if (c->y.type == dnnl_bf16) d->y_bytes = cpu_bf16_bytes(d->outputs);
    return STATUS_OK;
}

status conv2d_primitive_open(const host_kernel *kernel, conv2d_primitive **out)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const cpu_device *device = cpu_device_of(kernel);
    conv2d_primitive *d = calloc(1, sizeof *d);
    if (!d) return fail(STATUS_SYSTEM, "no memory");
    d->pass = conv2d_state_of(kernel)->pass;
    d->weights = a->k * a->c * a->r * a->s;
    d->inputs = a->n * a->h * a->w * a->c;
    d->outputs = a->n * a->p * a->q * a->k;
    *out = d;
    onednn_convolution c;
    onednn_tensor arena;
    describe(kernel, &c, &arena);
    dnnl_primitive_desc_t desc = NULL;
    status rc = choose_desc(device->engine, &c, &arena, device->bf16, &desc);
    if (rc == STATUS_OK) rc = create(d, &c, &arena, device->engine, desc);
    dnnl_primitive_desc_destroy(desc);
    return rc;
}

void conv2d_primitive_close(conv2d_primitive **primitive)
{
    conv2d_primitive *d = *primitive;
    *primitive = NULL;
    if (!d) return;
    onednn_primitive_close(&d->reorder);
    onednn_primitive_close(&d->convolution);
    free(d);
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    const conv2d_primitive *d = conv2d_state_of(kernel)->primitive;
    return d->scratchpad_bytes + d->weights_bytes + d->gradient_bytes + d->x_bytes + d->y_bytes;
}

static const void *bf16_copy(const host_kernel *kernel, const float *tensor, int64_t count, size_t bytes,
                             void *copy)
{
    if (!bytes) return tensor;
    cpu_to_bf16(kernel, tensor, copy, count);
    return copy;
}

static void execute(const host_kernel *kernel, const conv2d_primitive *d, const conv2d_operands *o,
                    const float *w, void *scratchpad)
{
    char *copies = (char *)scratchpad + d->scratchpad_bytes + d->weights_bytes + d->gradient_bytes;
    const void *data[ONEDNN_MAX_ARGUMENTS] = {
        [X] = bf16_copy(kernel, o->x, d->inputs, d->x_bytes, copies),
        [W] = w,
        [Y] = bf16_copy(kernel, o->y, d->outputs, d->y_bytes, copies + d->x_bytes),
        [Y + 1] = o->b};
    data[d->convolution.count - 1] = scratchpad;
    onednn_primitive_run(&d->convolution, cpu_device_of(kernel)->stream, data);
}

static void reorder(const conv2d_primitive *d, dnnl_stream_t stream, const float *from, float *to,
                    void *scratchpad)
{
    onednn_primitive_run(&d->reorder, stream, (const void *[]){from, to, scratchpad});
}

typedef struct add_job {
    const cpu_elementwise *kernels;
    const float *gradient;
    float *w;
} add_job;

static void add_part(const void *context, int part, int64_t first, int64_t end)
{
    const add_job *job = context;
    job->kernels->add(job->w + first, job->gradient + first, job->w + first, end - first);
}

static void run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    const conv2d_primitive *d = conv2d_state_of(kernel)->primitive;
    dnnl_stream_t stream = cpu_device_of(kernel)->stream;
    float *weights = (float *)((char *)workspace + d->scratchpad_bytes);
    float *gradient = (float *)((char *)weights + d->weights_bytes);
    bool reorders = d->reorder.primitive != NULL;
    if (d->pass != CONV2D_BACKWARD_WEIGHTS) {
        if (reorders) reorder(d, stream, o->w, weights, workspace);
        execute(kernel, d, o, reorders ? weights : o->w, workspace);
        return;
    }
    float *to = o->add ? gradient : o->w;
    execute(kernel, d, o, reorders ? weights : to, workspace);
    if (reorders) reorder(d, stream, weights, to, workspace);
    if (!o->add) return;
    add_job job = {cpu_isa_of(kernel)->elementwise, gradient, o->w};
    cpu_parallel(kernel->threads, d->weights, CPU_GRAIN, add_part, &job);
}

const conv2d_algorithm conv2d_direct = {workspace_bytes, run};
