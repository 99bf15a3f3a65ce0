/* PowerSGD on a GPU. The factors are thin, so every multiplication takes as long as reading the gradient
 * once. Simple kernels are therefore as fast as the kernels of a library. */
#include "common/device/cuda/module/kernel.cuh"

extern "C" {
#include "ring/hooks/powersgd_module.h"
extern const powersgd_module psring_powersgd_module;
}

constexpr int THREADS = 256, LANES = 8;
constexpr int FACTORS = 4; /* columns of q that a block of back_project_kernel() computes */

template <typename... Parameters, typename... Arguments>
static status enqueue(device_stream *base, const char *what, void (*kernel)(Parameters...), dim3 grid,
                      dim3 block, Arguments... arguments)
{
    const cuda_device *d = (const cuda_device *)base->device;
    TRY(cuda_use(d));
    return launch_on(d, what, ((cuda_stream *)base)->stream, kernel, grid, block, arguments...);
}

/* Computes m += error and p = m q, with one block per row. A thread rereads only elements that it has
 * written itself. */
__global__ void project_kernel(int64_t rows, int64_t cols, int rank, float *m, const float *error,
                               const float *q, float *p)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float *at = m + row * cols;
        for (int64_t j = threadIdx.x; j < cols; j += THREADS) at[j] += error[row * cols + j];
        for (int k = 0; k < rank; k++) {
            float sum = 0;
            for (int64_t j = threadIdx.x; j < cols; j += THREADS) sum += at[j] * q[k * cols + j];
            float total = block_sum<THREADS>(sum);
            if (threadIdx.x == 0) p[k * rows + row] = total;
        }
    }
}

__device__ static float block_dot(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) sum += (double)a[i] * b[i];
    return (float)block_sum<THREADS>(sum);
}

/* Modified Gram-Schmidt as in powersgd.c, in one block. Each thread works on the same elements of every
 * column. */
__global__ void orthonormalize_kernel(int64_t rows, int rank, float *p)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + k * rows;
        float before = sqrtf(block_dot(column, column, rows));
        for (int l = 0; l < k; l++) {
            float along = block_dot(column, p + l * rows, rows);
            for (int64_t i = threadIdx.x; i < rows; i += THREADS) column[i] -= along * p[l * rows + i];
        }
        float norm = sqrtf(block_dot(column, column, rows));
        float factor = norm > 1e-6f * before && norm > 0 ? 1 / norm : 0;
        for (int64_t i = threadIdx.x; i < rows; i += THREADS) column[i] *= factor;
    }
}

/* Computes q = m^T p. A block has 32 x LANES threads, and computes FACTORS elements of q for each of 32
 * columns of m. LANES threads share a column: each of them sums every LANES-th row. The LANES sums are then
 * added in a fixed order. */
__global__ void back_project_kernel(int64_t rows, int64_t cols, int rank, const float *m, const float *p,
                                    float *q)
{
    __shared__ float lanes[LANES][FACTORS][WARP];
    int64_t j = (int64_t)blockIdx.x * WARP + threadIdx.x;
    int first = blockIdx.y * FACTORS;
    float sums[FACTORS] = {};
    if (j < cols)
        for (int64_t i = threadIdx.y; i < rows; i += LANES)
            for (int k = 0; k < FACTORS; k++)
                if (first + k < rank) sums[k] += m[i * cols + j] * p[(first + k) * rows + i];
    for (int k = 0; k < FACTORS; k++) lanes[threadIdx.y][k][threadIdx.x] = sums[k];
    __syncthreads();
    if (threadIdx.y > 0 || j >= cols) return;
    for (int k = 0; k < FACTORS && first + k < rank; k++) {
        float total = 0;
        for (int lane = 0; lane < LANES; lane++) total += lanes[lane][k][threadIdx.x];
        q[(first + k) * cols + j] = total;
    }
}

/* Computes error = m - p q^T and m = p q^T. */
__global__ void restore_kernel(int64_t rows, int64_t cols, int rank, float *m, float *error, const float *p,
                               const float *q)
{
    for (int64_t e = global_thread(); e < rows * cols; e += grid_threads()) {
        int64_t i = e / cols, j = e % cols;
        float product = 0;
        for (int k = 0; k < rank; k++) product += q[k * cols + j] * p[k * rows + i];
        error[e] = m[e] - product;
        m[e] = product;
    }
}

static status project(device_stream *s, const powersgd_matrix *x, int rank)
{
    return enqueue(s, "PowerSGD, p = m q", project_kernel, dim3(blocks_for(x->rows, 1)), dim3(THREADS),
                   x->rows, x->cols, rank, x->m, x->error, x->q, x->p);
}

static status back_project(device_stream *s, const powersgd_matrix *x, int rank)
{
    dim3 grid((unsigned)ceil_div(x->cols, WARP), (unsigned)ceil_div(rank, FACTORS));
    TRY(enqueue(s, "PowerSGD, orthonormal p", orthonormalize_kernel, dim3(1), dim3(THREADS), x->rows, rank,
                x->p));
    return enqueue(s, "PowerSGD, q = m^T p", back_project_kernel, grid, dim3(WARP, LANES), x->rows, x->cols,
                   rank, x->m, x->p, x->q);
}

static status restore(device_stream *s, const powersgd_matrix *x, int rank)
{
    return enqueue(s, "PowerSGD, m = p q^T", restore_kernel, dim3(blocks_for(x->rows * x->cols, THREADS)),
                   dim3(THREADS), x->rows, x->cols, rank, x->m, x->error, x->p, x->q);
}

const powersgd_module psring_powersgd_module = {POWERSGD_MODULE_VERSION, project, back_project, restore};
