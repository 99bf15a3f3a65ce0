#include "common/device/cuda/module/kernel.cuh"

template <typename T> struct activation_rule {
    int act;
    const T *x;
    T *y;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V];
        load_pack<V>(x + i, values);
        for (int v = 0; v < V; v++) values[v] = activate(act, values[v]);
        store_pack<V>(y + i, values);
    }
};

template <typename T> struct activation_backward_rule {
    int act;
    const T *kept, *dy;
    T *dx;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], gradient[V];
        load_pack<V>(kept + i, values);
        load_pack<V>(dy + i, gradient);
        for (int v = 0; v < V; v++) gradient[v] = activate_backward(act, values[v], gradient[v]);
        store_pack<V>(dx + i, gradient);
    }
};

template <typename T> struct add_rule {
    const T *a, *b;
    T *y;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], more[V];
        load_pack<V>(a + i, values);
        load_pack<V>(b + i, more);
        for (int v = 0; v < V; v++) values[v] += more[v];
        store_pack<V>(y + i, values);
    }
};

/* Copies element i of the concatenated tensor to or from its part. */
template <bool FORWARD, typename T> struct concat_rule {
    concat_attributes a;
    int64_t whole; /* total channels */
    T *all, *parts[CONCAT_MOST];
    template <int V> __device__ void at(int64_t i) const
    {
        int64_t row = i / whole, c = i - row * whole;
        int part = 0;
        while (c >= a.c[part]) c -= a.c[part++];
        if (!parts[part]) return;
        T *at = parts[part] + row * a.c[part] + c;
        *reinterpret_cast<pack<T, V> *>(FORWARD ? all + i : at) = take_pack<V>(FORWARD ? at : all + i);
    }
};

/* Concatenates or splits. `bits` is the bitwise OR of all channel counts: a power of two divides `bits` if
 * and only if it divides every channel count. */
template <typename T> static status concat(const kernel_call &call)
{
    const concat_attributes *a = &call.op->u.concat;
    concat_rule<true, T> forward = {*a, 0, call[CONCAT_FWD_Y], {}};
    int64_t bits = 0;
    for (int i = 0; i < CONCAT_MOST; i++) {
        forward.whole += a->c[i];
        forward.parts[i] = call[CONCAT_FWD_X + i];
        bits |= a->c[i];
    }
    if (call.op->kind == OP_concat_forward)
        return over_packs<T>(call, bits, a->rows * forward.whole, forward);
    concat_rule<false, T> backward = {*a, forward.whole, forward.all, {}};
    for (int i = 0; i < CONCAT_MOST; i++) backward.parts[i] = forward.parts[i];
    return over_packs<T>(call, bits, a->rows * forward.whole, backward);
}

template <typename T> static status run(const kernel_call &call)
{
    const elementwise_attributes *a = &call.op->u.elementwise;
    int64_t count = a->count;
    switch (call.op->kind) {
    case OP_activation_forward:
        return over_packs<T>(call, count, count,
                             activation_rule<T>{a->act, call[ACT_FWD_X], call[ACT_FWD_Y]});
    case OP_activation_backward:
        return over_packs<T>(
            call, count, count,
            activation_backward_rule<T>{a->act, call[ACT_BWD_X], call[ACT_BWD_DY], call[ACT_BWD_DX]});
    default:
        return over_packs<T>(call, count, count, add_rule<T>{call[ADD_A], call[ADD_B], call[ADD_Y]});
    }
}

extern "C" {
const cuda_kernel_entry cuda_activation_forward = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_activation_backward = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_add = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_concat_forward = {nullptr, BY_STORAGE(concat), nullptr};
const cuda_kernel_entry cuda_concat_backward = {nullptr, BY_STORAGE(concat), nullptr};
}
