#include "common/device/cpu/conv2d.h"

#include <stdlib.h>

/* Outputs of at most this many pixels; the gradient with respect to x needs more small multiplications. */
enum { FEW_PIXELS = 16, FEW_PIXELS_DATA = 4 };

conv2d_algorithm conv2d_choose(const conv2d_attributes *a, conv2d_pass pass)
{
    if (a->r == 1 && a->s == 1 && a->pad == 0) return CONV2D_GEMM;
    if (conv2d_winograd_pays(a)) return CONV2D_WINOGRAD;
    int64_t most = pass == CONV2D_BACKWARD_DATA ? FEW_PIXELS_DATA : FEW_PIXELS;
    return a->p * a->q <= most ? CONV2D_PER_PIXEL : CONV2D_DIRECT;
}

typedef struct conv2d_state {
    conv2d_algorithm algorithm;
    conv2d_pass pass;
    cpu_layout layout;
    conv2d_direct *direct; /* or NULL */
    size_t bias_offset;    /* backward_weights: of the bias's sums in the workspace */
} conv2d_state;

static conv2d_pass pass_of(op_kind kind)
{
    switch (kind) {
    case OP_conv2d_forward:
        return CONV2D_FORWARD;
    case OP_conv2d_backward_data:
        return CONV2D_BACKWARD_DATA;
    default:
        return CONV2D_BACKWARD_WEIGHTS;
    }
}

/* Filtering multiplies sums of what bfloat16 would round. Weights in blocks of channels are for winograd_conv and
 * oneDNN. */
static conv2d_algorithm algorithm_of(const cpu_device *device, const conv2d_state *state, const conv2d_attributes *a)
{
    conv2d_algorithm algorithm = conv2d_choose(a, state->pass);
    if (algorithm == CONV2D_WINOGRAD) return device->bf16 ? CONV2D_DIRECT : algorithm;
    return state->layout.kind == CPU_LAYOUT_HWIO ? algorithm : CONV2D_DIRECT;
}

static status prepare_algorithm(host_kernel *kernel, conv2d_state *state, size_t *bytes)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    state->algorithm = algorithm_of(cpu_device_of(kernel), state, a);
    switch (state->algorithm) {
    case CONV2D_GEMM:
        *bytes = conv2d_gemm_workspace(kernel, state->pass);
        return STATUS_OK;
    case CONV2D_PER_PIXEL:
        *bytes = conv2d_per_pixel_workspace(a, state->pass);
        return STATUS_OK;
    case CONV2D_WINOGRAD:
        *bytes = conv2d_winograd_workspace(kernel, state->pass);
        return STATUS_OK;
    case CONV2D_DIRECT:
        TRY(conv2d_direct_open(cpu_device_of(kernel), a, state->pass, &state->layout, &state->direct));
        *bytes = conv2d_direct_workspace(state->direct);
        return STATUS_OK;
    }
    return STATUS_OK;
}

static status prepare(host_kernel *kernel, const device_layout *opaque)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    cpu_layout layout = cpu_layout_of(opaque);
    if (layout.kind != CPU_LAYOUT_HWIO && layout.kind != CPU_LAYOUT_BLOCKED)
        return fail(STATUS_INTERNAL, "weights: the layout was not chosen for a convolution");
    conv2d_state *state = calloc(1, sizeof *state);
    if (!state) return fail(STATUS_SYSTEM, "no memory");
    kernel->state = state;
    state->pass = pass_of(kernel->base.op.kind);
    state->layout = layout;
    size_t bytes = 0;
    TRY(prepare_algorithm(kernel, state, &bytes));
    state->bias_offset = (bytes + 63) / 64 * 64;
    kernel->base.workspace = bytes;
    if (a->bias && state->pass == CONV2D_BACKWARD_WEIGHTS)
        kernel->base.workspace = state->bias_offset + cpu_sums_bytes(kernel->threads, a->k);
    return STATUS_OK;
}

static void release(host_kernel *kernel)
{
    conv2d_state *state = kernel->state;
    if (state) conv2d_direct_close(&state->direct);
    free(state);
}

static void run_algorithm(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    const conv2d_state *state = kernel->state;
    switch (state->algorithm) {
    case CONV2D_GEMM:
        conv2d_gemm_run(kernel, state->pass, o, workspace);
        break;
    case CONV2D_PER_PIXEL:
        conv2d_per_pixel_run(kernel, state->pass, o, workspace);
        break;
    case CONV2D_WINOGRAD:
        conv2d_winograd_run(kernel, state->pass, &state->layout, o, workspace);
        break;
    case CONV2D_DIRECT:
        conv2d_direct_run(kernel, state->direct, o, workspace);
        break;
    }
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    bool bias = kernel->base.op.u.conv2d.bias;
    conv2d_operands o = {.x = operands[CONV_FWD_X],
                         .w = operands[CONV_FWD_W],
                         .b = bias ? operands[CONV_FWD_B] : NULL,
                         .y = operands[CONV_FWD_Y]};
    run_algorithm(kernel, &o, workspace);
}

static void backward_data(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    conv2d_operands o = {
        .x = operands[CONV_BWD_DATA_DX], .w = operands[CONV_BWD_DATA_W], .y = operands[CONV_BWD_DATA_DY]};
    run_algorithm(kernel, &o, workspace);
}

static void backward_weights(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const conv2d_state *state = kernel->state;
    conv2d_operands o = {.x = operands[CONV_BWD_WEIGHTS_X],
                         .w = operands[CONV_BWD_WEIGHTS_DW],
                         .y = operands[CONV_BWD_WEIGHTS_DY],
                         .add = cpu_accumulates(kernel, scalars)};
    run_algorithm(kernel, &o, workspace);
    if (!a->bias) return;
    double *sums = (double *)((char *)workspace + state->bias_offset);
    cpu_column_sums(kernel, o.y, a->n * a->p * a->q, a->k, sums);
    cpu_sums_store(sums, a->k, o.add, operands[CONV_BWD_WEIGHTS_DB]);
}

const host_kernel_entry cpu_conv2d_forward = {prepare, forward, release};
const host_kernel_entry cpu_conv2d_backward_data = {prepare, backward_data, release};
const host_kernel_entry cpu_conv2d_backward_weights = {prepare, backward_weights, release};
