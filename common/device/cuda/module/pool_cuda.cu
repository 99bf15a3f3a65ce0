/* Maximum pooling and average pooling (torch.nn.MaxPool2d, AvgPool2d). One thread computes V neighboring
 * channels of one pixel. The backward pass gathers: the gradient of an input element is the sum over the
 * windows that contain the element, in the order of the windows. */
#include "common/device/cuda/module/kernel.cuh"

/* A pixel and its first channel in a tensor [n, height, width, c]. */
struct place {
    int n, y, x, c;
};

/* Returns the pixel and the first channel of pack i. Channels vary fastest. */
template <int V>
__device__ static inline place place_of(int64_t i, const pool_attributes &a, int height, int width)
{
    uint32_t packs_a_pixel = (uint32_t)(a.c / V);
    int64_t pixel = i / packs_a_pixel;
    int c = (int)(i - pixel * packs_a_pixel) * V;
    uint32_t n = (uint32_t)(pixel / ((uint32_t)height * (uint32_t)width));
    uint32_t within = (uint32_t)(pixel - (int64_t)n * height * width);
    return {(int)n, (int)(within / (uint32_t)width), (int)(within % (uint32_t)width), c};
}

/* If several elements are equal to the maximum, takes the first one. A NaN counts as larger than every
 * number. */
template <bool MAXIMUM, typename T> struct forward_rule {
    pool_attributes a;
    const T *x;
    T *y;
    uint8_t *index; /* position of the maximum; NULL for averages */
    template <int V> __device__ void at(int64_t i) const
    {
        place o = place_of<V>(i / V, a, (int)a.p, (int)a.q);
        float result[V] = {}, values[V];
        pack<uint8_t, V> from;
        bool any = false;
        for (int r = 0; r < a.r; r++)
            for (int s = 0; s < a.s; s++) {
                int64_t h = o.y * a.stride + r - a.pad, w = o.x * a.stride + s - a.pad;
                if (h < 0 || h >= a.h || w < 0 || w >= a.w) continue;
                load_pack<V>(x + ((o.n * a.h + h) * a.w + w) * a.c + o.c, values);
                for (int v = 0; v < V; v++) {
                    if (!MAXIMUM) {
                        result[v] += values[v];
                    } else if (!any || values[v] > result[v] || values[v] != values[v]) {
                        result[v] = values[v];
                        from.at[v] = (uint8_t)(r * (int)a.s + s);
                    }
                }
                any = true;
            }
        for (int v = 0; v < V && !MAXIMUM; v++) result[v] /= (float)(a.r * a.s);
        store_pack<V>(y + i, result);
        if (MAXIMUM) *reinterpret_cast<pack<uint8_t, V> *>(index + i) = from;
    }
};

/* Return the first and the last window along one axis that contain `at`. */
__device__ static inline int first_window(int at, int64_t pad, int64_t size, int64_t stride)
{
    int reach = at + (int)pad - (int)size + 1;
    return reach <= 0 ? 0 : (reach + (int)stride - 1) / (int)stride;
}

__device__ static inline int last_window(int at, int64_t pad, int64_t stride, int64_t windows)
{
    int last = (at + (int)pad) / (int)stride;
    return last < windows ? last : (int)windows - 1;
}

template <bool MAXIMUM, typename T> struct backward_rule {
    pool_attributes a;
    const T *dy;
    const uint8_t *index; /* position of the maximum; NULL for averages */
    T *dx;
    template <int V> __device__ void at(int64_t i) const
    {
        place to = place_of<V>(i / V, a, (int)a.h, (int)a.w);
        int last_p = last_window(to.y, a.pad, a.stride, a.p),
            last_q = last_window(to.x, a.pad, a.stride, a.q);
        float sum[V] = {}, values[V];
        for (int p = first_window(to.y, a.pad, a.r, a.stride); p <= last_p; p++)
            for (int q = first_window(to.x, a.pad, a.s, a.stride); q <= last_q; q++) {
                int64_t o = ((to.n * a.p + p) * a.q + q) * a.c + to.c;
                int64_t position = (to.y + a.pad - p * a.stride) * a.s + to.x + a.pad - q * a.stride;
                load_pack<V>(dy + o, values);
                if (!MAXIMUM) {
                    for (int v = 0; v < V; v++) sum[v] += values[v] / (float)(a.r * a.s);
                    continue;
                }
                pack<uint8_t, V> from = *reinterpret_cast<const pack<uint8_t, V> *>(index + o);
                for (int v = 0; v < V; v++)
                    if (from.at[v] == position) sum[v] += values[v];
            }
        store_pack<V>(dx + i, sum);
    }
};

template <typename T> static status run(const kernel_call &call)
{
    const pool_attributes *a = &call.op->u.pool;
    int64_t outputs = a->n * a->p * a->q * a->c, inputs = a->n * a->h * a->w * a->c;
    switch (call.op->kind) {
    case OP_maxpool_forward:
        return over_packs<T>(
            call, a->c, outputs,
            forward_rule<true, T>{*a, call[MAXPOOL_FWD_X], call[MAXPOOL_FWD_Y], call[MAXPOOL_FWD_INDEX]});
    case OP_maxpool_backward:
        return over_packs<T>(
            call, a->c, inputs,
            backward_rule<true, T>{*a, call[MAXPOOL_BWD_DY], call[MAXPOOL_BWD_INDEX], call[MAXPOOL_BWD_DX]});
    case OP_avgpool_forward:
        return over_packs<T>(call, a->c, outputs,
                             forward_rule<false, T>{*a, call[AVGPOOL_FWD_X], call[AVGPOOL_FWD_Y], nullptr});
    default:
        return over_packs<T>(
            call, a->c, inputs,
            backward_rule<false, T>{*a, call[AVGPOOL_BWD_DY], nullptr, call[AVGPOOL_BWD_DX]});
    }
}

extern "C" {
const cuda_kernel_entry cuda_maxpool_forward = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_maxpool_backward = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_avgpool_forward = {nullptr, BY_STORAGE(run), nullptr};
const cuda_kernel_entry cuda_avgpool_backward = {nullptr, BY_STORAGE(run), nullptr};
}
