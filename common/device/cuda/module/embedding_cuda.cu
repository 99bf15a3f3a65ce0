/* Rows looked up in tables, and rows taken from and put back into a matrix: one block per row. */
#include "common/device/cuda/module/columns.cuh"

constexpr int THREADS = 128;

struct embedding_tables {
    const float *table, *position, *type; /* position and type may be NULL */
};

template <typename T>
__global__ static void embedding_kernel(embedding_tables t, const int32_t *tokens, int64_t sequence, int64_t hidden, T *y)
{
    int64_t i = blockIdx.x;
    const float *row = t.table + (int64_t)tokens[i] * hidden;
    for (int64_t c = threadIdx.x; c < hidden; c += THREADS) {
        float value = row[c];
        if (t.position) value += t.position[i % sequence * hidden + c];
        if (t.type) value += t.type[c];
        store(y + i * hidden + c, value);
    }
}

/* Which of tokens [begin, begin + THREADS) are `token`, in their order, to matches[]; returns how many. By all threads. */
__device__ static int find_matches(const int32_t *tokens, int64_t begin, int64_t count, int32_t token, int *matches)
{
    __shared__ int of_warp[THREADS / WARP];
    int64_t i = begin + threadIdx.x;
    int warp = (int)threadIdx.x / WARP, before = 0, all = 0;
    bool matches_here = i < count && tokens[i] == token;
    unsigned mask = __ballot_sync(0xffffffffu, matches_here);
    if (threadIdx.x % WARP == 0) of_warp[warp] = __popc(mask);
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) {
        if (w < warp) before += of_warp[w];
        all += of_warp[w];
    }
    if (matches_here) matches[before + __popc(mask & ((1u << threadIdx.x % WARP) - 1))] = (int)threadIdx.x;
    __syncthreads();
    return all;
}

/* The block of a token's first occurrence adds all its rows, in their order; the others have nothing to do.
 * Which it is all threads find out together. */
template <typename T>
__global__ static void table_gradient(const int32_t *tokens, int64_t count, int64_t hidden, const T *dy, float *dtable)
{
    __shared__ int matches[THREADS];
    int64_t first = blockIdx.x;
    int32_t token = tokens[first];
    int seen = 0;
    for (int64_t i = threadIdx.x; i < first; i += THREADS) seen |= tokens[i] == token;
    if (__syncthreads_or(seen)) return;
    for (int64_t begin = first; begin < count; begin += THREADS) {
        int found = find_matches(tokens, begin, count, token, matches);
        for (int64_t c = threadIdx.x; found > 0 && c < hidden; c += THREADS) {
            float sum = dtable[(int64_t)token * hidden + c];
            for (int m = 0; m < found; m++) sum += load(dy + (begin + matches[m]) * hidden + c);
            dtable[(int64_t)token * hidden + c] = sum;
        }
        __syncthreads();
    }
}

template <typename T>
__global__ static void position_gradient(int64_t batch, int64_t sequence, int64_t hidden, bool add, const T *dy,
                                         float *dposition)
{
    int64_t position = blockIdx.x;
    for (int64_t c = threadIdx.x; c < hidden; c += THREADS) {
        float sum = add ? dposition[position * hidden + c] : 0;
        for (int64_t b = 0; position < sequence && b < batch; b++)
            sum += load(dy + (b * sequence + position) * hidden + c);
        dposition[position * hidden + c] = sum;
    }
}

template <typename T> static status clear(const cuda_kernel *k, cudaStream_t s, T *data, int64_t count)
{
    return cuda_check(cuda_device_of(k), cudaMemsetAsync((void *)data, 0, (size_t)count * sizeof *data, s),
                      "cudaMemsetAsync");
}

template <typename T>
static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const embedding_attributes *a = &k->base.op.u.embedding;
    embedding_tables t = {(const float *)o[EMB_FWD_TABLE],
                          a->position_table ? (const float *)o[EMB_FWD_POSITION] : nullptr,
                          a->type_table ? (const float *)o[EMB_FWD_TYPE] : nullptr};
    return launch(k, s, embedding_kernel<T>, dim3((unsigned)(a->batch * a->sequence)), dim3(THREADS), t,
                  (const int32_t *)o[EMB_FWD_TOKENS], a->sequence, a->hidden, (T *)o[EMB_FWD_Y]);
}

static status prepare_backward(cuda_kernel *k)
{
    const embedding_attributes *a = &k->base.op.u.embedding;
    k->base.workspace = column_workspace(a->batch * a->sequence, a->hidden, write_sum::SUMS);
    return STATUS_OK;
}

template <typename T>
static status backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const embedding_attributes *a = &k->base.op.u.embedding;
    const T *dy = (const T *)o[EMB_BWD_DY];
    float *dtable = (float *)o[EMB_BWD_DTABLE], *dtypes = (float *)o[EMB_BWD_DTYPE];
    bool micro_batch = scalars && scalars->accumulate;
    int64_t rows = a->batch * a->sequence;
    if (!cuda_accumulates(k, scalars)) TRY(clear(k, s, dtable, a->vocabulary * a->hidden));
    TRY(launch(k, s, table_gradient<T>, dim3((unsigned)rows), dim3(THREADS), (const int32_t *)o[EMB_BWD_TOKENS], rows,
               a->hidden, dy, dtable));
    if (a->position_table)
        TRY(launch(k, s, position_gradient<T>, dim3((unsigned)a->positions), dim3(THREADS), a->batch, a->sequence,
                   a->hidden, micro_batch, dy, (float *)o[EMB_BWD_DPOSITION]));
    if (!a->type_table) return STATUS_OK;
    if (!micro_batch) TRY(clear(k, s, dtypes + a->hidden, a->hidden));
    return sum_columns(k, s, dy, dtypes, micro_batch, rows, a->hidden, workspace);
}

/* ---- gathered rows ---------------------------------------------------------------------------- */

template <bool SCATTER, typename T>
__global__ static void move_rows(int64_t every, const int32_t *index, int64_t hidden, const T *from, T *to)
{
    int64_t packed = blockIdx.x, row = every > 0 ? packed * every : index[packed];
    const T *in = from + (SCATTER ? packed : row) * hidden;
    T *out = to + (SCATTER ? row : packed) * hidden;
    for (int64_t c = threadIdx.x; c < hidden; c += THREADS) out[c] = in[c];
}

template <typename T>
static status gather(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *)
{
    const rows_attributes *a = &k->base.op.u.rows;
    return launch(k, s, move_rows<false, T>, dim3((unsigned)cuda_rows(scalars, a->selected)), dim3(THREADS), a->every,
                  (const int32_t *)o[ROWS_GATHER_INDEX], a->hidden, (const T *)o[ROWS_GATHER_X],
                  (T *)o[ROWS_GATHER_Y]);
}

template <typename T>
static status scatter(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *)
{
    const rows_attributes *a = &k->base.op.u.rows;
    T *dx = (T *)o[ROWS_SCATTER_DX];
    TRY(clear(k, s, dx, a->rows * a->hidden));
    return launch(k, s, move_rows<true, T>, dim3((unsigned)cuda_rows(scalars, a->selected)), dim3(THREADS), a->every,
                  (const int32_t *)o[ROWS_SCATTER_INDEX], a->hidden, (const T *)o[ROWS_SCATTER_DY], dx);
}

extern "C" {
const cuda_kernel_entry cuda_embedding_forward = {nullptr, BY_STORAGE(forward), nullptr};
const cuda_kernel_entry cuda_embedding_backward = {prepare_backward, BY_STORAGE(backward),
                                                   nullptr};
const cuda_kernel_entry cuda_gather_rows = {nullptr, BY_STORAGE(gather), nullptr};
const cuda_kernel_entry cuda_scatter_rows = {nullptr, BY_STORAGE(scatter), nullptr};
}
