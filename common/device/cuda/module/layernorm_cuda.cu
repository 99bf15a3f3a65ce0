/* Ba, Kiros, Hinton, "Layer Normalization", 2016: each row of [m, c] by its own mean and biased variance. A
 * block a row; the row passes from cache in the second and third pass. */
#include "common/device/cuda/module/columns.cuh"

constexpr int THREADS = 128;

__global__ static void forward_kernel(const float *x, const float *residual, const float *gamma, const float *beta,
                                      float *y, float *sum, float *mean, float *invstd, int64_t c, float eps)
{
    int64_t row = blockIdx.x, first = row * c;
    const float *in = residual ? sum + first : x + first;
    float total = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        float value = x[first + i];
        if (residual) sum[first + i] = value = value + residual[first + i];
        total += value;
    }
    float m = block_sum<THREADS>(total) / (float)c;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        float d = in[i] - m;
        squares = fmaf(d, d, squares);
    }
    float inverse = 1.0f / sqrtf(block_sum<THREADS>(squares) / (float)c + eps);
    for (int64_t i = threadIdx.x; i < c; i += THREADS) y[first + i] = (in[i] - m) * inverse * gamma[i] + beta[i];
    if (threadIdx.x == 0) {
        mean[row] = m;
        invstd[row] = inverse;
    }
}

struct row_gradient {
    const float *x, *gamma, *mean, *invstd, *dy, *dsum; /* dsum may be NULL */
};

/* With h = dy gamma: dx = invstd (h - mean(h) - xhat mean(h xhat)) + dsum. dx may lie in dy's memory. */
__global__ static void backward_kernel(row_gradient g, float *dx, int64_t c)
{
    int64_t row = blockIdx.x, first = row * c;
    float mean = g.mean[row], invstd = g.invstd[row], sum_h = 0, sum_hx = 0;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        float h = g.dy[first + i] * g.gamma[i];
        sum_h += h;
        sum_hx = fmaf(h, (g.x[first + i] - mean) * invstd, sum_hx);
    }
    float mean_h = block_sum<THREADS>(sum_h) / (float)c, mean_hx = block_sum<THREADS>(sum_hx) / (float)c;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        float xhat = (g.x[first + i] - mean) * invstd;
        float through = invstd * (g.dy[first + i] * g.gamma[i] - mean_h - xhat * mean_hx);
        dx[first + i] = g.dsum ? through + g.dsum[first + i] : through;
    }
}

/* dgamma = sum dy xhat, dbeta = sum dy over the rows */
struct parameter_terms {
    static constexpr int SUMS = 2;
    row_gradient g;
    int64_t c;
    __device__ void at(int64_t row, int64_t column, float *sums) const
    {
        float dy = g.dy[row * c + column];
        sums[0] = fmaf(dy, (g.x[row * c + column] - g.mean[row]) * g.invstd[row], sums[0]);
        sums[1] += dy;
    }
};

struct write_parameters {
    static constexpr int SUMS = 2;
    float *dgamma, *dbeta;
    bool add;
    __device__ void take(int64_t column, const double *sums) const
    {
        dgamma[column] = (float)((add ? dgamma[column] : 0.0) + sums[0]);
        dbeta[column] = (float)((add ? dbeta[column] : 0.0) + sums[1]);
    }
};

static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *)
{
    const layernorm_attributes *a = &k->base.op.u.layernorm;
    return launch(k, s, forward_kernel, dim3((unsigned)cuda_rows(scalars, a->m)), dim3(THREADS),
                  (const float *)o[LN_FWD_X], a->residual ? (const float *)o[LN_FWD_RESIDUAL] : nullptr,
                  (const float *)o[LN_FWD_GAMMA], (const float *)o[LN_FWD_BETA], (float *)o[LN_FWD_Y],
                  (float *)o[LN_FWD_SUM], (float *)o[LN_FWD_MEAN], (float *)o[LN_FWD_INVSTD], a->c, (float)a->eps);
}

static status prepare_backward(cuda_kernel *k)
{
    const layernorm_attributes *a = &k->base.op.u.layernorm;
    k->base.workspace = column_workspace(a->m, a->c, parameter_terms::SUMS);
    return STATUS_OK;
}

/* The parameters' gradients first: dx may be written over dy. */
static status backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const layernorm_attributes *a = &k->base.op.u.layernorm;
    int64_t m = cuda_rows(scalars, a->m);
    row_gradient g = {(const float *)o[LN_BWD_X],      (const float *)o[LN_BWD_GAMMA], (const float *)o[LN_BWD_MEAN],
                      (const float *)o[LN_BWD_INVSTD], (const float *)o[LN_BWD_DY],
                      a->dsum ? (const float *)o[LN_BWD_DSUM] : nullptr};
    write_parameters finish = {(float *)o[LN_BWD_DGAMMA], (float *)o[LN_BWD_DBETA], cuda_accumulates(k, scalars)};
    TRY(column_sums(k, s, parameter_terms{g, a->c}, finish, m, a->c, (double *)workspace));
    return launch(k, s, backward_kernel, dim3((unsigned)m), dim3(THREADS), g, (float *)o[LN_BWD_DX], a->c);
}

extern "C" {
const cuda_kernel_entry cuda_layernorm_forward = {nullptr, forward, nullptr};
const cuda_kernel_entry cuda_layernorm_backward = {prepare_backward, backward, nullptr};
}
