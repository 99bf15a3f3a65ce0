#include "common/device/cpu/gemm.h"

static cpu_gemm_shape shape_of(const op_desc *op, int64_t rows)
{
    const linear_attributes *a = &op->u.linear;
    switch (op->kind) {
    case OP_linear_forward:
        return cpu_gemm_dense(false, true, rows, a->out, a->in);
    case OP_linear_backward_data:
        return cpu_gemm_dense(false, false, rows, a->in, a->out);
    default:
        return cpu_gemm_dense(true, false, a->out, a->in, rows);
    }
}

/* linear_backward_weights uses the workspace first for column sums, and then for the multiplication. */
static size_t workspace_bytes(const host_kernel *kernel)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    cpu_gemm_shape shape = shape_of(&kernel->base.op, a->m);
    size_t sums =
        kernel->base.op.kind == OP_linear_backward_weights ? cpu_sums_bytes(kernel->threads, a->out) : 0;
    size_t product = cpu_matmul_prepare(kernel, &shape);
    return sums > product ? sums : product;
}

static void forward(const host_call *call)
{
    const linear_attributes *a = &call->op->u.linear;
    cpu_gemm_shape shape = shape_of(call->op, host_rows(call, a->m));
    bool keeps_slope = a->act != ACTIVATION_NONE && a->act != ACTIVATION_RELU;
    cpu_epilogue epilogue = {.act = a->act,
                             .bias = a->bias ? call->operands[LINEAR_FWD_B] : NULL,
                             .slope = keeps_slope ? call->operands[LINEAR_FWD_SLOPE] : NULL};
    cpu_matmul(call->kernel, &shape, call->operands[LINEAR_FWD_X], call->operands[LINEAR_FWD_W], false,
               call->operands[LINEAR_FWD_Y], &epilogue, call->workspace);
}

/* ---- backward --------------------------------------------------------------------------------- */

/* Replaces dy by d pre, the gradient with respect to the activation's argument, and stores the column sums of
 * d pre in row `part` of an array [parts][out]. Processes a block of rows at a time, so that the rows stay in
 * the cache. */
static void gradient_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const linear_attributes *a = &call->op->u.linear;
    const cpu_elementwise *kernels = cpu_isa_of(call->kernel)->elementwise;
    int64_t block = a->out >= 8192 ? 1 : 8192 / a->out;
    double *sums = a->bias ? (double *)call->workspace + part * a->out : NULL;
    for (int64_t j = 0; sums && j < a->out; j++) sums[j] = 0;
    for (int64_t i = first; i < end; i += block) {
        int64_t rows = end - i < block ? end - i : block;
        float *dy = cpu_at(call, LINEAR_BWD_WEIGHTS_DY, i * a->out);
        /* RELU's result, or the slope of the other activations. */
        const float *kept = cpu_at(call, LINEAR_BWD_WEIGHTS_ACT, i * a->out);
        if (a->act == ACTIVATION_RELU)
            kernels->activate_backward[a->act](kept, dy, dy, rows * a->out);
        else if (a->act != ACTIVATION_NONE)
            kernels->multiply(kept, dy, rows * a->out);
        if (sums) kernels->column_sums(dy, a->out, rows, a->out, sums);
    }
}

static void backward_weights(const host_call *call)
{
    const linear_attributes *a = &call->op->u.linear;
    int64_t rows = host_rows(call, a->m);
    bool add = host_accumulates(call);
    double *sums = call->workspace;
    int parts = 0;
    if (a->bias || a->act != ACTIVATION_NONE)
        parts = cpu_parallel(call->kernel->threads, rows, cpu_row_grain(a->out), gradient_part, call);
    if (a->bias) {
        cpu_sums_reduce(sums, parts, a->out);
        cpu_sums_store(sums, a->out, add, call->operands[LINEAR_BWD_WEIGHTS_DB]);
    }
    cpu_gemm_shape shape = shape_of(call->op, rows);
    cpu_matmul(call->kernel, &shape, call->operands[LINEAR_BWD_WEIGHTS_DY],
               call->operands[LINEAR_BWD_WEIGHTS_X], add, call->operands[LINEAR_BWD_WEIGHTS_DW], NULL,
               call->workspace);
}

static void backward_data(const host_call *call)
{
    cpu_gemm_shape shape = shape_of(call->op, host_rows(call, call->op->u.linear.m));
    cpu_matmul(call->kernel, &shape, call->operands[LINEAR_BWD_DATA_DY], call->operands[LINEAR_BWD_DATA_W],
               call->op->accumulate, call->operands[LINEAR_BWD_DATA_DX], NULL, call->workspace);
}

const host_kernel_entry cpu_linear_forward = {.run = forward, .workspace = workspace_bytes};
const host_kernel_entry cpu_linear_backward_data = {.run = backward_data, .workspace = workspace_bytes};
const host_kernel_entry cpu_linear_backward_weights = {.run = backward_weights, .workspace = workspace_bytes};
