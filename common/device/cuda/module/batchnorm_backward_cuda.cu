/* The gradients of BatchNorm with its residual and activation (batchnorm_cuda.cu).
 *
 *   g = (dy + dy2) act'    xhat = (x - mean) invstd    dx = gamma invstd (g - mean(g) - xhat mean(g xhat))
 *
 * Memory traffic: x and dy are read twice and dx is written once. ReLU's mask is computed from x. If g is
 * also the gradient of the residual, the first pass writes g, and the second pass reads g in place of dy, dy2
 * and y. */
#include "common/device/cuda/module/batchnorm.cuh"

template <typename T> struct gradient {
    const T *x, *dy, *dy2; /* dy2 may be NULL */
    /* `y` is used for RELU after a residual, and `residual` for other activations after a residual. A pointer
     * that is not used is NULL. */
    const T *y, *residual;
    channel_vectors f;
    int act;
};

/* Variants of the kernels. A thread of ALONE or JOINED has enough registers for several loads at a time.
 *
 *   ALONE   no activation or ReLU: reads x and dy
 *   JOINED  ReLU after a residual: also reads y, and dy2 if there is one
 *   ANY     all other cases */
enum variant { ALONE, JOINED, ANY };

static bool is_plain(int act)
{
    return act == ACTIVATION_NONE || act == ACTIVATION_RELU;
}

template <typename T> static variant variant_of(const gradient<T> &b)
{
    if (is_plain(b.act) && b.y) return JOINED;
    return is_plain(b.act) && !b.dy2 ? ALONE : ANY;
}

template <typename T, int V> struct backward_row {
    pack<T, V> x, dy, dy2, joined; /* joined is y or the residual; ALONE reads neither dy2 nor joined */
};

template <int V, variant KIND, typename T>
__device__ backward_row<T, V> row_at(const gradient<T> &b, int64_t i)
{
    backward_row<T, V> taken;
    taken.x = take_pack<V>(b.x + i);
    taken.dy = take_pack<V>(b.dy + i);
    if constexpr (KIND != ALONE) {
        const T *joined = KIND == JOINED || b.y ? b.y : b.residual;
        if (b.dy2) taken.dy2 = take_pack<V>(b.dy2 + i);
        if (joined) taken.joined = take_pack<V>(joined + i);
    }
    return taken;
}

/* Computes the value that determines the activation's derivative: y for ReLU after a residual, else the
 * activation's argument. */
template <int V, variant KIND, typename T>
__device__ void kept_of(const gradient<T> &b, const channels<V> &f, const backward_row<T, V> &taken,
                        const float *x, float *kept)
{
    if constexpr (KIND == JOINED) {
        unpack<V>(taken.joined, kept);
    } else {
        for (int v = 0; v < V; v++) kept[v] = argument(f, v, x[v]);
    }
    if constexpr (KIND == ANY) {
        float joined[V];
        if (!b.y && !b.residual) return;
        unpack<V>(taken.joined, joined);
        for (int v = 0; v < V; v++) kept[v] = b.y ? joined[v] : kept[v] + joined[v];
    }
}

template <int V, variant KIND, typename T>
__device__ void gradients_of(const gradient<T> &b, const channels<V> &f, const backward_row<T, V> &taken,
                             float *x, float *g)
{
    float kept[V], more[V];
    unpack<V>(taken.x, x);
    unpack<V>(taken.dy, g);
    if constexpr (KIND != ALONE) {
        if (b.dy2) {
            unpack<V>(taken.dy2, more);
            for (int v = 0; v < V; v++) g[v] += more[v];
        }
    }
    if (b.act == ACTIVATION_NONE) return;
    kept_of<V, KIND>(b, f, taken, x, kept);
    for (int v = 0; v < V; v++)
        g[v] = KIND == ANY ? activate_backward(b.act, kept[v], g[v]) : kept[v] <= 0 ? 0 : g[v];
}

/* ---- sums of g and of g (x - mean) ------------------------------------------------------------ */

template <typename T, int PACK, variant KIND> struct gradient_terms {
    static constexpr int SUMS = 2, V = PACK, AT_ONCE = KIND == ALONE ? 4 : KIND == JOINED ? 2 : 1;
    gradient<T> b;
    T *g_out; /* may be NULL, or dy's memory, because dy of an element is read before g is written */
    int64_t c;
    __device__ channels<V> at_column(int64_t column) const
    {
        return channels_at<V>(b.f, column);
    }
    __device__ backward_row<T, V> read(int64_t row, int64_t column) const
    {
        return row_at<V, KIND>(b, row * c + column);
    }
    __device__ void add(const channels<V> &f, const backward_row<T, V> &taken, int64_t row, int64_t column,
                        float (*sums)[V]) const
    {
        float x[V], g[V];
        gradients_of<V, KIND>(b, f, taken, x, g);
        if (g_out) store_pack<V>(g_out + row * c + column, g);
        for (int v = 0; v < V; v++) {
            sums[0][v] += g[v];
            sums[1][v] = fmaf(g[v], x[v] - f.mean[v], sums[1][v]);
        }
    }
};

/* Values [c] from which dx is computed: g = mean(g), slope = invstd mean(g xhat). */
struct gradient_means {
    float *g, *slope;
    __device__ void set(int64_t column, double sum_g, double sum_gx, double count, double invstd) const
    {
        g[column] = (float)(sum_g / count);
        slope[column] = (float)(invstd * (sum_gx / count));
    }
};

struct gradient_sums {
    static constexpr int SUMS = 2;
    int64_t c;
    const float *invstd;
    double *sums;         /* sums [2c] of g and of g xhat; may be NULL */
    gradient_means means; /* written if sums is NULL */
    double count;
    float *dgamma, *dbeta;
    bool add;
    __device__ void take(int64_t column, const double *found) const
    {
        double inverse = invstd[column], sum_gx = found[1] * inverse;
        if (sums) {
            sums[column] = found[0];
            sums[c + column] = sum_gx;
        } else {
            means.set(column, found[0], sum_gx, count, inverse);
        }
        dbeta[column] = (float)((add ? dbeta[column] : 0.0) + found[0]);
        dgamma[column] = (float)((add ? dgamma[column] : 0.0) + sum_gx);
    }
};

/* Computes the means from sums over all ranks. *count is the total number of rows of all ranks. */
__global__ static void means_of_sums(int64_t c, const double *sums, const double *count, const float *invstd,
                                     gradient_means means)
{
    int64_t column = global_thread();
    if (column < c) means.set(column, sums[column], sums[c + column], *count, invstd[column]);
}

/* ---- dx --------------------------------------------------------------------------------------- */

template <int V> struct gradient_channels {
    channels<V> f;
    float mean_g[V], slope[V];
};

/* Computes dx. The dy of an element is read before its dx is written, so dx and dy may share memory. */
template <typename T, int PACK, variant KIND> struct backward_rule {
    static constexpr int V = PACK, AT_ONCE = KIND == ALONE ? 4 : KIND == JOINED ? 2 : 1;
    gradient<T> b;
    gradient_means means;
    T *dx;
    __device__ gradient_channels<V> at_column(int64_t column) const
    {
        gradient_channels<V> kept;
        kept.f = channels_at<V>(b.f, column);
        load_floats<V>(means.g + column, kept.mean_g);
        load_floats<V>(means.slope + column, kept.slope);
        return kept;
    }
    __device__ backward_row<T, V> read(int64_t i) const
    {
        return row_at<V, KIND>(b, i);
    }
    __device__ void write(const gradient_channels<V> &kept, const backward_row<T, V> &taken, int64_t i) const
    {
        float x[V], g[V];
        gradients_of<V, KIND>(b, kept.f, taken, x, g);
        for (int v = 0; v < V; v++)
            x[v] = kept.f.scale[v] * (g[v] - kept.mean_g[v] - (x[v] - kept.f.mean[v]) * kept.slope[v]);
        store_pack<V>(dx + i, x);
    }
};

/* ---- the operations --------------------------------------------------------------------------- */

template <typename T> static gradient<T> gradient_of(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    any_pointer y = call[BN_BWD_Y], residual = call[BN_BWD_RESIDUAL], none = {};
    bool masked_by_y = a->act == ACTIVATION_RELU && a->residual;
    return {call[BN_BWD_X],
            call[BN_BWD_DY],
            call[BN_BWD_DY2],
            masked_by_y ? y : none,
            is_plain(a->act) ? none : residual,
            {call[BN_BWD_MEAN], call[BN_BWD_INVSTD], call[BN_BWD_GAMMA], call[BN_BWD_BETA]},
            a->act};
}

template <typename T> static gradient<T> gradient_written(const T *x, const T *g, channel_vectors f)
{
    return {x, g, nullptr, nullptr, nullptr, f, ACTIVATION_NONE};
}

/* The workspace holds the partial sums, then the means of the channels. */
static size_t parts_bytes(const op_desc *op)
{
    const batchnorm_attributes *a = &op->u.batchnorm;
    return op->kind == OP_batchnorm_backward_apply ? 0 : column_workspace(rows_of(a), a->c, 2);
}

static status prepare(cuda_kernel *k)
{
    k->base.workspace = parts_bytes(&k->base.op) + (size_t)(2 * k->base.op.u.batchnorm.c) * sizeof(float);
    return STATUS_OK;
}

static gradient_means means_of(const kernel_call &call)
{
    float *means = call.scratch(parts_bytes(call.op));
    return {means, means + call.op->u.batchnorm.c};
}

#define BY_VARIANT(run, T, V, b, ...)                                                                        \
    (variant_of(b) == ALONE    ? run<T, V, ALONE>(b, __VA_ARGS__)                                            \
     : variant_of(b) == JOINED ? run<T, V, JOINED>(b, __VA_ARGS__)                                           \
                               : run<T, V, ANY>(b, __VA_ARGS__))

template <typename T, int V, variant KIND>
static status sums_with(const gradient<T> &b, const kernel_call &call, T *g_out, gradient_sums finish)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    return column_sums(call, gradient_terms<T, V, KIND>{b, g_out, a->c}, finish, rows_of(a), a->c);
}

template <typename T, int V>
static status sums_of(const kernel_call &call, const gradient<T> &b, T *g_out, gradient_sums finish)
{
    return BY_VARIANT(sums_with, T, V, b, call, g_out, finish);
}

template <typename T, int V, variant KIND>
static status apply_with(const gradient<T> &b, const kernel_call &call, T *dx)
{
    return apply_to(call, backward_rule<T, V, KIND>{b, means_of(call), dx});
}

template <typename T, int V>
static status apply_backward(const kernel_call &call, const gradient<T> &b, T *dx)
{
    return BY_VARIANT(apply_with, T, V, b, call, dx);
}

template <typename T> static status backward(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    gradient<T> b = gradient_of<T>(call);
    T *dresidual = call[BN_BWD_DRESIDUAL];
    gradient_sums finish = {a->c,
                            b.f.invstd,
                            nullptr,
                            means_of(call),
                            (double)rows_of(a),
                            call[BN_BWD_DGAMMA],
                            call[BN_BWD_DBETA],
                            call.accumulates()};
    TRY(WITH_PACKS(sums_of, T, a->c, call, b, dresidual, finish));
    if (dresidual) b = gradient_written<T>(b.x, dresidual, b.f);
    return WITH_PACKS(apply_backward, T, a->c, call, b, call[BN_BWD_DX]);
}

/* ---- SyncBatchNorm, in two halves --------------------------------------------------------------- */

template <typename T> static status backward_stats(const kernel_call &call)
{
    int64_t c = call.op->u.batchnorm.c;
    gradient_sums finish = {c, call[BN_BWD_INVSTD], call[BN_BWD_SUMS],  {},
                            0, call[BN_BWD_DGAMMA], call[BN_BWD_DBETA], call.accumulates()};
    return WITH_PACKS(sums_of, T, c, call, gradient_of<T>(call), call[BN_BWD_DRESIDUAL], finish);
}

template <typename T> static status backward_apply(const kernel_call &call)
{
    channel_vectors f = {call[BN_BAPPLY_MEAN], call[BN_BAPPLY_INVSTD], call[BN_BAPPLY_GAMMA],
                         call[BN_BAPPLY_GAMMA]}; /* beta is not used */
    gradient<T> b = gradient_written<T>(call[BN_BAPPLY_X], call[BN_BAPPLY_G], f);
    TRY(per_channel(call, means_of_sums, call[BN_BAPPLY_SUMS], call[BN_BAPPLY_COUNT], f.invstd,
                    means_of(call)));
    return WITH_PACKS(apply_backward, T, call.op->u.batchnorm.c, call, b, call[BN_BAPPLY_DX]);
}

extern "C" {
const cuda_kernel_entry cuda_batchnorm_backward = {prepare, BY_STORAGE(backward), nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_stats = {prepare, BY_STORAGE(backward_stats), nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_apply = {prepare, BY_STORAGE(backward_apply), nullptr};
}
