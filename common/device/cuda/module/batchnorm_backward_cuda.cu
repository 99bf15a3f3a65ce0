/* The gradients of BatchNorm with its residual and activation (batchnorm_cuda.cu).
 *
 *   g = (dy + dy2) act'    xhat = (x - mean) invstd    dx = gamma invstd (g - mean(g) - xhat mean(g xhat))
 *
 * Bytes: x and dy are read twice and dx is written once; ReLU's mask is that of the argument, which x gives. Where the
 * residual takes g as its gradient the first pass writes it, and the second reads it in place of dy, dy2 and y. */
#include "common/device/cuda/module/batchnorm.cuh"

template <typename T> struct gradient {
    affine<T> forward;
    const T *y, *dy, *dy2; /* y is NULL but for RELU behind a residual; dy2 may be NULL */
    int act;
};

template <int V, typename T>
__device__ void gradients_at(const gradient<T> &b, const channels<V> &f, int64_t i, float *g)
{
    float more[V];
    load_pack<V>(b.dy + i, g);
    if (b.dy2) {
        load_pack<V>(b.dy2 + i, more);
        for (int v = 0; v < V; v++) g[v] += more[v];
    }
    if (b.act == ACTIVATION_NONE) return;
    if (b.y)
        load_pack<V>(b.y + i, more);
    else
        arguments_at<V>(b.forward, f, i, more);
    for (int v = 0; v < V; v++) g[v] = activate_backward(b.act, more[v], g[v]);
}

/* ---- sums of g and of g xhat ------------------------------------------------------------------ */

template <typename T, int PACK> struct gradient_terms {
    static constexpr int SUMS = 2, V = PACK;
    gradient<T> b;
    T *g_out; /* may be NULL, or dy's memory: an element is read before its g is written */
    int64_t c;
    __device__ void at(int64_t row, int64_t column, float (*sums)[V]) const
    {
        channels<V> f = channels_at<V>(b.forward.f, column);
        float g[V], x[V];
        gradients_at<V>(b, f, row * c + column, g);
        load_pack<V>(b.forward.x + row * c + column, x);
        if (g_out) store_pack<V>(g_out + row * c + column, g);
        for (int v = 0; v < V; v++) {
            sums[0][v] += g[v];
            sums[1][v] = fmaf(g[v], (x[v] - f.mean[v]) * f.invstd[v], sums[1][v]);
        }
    }
};

struct gradient_sums {
    static constexpr int SUMS = 2;
    int64_t c;
    double *sums; /* [2c]: of g, of g xhat */
    float *dgamma, *dbeta;
    bool add;
    __device__ void take(int64_t column, const double *found) const
    {
        sums[column] = found[0];
        sums[c + column] = found[1];
        dbeta[column] = (float)((add ? dbeta[column] : 0.0) + found[0]);
        dgamma[column] = (float)((add ? dgamma[column] : 0.0) + found[1]);
    }
};

/* ---- dx --------------------------------------------------------------------------------------- */

template <int V> struct gradient_channels {
    channels<V> f;
    float mean_g[V], mean_gx[V];
};

/* `count` is read from memory where it is given. */
struct gradient_means {
    const double *sums, *count_at;
    double count;
    int64_t c;
};

template <int V>
__device__ gradient_channels<V> gradient_channels_at(const channel_vectors &f, const gradient_means &m, int64_t column)
{
    gradient_channels<V> out;
    double count = m.count_at ? *m.count_at : m.count;
    out.f = channels_at<V>(f, column);
    for (int v = 0; v < V; v++) {
        out.mean_g[v] = (float)(m.sums[column + v] / count);
        out.mean_gx[v] = (float)(m.sums[m.c + column + v] / count);
    }
    return out;
}

template <int V> __device__ void through(const gradient_channels<V> &t, const float *x, const float *g, float *dx)
{
    for (int v = 0; v < V; v++) {
        float xhat = (x[v] - t.f.mean[v]) * t.f.invstd[v];
        dx[v] = t.f.gamma[v] * t.f.invstd[v] * (g[v] - t.mean_g[v] - xhat * t.mean_gx[v]);
    }
}

/* An element's dy is read before its dx is written: they may share memory. */
template <typename T, int PACK> struct backward_rule {
    static constexpr int V = PACK;
    gradient<T> b;
    gradient_means means;
    T *dx;
    __device__ gradient_channels<V> at_column(int64_t column) const
    {
        return gradient_channels_at<V>(b.forward.f, means, column);
    }
    __device__ void at(const gradient_channels<V> &t, int64_t i) const
    {
        float g[V], x[V], out[V];
        gradients_at<V>(b, t.f, i, g);
        load_pack<V>(b.forward.x + i, x);
        through<V>(t, x, g, out);
        store_pack<V>(dx + i, out);
    }
};

/* With g as it was written. */
template <typename T, int PACK> struct backward_apply_rule {
    static constexpr int V = PACK;
    const T *x, *g;
    channel_vectors f;
    gradient_means means;
    T *dx;
    __device__ gradient_channels<V> at_column(int64_t column) const
    {
        return gradient_channels_at<V>(f, means, column);
    }
    __device__ void at(const gradient_channels<V> &t, int64_t i) const
    {
        float values[V], gs[V], out[V];
        load_pack<V>(x + i, values);
        load_pack<V>(g + i, gs);
        through<V>(t, values, gs, out);
        store_pack<V>(dx + i, out);
    }
};

/* ---- the operations --------------------------------------------------------------------------- */

template <typename T> static gradient<T> gradient_of(const batchnorm_attributes *a, void *const *o)
{
    gradient<T> b = {};
    b.forward = affine<T>{(const T *)o[BN_BWD_X], a->residual ? (const T *)o[BN_BWD_RESIDUAL] : nullptr,
                          {(const float *)o[BN_BWD_MEAN], (const float *)o[BN_BWD_INVSTD],
                           (const float *)o[BN_BWD_GAMMA], (const float *)o[BN_BWD_BETA]}};
    b.y = a->act == ACTIVATION_RELU && a->residual ? (const T *)o[BN_BWD_Y] : nullptr;
    b.dy = (const T *)o[BN_BWD_DY];
    b.dy2 = a->dy2 ? (const T *)o[BN_BWD_DY2] : nullptr;
    b.act = a->act;
    return b;
}

static status prepare_sums(cuda_kernel *k)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    k->base.workspace = column_workspace(rows_of(a), a->c, 2) + (size_t)(2 * a->c) * sizeof(double);
    return STATUS_OK;
}

template <typename T, int V>
static status sums_of(const cuda_kernel *k, cudaStream_t s, void *const *o, T *g_out, gradient_sums finish, double *parts)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    return column_sums(k, s, gradient_terms<T, V>{gradient_of<T>(a, o), g_out, a->c}, finish, rows_of(a), a->c, parts);
}

template <typename T, int V>
static status apply_backward(const cuda_kernel *k, cudaStream_t s, void *const *o, gradient_means means)
{
    return apply_to(k, s, backward_rule<T, V>{gradient_of<T>(&k->base.op.u.batchnorm, o), means, (T *)o[BN_BWD_DX]});
}

template <typename T, int V>
static status apply_written(const cuda_kernel *k, cudaStream_t s, void *const *o, channel_vectors f, const T *x, const T *g,
                            gradient_means means, T *dx)
{
    (void)o;
    return apply_to(k, s, backward_apply_rule<T, V>{x, g, f, means, dx});
}

template <typename T>
static status backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    double *sums = (double *)workspace, *parts = sums + 2 * a->c;
    T *dresidual = (T *)o[BN_BWD_DRESIDUAL];
    gradient_sums finish = {a->c, sums, (float *)o[BN_BWD_DGAMMA], (float *)o[BN_BWD_DBETA],
                            cuda_accumulates(k, scalars)};
    TRY(WITH_PACKS(sums_of, T, k, s, o, dresidual, finish, parts));
    gradient_means means = {sums, nullptr, (double)rows_of(a), a->c};
    if (!dresidual) return WITH_PACKS(apply_backward, T, k, s, o, means);
    return WITH_PACKS(apply_written, T, k, s, o, gradient_of<T>(a, o).forward.f, (const T *)o[BN_BWD_X],
                      (const T *)dresidual, means, (T *)o[BN_BWD_DX]);
}

/* ---- over all ranks, in two halves ------------------------------------------------------------ */

static_assert((int)BN_BSTATS_X == (int)BN_BWD_X && (int)BN_BSTATS_DY2 == (int)BN_BWD_DY2,
              "both backward operations share their first slots");

template <typename T>
static status backward_stats(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                             void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    gradient_sums finish = {a->c, (double *)o[BN_BSTATS_SUMS], (float *)o[BN_BSTATS_DGAMMA],
                            (float *)o[BN_BSTATS_DBETA], cuda_accumulates(k, scalars)};
    return WITH_PACKS(sums_of, T, k, s, o, (T *)o[BN_BSTATS_G], finish, (double *)workspace);
}

template <typename T>
static status backward_apply(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    /* beta takes no part: gamma stands in its place. */
    channel_vectors f = {(const float *)o[BN_BAPPLY_MEAN], (const float *)o[BN_BAPPLY_INVSTD],
                         (const float *)o[BN_BAPPLY_GAMMA], (const float *)o[BN_BAPPLY_GAMMA]};
    gradient_means means = {(const double *)o[BN_BAPPLY_SUMS], (const double *)o[BN_BAPPLY_COUNT], 0,
                            k->base.op.u.batchnorm.c};
    return WITH_PACKS(apply_written, T, k, s, o, f, (const T *)o[BN_BAPPLY_X], (const T *)o[BN_BAPPLY_G], means,
                      (T *)o[BN_BAPPLY_DX]);
}

extern "C" {
const cuda_kernel_entry cuda_batchnorm_backward = {prepare_sums, by_storage<backward<float>, backward<bf16>>, nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_stats = {
    prepare_sums, by_storage<backward_stats<float>, backward_stats<bf16>>, nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_apply = {
    nullptr, by_storage<backward_apply<float>, backward_apply<bf16>>, nullptr};
}
