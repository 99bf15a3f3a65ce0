/* Sums over the rows of a matrix [rows, c], for each column: biases' gradients, statistics of channels.
 *
 * Two passes: blocks of 32 columns by 8 rows walk through a part of the rows each and leave a partial sum a
 * column in the workspace; then one thread a column adds the parts in order and hands the sums on. A thread
 * adds in float32, everything behind it in float64. */
#ifndef COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH
#define COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH

#include "common/device/cuda/module/kernel.cuh"

constexpr int COLUMN_LANES = 8, COLUMN_LEAST_ROWS = 64, COLUMN_MOST_PARTS = 256, COLUMN_MOST_SUMS = 2;

static inline int64_t column_parts(int64_t rows)
{
    int64_t parts = ceil_div(rows, COLUMN_LEAST_ROWS);
    return parts < COLUMN_MOST_PARTS ? (parts > 0 ? parts : 1) : COLUMN_MOST_PARTS;
}

/* Bytes that `sums` sums a column need. */
static inline size_t column_workspace(int64_t rows, int64_t c, int sums)
{
    return (size_t)(column_parts(rows) * c * sums) * sizeof(double);
}

/* `terms` has SUMS and at(row, column, out): adds the row's terms to out[SUMS]. */
template <typename Terms>
__global__ void column_partial(Terms terms, int64_t rows, int64_t c, int64_t rows_a_part, double *parts)
{
    __shared__ double lanes[COLUMN_LANES][Terms::SUMS][WARP];
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    int64_t begin = (int64_t)blockIdx.y * rows_a_part;
    int64_t end = begin + rows_a_part < rows ? begin + rows_a_part : rows;
    float sums[Terms::SUMS] = {};
    if (column < c)
        for (int64_t row = begin + threadIdx.y; row < end; row += COLUMN_LANES) terms.at(row, column, sums);
    for (int i = 0; i < Terms::SUMS; i++) lanes[threadIdx.y][i][threadIdx.x] = sums[i];
    __syncthreads();
    if (threadIdx.y > 0 || column >= c) return;
    for (int i = 0; i < Terms::SUMS; i++) {
        double total = 0;
        for (int lane = 0; lane < COLUMN_LANES; lane++) total += lanes[lane][i][threadIdx.x];
        parts[((int64_t)blockIdx.y * Terms::SUMS + i) * c + column] = total;
    }
}

/* `finish` has SUMS and take(column, sums[SUMS]). */
template <typename Finish> __global__ void column_finish(Finish finish, int64_t c, int64_t count, const double *parts)
{
    int64_t column = global_thread();
    double sums[Finish::SUMS] = {};
    if (column >= c) return;
    for (int64_t part = 0; part < count; part++)
        for (int i = 0; i < Finish::SUMS; i++) sums[i] += parts[(part * Finish::SUMS + i) * c + column];
    finish.take(column, sums);
}

template <typename Terms, typename Finish>
status column_sums(const cuda_kernel *k, cudaStream_t s, Terms terms, Finish finish, int64_t rows, int64_t c,
                   double *workspace)
{
    static_assert(Terms::SUMS == Finish::SUMS, "as many sums are taken as are made");
    int64_t parts = column_parts(rows);
    dim3 grid((unsigned)ceil_div(c, WARP), (unsigned)parts);
    TRY(launch(k, s, column_partial<Terms>, grid, dim3(WARP, COLUMN_LANES), terms, rows, c, ceil_div(rows, parts),
               workspace));
    constexpr int THREADS = 128;
    return launch(k, s, column_finish<Finish>, dim3((unsigned)ceil_div(c, THREADS)), dim3(THREADS), finish, c, parts,
                  workspace);
}

/* Sums of the columns of x, for a bias's gradient. */
struct plain_terms {
    static constexpr int SUMS = 1;
    const float *x;
    int64_t c;
    __device__ void at(int64_t row, int64_t column, float *sums) const
    {
        sums[0] += x[row * c + column];
    }
};

struct write_sum {
    static constexpr int SUMS = 1;
    float *out;
    bool add;
    __device__ void take(int64_t column, const double *sums) const
    {
        out[column] = (float)((add ? out[column] : 0.0) + sums[0]);
    }
};

#endif
