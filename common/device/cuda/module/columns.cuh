/* Sums over the rows of a matrix [rows, c], for each column: biases' gradients, statistics of channels.
 *
 * Two passes. Blocks of COLUMN_THREADS threads walk through a part of the rows each: a thread owns V neighboring
 * columns, as many threads as the columns need (a warp at most) are adjacent, and the rest go down the rows;
 * one partial sum per column and part is left in the workspace. Then one block per warp of columns adds the parts. A thread
 * adds in float32, everything after it in float64, and every order depends only on the shape. */
#ifndef COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH
#define COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH

#include "common/device/cuda/module/kernel.cuh"

/* Enough blocks for the largest GPUs, and rows enough for a thread to have several loads under way. */
constexpr int COLUMN_THREADS = 256, COLUMN_MOST_BLOCKS = 1024, COLUMN_LEAST_ROWS = 8, COLUMN_ADDERS = 32,
              COLUMN_MOST_SUMS = 2;

/* Threads side by side, of V columns each. */
static inline int column_width(int64_t c, int v)
{
    int width = 1;
    while (width < WARP && width * v < c) width *= 2;
    return width;
}

static inline int64_t column_parts(int64_t rows, int64_t c, int v)
{
    int width = column_width(c, v);
    int64_t across = ceil_div(c, (int64_t)width * v), down = COLUMN_THREADS / width;
    int64_t parts = ceil_div(rows, down * COLUMN_LEAST_ROWS), most = COLUMN_MOST_BLOCKS / across;
    if (most < 1) most = 1;
    return parts < 1 ? 1 : parts < most ? parts : most;
}

/* Bytes that `sums` sums per column need, whatever V a launch takes. */
static inline size_t column_workspace(int64_t rows, int64_t c, int sums)
{
    int64_t most = 1;
    for (int v = 1; v <= 8; v *= 2)
        if (column_parts(rows, c, v) > most) most = column_parts(rows, c, v);
    return (size_t)(most * c * sums) * sizeof(double);
}

/* Rows `row`, `row` + step, ... below `end`: use(read(row), row), in their order. AT_ONCE rows are read before the first
 * is used: the compiler cannot move a load over a store that might hit it, and one load per thread leaves memory idle. */
template <int AT_ONCE, typename Read, typename Use>
__device__ void walk_rows(int64_t row, int64_t end, int64_t step, Read read, Use use)
{
    for (; row + (AT_ONCE - 1) * step < end; row += AT_ONCE * step) {
        decltype(read(row)) taken[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) taken[i] = read(row + i * step);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) use(taken[i], row + i * step);
    }
    for (; row < end; row += step) use(read(row), row);
}

/* `terms` has SUMS, V, which divides c, and AT_ONCE, the rows that a thread reads at once.
 *   at_column(column)        what a thread keeps of its columns [column, column + V)
 *   read(row, column)        what it takes of a row
 *   add(kept, taken, row, column, sums)   the row's terms, to sums[SUMS][V] */
template <typename Terms>
__device__ void add_rows(const Terms &terms, int64_t row, int64_t end, int64_t step, int64_t column,
                         float (*sums)[Terms::V])
{
    auto kept = terms.at_column(column);
    walk_rows<Terms::AT_ONCE>(
        row, end, step, [&](int64_t at) { return terms.read(at, column); },
        [&](const auto &taken, int64_t at) { terms.add(kept, taken, at, column, sums); });
}

template <typename Terms>
__global__ void column_partial(Terms terms, int64_t rows, int64_t c, int64_t rows_a_part, double *parts)
{
    constexpr int SUMS = Terms::SUMS, V = Terms::V;
    __shared__ double lanes[SUMS * V * COLUMN_THREADS];
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    int64_t begin = (int64_t)blockIdx.y * rows_a_part;
    int64_t end = begin + rows_a_part < rows ? begin + rows_a_part : rows;
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    float sums[SUMS][V] = {};
    if (column < c) add_rows(terms, begin + threadIdx.y, end, blockDim.y, column, sums);
    for (int i = 0; i < SUMS; i++)
        for (int v = 0; v < V; v++) lanes[(i * V + v) * COLUMN_THREADS + thread] = sums[i][v];
    __syncthreads();
    for (int at = (int)threadIdx.y; at < SUMS * V && column < c; at += (int)blockDim.y) {
        double total = 0;
        for (int lane = 0; lane < (int)blockDim.y; lane++)
            total += lanes[at * COLUMN_THREADS + lane * (int)blockDim.x + (int)threadIdx.x];
        parts[((int64_t)blockIdx.y * SUMS + at / V) * c + column + at % V] = total;
    }
}

/* The sums of WARP columns, by a block of WARP times ADDERS threads, of which this one is (x, y). `finish` has SUMS and
 * take(column, sums[SUMS]). */
template <int ADDERS, typename Finish>
__device__ void finish_columns(const Finish &finish, int64_t block, int x, int y, int64_t c, int64_t count,
                               const double *parts)
{
    __shared__ double lanes[ADDERS][Finish::SUMS][WARP];
    int64_t column = block * WARP + x;
    double sums[Finish::SUMS] = {};
    if (column < c) {
#pragma unroll 8
        for (int64_t part = y; part < count; part += ADDERS)
            for (int i = 0; i < Finish::SUMS; i++) sums[i] += parts[(part * Finish::SUMS + i) * c + column];
    }
    for (int i = 0; i < Finish::SUMS; i++) lanes[y][i][x] = sums[i];
    __syncthreads();
    if (y > 0 || column >= c) return;
    for (int i = 0; i < Finish::SUMS; i++)
        for (int lane = 1; lane < ADDERS; lane++) sums[i] += lanes[lane][i][x];
    finish.take(column, sums);
}

template <typename Finish> __global__ void column_finish(Finish finish, int64_t c, int64_t count, const double *parts)
{
    finish_columns<COLUMN_ADDERS>(finish, blockIdx.x, (int)threadIdx.x, (int)threadIdx.y, c, count, parts);
}

/* The first pass; *count: of the parts. */
template <typename Terms>
status column_parts_of(const cuda_kernel *k, cudaStream_t s, Terms terms, int64_t rows, int64_t c, double *workspace,
                       int64_t *count)
{
    int64_t parts = column_parts(rows, c, Terms::V);
    int width = column_width(c, Terms::V);
    dim3 grid((unsigned)ceil_div(c, (int64_t)width * Terms::V), (unsigned)parts);
    *count = parts;
    return launch(k, s, column_partial<Terms>, grid, dim3((unsigned)width, (unsigned)(COLUMN_THREADS / width)), terms, rows,
                  c, ceil_div(rows, parts), workspace);
}

template <typename Terms, typename Finish>
status column_sums(const cuda_kernel *k, cudaStream_t s, Terms terms, Finish finish, int64_t rows, int64_t c,
                   double *workspace)
{
    static_assert(Terms::SUMS == Finish::SUMS, "as many sums are taken as are made");
    int64_t count;
    TRY(column_parts_of(k, s, terms, rows, c, workspace, &count));
    return launch(k, s, column_finish<Finish>, dim3((unsigned)ceil_div(c, WARP)), dim3(WARP, COLUMN_ADDERS), finish, c,
                  count, workspace);
}

/* The base of terms that keep nothing of a column. */
struct nothing_kept {};
struct keeps_nothing {
    __device__ nothing_kept at_column(int64_t) const
    {
        return {};
    }
};

/* Sums of the columns of x, for a bias's gradient. */
template <typename T, int PACK> struct plain_terms : keeps_nothing {
    static constexpr int SUMS = 1, V = PACK, AT_ONCE = 4;
    const T *x;
    int64_t c;
    __device__ pack<T, V> read(int64_t row, int64_t column) const
    {
        return take_pack<V>(x + row * c + column);
    }
    __device__ void add(nothing_kept, const pack<T, V> &taken, int64_t, int64_t, float (*sums)[V]) const
    {
        float values[V];
        unpack<V>(taken, values);
        for (int v = 0; v < V; v++) sums[0][v] += values[v];
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

/* out (+)= the sums of x's columns. */
template <typename T>
status sum_columns(const cuda_kernel *k, cudaStream_t s, const T *x, float *out, bool add, int64_t rows, int64_t c,
                   void *workspace)
{
    constexpr int V = wide_pack<T>();
    if (c % V == 0 && (uintptr_t)x % 16 == 0)
        return column_sums(k, s, plain_terms<T, V>{{}, x, c}, write_sum{out, add}, rows, c, (double *)workspace);
    return column_sums(k, s, plain_terms<T, 1>{{}, x, c}, write_sum{out, add}, rows, c, (double *)workspace);
}

#endif
