/* Maximum and average over windows (torch.nn.MaxPool2d, AvgPool2d), a thread an element. Backward gathers:
 * every input element visits the windows that it lies in, in the order of their pixels. */
#include "common/device/cuda/module/kernel.cuh"

constexpr int THREADS = 256;

/* A pixel and channel of a tensor [n, height, width, c]. */
struct place {
    int64_t n, y, x, c;
};

__device__ static inline place place_of(int64_t i, int64_t height, int64_t width, int64_t c)
{
    int64_t pixel = i / c;
    return {pixel / (height * width), pixel / width % height, pixel % width, i % c};
}

/* The first of equals wins; a NaN wins over all. */
__global__ static void maximum_forward(pool_attributes a, const float *x, float *y, uint8_t *index)
{
    int64_t count = a.n * a.p * a.q * a.c;
    for (int64_t i = global_thread(); i < count; i += grid_threads()) {
        place o = place_of(i, a.p, a.q, a.c);
        float best = 0;
        int position = -1;
        for (int64_t r = 0; r < a.r; r++)
            for (int64_t s = 0; s < a.s; s++) {
                int64_t h = o.y * a.stride + r - a.pad, w = o.x * a.stride + s - a.pad;
                if (h < 0 || h >= a.h || w < 0 || w >= a.w) continue;
                float value = x[((o.n * a.h + h) * a.w + w) * a.c + o.c];
                if (position >= 0 && !(value > best) && value == value) continue;
                best = value;
                position = (int)(r * a.s + s);
            }
        y[i] = best;
        index[i] = (uint8_t)position;
    }
}

/* Windows along one side that cover `at`: those from first to last. */
__device__ static inline int64_t first_window(int64_t at, int64_t pad, int64_t size, int64_t stride)
{
    int64_t reach = at + pad - size + 1;
    return reach <= 0 ? 0 : (reach + stride - 1) / stride;
}

__device__ static inline int64_t last_window(int64_t at, int64_t pad, int64_t stride, int64_t windows)
{
    int64_t last = (at + pad) / stride;
    return last < windows ? last : windows - 1;
}

template <bool MAXIMUM>
__global__ static void pool_backward(pool_attributes a, const float *dy, const uint8_t *index, float *dx)
{
    int64_t count = a.n * a.h * a.w * a.c;
    for (int64_t i = global_thread(); i < count; i += grid_threads()) {
        place at = place_of(i, a.h, a.w, a.c);
        int64_t last_p = last_window(at.y, a.pad, a.stride, a.p), last_q = last_window(at.x, a.pad, a.stride, a.q);
        float sum = 0;
        for (int64_t p = first_window(at.y, a.pad, a.r, a.stride); p <= last_p; p++)
            for (int64_t q = first_window(at.x, a.pad, a.s, a.stride); q <= last_q; q++) {
                int64_t o = ((at.n * a.p + p) * a.q + q) * a.c + at.c;
                int64_t r = at.y + a.pad - p * a.stride, s = at.x + a.pad - q * a.stride;
                if (!MAXIMUM)
                    sum += dy[o] / (float)(a.r * a.s);
                else if (index[o] == r * a.s + s)
                    sum += dy[o];
            }
        dx[i] = sum;
    }
}

__global__ static void average_forward(pool_attributes a, const float *x, float *y)
{
    int64_t count = a.n * a.p * a.q * a.c;
    for (int64_t i = global_thread(); i < count; i += grid_threads()) {
        place o = place_of(i, a.p, a.q, a.c);
        float sum = 0;
        for (int64_t r = 0; r < a.r; r++)
            for (int64_t s = 0; s < a.s; s++)
                sum += x[((o.n * a.h + o.y * a.stride + r) * a.w + o.x * a.stride + s) * a.c + o.c];
        y[i] = sum / (float)(a.r * a.s);
    }
}

static dim3 grid_of(int64_t count)
{
    return dim3(blocks_for(count, THREADS));
}

static status run_maximum(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const pool_attributes *a = &k->base.op.u.pool;
    return launch(k, s, maximum_forward, grid_of(a->n * a->p * a->q * a->c), dim3(THREADS), *a,
                  (const float *)o[MAXPOOL_FWD_X], (float *)o[MAXPOOL_FWD_Y], (uint8_t *)o[MAXPOOL_FWD_INDEX]);
}

static status run_maximum_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const pool_attributes *a = &k->base.op.u.pool;
    return launch(k, s, pool_backward<true>, grid_of(a->n * a->h * a->w * a->c), dim3(THREADS), *a,
                  (const float *)o[MAXPOOL_BWD_DY], (const uint8_t *)o[MAXPOOL_BWD_INDEX],
                  (float *)o[MAXPOOL_BWD_DX]);
}

static status run_average(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const pool_attributes *a = &k->base.op.u.pool;
    return launch(k, s, average_forward, grid_of(a->n * a->p * a->q * a->c), dim3(THREADS), *a,
                  (const float *)o[AVGPOOL_FWD_X], (float *)o[AVGPOOL_FWD_Y]);
}

static status run_average_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const pool_attributes *a = &k->base.op.u.pool;
    return launch(k, s, pool_backward<false>, grid_of(a->n * a->h * a->w * a->c), dim3(THREADS), *a,
                  (const float *)o[AVGPOOL_BWD_DY], (const uint8_t *)nullptr, (float *)o[AVGPOOL_BWD_DX]);
}

extern "C" {
const cuda_kernel_entry cuda_maxpool_forward = {nullptr, run_maximum, nullptr};
const cuda_kernel_entry cuda_maxpool_backward = {nullptr, run_maximum_backward, nullptr};
const cuda_kernel_entry cuda_avgpool_forward = {nullptr, run_average, nullptr};
const cuda_kernel_entry cuda_avgpool_backward = {nullptr, run_average_backward, nullptr};
}
