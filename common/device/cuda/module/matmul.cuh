/* Matrix multiplication without a library, used if cuBLASLt or cuDNN is missing or has no kernel for a shape.
 * Only the loaders compute addresses of operands, so a convolution is the same multiplication with other
 * loaders (implicit GEMM; Chetlur et al., "cuDNN: Efficient Primitives", 2014).
 *
 * A block computes a tile of TILE by TILE elements of the result, and each thread computes EACH by EACH of
 * them. An element is summed by one thread over k in ascending order. */
#ifndef COMMON_DEVICE_CUDA_MODULE_MATMUL_CUH
#define COMMON_DEVICE_CUDA_MODULE_MATMUL_CUH

#include "common/device/cuda/module/kernel.cuh"

constexpr int TILE = 64, TILE_K = 16, EACH = 4, TILE_LANES = TILE / EACH,
              TILE_THREADS = TILE_LANES * TILE_LANES;

/* `a` has at(row, k), `b` has at(k, column), and `store` has take(row, column, sum). */
template <typename A, typename B, typename Store>
__global__ void matmul_kernel(A a, B b, Store store, int64_t m, int64_t n, int64_t k)
{
    __shared__ float tile_a[TILE_K][TILE + 1], tile_b[TILE_K][TILE + 1];
    int64_t first_row = (int64_t)blockIdx.y * TILE, first_column = (int64_t)blockIdx.x * TILE;
    int row = threadIdx.x / TILE_LANES, column = threadIdx.x % TILE_LANES;
    float sums[EACH][EACH] = {};
    for (int64_t first_k = 0; first_k < k; first_k += TILE_K) {
        for (int i = threadIdx.x; i < TILE * TILE_K; i += TILE_THREADS) {
            int64_t at_k = first_k + i % TILE_K, at_row = first_row + i / TILE_K;
            tile_a[i % TILE_K][i / TILE_K] = at_row < m && at_k < k ? a.at(at_row, at_k) : 0;
            int64_t b_k = first_k + i / TILE, at_column = first_column + i % TILE;
            tile_b[i / TILE][i % TILE] = at_column < n && b_k < k ? b.at(b_k, at_column) : 0;
        }
        __syncthreads();
        for (int kk = 0; kk < TILE_K; kk++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sums[i][j] = fmaf(tile_a[kk][row + i * TILE_LANES], tile_b[kk][column + j * TILE_LANES],
                                      sums[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t at_row = first_row + row + i * TILE_LANES,
                    at_column = first_column + column + j * TILE_LANES;
            if (at_row < m && at_column < n) store.take(at_row, at_column, sums[i][j]);
        }
}

template <typename A, typename B, typename Store>
status matmul(const kernel_call &call, A a, B b, Store store, int64_t m, int64_t n, int64_t depth)
{
    int64_t rows = ceil_div(m, TILE);
    if (rows > MOST_BLOCKS_Y)
        return fail(STATUS_CONFIG, "%s: expected at most %lld rows without cuDNN and cuBLASLt, got %lld",
                    op_name(call.op->kind), (long long)MOST_BLOCKS_Y * TILE, (long long)m);
    return launch(call, matmul_kernel<A, B, Store>, dim3(ceil_div(n, TILE), rows), TILE_THREADS, a, b, store,
                  m, n, depth);
}

/* A matrix whose element (i, j) is data[i * row + j * column]. */
template <typename T> struct strided {
    const T *data;
    int64_t row, column;
    __device__ float at(int64_t i, int64_t j) const
    {
        return load(data + i * row + j * column);
    }
};

template <typename T> struct store_plain {
    T *data;
    int64_t columns;
    bool add;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        T *at = data + i * columns + j;
        store(at, add ? load(at) + sum : sum);
    }
};

template <typename T> struct store_biased {
    T *y;
    const T *bias; /* may be NULL */
    int64_t columns;
    bool relu;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        float value = bias ? sum + load(bias + j) : sum;
        store(y + i * columns + j, relu ? activate(ACTIVATION_RELU, value) : value);
    }
};

#endif
