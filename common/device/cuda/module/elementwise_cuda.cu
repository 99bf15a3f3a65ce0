/* Activations and sums of tensors, element by element, 16 bytes per thread and iteration where possible. */
#include "common/device/cuda/module/kernel.cuh"

constexpr int THREADS = 256;

/* `rule` has at(i): the elements [i, i + V). */
template <int V, typename Rule> __global__ static void elementwise_kernel(int64_t count, Rule rule)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) rule.at(i);
}

template <typename T, int V> struct activation_rule {
    int act;
    const T *x;
    T *y;
    __device__ void at(int64_t i) const
    {
        float values[V];
        load_pack<V>(x + i, values);
        for (int v = 0; v < V; v++) values[v] = activate(act, values[v]);
        store_pack<V>(y + i, values);
    }
};

template <typename T, int V> struct activation_backward_rule {
    int act;
    const T *kept, *dy;
    T *dx;
    __device__ void at(int64_t i) const
    {
        float values[V], gradient[V];
        load_pack<V>(kept + i, values);
        load_pack<V>(dy + i, gradient);
        for (int v = 0; v < V; v++) gradient[v] = activate_backward(act, values[v], gradient[v]);
        store_pack<V>(dx + i, gradient);
    }
};

template <typename T, int V> struct add_rule {
    const T *a, *b;
    T *y;
    __device__ void at(int64_t i) const
    {
        float values[V], more[V];
        load_pack<V>(a + i, values);
        load_pack<V>(b + i, more);
        for (int v = 0; v < V; v++) values[v] += more[v];
        store_pack<V>(y + i, values);
    }
};

template <int V, typename Rule> static status over(const cuda_kernel *k, cudaStream_t s, int64_t count, Rule rule)
{
    return launch(k, s, elementwise_kernel<V, Rule>, dim3(blocks_for(ceil_div(count, V), THREADS)), dim3(THREADS), count,
                  rule);
}

template <typename T>
static status activation_forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const elementwise_attributes *a = &k->base.op.u.elementwise;
    constexpr int V = wide_pack<T>();
    const T *x = (const T *)o[ACT_FWD_X];
    T *y = (T *)o[ACT_FWD_Y];
    if (packs<T>(a->count, o)) return over<V>(k, s, a->count, activation_rule<T, V>{a->act, x, y});
    return over<1>(k, s, a->count, activation_rule<T, 1>{a->act, x, y});
}

template <typename T>
static status activation_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const elementwise_attributes *a = &k->base.op.u.elementwise;
    constexpr int V = wide_pack<T>();
    const T *x = (const T *)o[ACT_BWD_X], *dy = (const T *)o[ACT_BWD_DY];
    T *dx = (T *)o[ACT_BWD_DX];
    if (packs<T>(a->count, o)) return over<V>(k, s, a->count, activation_backward_rule<T, V>{a->act, x, dy, dx});
    return over<1>(k, s, a->count, activation_backward_rule<T, 1>{a->act, x, dy, dx});
}

template <typename T>
static status add(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    int64_t count = k->base.op.u.elementwise.count;
    constexpr int V = wide_pack<T>();
    const T *a = (const T *)o[ADD_A], *b = (const T *)o[ADD_B];
    T *y = (T *)o[ADD_Y];
    if (packs<T>(count, o)) return over<V>(k, s, count, add_rule<T, V>{a, b, y});
    return over<1>(k, s, count, add_rule<T, 1>{a, b, y});
}

extern "C" {
const cuda_kernel_entry cuda_activation_forward = {
    nullptr, by_storage<activation_forward<float>, activation_forward<bf16>>, nullptr};
const cuda_kernel_entry cuda_activation_backward = {
    nullptr, by_storage<activation_backward<float>, activation_backward<bf16>>, nullptr};
const cuda_kernel_entry cuda_add = {nullptr, by_storage<add<float>, add<bf16>>, nullptr};
}
