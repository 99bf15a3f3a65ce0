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
    /* y is set for RELU after a residual, `residual` for other activations after a residual; else NULL. */
    const T *y, *residual;
    channel_vectors f;
    int act;
};

/* Variants of the kernels. A thread of ALONE or JOINED has registers for more loads at a time.
 *
 *   ALONE   no activation or ReLU: reads x and dy
 *   JOINED  ReLU after a residual: also reads y, and dy2 if there is one
 *   ANY     everything else */
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

template <typename T, int V, variant KIND> struct backward_row {
    pack<T, V> x, dy, dy2, joined; /* joined: y or the residual */
};

template <typename T, int V> struct backward_row<T, V, ALONE> {
    pack<T, V> x, dy;
};

template <int V, variant KIND, typename T>
__device__ backward_row<T, V, KIND> row_at(const gradient<T> &b, int64_t i)
{
    backward_row<T, V, KIND> taken;
    taken.x = take_pack<V>(b.x + i);
    taken.dy = take_pack<V>(b.dy + i);
    if constexpr (KIND != ALONE) {
        const T *joined = KIND == JOINED || b.y ? b.y : b.residual;
        if (b.dy2) taken.dy2 = take_pack<V>(b.dy2 + i);
        if (joined) taken.joined = take_pack<V>(joined + i);
    }
    return taken;
}

/* Computes the argument of the activation's derivative: y for ReLU after a residual, else the activation's
 * argument. */
template <int V, variant KIND, typename T>
__device__ void kept_of(const gradient<T> &b, const channels<V> &f, const backward_row<T, V, KIND> &taken,
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
__device__ void gradients_of(const gradient<T> &b, const channels<V> &f,
                             const backward_row<T, V, KIND> &taken, float *x, float *g)
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
    T *g_out; /* may be NULL or dy's memory: an element is read before its g is written */
    int64_t c;
    __device__ channels<V> at_column(int64_t column) const
    {
        return channels_at<V>(b.f, column);
    }
    __device__ backward_row<T, V, KIND> read(int64_t row, int64_t column) const
    {
        return row_at<V, KIND>(b, row * c + column);
    }
    __device__ void add(const channels<V> &f, const backward_row<T, V, KIND> &taken, int64_t row,
                        int64_t column, float (*sums)[V]) const
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

/* Values [c] for dx: g = mean(g), slope = invstd mean(g xhat). */
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

/* Computes the means from sums over the *count rows of all ranks. */
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

template <int V>
__device__ gradient_channels<V> gradient_channels_at(const channel_vectors &f, const gradient_means &m,
                                                     int64_t column)
{
    gradient_channels<V> out;
    out.f = channels_at<V>(f, column);
    load_floats<V>(m.g + column, out.mean_g);
    load_floats<V>(m.slope + column, out.slope);
    return out;
}

template <int V>
__device__ void through(const gradient_channels<V> &t, const float *x, const float *g, float *dx)
{
    for (int v = 0; v < V; v++)
        dx[v] = t.f.scale[v] * (g[v] - t.mean_g[v] - (x[v] - t.f.mean[v]) * t.slope[v]);
}

/* Computes dx. An element's dy is read before its dx is written, so they may share memory. */
template <typename T, int PACK, variant KIND> struct backward_rule {
    static constexpr int V = PACK, AT_ONCE = KIND == ALONE ? 4 : KIND == JOINED ? 2 : 1;
    gradient<T> b;
    gradient_means means;
    T *dx;
    __device__ gradient_channels<V> at_column(int64_t column) const
    {
        return gradient_channels_at<V>(b.f, means, column);
    }
    __device__ backward_row<T, V, KIND> read(int64_t i) const
    {
        return row_at<V, KIND>(b, i);
    }
    __device__ void write(const gradient_channels<V> &t, const backward_row<T, V, KIND> &taken,
                          int64_t i) const
    {
        float x[V], g[V], out[V];
        gradients_of<V, KIND>(b, t.f, taken, x, g);
        through<V>(t, x, g, out);
        store_pack<V>(dx + i, out);
    }
};

/* ---- the operations --------------------------------------------------------------------------- */

template <typename T> static gradient<T> gradient_of(const batchnorm_attributes *a, void *const *o)
{
    bool masked_by_y = a->act == ACTIVATION_RELU && a->residual;
    channel_vectors f = {(const float *)o[BN_BWD_MEAN], (const float *)o[BN_BWD_INVSTD],
                         (const float *)o[BN_BWD_GAMMA], (const float *)o[BN_BWD_BETA]};
    return {(const T *)o[BN_BWD_X],
            (const T *)o[BN_BWD_DY],
            a->dy2 ? (const T *)o[BN_BWD_DY2] : nullptr,
            masked_by_y ? (const T *)o[BN_BWD_Y] : nullptr,
            a->residual && !is_plain(a->act) ? (const T *)o[BN_BWD_RESIDUAL] : nullptr,
            f,
            a->act};
}

template <typename T> static gradient<T> gradient_written(const T *x, const T *g, channel_vectors f)
{
    return gradient<T>{x, g, nullptr, nullptr, nullptr, f, ACTIVATION_NONE};
}

static size_t means_bytes(const batchnorm_attributes *a)
{
    return (size_t)(2 * a->c) * sizeof(float);
}

/* The workspace has the means of the channels, whose bytes are a multiple of eight, then the sums of the
 * parts. */
static status prepare_sums(cuda_kernel *k)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    k->base.workspace = means_bytes(a) + column_workspace(rows_of(a), a->c, 2);
    return STATUS_OK;
}

static gradient_means means_in(const batchnorm_attributes *a, void *workspace)
{
    return {(float *)workspace, (float *)workspace + a->c};
}

#define BY_VARIANT(run, T, V, b, ...)                                                                        \
    (variant_of(b) == ALONE    ? run<T, V, ALONE>(b, __VA_ARGS__)                                            \
     : variant_of(b) == JOINED ? run<T, V, JOINED>(b, __VA_ARGS__)                                           \
                               : run<T, V, ANY>(b, __VA_ARGS__))

template <typename T, int V, variant KIND>
static status sums_with(const gradient<T> &b, const cuda_kernel *k, cudaStream_t s, T *g_out,
                        gradient_sums finish, double *parts)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    return column_sums(k, s, gradient_terms<T, V, KIND>{b, g_out, a->c}, finish, rows_of(a), a->c, parts);
}

template <typename T, int V>
static status sums_of(const cuda_kernel *k, cudaStream_t s, void *const *o, T *g_out, gradient_sums finish,
                      void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    double *parts = (double *)((char *)workspace + means_bytes(a));
    gradient<T> b = gradient_of<T>(a, o);
    return BY_VARIANT(sums_with, T, V, b, k, s, g_out, finish, parts);
}

template <typename T, int V, variant KIND>
static status apply_with(const gradient<T> &b, const cuda_kernel *k, cudaStream_t s, gradient_means means,
                         T *dx)
{
    return apply_to(k, s, backward_rule<T, V, KIND>{b, means, dx});
}

template <typename T, int V>
static status apply_backward(const cuda_kernel *k, cudaStream_t s, void *const *, const gradient<T> &b,
                             gradient_means means, T *dx)
{
    return BY_VARIANT(apply_with, T, V, b, k, s, means, dx);
}

template <typename T>
static status backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                       void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    gradient<T> b = gradient_of<T>(a, o);
    gradient_means means = means_in(a, workspace);
    T *dresidual = (T *)o[BN_BWD_DRESIDUAL];
    gradient_sums finish = {a->c,
                            b.f.invstd,
                            nullptr,
                            means,
                            (double)rows_of(a),
                            (float *)o[BN_BWD_DGAMMA],
                            (float *)o[BN_BWD_DBETA],
                            cuda_accumulates(k, scalars)};
    TRY(WITH_PACKS(sums_of, T, a->c, k, s, o, dresidual, finish, workspace));
    if (dresidual) b = gradient_written<T>(b.x, dresidual, b.f);
    return WITH_PACKS(apply_backward, T, a->c, k, s, o, b, means, (T *)o[BN_BWD_DX]);
}

/* ---- SyncBatchNorm, in two halves --------------------------------------------------------------- */

static_assert((int)BN_BSTATS_X == (int)BN_BWD_X && (int)BN_BSTATS_DY2 == (int)BN_BWD_DY2,
              "both backward operations share their first slots");

template <typename T>
static status backward_stats(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                             void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    gradient_sums finish = {
        a->c, (const float *)o[BN_BSTATS_INVSTD], (double *)o[BN_BSTATS_SUMS], {},
        0,    (float *)o[BN_BSTATS_DGAMMA],       (float *)o[BN_BSTATS_DBETA], cuda_accumulates(k, scalars)};
    return WITH_PACKS(sums_of, T, a->c, k, s, o, (T *)o[BN_BSTATS_G], finish, workspace);
}

static status prepare_means(cuda_kernel *k)
{
    k->base.workspace = means_bytes(&k->base.op.u.batchnorm);
    return STATUS_OK;
}

template <typename T>
static status backward_apply(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                             void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    const float *invstd = (const float *)o[BN_BAPPLY_INVSTD], *gamma = (const float *)o[BN_BAPPLY_GAMMA];
    channel_vectors f = {(const float *)o[BN_BAPPLY_MEAN], invstd, gamma, gamma}; /* beta is not used */
    gradient<T> b = gradient_written<T>((const T *)o[BN_BAPPLY_X], (const T *)o[BN_BAPPLY_G], f);
    gradient_means means = means_in(a, workspace);
    TRY(per_channel(k, s, means_of_sums, (const double *)o[BN_BAPPLY_SUMS],
                    (const double *)o[BN_BAPPLY_COUNT], invstd, means));
    return WITH_PACKS(apply_backward, T, a->c, k, s, o, b, means, (T *)o[BN_BAPPLY_DX]);
}

extern "C" {
const cuda_kernel_entry cuda_batchnorm_backward = {prepare_sums, BY_STORAGE(backward), nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_stats = {prepare_sums, BY_STORAGE(backward_stats), nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_apply = {prepare_means, BY_STORAGE(backward_apply), nullptr};
}
