/* oneDNN's convolutions on NHWC images. A pass may need the weights in another layout than the arena's;
 * then they are reordered, in the workspace, before or after the pass. */
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"
#include "common/device/cpu/onednn.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 5 };

struct conv2d_primitive {
    dnnl_primitive_t primitive;
    dnnl_memory_t x, w, b, y, scratchpad;
    onednn_reorder reorder; /* of the weights: before forward and backward_data, after backward_weights */
    conv2d_pass pass;
    /* Parts of the workspace, in this order; x and y: their bfloat16 copies. */
    size_t scratchpad_bytes, weights_bytes, gradient_bytes, x_bytes, y_bytes;
    int64_t weights, inputs, outputs; /* elements */
};

/* The tensors' descriptions for oneDNN. */
typedef struct conv2d_descs {
    dnnl_memory_desc_t x, arena, any, b, y;
    dnnl_dims_t strides, padding;
    bool bias, bf16;
} conv2d_descs;

/* The factors of a product may be bfloat16; what a pass writes is float32. */
static status describe(const host_kernel *kernel, conv2d_descs *out)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const conv2d_state *state = kernel->state;
    conv2d_pass pass = state->pass;
    bool bf16 = cpu_device_of(kernel)->bf16;
    dnnl_data_type_t factor = bf16 ? dnnl_bf16 : dnnl_f32,
                     x_type = pass == CONV2D_BACKWARD_DATA ? dnnl_f32 : factor,
                     w_type = pass == CONV2D_BACKWARD_WEIGHTS ? dnnl_f32 : factor,
                     y_type = pass == CONV2D_FORWARD ? dnnl_f32 : factor;
    dnnl_dims_t x = {a->n, a->c, a->h, a->w}, w = {a->k, a->c, a->r, a->s}, y = {a->n, a->k, a->p, a->q},
                b = {a->k};
    dnnl_format_tag_t tag = state->block == 16  ? dnnl_OIhw16i16o
                            : state->block == 8 ? dnnl_OIhw8i8o
                                                : dnnl_hwio;
    *out = (conv2d_descs){
        .strides = {a->stride, a->stride}, .padding = {a->pad_h, a->pad_w}, .bias = a->bias, .bf16 = bf16};
    TRY(onednn_check(dnnl_memory_desc_init_by_tag(&out->x, 4, x, x_type, dnnl_nhwc), "source"));
    TRY(onednn_check(dnnl_memory_desc_init_by_tag(&out->y, 4, y, y_type, dnnl_nhwc), "destination"));
    TRY(onednn_check(dnnl_memory_desc_init_by_tag(&out->arena, 4, w, dnnl_f32, tag), "weights"));
    TRY(onednn_check(dnnl_memory_desc_init_by_tag(&out->any, 4, w, w_type, dnnl_format_tag_any), "weights"));
    return onednn_check(dnnl_memory_desc_init_by_tag(&out->b, 1, b, dnnl_f32, dnnl_a), "bias");
}

static status forward_desc(const conv2d_descs *m, const dnnl_memory_desc_t *w, dnnl_engine_t engine,
                           dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t rc =
        dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct, &m->x, w,
                                           m->bias ? &m->b : NULL, &m->y, m->strides, m->padding, m->padding);
    TRY(onednn_check(rc, "convolution"));
    return onednn_check(dnnl_primitive_desc_create(out, &desc, attributes, engine, NULL), "convolution");
}

/* oneDNN needs a forward primitive as a hint for the backward passes. */
static status pass_desc(conv2d_pass pass, const conv2d_descs *m, const dnnl_memory_desc_t *w,
                        dnnl_engine_t engine, dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    if (pass == CONV2D_FORWARD) return forward_desc(m, w, engine, attributes, out);
    dnnl_primitive_desc_t hint = NULL;
    conv2d_descs forward = *m;
    if (m->bf16) {
        forward.x.data_type = forward.any.data_type = dnnl_bf16;
        forward.y.data_type = dnnl_f32;
    }
    TRY(forward_desc(&forward, &forward.any, engine, attributes, &hint));
    dnnl_convolution_desc_t desc;
    dnnl_status_t rc =
        pass == CONV2D_BACKWARD_DATA
            ? dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &m->x, w, &m->y,
                                                       m->strides, m->padding, m->padding)
            : dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &m->x, w, NULL,
                                                          &m->y, m->strides, m->padding, m->padding);
    if (rc == dnnl_success) rc = dnnl_primitive_desc_create(out, &desc, attributes, engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return onednn_check(rc, "convolution");
}

/* oneDNN's reference loops, and its im2col with sgemm, are slower than a reordering of the weights. */
static bool is_fast(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
    return strncmp(name, "ref", 3) != 0 && !strstr(name, "gemm:");
}

/* Uses the arena's layout of the weights where oneDNN has a fast kernel for it. */
static status choose_desc(conv2d_pass pass, const conv2d_descs *m, dnnl_engine_t engine,
                          dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    if (!m->bf16) {
        TRY(pass_desc(pass, m, &m->arena, engine, attributes, out));
        if (is_fast(*out)) return STATUS_OK;
        dnnl_primitive_desc_destroy(*out);
        *out = NULL;
    }
    return pass_desc(pass, m, &m->any, engine, attributes, out);
}

static status create(conv2d_primitive *d, const conv2d_descs *m, dnnl_engine_t engine,
                     const_dnnl_primitive_desc_t desc)
{
    dnnl_query_t query =
        d->pass == CONV2D_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    const dnnl_memory_desc_t *w = dnnl_primitive_desc_query_md(desc, query, 0);
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    TRY(onednn_check(dnnl_primitive_create(&d->primitive, desc), "convolution"));
    TRY(onednn_memory(engine, &m->x, &d->x));
    TRY(onednn_memory(engine, w, &d->w));
    TRY(onednn_memory(engine, &m->y, &d->y));
    TRY(onednn_memory(engine, scratchpad, &d->scratchpad));
    if (m->bias && d->pass == CONV2D_FORWARD) TRY(onednn_memory(engine, &m->b, &d->b));
    if (d->pass == CONV2D_BACKWARD_WEIGHTS)
        TRY(onednn_reorder_open(engine, w, &m->arena, &d->reorder));
    else
        TRY(onednn_reorder_open(engine, &m->arena, w, &d->reorder));
    size_t bytes = dnnl_memory_desc_get_size(scratchpad);
    if (bytes < d->reorder.scratchpad_bytes) bytes = d->reorder.scratchpad_bytes;
    d->scratchpad_bytes = (bytes + 63) / 64 * 64;
    if (d->reorder.primitive) d->weights_bytes = (dnnl_memory_desc_get_size(w) + 63) / 64 * 64;
    if (d->pass == CONV2D_BACKWARD_WEIGHTS)
        d->gradient_bytes = ((size_t)d->weights * sizeof(float) + 63) / 64 * 64;
    if (m->x.data_type == dnnl_bf16) d->x_bytes = cpu_bf16_bytes(d->inputs);
    if (m->y.data_type == dnnl_bf16) d->y_bytes = cpu_bf16_bytes(d->outputs);
    return STATUS_OK;
}

status conv2d_primitive_open(const host_kernel *kernel, conv2d_primitive **out)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    dnnl_engine_t engine = cpu_device_of(kernel)->engine;
    conv2d_primitive *d = calloc(1, sizeof *d);
    if (!d) return fail(STATUS_SYSTEM, "no memory");
    d->pass = conv2d_state_of(kernel)->pass;
    d->weights = a->k * a->c * a->r * a->s;
    d->inputs = a->n * a->h * a->w * a->c;
    d->outputs = a->n * a->p * a->q * a->k;
    *out = d;
    conv2d_descs descs;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    status rc;
    TRY_GOTO(rc, describe(kernel, &descs), done);
    TRY_GOTO(rc, onednn_attributes(&attributes), done);
    TRY_GOTO(rc, choose_desc(d->pass, &descs, engine, attributes, &desc), done);
    TRY_GOTO(rc, create(d, &descs, engine, desc), done);
done:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attributes);
    return rc;
}

void conv2d_primitive_close(conv2d_primitive **primitive)
{
    conv2d_primitive *d = *primitive;
    *primitive = NULL;
    if (!d) return;
    onednn_reorder_close(&d->reorder);
    dnnl_primitive_destroy(d->primitive);
    dnnl_memory_t memories[] = {d->x, d->w, d->b, d->y, d->scratchpad};
    for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++) dnnl_memory_destroy(memories[i]);
    free(d);
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    const conv2d_primitive *d = conv2d_state_of(kernel)->primitive;
    return d->scratchpad_bytes + d->weights_bytes + d->gradient_bytes + d->x_bytes + d->y_bytes;
}

/* `o`, or bfloat16 copies of its tensors in the workspace. */
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
    static const int arg[][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                 {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                 {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    dnnl_exec_arg_t args[MAX_ARGS] = {{arg[d->pass][0], d->x},
                                      {arg[d->pass][1], d->w},
                                      {arg[d->pass][2], d->y},
                                      {DNNL_ARG_SCRATCHPAD, d->scratchpad},
                                      {DNNL_ARG_BIAS, d->b}};
    char *copies = (char *)scratchpad + d->scratchpad_bytes + d->weights_bytes + d->gradient_bytes;
    onednn_point(d->x, bf16_copy(kernel, o->x, d->inputs, d->x_bytes, copies));
    onednn_point(d->w, w);
    onednn_point(d->y, bf16_copy(kernel, o->y, d->outputs, d->y_bytes, copies + d->x_bytes));
    onednn_point(d->scratchpad, scratchpad);
    if (d->b) onednn_point(d->b, o->b);
    onednn_execute(d->primitive, cpu_device_of(kernel)->stream, d->b ? MAX_ARGS : MAX_ARGS - 1, args);
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
        if (reorders) onednn_reorder_run(&d->reorder, stream, o->w, weights, workspace);
        execute(kernel, d, o, reorders ? weights : o->w, workspace);
        return;
    }
    float *to = o->add ? gradient : o->w;
    execute(kernel, d, o, reorders ? weights : to, workspace);
    if (reorders) onednn_reorder_run(&d->reorder, stream, weights, to, workspace);
    if (!o->add) return;
    add_job job = {cpu_isa_of(kernel)->elementwise, gradient, o->w};
    cpu_parallel(kernel->threads, d->weights, CPU_GRAIN, add_part, &job);
}

const conv2d_algorithm conv2d_direct = {workspace_bytes, run};
