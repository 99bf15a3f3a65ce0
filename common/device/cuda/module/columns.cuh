/* Sums each column of a matrix [rows, c], for gradients of biases and for statistics of channels.
 *
 * The rows are split into parts. A block of COLUMN_THREADS threads sums one part of the rows, for some of the
 * columns. A thread owns V neighboring columns. Threads with neighboring threadIdx.x own neighboring columns,
 * and threads with different threadIdx.y sum different rows. Each block writes one partial sum per column to
 * the workspace. If there are few parts, the partial sums of a column are added by the block that finishes
 * last among the blocks of this column. If there are many parts, a second launch adds the partial sums.
 *
 * A thread adds in float32; all later additions are in float64. The order of every sum depends only on the
 * shape, so it does not matter which block finishes last. */
#ifndef COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH
#define COMMON_DEVICE_CUDA_MODULE_COLUMNS_CUH

#include "common/device/cuda/module/kernel.cuh"

/* COLUMN_MOST_BLOCKS blocks are enough for the largest GPUs. A thread that sums COLUMN_LEAST_ROWS rows has
 * several loads in flight. A block of 256 threads reads COLUMN_FEW_BYTES of partial sums in about the time of
 * a launch. */
constexpr int COLUMN_THREADS = 256, COLUMN_MOST_BLOCKS = 1024, COLUMN_LEAST_ROWS = 8, COLUMN_ADDERS = 32,
              COLUMN_FEW_BYTES = 256 << 10;

/* Returns the number of threads of a block along x. Each thread owns V columns. Eight neighboring threads
 * with packs of 16 bytes make one memory access of 128 bytes. */
static inline int column_width(int64_t c, int v)
{
    int width = 1, most = v == 1 ? WARP : WARP / 4;
    while (width < most && width * v < c) width *= 2;
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

/* Returns the bytes of workspace for `sums` sums per column, enough for every V. */
static inline size_t column_workspace(int64_t rows, int64_t c, int sums)
{
    int64_t most = 1;
    for (int v = 1; v <= 8; v *= 2)
        if (column_parts(rows, c, v) > most) most = column_parts(rows, c, v);
    return (size_t)(most * c * sums) * sizeof(double);
}

/* Calls use(read(row), row) for rows `row`, `row` + step, ... below `end`, in this order. Reads AT_ONCE rows
 * before it uses the first one. The compiler cannot move a load before a store that may have the same
 * address, and a single load per thread would not keep the memory busy. */
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

/* Adds the terms of a thread's rows to sums[SUMS][V]. `terms` has the constants SUMS, V and AT_ONCE. V
 * divides c, and AT_ONCE is the number of rows that a thread reads at once. `terms` has the functions
 *
 *   at_column(column)                     returns values to keep for columns [column, column + V)
 *   read(row, column)                     returns the values read from a row
 *   add(kept, taken, row, column, sums)   adds the row's terms to sums[SUMS][V] */
template <typename Terms>
__device__ void add_rows(const Terms &terms, int64_t row, int64_t end, int64_t step, int64_t column,
                         float (*sums)[Terms::V])
{
    auto kept = terms.at_column(column);
    walk_rows<Terms::AT_ONCE>(
        row, end, step, [&](int64_t at) { return terms.read(at, column); },
        [&](const auto &taken, int64_t at) { terms.add(kept, taken, at, column, sums); });
}

/* Computes the partial sums of a block's part. `lanes` is scratch [SUMS * V * COLUMN_THREADS]. */
template <typename Terms>
__device__ void sum_part(const Terms &terms, int64_t rows, int64_t c, int64_t rows_a_part, double *parts,
                         double *lanes)
{
    constexpr int SUMS = Terms::SUMS, V = Terms::V;
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

/* Adds the partial sums of the columns [first, first + WARP) that are below `end`. The block has WARP times
 * `rows` threads, and this thread is (x, y). A column has ADDERS adders, each of which adds every ADDERS-th
 * part. A thread acts as one or more adders. `lanes` is scratch [ADDERS, SUMS, WARP]. `finish` has the
 * constant SUMS and the function take(column, sums[SUMS]), which receives the result. */
template <int ADDERS, typename Finish>
__device__ void finish_columns(const Finish &finish, int64_t first, int64_t end, int x, int y, int rows,
                               int64_t c, int64_t count, const double *parts, double *lanes)
{
    constexpr int SUMS = Finish::SUMS;
    int64_t column = first + x;
    for (int adder = y; adder < ADDERS; adder += rows) {
        double sums[SUMS] = {};
        if (column < end) {
#pragma unroll 8
            for (int64_t part = adder; part < count; part += ADDERS)
                for (int i = 0; i < SUMS; i++) sums[i] += __ldcg(parts + (part * SUMS + i) * c + column);
        }
        for (int i = 0; i < SUMS; i++) lanes[(adder * SUMS + i) * WARP + x] = sums[i];
    }
    __syncthreads();
    if (y == 0 && column < end) {
        double sums[SUMS];
        for (int i = 0; i < SUMS; i++) {
            sums[i] = lanes[i * WARP + x];
            for (int lane = 1; lane < ADDERS; lane++) sums[i] += lanes[(lane * SUMS + i) * WARP + x];
        }
        finish.take(column, sums);
    }
    __syncthreads();
}

template <typename Terms>
__global__ void column_partial(Terms terms, int64_t rows, int64_t c, int64_t rows_a_part, double *parts)
{
    __shared__ double lanes[Terms::SUMS * Terms::V * COLUMN_THREADS];
    sum_part(terms, rows, c, rows_a_part, parts, lanes);
}

template <typename Finish>
__global__ void column_finish(Finish finish, int64_t c, int64_t count, const double *parts)
{
    __shared__ double lanes[COLUMN_ADDERS * Finish::SUMS * WARP];
    finish_columns<COLUMN_ADDERS>(finish, (int64_t)blockIdx.x * WARP, c, (int)threadIdx.x, (int)threadIdx.y,
                                  COLUMN_ADDERS, c, count, parts, lanes);
}

/* Computes the partial sums and adds them in one launch. For each blockIdx.x, `arrived` counts the blocks
 * that have ended; the last block resets the counter to zero. The additions are in the same order as in
 * column_finish(). */
template <typename Terms, typename Finish>
__global__ void column_whole(Terms terms, Finish finish, int64_t rows, int64_t c, int64_t rows_a_part,
                             double *parts, unsigned *arrived)
{
    constexpr int SUMS = Terms::SUMS, PARTIAL = SUMS * Terms::V * COLUMN_THREADS,
                  FINAL = COLUMN_ADDERS * SUMS * WARP;
    __shared__ double lanes[PARTIAL > FINAL ? PARTIAL : FINAL];
    __shared__ bool is_last;
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    int64_t columns = (int64_t)blockDim.x * Terms::V, first = blockIdx.x * columns;
    sum_part(terms, rows, c, rows_a_part, parts, lanes);
    __threadfence();
    __syncthreads();
    if (thread == 0) is_last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    int64_t end = first + columns < c ? first + columns : c;
    for (; first < end; first += WARP)
        finish_columns<COLUMN_ADDERS>(finish, first, end, thread % WARP, thread / WARP, COLUMN_THREADS / WARP,
                                      c, gridDim.y, parts, lanes);
}

struct column_grid {
    dim3 grid, block;
    int64_t parts, rows_a_part;
};

template <typename Terms> column_grid column_grid_of(int64_t rows, int64_t c)
{
    int width = column_width(c, Terms::V);
    int64_t parts = column_parts(rows, c, Terms::V);
    return {dim3((unsigned)ceil_div(c, (int64_t)width * Terms::V), (unsigned)parts),
            dim3((unsigned)width, (unsigned)(COLUMN_THREADS / width)), parts, ceil_div(rows, parts)};
}

/* Computes only the partial sums, and sets *count to the number of parts. */
template <typename Terms>
status column_parts_of(const kernel_call &call, Terms terms, int64_t rows, int64_t c, int64_t *count)
{
    column_grid g = column_grid_of<Terms>(rows, c);
    *count = g.parts;
    return launch(call, column_partial<Terms>, g.grid, g.block, terms, rows, c, g.rows_a_part,
                  call.scratch());
}

template <typename Terms, typename Finish>
status column_sums(const kernel_call &call, Terms terms, Finish finish, int64_t rows, int64_t c)
{
    static_assert(Terms::SUMS == Finish::SUMS, "as many sums are taken as are made");
    column_grid g = column_grid_of<Terms>(rows, c);
    int64_t bytes = g.parts * g.block.x * Terms::V * Terms::SUMS * (int64_t)sizeof(double);
    if (bytes <= COLUMN_FEW_BYTES && g.grid.x <= CUDA_COUNTERS)
        return launch(call, column_whole<Terms, Finish>, g.grid, g.block, terms, finish, rows, c,
                      g.rows_a_part, call.scratch(), call.device()->counters);
    TRY(column_parts_of(call, terms, rows, c, &g.parts));
    return launch(call, column_finish<Finish>, ceil_div(c, WARP), dim3(WARP, COLUMN_ADDERS), finish, c,
                  g.parts, call.scratch());
}

struct nothing_kept {
};
struct keeps_nothing {
    __device__ nothing_kept at_column(int64_t) const
    {
        return {};
    }
};

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

/* Stores the column sums of x in `out`, or adds the sums to `out` if `add`. */
template <typename T>
status sum_columns(const kernel_call &call, const T *x, float *out, bool add, int64_t rows, int64_t c)
{
    constexpr int V = wide_pack<T>();
    if (c % V == 0 && (uintptr_t)x % 16 == 0)
        return column_sums(call, plain_terms<T, V>{{}, x, c}, write_sum{out, add}, rows, c);
    return column_sums(call, plain_terms<T, 1>{{}, x, c}, write_sum{out, add}, rows, c);
}

#endif
