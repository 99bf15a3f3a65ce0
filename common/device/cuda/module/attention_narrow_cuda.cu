/* Attention on bfloat16 by tensor cores, with sums, softmax and its gradient in float32.
 *
 * As in attention_cuda.cu no matrix of scores is stored: tiles of queries meet tiles of keys in shared memory (Dao
 * et al., "FlashAttention", 2022). Forward goes over the keys twice, for each row's maximum and sum and then for the
 * result: so what is summed up needs no scaling on the way and stays in the fragments. A warp has PART rows of the
 * block's tile; its lanes take the rows of a matrix of scores by twos, half a row a lane. Factors that were computed,
 * probabilities and their gradients, are rounded to bfloat16. */
#include "common/device/cuda/module/attention.cuh"

#include <mma.h>

/* bfloat16 is multiplied from compute capability 8.0 on; the device is not opened for it on others. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_BFLOAT16 0
#else
#define HAS_BFLOAT16 1
#endif

/* Rows in shared memory are longer than what they hold, so that neighbours lie in other banks; fragments begin at
 * multiples of 32 bytes all the same. */
constexpr int PART = 16, WARPS = 2, TILE = PART * WARPS, THREADS = WARP * WARPS;
constexpr int SCORE_ROW = TILE + 4, FACTOR_ROW = TILE + 8;

template <int WIDTH> constexpr int tile_row = WIDTH + 8;
template <int WIDTH> struct alignas(32) tile {
    bf16 at[TILE * tile_row<WIDTH>];
};

/* Of each warp: [PART, TILE]. */
struct alignas(32) score_tile {
    float at[WARPS][PART * SCORE_ROW];
};

struct alignas(32) factor_tile {
    bf16 at[WARPS][PART * FACTOR_ROW];
};

struct problem {
    attention_attributes a;
    float scale;
    bool packed; /* rows can be read in packs of 16 bytes */
    const bf16 *q, *k, *v, *out, *dout;
    const float *delta;
    float *lse;
};

#if HAS_BFLOAT16

namespace wmma = nvcuda::wmma;
typedef wmma::fragment<wmma::matrix_a, PART, PART, PART, bf16, wmma::row_major> left_part;
typedef wmma::fragment<wmma::matrix_b, PART, PART, PART, bf16, wmma::row_major> right_part;
typedef wmma::fragment<wmma::matrix_b, PART, PART, PART, bf16, wmma::col_major> turned_part;
typedef wmma::fragment<wmma::accumulator, PART, PART, PART, float> sum_part;

/* Rows [first, first + TILE), zero behind the last row and column. */
template <int WIDTH>
__device__ void load_tile(tile<WIDTH> &to, head_rows<const bf16> rows, int64_t first, const problem &p)
{
    constexpr int V = 8, PACKS = WIDTH / V;
    for (int i = threadIdx.x; i < TILE * PACKS; i += THREADS) {
        int row = i / PACKS, column = i % PACKS * V;
        bf16 *at = to.at + row * tile_row<WIDTH> + column;
        const bf16 *from = rows.data + (first + row) * rows.stride + column;
        bool there = first + row < p.a.sequence;
        if (p.packed && there && column < p.a.width) {
            *reinterpret_cast<pack<bf16, V> *>(at) = *reinterpret_cast<const pack<bf16, V> *>(from);
            continue;
        }
        for (int v = 0; v < V; v++) at[v] = there && column + v < p.a.width ? from[v] : (bf16)0.0f;
    }
}

/* out [PART, TILE] = a [PART, WIDTH] b [TILE, WIDTH]^T, by a warp */
template <int WIDTH> __device__ void multiply_turned(const bf16 *a, const bf16 *b, float *out)
{
    for (int j = 0; j < TILE; j += PART) {
        sum_part sum;
        wmma::fill_fragment(sum, 0.0f);
        for (int c = 0; c < WIDTH; c += PART) {
            left_part left;
            turned_part right;
            wmma::load_matrix_sync(left, a + c, tile_row<WIDTH>);
            wmma::load_matrix_sync(right, b + j * tile_row<WIDTH> + c, tile_row<WIDTH>);
            wmma::mma_sync(sum, left, right, sum);
        }
        wmma::store_matrix_sync(out + j, sum, SCORE_ROW, wmma::mem_row_major);
    }
}

/* sums [PART, WIDTH] += factors [PART, TILE] b [TILE, WIDTH], by a warp */
template <int WIDTH> __device__ void multiply_add(const bf16 *factors, const bf16 *b, sum_part *sums)
{
    for (int j = 0; j < TILE; j += PART) {
        left_part left;
        wmma::load_matrix_sync(left, factors + j, FACTOR_ROW);
        for (int c = 0; c < WIDTH / PART; c++) {
            right_part right;
            wmma::load_matrix_sync(right, b + j * tile_row<WIDTH> + c * PART, tile_row<WIDTH>);
            wmma::mma_sync(sums[c], left, right, sums[c]);
        }
    }
}

template <int WIDTH> __device__ void clear_sums(sum_part *sums)
{
    for (int c = 0; c < WIDTH / PART; c++) wmma::fill_fragment(sums[c], 0.0f);
}

/* A warp's rows, times `scale`, to row `first` and on, by way of `scratch` [PART, SCORE_ROW]. By all warps. */
template <int WIDTH>
__device__ void store_rows(sum_part *sums, float *scratch, float scale, head_rows<bf16> to, int64_t first,
                           const attention_attributes &a)
{
    int lane = threadIdx.x % WARP;
    for (int c = 0; c < WIDTH; c += TILE) {
        wmma::store_matrix_sync(scratch, sums[c / PART], SCORE_ROW, wmma::mem_row_major);
        wmma::store_matrix_sync(scratch + PART, sums[c / PART + 1], SCORE_ROW, wmma::mem_row_major);
        __syncthreads();
        for (int row = 0; row < PART; row++)
            if (first + row < a.sequence && c + lane < a.width)
                store(to.data + (first + row) * to.stride + c + lane, scale * scratch[row * SCORE_ROW + lane]);
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
__device__ static void take_scores(const problem &p, const float *scores, lane_place at, int64_t query, int64_t key,
                                   float *largest, float *sum)
{
    float most = -INFINITY, added = 0;
    const float *row = scores + at.row * SCORE_ROW + at.column;
    for (int j = 0; j < LANE_COLUMNS; j++)
        if (sees(p.a, query, key + at.column + j)) most = fmaxf(most, p.scale * row[j]);
    most = fmaxf(*largest, fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1)));
    for (int j = 0; j < LANE_COLUMNS; j++)
        if (sees(p.a, query, key + at.column + j)) added += expf(p.scale * row[j] - most);
    added += __shfl_xor_sync(0xffffffffu, added, 1);
    *sum = (most == -INFINITY ? 0 : *sum * expf(*largest - most)) + added;
    *largest = most;
}

/* The first key behind those that a tile of queries sees. */
__device__ static int64_t keys_end(const attention_attributes &a, int64_t first)
{
    return a.causal && first + TILE < a.sequence ? first + TILE : a.sequence;
}

#endif

template <int WIDTH> __global__ void forward_kernel(problem p, bf16 *out)
{
#if HAS_BFLOAT16
    __shared__ tile<WIDTH> q, k, v;
    __shared__ score_tile scores;
    __shared__ factor_tile factors;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, query = first + at.warp * PART + at.row, end = keys_end(a, first);
    const bf16 *own_q = q.at + at.warp * PART * tile_row<WIDTH>;
    float largest = -INFINITY, sum = 0;
    load_tile<WIDTH>(q, head_of(p.q, a.stride, a), first, p);
    for (int64_t key = 0; key < end; key += TILE) {
        load_tile<WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<WIDTH>(own_q, k.at, scores.at[at.warp]);
        __syncthreads();
        take_scores(p, scores.at[at.warp], at, query, key, &largest, &sum);
    }
    float lse = largest + logf(sum);
    sum_part sums[WIDTH / PART];
    clear_sums<WIDTH>(sums);
    for (int64_t key = 0; key < end; key += TILE) {
        __syncthreads();
        load_tile<WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        load_tile<WIDTH>(v, head_of(p.v, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<WIDTH>(own_q, k.at, scores.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            bool seen = sees(a, query, key + j);
            store(&factors.at[at.warp][at.row * FACTOR_ROW + j],
                  seen ? expf(p.scale * scores.at[at.warp][at.row * SCORE_ROW + j] - lse) : 0);
        }
        __syncthreads();
        multiply_add<WIDTH>(factors.at[at.warp], v.at, sums);
    }
    __syncthreads();
    store_rows<WIDTH>(sums, scores.at[at.warp], 1, head_of(out, a.heads * a.width, a), first + at.warp * PART, a);
    if (query < a.sequence && at.column == 0) p.lse[lse_of_head(a) + query] = lse;
#else
    (void)p, (void)out;
#endif
}

/* dq = sum_j ds_j k_j / sqrt(width), with p = exp(s - lse) and ds = p (dout . v - delta) */
template <int WIDTH> __global__ void query_gradient(problem p, bf16 *dq)
{
#if HAS_BFLOAT16
    __shared__ tile<WIDTH> q, dout, k, v;
    __shared__ score_tile scores, slopes;
    __shared__ factor_tile factors;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, query = first + at.warp * PART + at.row;
    int own = at.warp * PART * tile_row<WIDTH>;
    bool there = query < a.sequence;
    float lse = there ? p.lse[lse_of_head(a) + query] : 0, delta = there ? p.delta[lse_of_head(a) + query] : 0;
    sum_part sums[WIDTH / PART];
    clear_sums<WIDTH>(sums);
    load_tile<WIDTH>(q, head_of(p.q, a.stride, a), first, p);
    load_tile<WIDTH>(dout, head_of(p.dout, a.heads * a.width, a), first, p);
    for (int64_t key = 0; key < keys_end(a, first); key += TILE) {
        load_tile<WIDTH>(k, head_of(p.k, a.stride, a), key, p);
        load_tile<WIDTH>(v, head_of(p.v, a.stride, a), key, p);
        __syncthreads();
        multiply_turned<WIDTH>(q.at + own, k.at, scores.at[at.warp]);
        multiply_turned<WIDTH>(dout.at + own, v.at, slopes.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            int i = at.row * SCORE_ROW + j;
            float probability = sees(a, query, key + j) ? expf(p.scale * scores.at[at.warp][i] - lse) : 0;
            store(&factors.at[at.warp][at.row * FACTOR_ROW + j], probability * (slopes.at[at.warp][i] - delta));
        }
        __syncthreads();
        multiply_add<WIDTH>(factors.at[at.warp], k.at, sums);
        __syncthreads();
    }
    store_rows<WIDTH>(sums, scores.at[at.warp], p.scale, head_of(dq, a.stride, a), first + at.warp * PART, a);
#else
    (void)p, (void)dq;
#endif
}

/* dk = sum_i ds_i q_i / sqrt(width),  dv = sum_i p_i dout_i: as above with rows of keys and columns of queries */
template <int WIDTH> __global__ void key_gradient(problem p, bf16 *dk, bf16 *dv)
{
#if HAS_BFLOAT16
    __shared__ tile<WIDTH> q, dout, k, v;
    __shared__ score_tile scores, slopes;
    __shared__ factor_tile probabilities, factors;
    const attention_attributes &a = p.a;
    lane_place at = lane_place_of();
    int64_t first = (int64_t)blockIdx.x * TILE, key = first + at.warp * PART + at.row;
    int own = at.warp * PART * tile_row<WIDTH>;
    const float *lse = p.lse + lse_of_head(a), *delta = p.delta + lse_of_head(a);
    sum_part sums_k[WIDTH / PART], sums_v[WIDTH / PART];
    clear_sums<WIDTH>(sums_k);
    clear_sums<WIDTH>(sums_v);
    load_tile<WIDTH>(k, head_of(p.k, a.stride, a), first, p);
    load_tile<WIDTH>(v, head_of(p.v, a.stride, a), first, p);
    for (int64_t query = a.causal ? first : 0; query < a.sequence; query += TILE) {
        load_tile<WIDTH>(q, head_of(p.q, a.stride, a), query, p);
        load_tile<WIDTH>(dout, head_of(p.dout, a.heads * a.width, a), query, p);
        __syncthreads();
        multiply_turned<WIDTH>(k.at + own, q.at, scores.at[at.warp]);
        multiply_turned<WIDTH>(v.at + own, dout.at, slopes.at[at.warp]);
        __syncthreads();
        for (int j = at.column; j < at.column + LANE_COLUMNS; j++) {
            int i = at.row * SCORE_ROW + j, to = at.row * FACTOR_ROW + j;
            bool seen = sees(a, query + j, key);
            float probability = seen ? expf(p.scale * scores.at[at.warp][i] - lse[query + j]) : 0;
            store(&probabilities.at[at.warp][to], probability);
            store(&factors.at[at.warp][to], seen ? probability * (slopes.at[at.warp][i] - delta[query + j]) : 0);
        }
        __syncthreads();
        multiply_add<WIDTH>(factors.at[at.warp], q.at, sums_k);
        multiply_add<WIDTH>(probabilities.at[at.warp], dout.at, sums_v);
        __syncthreads();
    }
    int64_t row = first + at.warp * PART;
    store_rows<WIDTH>(sums_k, scores.at[at.warp], p.scale, head_of(dk, a.stride, a), row, a);
    store_rows<WIDTH>(sums_v, scores.at[at.warp], 1, head_of(dv, a.stride, a), row, a);
#else
    (void)p, (void)dk, (void)dv;
#endif
}

/* ---- the operations --------------------------------------------------------------------------- */

static dim3 grid_of(const attention_attributes &a)
{
    return dim3((unsigned)ceil_div(a.sequence, TILE), (unsigned)a.heads, (unsigned)a.batch);
}

static problem problem_of(const cuda_kernel *k, void *const *o)
{
    const attention_attributes *a = &k->base.op.u.attention;
    problem p = {};
    p.a = *a;
    p.scale = 1.0f / sqrtf((float)a->width);
    p.packed = packs<bf16>(a->width, o) && a->stride % wide_pack<bf16>() == 0;
    p.q = (const bf16 *)o[ATT_FWD_Q];
    p.k = (const bf16 *)o[ATT_FWD_K];
    p.v = (const bf16 *)o[ATT_FWD_V];
    p.out = (const bf16 *)o[ATT_FWD_OUT];
    p.lse = (float *)o[ATT_FWD_LSE];
    return p;
}

static_assert((int)ATT_FWD_Q == (int)ATT_BWD_Q && (int)ATT_FWD_LSE == (int)ATT_BWD_LSE,
              "forward and backward share their first slots");

template <int WIDTH> static status forward_wide(const cuda_kernel *k, cudaStream_t s, const problem &p, void *const *o)
{
    return launch(k, s, forward_kernel<WIDTH>, grid_of(p.a), dim3(THREADS), p, (bf16 *)o[ATT_FWD_OUT]);
}

extern "C" status cuda_attention_forward_narrow(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                                                void *)
{
    problem p = problem_of(k, o);
    if (p.a.width <= 32) return forward_wide<32>(k, s, p, o);
    return p.a.width <= 64 ? forward_wide<64>(k, s, p, o) : forward_wide<128>(k, s, p, o);
}

template <int WIDTH> static status backward_wide(const cuda_kernel *k, cudaStream_t s, const problem &p, void *const *o)
{
    TRY(launch(k, s, query_gradient<WIDTH>, grid_of(p.a), dim3(THREADS), p, (bf16 *)o[ATT_BWD_DQ]));
    return launch(k, s, key_gradient<WIDTH>, grid_of(p.a), dim3(THREADS), p, (bf16 *)o[ATT_BWD_DK],
                  (bf16 *)o[ATT_BWD_DV]);
}

extern "C" status cuda_attention_backward_narrow(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                                                 void *workspace)
{
    problem p = problem_of(k, o);
    p.dout = (const bf16 *)o[ATT_BWD_DOUT];
    p.delta = (const float *)workspace;
    TRY(launch_delta<bf16>(k, s, o, (float *)workspace));
    if (p.a.width <= 32) return backward_wide<32>(k, s, p, o);
    return p.a.width <= 64 ? backward_wide<64>(k, s, p, o) : backward_wide<128>(k, s, p, o);
}
