/* Activations and sums of tensors, element by element. */
#include "common/device/cuda/module/kernel.cuh"

constexpr int THREADS = 256;

__global__ static void activation_kernel(int act, int64_t count, const float *x, float *y)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) y[i] = activate(act, x[i]);
}

__global__ static void activation_backward_kernel(int act, int64_t count, const float *kept, const float *dy,
                                                  float *dx)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads())
        dx[i] = activate_backward(act, kept[i], dy[i]);
}

__global__ static void add_kernel(int64_t count, const float *a, const float *b, float *y)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) y[i] = a[i] + b[i];
}

static status activation_forward(const cuda_kernel *k, cudaStream_t s, void *const *operands, const op_scalars *,
                                 void *)
{
    const elementwise_attributes *a = &k->base.op.u.elementwise;
    return launch(k, s, activation_kernel, dim3(blocks_for(a->count, THREADS)), dim3(THREADS), a->act, a->count,
                  (const float *)operands[ACT_FWD_X], (float *)operands[ACT_FWD_Y]);
}

static status activation_backward(const cuda_kernel *k, cudaStream_t s, void *const *operands, const op_scalars *,
                                  void *)
{
    const elementwise_attributes *a = &k->base.op.u.elementwise;
    return launch(k, s, activation_backward_kernel, dim3(blocks_for(a->count, THREADS)), dim3(THREADS), a->act,
                  a->count, (const float *)operands[ACT_BWD_X], (const float *)operands[ACT_BWD_DY],
                  (float *)operands[ACT_BWD_DX]);
}

static status add(const cuda_kernel *k, cudaStream_t s, void *const *operands, const op_scalars *, void *)
{
    int64_t count = k->base.op.u.elementwise.count;
    return launch(k, s, add_kernel, dim3(blocks_for(count, THREADS)), dim3(THREADS), count,
                  (const float *)operands[ADD_A], (const float *)operands[ADD_B], (float *)operands[ADD_Y]);
}

extern "C" {
const cuda_kernel_entry cuda_activation_forward = {nullptr, activation_forward, nullptr};
const cuda_kernel_entry cuda_activation_backward = {nullptr, activation_backward, nullptr};
const cuda_kernel_entry cuda_add = {nullptr, add, nullptr};
}
