/* Attention by tensor cores: on bfloat16, and on float32 whose products are TF32 (--tf32), with sums, softmax
 * and its gradient in float32.
 *
 * As in attention_cuda.cu no matrix of scores is stored: tiles of queries meet tiles of keys in shared memory
 * (Dao et al., "FlashAttention", 2022). Forward goes over the keys twice, for each row's maximum and sum and
 * then for the result: so what is summed up needs no scaling on the way and stays in the fragments. A warp
 * has PART rows of the block's tile; its lanes take the rows of a matrix of scores by twos, half a row a
 * lane. Factors that were computed, probabilities and their gradients, are rounded as the others are, to
 * bfloat16 or TF32, when they are put into shared memory. */
#include "common/device/cuda/module/attention.cuh"

#include <mma.h>

/* Both are multiplied from compute capability 8.0 on; the device is not opened for them on others. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_FRAGMENTS 0
#else
#define HAS_FRAGMENTS 1
#endif

/* Rows in shared memory are 16 bytes longer than what they hold, so that neighbors are in other banks;
 * fragments begin at multiples of 32 bytes all the same. */
constexpr int PART = 16, WARPS = 2, TILE = PART * WARPS, THREADS = WARP * WARPS, SCORE_ROW = TILE + 4;

template <typename T> constexpr int PACK = wide_pack<T>();
template <typename T, int WIDTH> constexpr int tile_row = WIDTH + PACK<T>;
template <typename T, int WIDTH> struct alignas(32) tile {
    T at[TILE * tile_row<T, WIDTH>];
};

/* Of each warp: [PART, TILE]. */
struct alignas(32) score_tile {
    float at[WARPS][PART * SCORE_ROW];
};

/* Factors made of scores, of each warp: [PART, TILE]. Those of float32 take the scores' place: a lane reads
 * an element before it puts its own there. */
template <typename T> struct alignas(32) factor_tile {
    static constexpr int ROW = TILE + PACK<T>;
    T own[WARPS][PART * ROW];
    __device__ T *of(int warp, score_tile &)
    {
        return own[warp];
    }
};

template <> struct factor_tile<float> {
    static constexpr int ROW = SCORE_ROW;
    __device__ float *of(int warp, score_tile &scores)
    {
        return scores.at[warp];
    }
};

template <typename T> struct problem {
    attention_attributes a;
    float scale;
    bool packed; /* rows can be read in packs of 16 bytes */
    const T *q, *k, *v, *dout;
    const float *delta;
    float *lse;
};

#if HAS_FRAGMENTS

namespace wmma = nvcuda::wmma;
/* K: columns of a left fragment, rows of a right one. */
template <typename T> struct product_of;
template <> struct product_of<bf16> {
    static constexpr int K = 16;
    typedef bf16 type;
};
template <> struct product_of<float> {
    static constexpr int K = 8;
    typedef wmma::precision::tf32 type;
};

template <typename T>
using left_part = wmma::fragment<wmma::matrix_a, PART, PART, product_of<T>::K, typename product_of<T>::type,
                                 wmma::row_major>;
template <typename T>
using right_part = wmma::fragment<wmma::matrix_b, PART, PART, product_of<T>::K, typename product_of<T>::type,
                                  wmma::row_major>;
template <typename T>
using turned_part = wmma::fragment<wmma::matrix_b, PART, PART, product_of<T>::K, typename product_of<T>::type,
                                   wmma::col_major>;
template <typename T> using sum_part = wmma::fragment<wmma::accumulator, PART, PART, product_of<T>::K, float>;

__device__ static bf16 as_factor(bf16 value)
{
    return value;
}

__device__ static float as_factor(float value)
{
    return wmma::__float_to_tf32(value);
}

/* A factor that was computed. */
template <typename T> __device__ void put(T *to, float value)
{
    T rounded;
    store(&rounded, value);
    *to = as_factor(rounded);
}

/* Rows [first, first + TILE), zero after the last row and column. */
template <typename T, int WIDTH>
__device__ void load_tile(tile<T, WIDTH> &to, head_rows<const T> rows, int64_t first, const problem<T> &p)
{
    constexpr int V = PACK<T>, PACKS = WIDTH / V;
    for (int i = threadIdx.x; i < TILE * PACKS; i += THREADS) {
        int row = i / PACKS, column = i % PACKS * V;
        T *at = to.at + row * tile_row<T, WIDTH> + column;
        const T *from = rows.data + (first + row) * rows.stride + column;
        bool there = first + row < p.a.sequence;
        pack<T, V> taken;
        if (p.packed && there && column < p.a.width)
            taken = *reinterpret_cast<const pack<T, V> *>(from);
        else
            for (int v = 0; v < V; v++) taken.at[v] = there && column + v < p.a.width ? from[v] : (T)0.0f;
        for (int v = 0; v < V; v++) taken.at[v] = as_factor(taken.at[v]);
        *reinterpret_cast<pack<T, V> *>(at) = taken;
    }
}

/* out [PART, TILE] = a [PART, WIDTH] b [TILE, WIDTH]^T, by a warp */
template <typename T, int WIDTH> __device__ void multiply_turned(const T *a, const T *b, float *out)
{
    for (int j = 0; j < TILE; j += PART) {
        sum_part<T> sum;
        wmma::fill_fragment(sum, 0.0f);
        for (int c = 0; c < WIDTH; c += product_of<T>::K) {
            left_part<T> left;
            turned_part<T> right;
            wmma::load_matrix_sync(left, a + c, tile_row<T, WIDTH>);
            wmma::load_matrix_sync(right, b + j * tile_row<T, WIDTH> + c, tile_row<T, WIDTH>);
            wmma::mma_sync(sum, left, right, sum);
        }
        wmma::store_matrix_sync(out + j, sum, SCORE_ROW, wmma::mem_row_major);
    }
}

/* sums [PART, WIDTH] += factors [PART, TILE] b [TILE, WIDTH], by a warp */
template <typename T, int WIDTH> __device__ void multiply_add(const T *factors, const T *b, sum_part<T> *sums)
{
#pragma unroll(sizeof(T) == 2 ? 2 : 1)
    for (int j = 0; j < TILE; j += product_of<T>::K) {
        left_part<T> left;
        wmma::load_matrix_sync(left, factors + j, factor_tile<T>::ROW);
        for (int c = 0; c < WIDTH / PART; c++) {
            right_part<T> right;
            wmma::load_matrix_sync(right, b + j * tile_row<T, WIDTH> + c * PART, tile_row<T, WIDTH>);
            wmma::mma_sync(sums[c], left, right, sums[c]);
        }
    }
}

template <typename T, int WIDTH> __device__ void clear_sums(sum_part<T> *sums)
{
    for (int c = 0; c < WIDTH / PART; c++) wmma::fill_fragment(sums[c], 0.0f);
}

/* A warp's rows, times `scale`, to row `first` and on, by way of `scratch` [PART, SCORE_ROW]. By all warps.
 */
template <typename T, int WIDTH>
__device__ void store_rows(sum_part<T> *sums, float *scratch, float scale, head_rows<T> to, int64_t first,
                           const attention_attributes &a)
{
    int lane = threadIdx.x % WARP;
    for (int c = 0; c < WIDTH; c += TILE) {
        wmma::store_matrix_sync(scratch, sums[c / PART], SCORE_ROW, wmma::mem_row_major);
        wmma::store_matrix_sync(scratch + PART, sums[c / PART + 1], SCORE_ROW, wmma::mem_row_major);
        __syncthreads();
        for (int row = 0; row < PART; row++)
            if (first + row < a.sequence && c + lane < a.width)
                store(to.data + (first + row) * to.stride + c + lane,
                      scale * scratch[row * SCORE_ROW + lane]);
        __syncthreads();
    }
}

constexpr int LANE_COLUMNS = TILE / 2;

/* Where a lane stands in its warp's [PART, TILE]. */
struct lane_place {
    int warp, row, column; /* columns [column, column + LANE_COLUMNS) */
};

__device__ static lane_place lane_place_of()
{
    int lane = threadIdx.x % WARP;
    return {(int)threadIdx.x / WARP, lane / 2, lane % 2 * LANE_COLUMNS};
}

/* A row's running maximum and sum of exponentials, with the scores of its two lanes. */
__device__ static void take_scores(const attention_attributes &a, float scale, const float *scores,
                                   lane_place at, int64_t query, int64_t key, float *largest, float *sum)
{
    float most = -INFINITY, added = 0;
    const float *row = scores + at.row * SCORE_ROW + at.column;
    for (int j = 0; j < LANE_COLUMNS; j++)
        if (sees(a, query, key + at.column + j)) most = fmaxf(most, scale * row[j]);
    most = fmaxf(*largest, fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1)));
    for (int j = 0; j < LANE_COLUMNS; j++)
        if (sees(a, query, key + at.column + j)) added += expf(scale * row[j] - most);
    added += __shfl_xor_sync(0xffffffffu, added, 1);
    *sum = (most == -INFINITY ? 0 : *sum * expf(*largest - most)) + added;
    *largest = most;
}

/* The end of the keys that a tile of queries sees. */
__device__ static int64_t keys_end(const attention_attributes &a, int64_t first)
{
    return a.causal && first + TILE < a.sequence ? first + TILE : a.sequence;
}

#endif

template <typename T, int WIDTH> __global__ void forward_kernel(problem<T> p, T *out)
{
#if HAS_FRAGMENTS
    __shared__ tile<T, WIDTH> q, k, v;
    __shared__ score_tile scores;
    __shared__ factor_tile<T> factor_tiles;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, query = first + at.warp * PART + at.row,
            end = keys_end(a, first);
    T *factors = factor_tiles.of(at.warp, scores);
    const T *own_q = q.at + at.warp * PART * tile_row<T, WIDTH>;
    float largest = -INFINITY, sum = 0;
    load_tile<T, WIDTH>(q, head_of(p.q, a.stride, a), first, p);
    for (int64_t key = 0; key < end; key += TILE) {
        load_tile<T, WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<T, WIDTH>(own_q, k.at, scores.at[at.warp]);
        __syncthreads();
        take_scores(a, p.scale, scores.at[at.warp], at, query, key, &largest, &sum);
    }
    float lse = largest + logf(sum);
    sum_part<T> sums[WIDTH / PART];
    clear_sums<T, WIDTH>(sums);
    for (int64_t key = 0; key < end; key += TILE) {
        __syncthreads();
        load_tile<T, WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        load_tile<T, WIDTH>(v, head_of(p.v, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<T, WIDTH>(own_q, k.at, scores.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            bool seen = sees(a, query, key + j);
            put(&factors[at.row * factor_tile<T>::ROW + j],
                seen ? expf(p.scale * scores.at[at.warp][at.row * SCORE_ROW + j] - lse) : 0);
        }
        __syncthreads();
        multiply_add<T, WIDTH>(factors, v.at, sums);
    }
    __syncthreads();
    store_rows<T, WIDTH>(sums, scores.at[at.warp], 1, head_of(out, a.heads * a.width, a),
                         first + at.warp * PART, a);
    if (query < a.sequence && at.column == 0) p.lse[lse_of_head(a) + query] = lse;
#else
    (void)p, (void)out;
#endif
}

/* dq = sum_j ds_j k_j / sqrt(width), with p = exp(s - lse) and ds = p (dout . v - delta) */
template <typename T, int WIDTH> __global__ void query_gradient(problem<T> p, T *dq)
{
#if HAS_FRAGMENTS
    __shared__ tile<T, WIDTH> q, dout, k, v;
    __shared__ score_tile scores, slopes;
    __shared__ factor_tile<T> factor_tiles;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, query = first + at.warp * PART + at.row;
    T *factors = factor_tiles.of(at.warp, scores);
    int own = at.warp * PART * tile_row<T, WIDTH>;
    bool there = query < a.sequence;
    float lse = there ? p.lse[lse_of_head(a) + query] : 0,
          delta = there ? p.delta[lse_of_head(a) + query] : 0;
    sum_part<T> sums[WIDTH / PART];
    clear_sums<T, WIDTH>(sums);
    load_tile<T, WIDTH>(q, head_of(p.q, a.stride, a), first, p);
    load_tile<T, WIDTH>(dout, head_of(p.dout, a.heads * a.width, a), first, p);
    for (int64_t key = 0; key < keys_end(a, first); key += TILE) {
        load_tile<T, WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        load_tile<T, WIDTH>(v, head_of(p.v, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<T, WIDTH>(q.at + own, k.at, scores.at[at.warp]);
        multiply_turned<T, WIDTH>(dout.at + own, v.at, slopes.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            int i = at.row * SCORE_ROW + j;
            float probability = sees(a, query, key + j) ? expf(p.scale * scores.at[at.warp][i] - lse) : 0;
            put(&factors[at.row * factor_tile<T>::ROW + j], probability * (slopes.at[at.warp][i] - delta));
        }
        __syncthreads();
        multiply_add<T, WIDTH>(factors, k.at, sums);
        __syncthreads();
    }
    store_rows<T, WIDTH>(sums, scores.at[at.warp], p.scale, head_of(dq, a.stride, a), first + at.warp * PART,
                         a);
#else
    (void)p, (void)dq;
#endif
}

/* dk = sum_i ds_i q_i / sqrt(width),  dv = sum_i p_i dout_i: as above with rows of keys and columns of
 * queries */
template <typename T, int WIDTH> __global__ void key_gradient(problem<T> p, T *dk, T *dv)
{
#if HAS_FRAGMENTS
    __shared__ tile<T, WIDTH> q, dout, k, v;
    __shared__ score_tile scores, slopes;
    __shared__ factor_tile<T> probability_tiles, factor_tiles;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, key = first + at.warp * PART + at.row;
    T *probabilities = probability_tiles.of(at.warp, scores), *factors = factor_tiles.of(at.warp, slopes);
    int own = at.warp * PART * tile_row<T, WIDTH>;
    const float *lse = p.lse + lse_of_head(a), *delta = p.delta + lse_of_head(a);
    sum_part<T> sums_k[WIDTH / PART], sums_v[WIDTH / PART];
    clear_sums<T, WIDTH>(sums_k);
    clear_sums<T, WIDTH>(sums_v);
    load_tile<T, WIDTH>(k, head_of(p.k, a.stride, a), first, p);
    load_tile<T, WIDTH>(v, head_of(p.v, a.stride, a), first, p);
    for (int64_t query = a.causal ? first : 0; query < a.sequence; query += TILE) {
        load_tile<T, WIDTH>(q, head_of(p.q, a.stride, a), query, p);
        load_tile<T, WIDTH>(dout, head_of(p.dout, a.heads * a.width, a), query, p);
        __syncthreads();
        multiply_turned<T, WIDTH>(k.at + own, q.at, scores.at[at.warp]);
        multiply_turned<T, WIDTH>(v.at + own, dout.at, slopes.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            int i = at.row * SCORE_ROW + j, to = at.row * factor_tile<T>::ROW + j;
            bool seen = sees(a, query + j, key);
            float probability = seen ? expf(p.scale * scores.at[at.warp][i] - lse[query + j]) : 0;
            put(&probabilities[to], probability);
            put(&factors[to], seen ? probability * (slopes.at[at.warp][i] - delta[query + j]) : 0);
        }
        __syncthreads();
        multiply_add<T, WIDTH>(factors, q.at, sums_k);
        multiply_add<T, WIDTH>(probabilities, dout.at, sums_v);
        __syncthreads();
    }
    int64_t row = first + at.warp * PART;
    store_rows<T, WIDTH>(sums_k, scores.at[at.warp], p.scale, head_of(dk, a.stride, a), row, a);
    store_rows<T, WIDTH>(sums_v, scores.at[at.warp], 1, head_of(dv, a.stride, a), row, a);
#else
    (void)p, (void)dk, (void)dv;
#endif
}

/* ---- the operations --------------------------------------------------------------------------- */

static dim3 grid_of(const attention_attributes &a)
{
    return dim3((unsigned)ceil_div(a.sequence, TILE), (unsigned)a.heads, (unsigned)a.batch);
}

template <typename T>
static problem<T> problem_of(const cuda_kernel *k, void *const *o, const void *dout, const void *delta)
{
    const attention_attributes *a = &k->base.op.u.attention;
    bool packed = packs<T>(a->width, o) && a->stride % PACK<T> == 0;
    return {*a,
            1.0f / sqrtf((float)a->width),
            packed,
            (const T *)o[ATT_FWD_Q],
            (const T *)o[ATT_FWD_K],
            (const T *)o[ATT_FWD_V],
            (const T *)dout,
            (const float *)delta,
            (float *)o[ATT_FWD_LSE]};
}

static_assert((int)ATT_FWD_Q == (int)ATT_BWD_Q && (int)ATT_FWD_LSE == (int)ATT_BWD_LSE,
              "forward and backward share their first slots");

/* The kernel for heads of that width. */
template <typename T> constexpr int WIDEST = sizeof(T) == 2 ? 128 : MOST_TF32_WIDTH;
#define BY_WIDTH(kernel, T, width)                                                                           \
    ((width) <= 32 ? kernel<T, 32> : (width) <= 64 ? kernel<T, 64> : kernel<T, WIDEST<T>>)

template <typename T>
status tensor_forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    problem<T> p = problem_of<T>(k, o, nullptr, nullptr);
    return launch(k, s, BY_WIDTH(forward_kernel, T, p.a.width), grid_of(p.a), dim3(THREADS), p,
                  (T *)o[ATT_FWD_OUT]);
}

template <typename T>
status tensor_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                       void *workspace)
{
    problem<T> p = problem_of<T>(k, o, o[ATT_BWD_DOUT], workspace);
    TRY(launch_delta<T>(k, s, o, (float *)workspace));
    TRY(launch(k, s, BY_WIDTH(query_gradient, T, p.a.width), grid_of(p.a), dim3(THREADS), p,
               (T *)o[ATT_BWD_DQ]));
    return launch(k, s, BY_WIDTH(key_gradient, T, p.a.width), grid_of(p.a), dim3(THREADS), p,
                  (T *)o[ATT_BWD_DK], (T *)o[ATT_BWD_DV]);
}

template run_function tensor_forward<bf16>;
template run_function tensor_forward<float>;
template run_function tensor_backward<bf16>;
template run_function tensor_backward<float>;
