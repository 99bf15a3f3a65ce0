/* What the files of attention share. Blocks: x a tile of rows, y a head, z a sequence. */
#ifndef COMMON_DEVICE_CUDA_MODULE_ATTENTION_CUH
#define COMMON_DEVICE_CUDA_MODULE_ATTENTION_CUH

#include "common/device/cuda/module/kernel.cuh"

/* Rows of one head, `stride` apart. */
template <typename T> struct head_rows {
    T *data;
    int64_t stride;
};

template <typename T> __device__ head_rows<T> head_of(T *data, int64_t stride, const attention_attributes &a)
{
    return {data + (int64_t)blockIdx.z * a.sequence * stride + (int64_t)blockIdx.y * a.width, stride};
}

__device__ static inline int64_t lse_of_head(const attention_attributes &a)
{
    return ((int64_t)blockIdx.z * a.heads + blockIdx.y) * a.sequence;
}

__device__ static inline bool sees(const attention_attributes &a, int64_t query, int64_t key)
{
    return query < a.sequence && key < a.sequence && (!a.causal || key <= query);
}

/* delta = dout . out, one warp per row of a head */
template <typename T>
__global__ void delta_kernel(attention_attributes a, int64_t rows, const T *out, const T *dout, float *delta)
{
    int64_t i = global_thread() / WARP, lane = threadIdx.x % WARP;
    if (i >= rows) return;
    int64_t query = i % a.sequence, head = i / a.sequence % a.heads, batch = i / (a.sequence * a.heads);
    int64_t at = ((batch * a.sequence + query) * a.heads + head) * a.width;
    float sum = 0;
    for (int64_t c = lane; c < a.width; c += WARP) sum = fmaf(load(out + at + c), load(dout + at + c), sum);
    sum = warp_sum(sum);
    if (lane == 0) delta[i] = sum;
}

template <typename T> status launch_delta(const cuda_kernel *k, cudaStream_t s, void *const *o, float *delta)
{
    constexpr int THREADS = 128;
    const attention_attributes *a = &k->base.op.u.attention;
    int64_t rows = a->batch * a->heads * a->sequence;
    return launch(k, s, delta_kernel<T>, dim3((unsigned)ceil_div(rows, THREADS / WARP)), dim3(THREADS), *a,
                  rows, (const T *)o[ATT_BWD_OUT], (const T *)o[ATT_BWD_DOUT], delta);
}

/* attention_tensor_cuda.cu: by tensor cores, on bfloat16, and on float32 whose products are TF32, of heads of
 * at most MOST_TF32_WIDTH: four tiles of wider heads in float32 do not fit into a block's static shared
 * memory of 48 KiB. */
constexpr int MOST_TF32_WIDTH = 64;
template <typename T>
status tensor_forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                      void *workspace);
template <typename T>
status tensor_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                       void *workspace);

#endif
