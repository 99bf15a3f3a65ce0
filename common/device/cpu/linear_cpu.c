/* y = act(x w^T + b). */
#include "common/device/cpu/gemm.h"

static cpu_gemm_shape forward_shape(const linear_attributes *a, int64_t rows)
{
    return (cpu_gemm_shape){.transpose_b = true,
                            .m = rows,
                            .n = a->out,
                            .k = a->in,
                            .a_stride = a->in,
                            .b_stride = a->in,
                            .c_stride = a->out};
}

static status prepare_forward(host_kernel *kernel, const device_layout *layout)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    cpu_gemm_shape shape = forward_shape(a, a->m);
    kernel->base.workspace = cpu_matmul_scratch(kernel, &shape);
    return STATUS_OK;
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    int64_t rows = cpu_rows_used(a->m, scalars);
    cpu_gemm_shape shape = forward_shape(a, rows);
    bool keeps_slope = a->act != ACTIVATION_NONE && a->act != ACTIVATION_RELU;
    cpu_epilogue epilogue = {.act = a->act,
                             .bias = a->bias ? operands[LINEAR_FWD_B] : NULL,
                             .slope = keeps_slope ? operands[LINEAR_FWD_SLOPE] : NULL};
    cpu_matmul(kernel, &shape, operands[LINEAR_FWD_X], operands[LINEAR_FWD_W], false, operands[LINEAR_FWD_Y], &epilogue,
                workspace);
}

/* ---- backward --------------------------------------------------------------------------------- */

static cpu_gemm_shape weights_shape(const linear_attributes *a, int64_t rows)
{
    return (cpu_gemm_shape){.transpose_a = true,
                            .m = a->out,
                            .n = a->in,
                            .k = rows,
                            .a_stride = a->out,
                            .b_stride = a->in,
                            .c_stride = a->in};
}

static status prepare_backward_weights(host_kernel *kernel, const device_layout *layout)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    cpu_gemm_shape shape = weights_shape(a, a->m);
    size_t sums = cpu_sums_bytes(kernel->threads, a->out), product = cpu_matmul_scratch(kernel, &shape);
    kernel->base.workspace = sums > product ? sums : product; /* one after the other */
    return STATUS_OK;
}

typedef struct gradient_job {
    const cpu_elementwise *kernels;
    const linear_attributes *attributes;
    const float *act; /* RELU's result or the slope */
    float *dy;
    double *sums; /* [parts][out], or NULL */
} gradient_job;

/* dy becomes d pre, and its columns are summed, a block of rows at a time that stays in the cache. */
static void gradient_part(const void *context, int part, int64_t first, int64_t end)
{
    const gradient_job *job = context;
    const linear_attributes *a = job->attributes;
    int64_t block = a->out >= 8192 ? 1 : 8192 / a->out;
    double *sums = job->sums ? job->sums + part * a->out : NULL;
    for (int64_t j = 0; sums && j < a->out; j++) sums[j] = 0;
    for (int64_t i = first; i < end; i += block) {
        int64_t rows = end - i < block ? end - i : block;
        float *dy = job->dy + i * a->out;
        if (a->act == ACTIVATION_RELU)
            job->kernels->activate_backward[a->act](job->act + i * a->out, dy, dy, rows * a->out);
        else if (a->act != ACTIVATION_NONE)
            job->kernels->multiply(job->act + i * a->out, dy, rows * a->out);
        if (sums) job->kernels->column_sums(dy, a->out, rows, a->out, sums);
    }
}

static void backward_weights(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    int64_t rows = cpu_rows_used(a->m, scalars);
    bool add = cpu_accumulates(kernel, scalars);
    if (a->bias || a->act != ACTIVATION_NONE) {
        gradient_job job = {.kernels = cpu_isa_of(kernel)->elementwise,
                          .attributes = a,
                          .act = operands[LINEAR_BWD_WEIGHTS_ACT],
                          .dy = operands[LINEAR_BWD_WEIGHTS_DY],
                          .sums = a->bias ? workspace : NULL};
        int parts = cpu_parallel(kernel->threads, rows, cpu_row_grain(a->out), gradient_part, &job);
        if (a->bias) {
            cpu_sums_reduce(job.sums, parts, a->out);
            cpu_sums_store(job.sums, a->out, add, operands[LINEAR_BWD_WEIGHTS_DB]);
        }
    }
    cpu_gemm_shape shape = weights_shape(a, rows);
    cpu_matmul(kernel, &shape, operands[LINEAR_BWD_WEIGHTS_DY], operands[LINEAR_BWD_WEIGHTS_X], add,
                operands[LINEAR_BWD_WEIGHTS_DW], NULL, workspace);
}

static cpu_gemm_shape data_shape(const linear_attributes *a, int64_t rows)
{
    return (cpu_gemm_shape){
        .m = rows, .n = a->in, .k = a->out, .a_stride = a->out, .b_stride = a->in, .c_stride = a->in};
}

static status prepare_backward_data(host_kernel *kernel, const device_layout *layout)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    cpu_gemm_shape shape = data_shape(a, a->m);
    kernel->base.workspace = cpu_matmul_scratch(kernel, &shape);
    return STATUS_OK;
}

static void backward_data(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    cpu_gemm_shape shape = data_shape(a, cpu_rows_used(a->m, scalars));
    cpu_matmul(kernel, &shape, operands[LINEAR_BWD_DATA_DY], operands[LINEAR_BWD_DATA_W], kernel->base.op.accumulate,
                operands[LINEAR_BWD_DATA_DX], NULL, workspace);
}

const host_kernel_entry cpu_linear_forward = {prepare_forward, forward, NULL};
const host_kernel_entry cpu_linear_backward_data = {prepare_backward_data, backward_data, NULL};
const host_kernel_entry cpu_linear_backward_weights = {prepare_backward_weights, backward_weights, NULL};
