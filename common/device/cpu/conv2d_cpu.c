#include "common/device/cpu/conv2d.h"

#include <stdlib.h>

/* Largest numbers of output pixels for `per_pixel`. The number for backward_data is smaller, because
 * backward_data needs more multiplications per pixel. */
enum { FEW_PIXELS = 16, FEW_PIXELS_DATA = 4 };
enum { SHORT_ROW = 4, LONG_GATHER = 256 };

/* Returns true if gathering is faster than oneDNN's convolution for AVX2. oneDNN is slow if the stride is not
 * 1 and output rows are long. In this case the weight gradient always gathers, and the forward pass gathers
 * if each output is the sum of many products. */
static bool gathering_pays(const cpu_device *device, const conv2d_attributes *a, conv2d_pass pass)
{
    if (!cpu_is_avx2(device->isa) || device->bf16 || a->stride == 1 || a->q <= SHORT_ROW) return false;
    return pass == CONV2D_BACKWARD_WEIGHTS || (pass == CONV2D_FORWARD && a->r * a->s * a->c >= LONG_GATHER);
}

static const conv2d_algorithm *choose_algorithm(const cpu_device *device, const conv2d_attributes *a,
                                                conv2d_pass pass)
{
    if (a->r == 1 && a->s == 1 && a->pad_h == 0 && a->pad_w == 0) return &conv2d_gemm;
    if (gathering_pays(device, a, pass)) return &conv2d_gemm;
    if (conv2d_winograd_pays(a)) return &conv2d_winograd;
    int64_t most = pass == CONV2D_BACKWARD_DATA ? FEW_PIXELS_DATA : FEW_PIXELS;
    return a->p * a->q <= most ? &conv2d_per_pixel : &conv2d_direct;
}

/* Returns the algorithm of a pass. Winograd is not used with bfloat16, because Winograd multiplies sums of
 * inputs, and rounding these sums would lose precision. Only Winograd and oneDNN accept weights in blocks of
 * channels. */
static const conv2d_algorithm *algorithm_of(const cpu_device *device, const conv2d_state *state,
                                            const conv2d_attributes *a)
{
    const conv2d_algorithm *algorithm = choose_algorithm(device, a, state->pass);
    if (algorithm == &conv2d_winograd) return device->bf16 ? &conv2d_direct : algorithm;
    return state->block == 1 ? algorithm : &conv2d_direct;
}

/* Chooses a layout in blocks of channels for Winograd and direct convolutions. oneDNN's forward and backward
 * kernels use the same layout. */
void conv2d_choose_layout(device *d, const conv2d_attributes *a, device_layout *out)
{
    const cpu_device *device = (cpu_device *)d;
    int64_t block = device->isa->vector_floats == 16 ? 16 : 8;
    const conv2d_algorithm *algorithm = choose_algorithm(device, a, CONV2D_FORWARD);
    bool blocked = (algorithm == &conv2d_direct || algorithm == &conv2d_winograd) && a->k % block == 0 &&
                   a->c % block == 0;
    *out = (device_layout){out->elements,
                           a->k,
                           a->c,
                           a->r,
                           a->s,
                           blocked ? block : 1,
                           blocked ? DEVICE_ORDER_BLOCKED : DEVICE_ORDER_RSCK,
                           false};
}

static status open(host_kernel *kernel, const device_layout *layout)
{
    if (!layout || (layout->order != DEVICE_ORDER_RSCK && layout->order != DEVICE_ORDER_BLOCKED))
        return fail(STATUS_INTERNAL, "weights: the layout was not chosen for a convolution");
    conv2d_state *state = calloc(1, sizeof *state);
    if (!state) return fail(STATUS_SYSTEM, "no memory");
    kernel->state = state;
    state->pass = (conv2d_pass)(kernel->base.op.kind - OP_conv2d_forward);
    state->block = layout->block;
    state->algorithm = algorithm_of(cpu_device_of(kernel), state, &kernel->base.op.u.conv2d);
    if (state->algorithm == &conv2d_direct) TRY(conv2d_primitive_open(kernel, &state->primitive));
    state->bias_offset = (state->algorithm->workspace(kernel) + 63) / 64 * 64;
    return STATUS_OK;
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const conv2d_state *state = kernel->state;
    if (!a->bias || state->pass != CONV2D_BACKWARD_WEIGHTS) return state->algorithm->workspace(kernel);
    return state->bias_offset + cpu_sums_bytes(kernel->threads, a->k);
}

static void close(host_kernel *kernel)
{
    conv2d_state *state = kernel->state;
    if (state) conv2d_primitive_close(&state->primitive);
    free(state);
}

static void run(const host_call *call, const conv2d_operands *o)
{
    conv2d_state_of(call->kernel)->algorithm->run(call->kernel, o, call->workspace);
}

static void forward(const host_call *call)
{
    bool bias = call->op->u.conv2d.bias;
    run(call, &(conv2d_operands){.x = call->operands[CONV_FWD_X],
                                 .w = call->operands[CONV_FWD_W],
                                 .b = bias ? call->operands[CONV_FWD_B] : NULL,
                                 .y = call->operands[CONV_FWD_Y]});
}

static void backward_data(const host_call *call)
{
    run(call, &(conv2d_operands){.x = call->operands[CONV_BWD_DATA_DX],
                                 .w = call->operands[CONV_BWD_DATA_W],
                                 .y = call->operands[CONV_BWD_DATA_DY]});
}

static void backward_weights(const host_call *call)
{
    const conv2d_attributes *a = &call->op->u.conv2d;
    conv2d_operands o = {.x = call->operands[CONV_BWD_WEIGHTS_X],
                         .w = call->operands[CONV_BWD_WEIGHTS_DW],
                         .y = call->operands[CONV_BWD_WEIGHTS_DY],
                         .add = host_accumulates(call)};
    run(call, &o);
    if (!a->bias) return;
    double *sums = (double *)((char *)call->workspace + conv2d_state_of(call->kernel)->bias_offset);
    cpu_column_sums(call->kernel, o.y, a->n * a->p * a->q, a->k, sums);
    cpu_sums_store(sums, a->k, o.add, call->operands[CONV_BWD_WEIGHTS_DB]);
}

const host_kernel_entry cpu_conv2d_forward = {forward, open, close, workspace_bytes};
const host_kernel_entry cpu_conv2d_backward_data = {backward_data, open, close, workspace_bytes};
const host_kernel_entry cpu_conv2d_backward_weights = {backward_weights, open, close, workspace_bytes};
