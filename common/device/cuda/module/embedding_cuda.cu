/* Embedding tables, and rows that are gathered from and scattered to a matrix. */
#include "common/device/cuda/module/columns.cuh"

constexpr int THREADS = 128;

template <typename T>
__global__ static void embedding_kernel(const int32_t *tokens, int64_t sequence, int64_t hidden,
                                        const float *table, const float *positions, const float *type, T *y)
{
    int64_t i = blockIdx.x;
    const float *row = table + (int64_t)tokens[i] * hidden;
    for (int64_t c = threadIdx.x; c < hidden; c += THREADS) {
        float value = row[c];
        if (positions) value += positions[i % sequence * hidden + c];
        if (type) value += type[c];
        store(y + i * hidden + c, value);
    }
}

/* ---- the table's gradient -----------------------------------------------------------------------
 *
 * The rows of a token are summed in the order of their positions. Positions are sorted by token, so the
 * positions of a token form a run. The sorted positions are divided into parts of RUN positions, one block
 * each. A thread therefore adds at most RUN rows one after another, even if a token is frequent. If a run
 * spans several parts, each part stores its sum, and join_runs() adds these sums. */
constexpr int RUN = 32, AT_ONCE = 8;

/* Sorts positions by token. Positions of one token stay in order. */
__global__ static void sort_tokens(const int32_t *tokens, int64_t count, int32_t *sorted)
{
    __shared__ int32_t tile[THREADS];
    int64_t i = global_thread(), at = 0;
    int32_t token = i < count ? tokens[i] : 0;
    for (int64_t begin = 0; begin < count; begin += THREADS) {
        int64_t left = count - begin < THREADS ? count - begin : THREADS;
        if (threadIdx.x < left) tile[threadIdx.x] = tokens[begin + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < left; j++) at += tile[j] < token || (tile[j] == token && begin + j < i);
        __syncthreads();
    }
    if (i < count) sorted[at] = (int32_t)i;
}

struct sorted_tokens {
    const int32_t *tokens, *sorted;
    int64_t count, hidden;
    __device__ int32_t at(int64_t i) const
    {
        return tokens[sorted[i]];
    }
};

/* Sums the runs of a part. In `parts`, each part has [2, hidden]: the sum of the run that began in an earlier
 * part, and the sum of the run that continues in the next part. */
template <typename T>
__global__ static void sum_runs(sorted_tokens t, const T *dy, float *dtable, float *parts)
{
    __shared__ int32_t position[RUN], token[RUN];
    int64_t begin = (int64_t)blockIdx.x * RUN, column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    int rows = (int)(t.count - begin < RUN ? t.count - begin : RUN);
    if ((int)threadIdx.x < rows) {
        position[threadIdx.x] = t.sorted[begin + threadIdx.x];
        token[threadIdx.x] = t.at(begin + threadIdx.x);
    }
    __syncthreads();
    if (column >= t.hidden) return;
    bool comes = begin > 0 && t.at(begin - 1) == token[0];
    bool goes_on = begin + rows < t.count && t.at(begin + rows) == token[rows - 1];
    float sum = 0;
    for (int first = 0; first < rows; first += AT_ONCE) {
        float taken[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++)
            taken[i] = first + i < rows ? load(dy + position[first + i] * t.hidden + column) : 0;
        for (int i = 0, row = first; i < AT_ONCE && row < rows; i++, row++) {
            bool from_before = comes && token[row] == token[0],
                 goes_out = goes_on && token[row] == token[rows - 1];
            float *entry = dtable + token[row] * t.hidden + column;
            if (row == 0 || token[row] != token[row - 1]) sum = from_before || goes_out ? 0 : *entry;
            sum += taken[i];
            if (row < rows - 1 && token[row] == token[row + 1]) continue;
            if (from_before || goes_out)
                entry = parts + (2 * (int64_t)blockIdx.x + !from_before) * t.hidden + column;
            *entry = sum;
        }
    }
}

/* Adds the sums of runs that span several parts. The block of the part in which a run begins adds all sums of
 * the run. */
__global__ static void join_runs(sorted_tokens t, float *dtable, const float *parts)
{
    int64_t begin = (int64_t)blockIdx.x * RUN, column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    int64_t next = begin + RUN;
    if (next >= t.count || column >= t.hidden) return;
    int32_t token = t.at(next - 1);
    bool began_before = begin > 0 && t.at(begin - 1) == token;
    if (began_before || t.at(next) != token) return;
    float *entry = dtable + token * t.hidden + column;
    float sum = *entry + parts[(2 * (int64_t)blockIdx.x + 1) * t.hidden + column];
    for (; next < t.count && t.at(next) == token; next += RUN)
        sum += parts[2 * (next / RUN) * t.hidden + column];
    *entry = sum;
}

static size_t sorted_bytes(int64_t rows)
{
    return (size_t)ceil_div(rows, 64) * 64 * sizeof(int32_t);
}

static size_t runs_workspace(int64_t rows, int64_t hidden)
{
    return sorted_bytes(rows) + (size_t)(2 * ceil_div(rows, RUN) * hidden) * sizeof(float);
}

template <typename T>
static status table_gradient(const kernel_call &call, const int32_t *tokens, int64_t rows, const T *dy,
                             float *dtable)
{
    int64_t hidden = call.op->u.embedding.hidden;
    any_pointer parts = call.scratch(sorted_bytes(rows));
    sorted_tokens t = {tokens, call.scratch(), rows, hidden};
    dim3 grid(ceil_div(rows, RUN), ceil_div(hidden, THREADS));
    TRY(launch(call, sort_tokens, ceil_div(rows, THREADS), THREADS, tokens, rows, call.scratch()));
    TRY(launch(call, sum_runs<T>, grid, THREADS, t, dy, dtable, parts));
    return grid.x > 1 ? launch(call, join_runs, grid, THREADS, t, dtable, parts) : STATUS_OK;
}

template <typename T>
__global__ static void position_gradient(int64_t batch, int64_t sequence, int64_t hidden, bool add,
                                         const T *dy, float *dposition)
{
    int64_t position = blockIdx.x;
    for (int64_t c = threadIdx.x; c < hidden; c += THREADS) {
        float sum = add ? dposition[position * hidden + c] : 0;
        for (int64_t b = 0; position < sequence && b < batch; b++)
            sum += load(dy + (b * sequence + position) * hidden + c);
        dposition[position * hidden + c] = sum;
    }
}

template <typename T> static status clear(const kernel_call &call, T *data, int64_t count)
{
    size_t bytes = (size_t)count * sizeof *data;
    return cuda_check(call.device(), cudaMemsetAsync((void *)data, 0, bytes, call.stream), "cudaMemsetAsync");
}

template <typename T> static status forward(const kernel_call &call)
{
    const embedding_attributes *a = &call.op->u.embedding;
    return launch(call, embedding_kernel<T>, a->batch * a->sequence, THREADS, call[EMB_FWD_TOKENS],
                  a->sequence, a->hidden, call[EMB_FWD_TABLE], call[EMB_FWD_POSITION], call[EMB_FWD_TYPE],
                  call[EMB_FWD_Y]);
}

static status prepare_backward(cuda_kernel *k)
{
    const embedding_attributes *a = &k->base.op.u.embedding;
    size_t columns = column_workspace(a->batch * a->sequence, a->hidden, write_sum::SUMS);
    k->base.workspace = runs_workspace(a->batch * a->sequence, a->hidden);
    if (columns > k->base.workspace) k->base.workspace = columns;
    return STATUS_OK;
}

template <typename T> static status backward(const kernel_call &call)
{
    const embedding_attributes *a = &call.op->u.embedding;
    const T *dy = call[EMB_BWD_DY];
    float *dtable = call[EMB_BWD_DTABLE], *dtypes = call[EMB_BWD_DTYPE];
    bool micro_batch = call.scalars && call.scalars->accumulate;
    int64_t rows = a->batch * a->sequence;
    if (!call.accumulates()) TRY(clear(call, dtable, a->vocabulary * a->hidden));
    TRY(table_gradient(call, call[EMB_BWD_TOKENS], rows, dy, dtable));
    if (a->position_table)
        TRY(launch(call, position_gradient<T>, a->positions, THREADS, a->batch, a->sequence, a->hidden,
                   micro_batch, dy, call[EMB_BWD_DPOSITION]));
    if (!a->type_table) return STATUS_OK;
    if (!micro_batch) TRY(clear(call, dtypes + a->hidden, a->hidden));
    return sum_columns(call, dy, dtypes, micro_batch, rows, a->hidden);
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

template <typename T> static status gather(const kernel_call &call)
{
    const rows_attributes *a = &call.op->u.rows;
    return launch(call, move_rows<false, T>, call.rows(a->selected), THREADS, a->every,
                  call[ROWS_GATHER_INDEX], a->hidden, call[ROWS_GATHER_X], call[ROWS_GATHER_Y]);
}

template <typename T> static status scatter(const kernel_call &call)
{
    const rows_attributes *a = &call.op->u.rows;
    T *dx = call[ROWS_SCATTER_DX];
    TRY(clear(call, dx, a->rows * a->hidden));
    return launch(call, move_rows<true, T>, call.rows(a->selected), THREADS, a->every,
                  call[ROWS_SCATTER_INDEX], a->hidden, call[ROWS_SCATTER_DY], dx);
}

extern "C" {
const cuda_kernel_entry cuda_embedding_forward = {nullptr, BY_STORAGE(forward), nullptr};
const cuda_kernel_entry cuda_embedding_backward = {prepare_backward, BY_STORAGE(backward), nullptr};
const cuda_kernel_entry cuda_gather_rows = {nullptr, BY_STORAGE(gather), nullptr};
const cuda_kernel_entry cuda_scatter_rows = {nullptr, BY_STORAGE(scatter), nullptr};
}
