/* Rules of the passes that run before and after the multiplications of a linear layer. The pass after the
 * forward multiplication computes y = act(y). The pass before the backward multiplications computes dy = dy
 * act' and the sums of dy's columns. */
#ifndef COMMON_DEVICE_CUDA_MODULE_LINEAR_PASSES_CUH
#define COMMON_DEVICE_CUDA_MODULE_LINEAR_PASSES_CUH

#include "common/device/cuda/module/columns.cuh"

template <typename T, int ACT> struct activate_rule {
    T *y, *slope; /* slope may be NULL */
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], slopes[V];
        load_pack<V>(y + i, values);
        for (int v = 0; v < V; v++) activate_with_slope<ACT>(values[v], &values[v], &slopes[v]);
        store_pack<V>(y + i, values);
        if (slope) store_pack<V>(slope + i, slopes);
    }
};

/* Computes dy act'. `kept` is y for RELU, and the slope for other activations. */
template <int V> __device__ static inline void apply_slope(int act, const float *kept, float *dy)
{
    for (int v = 0; v < V; v++)
        dy[v] = act == ACTIVATION_RELU ? activate_backward(act, kept[v], dy[v]) : kept[v] * dy[v];
}

template <typename T> struct slope_rule {
    int act;
    const T *kept;
    T *dy;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], gradient[V];
        load_pack<V>(kept + i, values);
        load_pack<V>(dy + i, gradient);
        apply_slope<V>(act, values, gradient);
        store_pack<V>(dy + i, gradient);
    }
};

/* Computes dy act' and sums the columns of the stored result (columns.cuh). */
template <typename T, int PACK> struct slope_terms : keeps_nothing {
    static constexpr int SUMS = 1, V = PACK, AT_ONCE = 4;
    struct row_taken {
        pack<T, V> kept, dy;
    };
    int act;
    const T *kept;
    T *dy;
    int64_t c;
    __device__ row_taken read(int64_t row, int64_t column) const
    {
        int64_t i = row * c + column;
        return {take_pack<V>(kept + i), take_pack<V>(dy + i)};
    }
    __device__ void add(nothing_kept, const row_taken &taken, int64_t row, int64_t column,
                        float (*sums)[V]) const
    {
        float values[V], gradient[V];
        unpack<V>(taken.kept, values);
        unpack<V>(taken.dy, gradient);
        apply_slope<V>(act, values, gradient);
        store_pack<V>(dy + row * c + column, gradient);
        for (int v = 0; v < V; v++) sums[0][v] += as_stored<T>(gradient[v]);
    }
};

#endif
