/* Layer normalization (Ba, Kiros, Hinton, 2016): each row of [m, c] is normalized by its mean and its biased
 * variance. One block processes one row. The row stays in registers between passes. A row that is too long
 * for the registers is read again from the cache. */
#include "common/device/cuda/module/columns.cuh"

constexpr int THREADS = 128;

template <typename T> struct row_operands {
    const T *x, *residual; /* residual may be NULL */
    const float *gamma, *beta;
    T *y, *sum;
    float *mean, *invstd;
};

/* Returns V elements to be normalized. If there is a residual, the elements are sums of x and the residual,
 * which are also stored, rounded to T. */
template <typename T, int V> __device__ static inline pack<T, V> take_row(const row_operands<T> &o, int64_t i)
{
    pack<T, V> taken = take_pack<V>(o.x + i);
    if (!o.residual) return taken;
    float values[V], more[V];
    unpack<V>(taken, values);
    load_pack<V>(o.residual + i, more);
    for (int v = 0; v < V; v++) store(&taken.at[v], values[v] + more[v]);
    *reinterpret_cast<pack<T, V> *>(o.sum + i) = taken;
    return taken;
}

/* Calls use(n, i) for each pack that the thread processes in a row of c elements. The pack has elements [i, i
 * + V), and n is its number from 0. For later passes a thread keeps the packs that it has read, at most KEPT.
 * If KEPT is 0, the thread reads the packs again, and n is always 0. */
template <int V, int KEPT, typename Use> __device__ void walk_row(int64_t c, Use use)
{
#pragma unroll
    for (int n = 0; KEPT == 0 || n < KEPT; n++) {
        int64_t i = ((int64_t)n * THREADS + threadIdx.x) * V;
        if (i >= c) break;
        use(KEPT ? n : 0, i);
    }
}

template <typename T, int V, int KEPT> __global__ void forward_kernel(row_operands<T> o, int64_t c, float eps)
{
    int64_t row = blockIdx.x, first = row * c;
    const T *in = o.residual ? o.sum + first : o.x + first;
    pack<T, V> kept[KEPT ? KEPT : 1] = {};
    float total = 0, squares = 0, values[V];
    walk_row<V, KEPT>(c, [&](int n, int64_t i) {
        pack<T, V> taken = take_row<T, V>(o, first + i);
        if (KEPT) kept[n] = taken;
        unpack<V>(taken, values);
        for (int v = 0; v < V; v++) total += values[v];
    });
    float m = block_sum<THREADS>(total) / (float)c;
    walk_row<V, KEPT>(c, [&](int n, int64_t i) {
        unpack<V>(KEPT ? kept[n] : take_pack<V>(in + i), values);
        for (int v = 0; v < V; v++) squares = fmaf(values[v] - m, values[v] - m, squares);
    });
    float inverse = 1.0f / sqrtf(block_sum<THREADS>(squares) / (float)c + eps);
    walk_row<V, KEPT>(c, [&](int n, int64_t i) {
        unpack<V>(KEPT ? kept[n] : take_pack<V>(in + i), values);
        for (int v = 0; v < V; v++) values[v] = (values[v] - m) * inverse * o.gamma[i + v] + o.beta[i + v];
        store_pack<V>(o.y + first + i, values);
    });
    if (threadIdx.x == 0) {
        o.mean[row] = m;
        o.invstd[row] = inverse;
    }
}

template <typename T> struct row_gradient {
    const T *x, *dy, *dsum; /* dsum may be NULL */
    const float *gamma, *mean, *invstd;
};

struct write_parameters {
    static constexpr int SUMS = 2;
    float *dgamma, *dbeta;
    bool add;
    __device__ void take(int64_t column, const double *sums) const
    {
        dgamma[column] = (float)((add ? dgamma[column] : 0.0) + sums[0]);
        dbeta[column] = (float)((add ? dbeta[column] : 0.0) + sums[1]);
    }
};

/* The partial sums of the gradients of gamma and beta. Blocks with an index of `rows` or more add the partial
 * sums in the same launch. */
struct parameter_parts {
    write_parameters finish;
    int64_t count;
    const double *parts;
};

/* Computes dx = invstd (h - mean(h) - xhat mean(h xhat)) + dsum with h = dy gamma. dx may be in dy's memory.
 * A thread keeps the packs that it has read, at most KEPT, for the second pass. If KEPT is 0, the thread
 * reads the packs again. */
template <typename T, int V, int KEPT>
__global__ void backward_kernel(row_gradient<T> g, T *dx, int64_t c, int64_t rows, parameter_parts p)
{
    if (blockIdx.x >= rows) {
        constexpr int ADDERS = THREADS / WARP;
        __shared__ double lanes[ADDERS * write_parameters::SUMS * WARP];
        int x = (int)threadIdx.x % WARP, y = (int)threadIdx.x / WARP;
        finish_columns<ADDERS>(p.finish, (blockIdx.x - rows) * WARP, c, x, y, ADDERS, c, p.count, p.parts,
                               lanes);
        return;
    }
    int64_t row = blockIdx.x, first = row * c;
    pack<T, V> kept_x[KEPT ? KEPT : 1] = {}, kept_dy[KEPT ? KEPT : 1] = {};
    float mean = g.mean[row], invstd = g.invstd[row], sum_h = 0, sum_hx = 0, x[V], dy[V], dsum[V];
    walk_row<V, KEPT>(c, [&](int n, int64_t i) {
        pack<T, V> of_x = take_pack<V>(g.x + first + i), of_dy = take_pack<V>(g.dy + first + i);
        unpack<V>(of_x, x);
        unpack<V>(of_dy, dy);
        if (KEPT) kept_x[n] = of_x, kept_dy[n] = of_dy;
        for (int v = 0; v < V; v++) {
            float h = dy[v] * g.gamma[i + v];
            sum_h += h;
            sum_hx = fmaf(h, (x[v] - mean) * invstd, sum_hx);
        }
    });
    float mean_h = block_sum<THREADS>(sum_h) / (float)c, mean_hx = block_sum<THREADS>(sum_hx) / (float)c;
    walk_row<V, KEPT>(c, [&](int n, int64_t i) {
        unpack<V>(KEPT ? kept_x[n] : take_pack<V>(g.x + first + i), x);
        unpack<V>(KEPT ? kept_dy[n] : take_pack<V>(g.dy + first + i), dy);
        if (g.dsum) load_pack<V>(g.dsum + first + i, dsum);
        for (int v = 0; v < V; v++) {
            float xhat = (x[v] - mean) * invstd;
            float through = invstd * (dy[v] * g.gamma[i + v] - mean_h - xhat * mean_hx);
            x[v] = g.dsum ? through + dsum[v] : through;
        }
        store_pack<V>(dx + first + i, x);
    });
}

template <typename T, int PACK> struct parameter_terms : keeps_nothing {
    static constexpr int SUMS = 2, V = PACK, AT_ONCE = 4;
    struct row_taken {
        pack<T, V> x, dy;
        float mean, invstd;
    };
    row_gradient<T> g;
    int64_t c;
    __device__ row_taken read(int64_t row, int64_t column) const
    {
        int64_t i = row * c + column;
        return {take_pack<V>(g.x + i), take_pack<V>(g.dy + i), g.mean[row], g.invstd[row]};
    }
    __device__ void add(nothing_kept, const row_taken &taken, int64_t, int64_t, float (*sums)[V]) const
    {
        float x[V], dy[V];
        unpack<V>(taken.x, x);
        unpack<V>(taken.dy, dy);
        for (int v = 0; v < V; v++) {
            sums[0][v] = fmaf(dy[v], (x[v] - taken.mean) * taken.invstd, sums[0][v]);
            sums[1][v] += dy[v];
        }
    }
};

template <typename T, int V> static status forward_with(const kernel_call &call, row_operands<T> r, int64_t m)
{
    const layernorm_attributes *a = &call.op->u.layernorm;
    int64_t packs_a_thread = ceil_div(a->c, THREADS * V);
    auto kernel = packs_a_thread == 1   ? forward_kernel<T, V, 1>
                  : packs_a_thread == 2 ? forward_kernel<T, V, 2>
                                        : forward_kernel<T, V, 0>;
    return launch(call, kernel, m, THREADS, r, a->c, (float)a->eps);
}

template <typename T> static status forward(const kernel_call &call)
{
    const layernorm_attributes *a = &call.op->u.layernorm;
    row_operands<T> r = {call[LN_FWD_X], call[LN_FWD_RESIDUAL], call[LN_FWD_GAMMA], call[LN_FWD_BETA],
                         call[LN_FWD_Y], call[LN_FWD_SUM],      call[LN_FWD_MEAN],  call[LN_FWD_INVSTD]};
    int64_t m = call.rows(a->m);
    return WITH_PACKS(forward_with, T, a->c, call, r, m);
}

static status prepare_backward(cuda_kernel *k)
{
    const layernorm_attributes *a = &k->base.op.u.layernorm;
    k->base.workspace = column_workspace(a->m, a->c, write_parameters::SUMS);
    return STATUS_OK;
}

/* Computes the partial sums of the gradients of gamma and beta before dx, because dx may overwrite dy. */
template <typename T, int V>
static status backward_with(const kernel_call &call, row_gradient<T> g, write_parameters finish, int64_t m)
{
    int64_t c = call.op->u.layernorm.c, packs_a_thread = ceil_div(c, THREADS * V);
    T *dx = call[LN_BWD_DX];
    parameter_parts p = {finish, 0, call.scratch()};
    TRY(column_parts_of(call, parameter_terms<T, V>{{}, g, c}, m, c, &p.count));
    auto kernel = packs_a_thread == 1   ? backward_kernel<T, V, 1>
                  : packs_a_thread == 2 ? backward_kernel<T, V, 2>
                                        : backward_kernel<T, V, 0>;
    return launch(call, kernel, m + ceil_div(c, WARP), THREADS, g, dx, c, m, p);
}

template <typename T> static status backward(const kernel_call &call)
{
    const layernorm_attributes *a = &call.op->u.layernorm;
    int64_t m = call.rows(a->m);
    row_gradient<T> g = {call[LN_BWD_X],     call[LN_BWD_DY],   call[LN_BWD_DSUM],
                         call[LN_BWD_GAMMA], call[LN_BWD_MEAN], call[LN_BWD_INVSTD]};
    write_parameters finish = {call[LN_BWD_DGAMMA], call[LN_BWD_DBETA], call.accumulates()};
    return WITH_PACKS(backward_with, T, a->c, call, g, finish, m);
}

extern "C" {
const cuda_kernel_entry cuda_layernorm_forward = {nullptr, BY_STORAGE(forward), nullptr};
const cuda_kernel_entry cuda_layernorm_backward = {prepare_backward, BY_STORAGE(backward), nullptr};
}
