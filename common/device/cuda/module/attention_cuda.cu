/* Scaled dot-product attention without the matrix of scores: tiles of queries and keys are multiplied in
 * shared memory (Dao et al., "FlashAttention", 2022; running maximum and sum as in its algorithm 1).
 *
 * blockIdx.x selects a tile of rows, blockIdx.y a head, and blockIdx.z a sequence. A block has LANES threads
 * for each row of its tile. A thread computes every LANES-th score of the row, and every LANES-th column of
 * the result. Sums are float32 for every type of storage. */
#include "common/device/cuda/module/kernel.cuh"

extern "C" {
#include "common/device/cuda/module/cudnn_attention.h"
}

constexpr int LANES = 8, MOST_WIDTH = 128;

/* WIDTH is the largest supported width of a head. A tile has TILE rows, of queries or of keys. */
template <int WIDTH> struct tile_sizes {
    static constexpr int TILE = WIDTH <= 64 ? 32 : 16, OWN = WIDTH / LANES, SCORES = TILE / LANES;
};

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

/* Loads rows [first, first + TILE) into shared memory. Rows and columns that do not exist become zero. */
template <int WIDTH, int TILE, typename T>
__device__ void load_tile(float (*tile)[WIDTH + 1], head_rows<const T> rows, int64_t first,
                          const attention_attributes &a)
{
    for (int i = threadIdx.x; i < TILE * WIDTH; i += TILE * LANES) {
        int64_t row = first + i / WIDTH, column = i % WIDTH;
        tile[i / WIDTH][column] =
            row < a.sequence && column < a.width ? load(rows.data + row * rows.stride + column) : 0;
    }
}

template <int WIDTH> __device__ float dot(const float *a, const float *b)
{
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

__device__ static float row_sum(float value)
{
    for (int lane = LANES / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
    return value;
}

__device__ static float row_maximum(float value)
{
    for (int lane = LANES / 2; lane > 0; lane /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
    return value;
}

/* ---- forward ---------------------------------------------------------------------------------- */

template <typename T, int WIDTH>
__global__ void forward_kernel(attention_attributes a, float scale, const T *q, const T *k, const T *v,
                               T *out, float *lse)
{
    typedef tile_sizes<WIDTH> size;
    __shared__ float qs[size::TILE][WIDTH + 1], ks[size::TILE][WIDTH + 1], vs[size::TILE][WIDTH + 1];
    __shared__ float ps[size::TILE][size::TILE + 1];
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t first = (int64_t)blockIdx.x * size::TILE, query = first + row;
    float largest = -INFINITY, sum = 0, own[size::OWN] = {};
    load_tile<WIDTH, size::TILE>(qs, head_of(q, a.stride, a), first, a);
    int64_t end = a.causal && first + size::TILE < a.sequence ? first + size::TILE : a.sequence;
    for (int64_t key = 0; key < end; key += size::TILE) {
        load_tile<WIDTH, size::TILE>(ks, head_of(k, a.stride, a), key, a);
        load_tile<WIDTH, size::TILE>(vs, head_of(v, a.stride, a), key, a);
        __syncthreads();
        float scores[size::SCORES], tile_largest = -INFINITY, tile_sum = 0;
        for (int j = 0; j < size::SCORES; j++) {
            int column = lane + j * LANES;
            scores[j] = sees(a, query, key + column) ? scale * dot<WIDTH>(qs[row], ks[column]) : -INFINITY;
            tile_largest = fmaxf(tile_largest, scores[j]);
        }
        float now = fmaxf(largest, row_maximum(tile_largest));
        float shrink = now == -INFINITY ? 1 : expf(largest - now);
        for (int j = 0; j < size::SCORES; j++) {
            float p = now == -INFINITY ? 0 : expf(scores[j] - now);
            ps[row][lane + j * LANES] = p;
            tile_sum += p;
        }
        sum = sum * shrink + row_sum(tile_sum);
        largest = now;
        __syncthreads();
        for (int c = 0; c < size::OWN; c++) {
            own[c] *= shrink;
            for (int j = 0; j < size::TILE; j++) own[c] = fmaf(ps[row][j], vs[j][lane + c * LANES], own[c]);
        }
        __syncthreads();
    }
    if (query >= a.sequence) return;
    int64_t hidden = a.heads * a.width;
    T *to = out + ((int64_t)blockIdx.z * a.sequence + query) * hidden + (int64_t)blockIdx.y * a.width;
    for (int c = 0; c < size::OWN; c++)
        if (lane + c * LANES < a.width) store(to + lane + c * LANES, own[c] / sum);
    if (lane == 0) lse[lse_of_head(a) + query] = largest + logf(sum);
}

/* ---- backward --------------------------------------------------------------------------------- */

template <typename T> struct attention_gradient {
    attention_attributes a;
    float scale;
    const T *q, *k, *v, *dout;
    const float *lse, *delta;
};

/* Computes delta = dout . out with one warp per row of a head. */
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

/* p = exp(s - lse) and ds = p (dout . v - delta). */
struct score {
    float p, ds;
};

template <int WIDTH, typename T>
__device__ score score_of(const attention_gradient<T> &g, int64_t query, int64_t key, const float *q,
                          const float *k, const float *dout, const float *v)
{
    if (!sees(g.a, query, key)) return {0, 0};
    int64_t at = lse_of_head(g.a) + query;
    float p = expf(g.scale * dot<WIDTH>(q, k) - g.lse[at]);
    return {p, p * (dot<WIDTH>(dout, v) - g.delta[at])};
}

/* Computes dq = sum_j ds_j k_j / sqrt(width). */
template <typename T, int WIDTH> __global__ void query_gradient(attention_gradient<T> g, T *dq)
{
    typedef tile_sizes<WIDTH> size;
    __shared__ float qs[size::TILE][WIDTH + 1], ks[size::TILE][WIDTH + 1], vs[size::TILE][WIDTH + 1],
        dos[size::TILE][WIDTH + 1], ds[size::TILE][size::TILE + 1];
    const attention_attributes &a = g.a;
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t first = (int64_t)blockIdx.x * size::TILE, query = first + row;
    float own[size::OWN] = {};
    load_tile<WIDTH, size::TILE>(qs, head_of(g.q, a.stride, a), first, a);
    load_tile<WIDTH, size::TILE>(dos, head_of(g.dout, a.heads * a.width, a), first, a);
    int64_t end = a.causal && first + size::TILE < a.sequence ? first + size::TILE : a.sequence;
    for (int64_t key = 0; key < end; key += size::TILE) {
        load_tile<WIDTH, size::TILE>(ks, head_of(g.k, a.stride, a), key, a);
        load_tile<WIDTH, size::TILE>(vs, head_of(g.v, a.stride, a), key, a);
        __syncthreads();
        for (int j = lane; j < size::TILE; j += LANES)
            ds[row][j] = score_of<WIDTH>(g, query, key + j, qs[row], ks[j], dos[row], vs[j]).ds;
        __syncthreads();
        for (int c = 0; c < size::OWN; c++)
            for (int j = 0; j < size::TILE; j++) own[c] = fmaf(ds[row][j], ks[j][lane + c * LANES], own[c]);
        __syncthreads();
    }
    if (query >= a.sequence) return;
    T *to = dq + ((int64_t)blockIdx.z * a.sequence + query) * a.stride + (int64_t)blockIdx.y * a.width;
    for (int c = 0; c < size::OWN; c++)
        if (lane + c * LANES < a.width) store(to + lane + c * LANES, g.scale * own[c]);
}

/* Computes dk = sum_i ds_i q_i / sqrt(width) and dv = sum_i p_i dout_i. */
template <typename T, int WIDTH> __global__ void key_gradient(attention_gradient<T> g, T *dk, T *dv)
{
    typedef tile_sizes<WIDTH> size;
    __shared__ float qs[size::TILE][WIDTH + 1], ks[size::TILE][WIDTH + 1], vs[size::TILE][WIDTH + 1],
        dos[size::TILE][WIDTH + 1], ds[size::TILE][size::TILE + 1], ps[size::TILE][size::TILE + 1];
    const attention_attributes &a = g.a;
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t first = (int64_t)blockIdx.x * size::TILE, key = first + row;
    float own_k[size::OWN] = {}, own_v[size::OWN] = {};
    load_tile<WIDTH, size::TILE>(ks, head_of(g.k, a.stride, a), first, a);
    load_tile<WIDTH, size::TILE>(vs, head_of(g.v, a.stride, a), first, a);
    for (int64_t query = a.causal ? first : 0; query < a.sequence; query += size::TILE) {
        load_tile<WIDTH, size::TILE>(qs, head_of(g.q, a.stride, a), query, a);
        load_tile<WIDTH, size::TILE>(dos, head_of(g.dout, a.heads * a.width, a), query, a);
        __syncthreads();
        for (int i = lane; i < size::TILE; i += LANES) {
            score s = score_of<WIDTH>(g, query + i, key, qs[i], ks[row], dos[i], vs[row]);
            ds[row][i] = s.ds;
            ps[row][i] = s.p;
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < size::OWN; c++)
            for (int i = 0; i < size::TILE; i++) {
                own_k[c] = fmaf(ds[row][i], qs[i][lane + c * LANES], own_k[c]);
                own_v[c] = fmaf(ps[row][i], dos[i][lane + c * LANES], own_v[c]);
            }
        __syncthreads();
    }
    if (key >= a.sequence) return;
    int64_t at = ((int64_t)blockIdx.z * a.sequence + key) * a.stride + (int64_t)blockIdx.y * a.width;
#pragma unroll
    for (int c = 0; c < size::OWN; c++) {
        if (lane + c * LANES >= a.width) continue;
        store(dk + at + lane + c * LANES, g.scale * own_k[c]);
        store(dv + at + lane + c * LANES, own_v[c]);
    }
}

/* ---- the operations --------------------------------------------------------------------------- */

static status check_width(cuda_kernel *k)
{
    const attention_attributes *a = &k->base.op.u.attention;
    if (a->width <= MOST_WIDTH) return STATUS_OK;
    return fail(STATUS_CONFIG, "device cuda: attention: expected heads of a width of at most %d, got %lld",
                (int)MOST_WIDTH, (long long)a->width);
}

#define BY_WIDTH(kernel, T, width)                                                                           \
    ((width) <= 32 ? kernel<T, 32> : (width) <= 64 ? kernel<T, 64> : kernel<T, MOST_WIDTH>)

static int tile_of(const attention_attributes *a)
{
    return a->width <= 64 ? tile_sizes<64>::TILE : tile_sizes<MOST_WIDTH>::TILE;
}

static dim3 grid_of(const attention_attributes *a)
{
    return dim3((unsigned)ceil_div(a->sequence, tile_of(a)), (unsigned)a->heads, (unsigned)a->batch);
}

template <typename T> static status forward(const kernel_call &call)
{
    const attention_attributes *a = &call.op->u.attention;
    return launch(call, BY_WIDTH(forward_kernel, T, a->width), grid_of(a), tile_of(a) * LANES, *a,
                  1.0f / sqrtf((float)a->width), call[ATT_FWD_Q], call[ATT_FWD_K], call[ATT_FWD_V],
                  call[ATT_FWD_OUT], call[ATT_FWD_LSE]);
}

template <typename T> static status backward(const kernel_call &call)
{
    constexpr int THREADS_OF_DELTA = 128;
    const attention_attributes *a = &call.op->u.attention;
    int64_t rows = a->batch * a->heads * a->sequence;
    int threads = tile_of(a) * LANES;
    attention_gradient<T> g = {*a,
                               1.0f / sqrtf((float)a->width),
                               call[ATT_BWD_Q],
                               call[ATT_BWD_K],
                               call[ATT_BWD_V],
                               call[ATT_BWD_DOUT],
                               call[ATT_BWD_LSE],
                               call.scratch()};
    TRY(launch(call, delta_kernel<T>, ceil_div(rows, THREADS_OF_DELTA / WARP), THREADS_OF_DELTA, *a, rows,
               call[ATT_BWD_OUT], call[ATT_BWD_DOUT], call.scratch()));
    TRY(launch(call, BY_WIDTH(query_gradient, T, a->width), grid_of(a), threads, g, call[ATT_BWD_DQ]));
    return launch(call, BY_WIDTH(key_gradient, T, a->width), grid_of(a), threads, g, call[ATT_BWD_DK],
                  call[ATT_BWD_DV]);
}

/* ---- bfloat16: a plan of cuDNN, if timing showed that it is faster ------------------------------- */

static status use_plan(cuda_kernel *k, cuda_run_function *own)
{
    cudnn_attention *plan = nullptr;
    TRY(cudnn_attention_prepare(k, own, &plan));
    k->state = plan;
    size_t bytes = cudnn_attention_workspace(plan);
    if (bytes > k->base.workspace) k->base.workspace = bytes;
    return STATUS_OK;
}

static void release(cuda_kernel *k)
{
    cudnn_attention *plan = (cudnn_attention *)k->state;
    cudnn_attention_release(&plan);
}

static status prepare_forward(cuda_kernel *k)
{
    TRY(check_width(k));
    return use_plan(k, BY_STORAGE(forward));
}

static status prepare_backward(cuda_kernel *k)
{
    const attention_attributes *a = &k->base.op.u.attention;
    TRY(check_width(k));
    k->base.workspace = (size_t)(a->batch * a->heads * a->sequence) * sizeof(float);
    return use_plan(k, BY_STORAGE(backward));
}

/* Runs the plan of cuDNN if there is one, else the kernel of this file. */
template <cuda_run_function *OWN> static status run(const cuda_call *call)
{
    const cudnn_attention *plan = (const cudnn_attention *)call->kernel->state;
    return plan ? cudnn_attention_run(plan, call) : OWN(call);
}

extern "C" {
const cuda_kernel_entry cuda_attention_forward = {prepare_forward, run<BY_STORAGE(forward)>, release};
const cuda_kernel_entry cuda_attention_backward = {prepare_backward, run<BY_STORAGE(backward)>, release};
}
