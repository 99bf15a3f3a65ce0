/* The losses torch.nn.CrossEntropyLoss and MSELoss with reduction "sum". Gradients are divided by the
 * launch's normalizer. One block per row writes the loss of the row to the workspace, then one block adds the
 * rows in order. */
#include "common/device/cuda/module/kernel.cuh"

constexpr int THREADS = 256;

/* If two values are equal, larger() returns the one that comes first. */
struct largest {
    float value;
    int64_t at;
};

__device__ static inline largest larger(largest a, largest b)
{
    if (b.value > a.value || (b.value == a.value && b.at < a.at)) return b;
    return a;
}

/* Returns the largest of the logits [classes] and its index. All threads of the block take part. A thread
 * without logits uses class 0. */
template <typename T> __device__ static largest row_maximum(const T *logits, int64_t classes)
{
    __shared__ largest parts[THREADS / WARP];
    largest best = {load(logits), 0};
    for (int64_t i = threadIdx.x; i < classes; i += THREADS)
        best = larger(best, largest{load(logits + i), i});
    for (int lane = WARP / 2; lane > 0; lane /= 2) {
        largest other = {__shfl_xor_sync(0xffffffffu, best.value, lane),
                         __shfl_xor_sync(0xffffffffu, best.at, lane)};
        best = larger(best, other);
    }
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = best;
    __syncthreads();
    best = parts[0];
    for (int i = 1; i < THREADS / WARP; i++) best = larger(best, parts[i]);
    return best;
}

/* Computes loss = log sum exp(l) - l_target and dl_i = (softmax(l)_i - [i = target]) / normalizer. dlogits
 * may be the logits' memory, because the thread that writes an element has read it before. */
template <typename T>
__global__ void cross_entropy_kernel(int64_t classes, double normalizer, const T *all, const void *targets,
                                     T *all_gradients, double *losses, double *hits)
{
    int64_t row = blockIdx.x;
    const T *logits = all + row * classes;
    int32_t target = ((const int32_t *)targets)[row];
    bool counts = target != LOSS_IGNORE;
    largest best = row_maximum(logits, classes);
    float of_target = counts ? load(logits + target) : 0, part = 0;
    for (int64_t i = threadIdx.x; i < classes; i += THREADS) part += expf(load(logits + i) - best.value);
    float sum = block_sum<THREADS>(part); /* has a barrier: all threads read before the first one writes */
    for (int64_t i = threadIdx.x; all_gradients && i < classes; i += THREADS) {
        float probability = expf(load(logits + i) - best.value) / sum;
        store(all_gradients + row * classes + i,
              counts ? (probability - (i == target ? 1.0f : 0.0f)) / (float)normalizer : 0);
    }
    if (threadIdx.x > 0) return;
    losses[row] = counts ? (double)best.value + log((double)sum) - (double)of_target : 0;
    hits[row] = counts && best.at == target ? 1 : 0;
}

template <typename T>
__global__ void squared_error_kernel(int64_t classes, double normalizer, const T *y, const void *targets,
                                     T *dy, double *losses, double *hits)
{
    int64_t row = blockIdx.x;
    double part = 0;
    for (int64_t i = row * classes + threadIdx.x; i < (row + 1) * classes; i += THREADS) {
        float difference = load(y + i) - ((const float *)targets)[i];
        part += (double)difference * difference;
        if (dy) store(dy + i, (float)(2 * difference / normalizer));
    }
    double sum = block_sum<THREADS>(part);
    if (threadIdx.x > 0) return;
    losses[row] = sum;
    hits[row] = 0;
}

__global__ static void sum_rows(int64_t rows, const double *losses, const double *hits, double *sums)
{
    double loss = 0, hit = 0;
    for (int64_t i = threadIdx.x; i < rows; i += THREADS) {
        loss += losses[i];
        hit += hits[i];
    }
    loss = block_sum<THREADS>(loss);
    hit = block_sum<THREADS>(hit);
    if (threadIdx.x > 0) return;
    sums[0] = loss;
    sums[1] = hit;
}

static status prepare(cuda_kernel *k)
{
    k->base.workspace = (size_t)(2 * k->base.op.u.loss.rows) * sizeof(double);
    return STATUS_OK;
}

template <typename T>
using row_kernel = void(int64_t classes, double normalizer, const T *, const void *, T *, double *, double *);

template <typename T, row_kernel<T> *KERNEL> static status run(const kernel_call &call)
{
    const loss_attributes *a = &call.op->u.loss;
    int64_t rows = call.rows(a->rows);
    double *losses = call.scratch(), *hits = losses + a->rows;
    TRY(launch(call, KERNEL, rows, THREADS, a->classes, call.scalars->loss_normalizer, call[LOSS_LOGITS],
               call[LOSS_TARGETS], call[LOSS_DLOGITS], losses, hits));
    return launch(call, sum_rows, 1, THREADS, rows, losses, hits, call[LOSS_SUMS]);
}

extern "C" {
const cuda_kernel_entry cuda_cross_entropy = {
    prepare, by_storage<run<float, cross_entropy_kernel<float>>, run<bf16, cross_entropy_kernel<bf16>>>,
    nullptr};
const cuda_kernel_entry cuda_mean_squared_error = {
    prepare, by_storage<run<float, squared_error_kernel<float>>, run<bf16, squared_error_kernel<bf16>>>,
    nullptr};
}
