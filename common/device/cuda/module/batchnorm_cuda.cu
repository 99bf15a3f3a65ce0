/* Ioffe and Szegedy, "Batch Normalization", 2015, with PyTorch's conventions, fused with what follows it:
 * the sum with a residual and the activation. Tensors are [rows, c] with rows = n h w.
 *
 * Moments are taken of x - x[0], the difference to the channel's first value: the mean of a channel may be
 * far above its deviation, and E[d^2] - E[d]^2 of such differences loses nothing. */
#include "common/device/cuda/module/columns.cuh"

constexpr int APPLY_LANES = 8, APPLY_ROWS = 4, CHANNEL_THREADS = 128;

static int64_t rows_of(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* ---- statistics ------------------------------------------------------------------------------- */

struct moment_terms {
    static constexpr int SUMS = 2;
    const float *x;
    int64_t c;
    __device__ void at(int64_t row, int64_t column, float *sums) const
    {
        float d = x[row * c + column] - x[column];
        sums[0] += d;
        sums[1] = fmaf(d, d, sums[1]);
    }
};

struct running_statistics {
    float *mean, *var;
    double momentum;
    __device__ void move(int64_t column, double new_mean, double new_var, double count) const
    {
        mean[column] = (float)((1 - momentum) * mean[column] + momentum * new_mean);
        var[column] = (float)((1 - momentum) * var[column] + momentum * (new_var * count / (count - 1)));
    }
};

struct batch_statistics {
    static constexpr int SUMS = 2;
    const float *x;
    double count, eps;
    running_statistics running;
    float *mean, *invstd;
    __device__ void take(int64_t column, const double *sums) const
    {
        double d = sums[0] / count, var = sums[1] / count - d * d;
        if (var < 0) var = 0;
        mean[column] = (float)(x[column] + d);
        invstd[column] = (float)(1 / sqrt(var + eps));
        running.move(column, x[column] + d, var, count);
    }
};

/* Sums of x and x^2 from those of the differences. */
struct write_raw_sums {
    static constexpr int SUMS = 2;
    const float *x;
    double count;
    int64_t c;
    double *out; /* [2c + 1] */
    __device__ void take(int64_t column, const double *sums) const
    {
        double shift = x[column];
        out[column] = sums[0] + count * shift;
        out[c + column] = sums[1] + 2 * shift * sums[0] + count * shift * shift;
        if (column == 0) out[2 * c] = count;
    }
};

__global__ static void statistics_from_sums(int64_t c, const double *sums, double eps, running_statistics running,
                                            float *mean, float *invstd)
{
    int64_t column = global_thread();
    if (column >= c) return;
    double count = sums[2 * c], m = sums[column] / count, var = sums[c + column] / count - m * m;
    if (var < 0) var = 0;
    mean[column] = (float)m;
    invstd[column] = (float)(1 / sqrt(var + eps));
    running.move(column, m, var, count);
}

__global__ static void invstd_of(int64_t c, const float *var, double eps, float *invstd)
{
    int64_t column = global_thread();
    if (column < c) invstd[column] = (float)(1 / sqrt((double)var[column] + eps));
}

/* ---- forward ---------------------------------------------------------------------------------- */

struct affine {
    const float *x, *gamma, *beta, *residual; /* residual may be NULL */
    const float *mean, *invstd;
};

__device__ static inline float argument_of(const affine &f, int64_t i, int64_t column)
{
    float y = (f.x[i] - f.mean[column]) * f.invstd[column] * f.gamma[column] + f.beta[column];
    return f.residual ? y + f.residual[i] : y;
}

/* Threads own a column and walk down its rows. */
__device__ static inline int64_t own_column()
{
    return (int64_t)blockIdx.x * WARP + threadIdx.x;
}

__device__ static inline int64_t first_row()
{
    return (int64_t)blockIdx.y * APPLY_LANES + threadIdx.y;
}

__device__ static inline int64_t row_step()
{
    return (int64_t)gridDim.y * APPLY_LANES;
}

static dim3 apply_grid(int64_t rows, int64_t c)
{
    int64_t blocks = ceil_div(rows, APPLY_LANES * APPLY_ROWS);
    return dim3((unsigned)ceil_div(c, WARP), (unsigned)(blocks < MOST_BLOCKS_Y ? blocks : MOST_BLOCKS_Y));
}

__global__ static void normalize_kernel(affine f, int act, int64_t rows, int64_t c, float *y)
{
    int64_t column = own_column();
    if (column >= c) return;
    for (int64_t row = first_row(); row < rows; row += row_step())
        y[row * c + column] = activate(act, argument_of(f, row * c + column, column));
}

static status normalize(const cuda_kernel *k, cudaStream_t s, affine f, float *y)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    return launch(k, s, normalize_kernel, apply_grid(rows_of(a), a->c), dim3(WARP, APPLY_LANES), f, a->act, rows_of(a),
                  a->c, y);
}

static status prepare_sums(cuda_kernel *k)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    k->base.workspace = column_workspace(rows_of(a), a->c, 2) + (size_t)(2 * a->c) * sizeof(double);
    return STATUS_OK;
}

static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    const float *x = (const float *)o[BN_FWD_X];
    float *mean = (float *)o[BN_FWD_MEAN], *invstd = (float *)o[BN_FWD_INVSTD];
    running_statistics running = {(float *)o[BN_FWD_RUNNING_MEAN], (float *)o[BN_FWD_RUNNING_VAR], a->momentum};
    batch_statistics finish = {x, (double)rows_of(a), a->eps, running, mean, invstd};
    TRY(column_sums(k, s, moment_terms{x, a->c}, finish, rows_of(a), a->c, (double *)workspace));
    affine f = {x, (const float *)o[BN_FWD_GAMMA], (const float *)o[BN_FWD_BETA],
                a->residual ? (const float *)o[BN_FWD_RESIDUAL] : nullptr, mean, invstd};
    return normalize(k, s, f, (float *)o[BN_FWD_Y]);
}

static status prepare_inference(cuda_kernel *k)
{
    k->base.workspace = (size_t)k->base.op.u.batchnorm.c * sizeof(float);
    return STATUS_OK;
}

static status inference(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    float *invstd = (float *)workspace;
    TRY(launch(k, s, invstd_of, dim3((unsigned)ceil_div(a->c, CHANNEL_THREADS)), dim3(CHANNEL_THREADS), a->c,
               (const float *)o[BN_INF_RUNNING_VAR], a->eps, invstd));
    affine f = {(const float *)o[BN_INF_X], (const float *)o[BN_INF_GAMMA], (const float *)o[BN_INF_BETA],
                a->residual ? (const float *)o[BN_INF_RESIDUAL] : nullptr, (const float *)o[BN_INF_RUNNING_MEAN],
                invstd};
    return normalize(k, s, f, (float *)o[BN_INF_Y]);
}

/* ---- backward --------------------------------------------------------------------------------- */

/* g = (dy + dy2) * act'; xhat = (x - mean) * invstd */
struct gradient {
    affine forward;
    const float *y, *dy, *dy2; /* y is NULL but for RELU; dy2 may be NULL */
    int act;
};

__device__ static inline float gradient_at(const gradient &b, int64_t i, int64_t column)
{
    float dy = b.dy2 ? b.dy[i] + b.dy2[i] : b.dy[i];
    if (b.act == ACTIVATION_NONE) return dy;
    return activate_backward(b.act, b.y ? b.y[i] : argument_of(b.forward, i, column), dy);
}

__device__ static inline float xhat_at(const affine &f, int64_t i, int64_t column)
{
    return (f.x[i] - f.mean[column]) * f.invstd[column];
}

struct gradient_terms {
    static constexpr int SUMS = 2;
    gradient b;
    int64_t c;
    __device__ void at(int64_t row, int64_t column, float *sums) const
    {
        float g = gradient_at(b, row * c + column, column);
        sums[0] += g;
        sums[1] = fmaf(g, xhat_at(b.forward, row * c + column, column), sums[1]);
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

/* dx = gamma invstd (g - mean(g) - xhat mean(g xhat)). `count` is read from memory where it is given. */
struct gradient_apply {
    const float *x, *gamma, *mean, *invstd;
    const double *sums, *count_at;
    double count;
};

__device__ static inline float through(const gradient_apply &f, int64_t i, int64_t column, int64_t c, float g)
{
    double count = f.count_at ? *f.count_at : f.count;
    float mean_g = (float)(f.sums[column] / count), mean_gx = (float)(f.sums[c + column] / count);
    float xhat = (f.x[i] - f.mean[column]) * f.invstd[column];
    return f.gamma[column] * f.invstd[column] * (g - mean_g - xhat * mean_gx);
}

/* An element's g is written before its dx: dresidual or dx may lie in dy's memory. */
__global__ static void backward_kernel(gradient b, gradient_apply f, int64_t rows, int64_t c, float *dresidual, float *dx)
{
    int64_t column = own_column();
    if (column >= c) return;
    for (int64_t row = first_row(); row < rows; row += row_step()) {
        int64_t i = row * c + column;
        float g = gradient_at(b, i, column);
        if (dresidual) dresidual[i] = g;
        dx[i] = through(f, i, column, c, g);
    }
}

__global__ static void write_g(gradient b, int64_t rows, int64_t c, float *g)
{
    int64_t column = own_column();
    if (column >= c) return;
    for (int64_t row = first_row(); row < rows; row += row_step())
        g[row * c + column] = gradient_at(b, row * c + column, column);
}

__global__ static void backward_apply_kernel(gradient_apply f, const float *g, int64_t rows, int64_t c, float *dx)
{
    int64_t column = own_column();
    if (column >= c) return;
    for (int64_t row = first_row(); row < rows; row += row_step())
        dx[row * c + column] = through(f, row * c + column, column, c, g[row * c + column]);
}

static gradient gradient_of(const batchnorm_attributes *a, void *const *o)
{
    gradient b = {};
    b.forward = affine{(const float *)o[BN_BWD_X], (const float *)o[BN_BWD_GAMMA], (const float *)o[BN_BWD_BETA],
                       a->residual ? (const float *)o[BN_BWD_RESIDUAL] : nullptr, (const float *)o[BN_BWD_MEAN],
                       (const float *)o[BN_BWD_INVSTD]};
    b.y = a->act == ACTIVATION_RELU ? (const float *)o[BN_BWD_Y] : nullptr;
    b.dy = (const float *)o[BN_BWD_DY];
    b.dy2 = a->dy2 ? (const float *)o[BN_BWD_DY2] : nullptr;
    b.act = a->act;
    return b;
}

static status backward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    int64_t rows = rows_of(a);
    double *sums = (double *)workspace, *parts = sums + 2 * a->c;
    gradient b = gradient_of(a, o);
    gradient_sums finish = {a->c, sums, (float *)o[BN_BWD_DGAMMA], (float *)o[BN_BWD_DBETA],
                            cuda_accumulates(k, scalars)};
    TRY(column_sums(k, s, gradient_terms{b, a->c}, finish, rows, a->c, parts));
    gradient_apply f = {b.forward.x, b.forward.gamma, b.forward.mean, b.forward.invstd, sums, nullptr, (double)rows};
    return launch(k, s, backward_kernel, apply_grid(rows, a->c), dim3(WARP, APPLY_LANES), b, f, rows, a->c,
                  (float *)o[BN_BWD_DRESIDUAL], (float *)o[BN_BWD_DX]);
}

/* ---- over all ranks: each direction in two halves --------------------------------------------- */

static status stats(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *workspace)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    const float *x = (const float *)o[BN_STATS_X];
    write_raw_sums finish = {x, (double)rows_of(a), a->c, (double *)o[BN_STATS_SUMS]};
    return column_sums(k, s, moment_terms{x, a->c}, finish, rows_of(a), a->c, (double *)workspace);
}

static status apply(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    float *mean = (float *)o[BN_APPLY_MEAN], *invstd = (float *)o[BN_APPLY_INVSTD];
    running_statistics running = {(float *)o[BN_APPLY_RUNNING_MEAN], (float *)o[BN_APPLY_RUNNING_VAR], a->momentum};
    TRY(launch(k, s, statistics_from_sums, dim3((unsigned)ceil_div(a->c, CHANNEL_THREADS)), dim3(CHANNEL_THREADS), a->c,
               (const double *)o[BN_APPLY_SUMS], a->eps, running, mean, invstd));
    affine f = {(const float *)o[BN_APPLY_X], (const float *)o[BN_APPLY_GAMMA], (const float *)o[BN_APPLY_BETA],
                a->residual ? (const float *)o[BN_APPLY_RESIDUAL] : nullptr, mean, invstd};
    return normalize(k, s, f, (float *)o[BN_APPLY_Y]);
}

/* The slots of BN_BSTATS up to DY2 are those of BN_BWD. */
static status backward_stats(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                             void *workspace)
{
    static_assert((int)BN_BSTATS_DY2 == (int)BN_BWD_DY2 && (int)BN_BSTATS_MEAN == (int)BN_BWD_MEAN, "");
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    gradient b = gradient_of(a, o);
    gradient_sums finish = {a->c, (double *)o[BN_BSTATS_SUMS], (float *)o[BN_BSTATS_DGAMMA],
                            (float *)o[BN_BSTATS_DBETA], cuda_accumulates(k, scalars)};
    TRY(column_sums(k, s, gradient_terms{b, a->c}, finish, rows_of(a), a->c, (double *)workspace));
    return launch(k, s, write_g, apply_grid(rows_of(a), a->c), dim3(WARP, APPLY_LANES), b, rows_of(a), a->c,
                  (float *)o[BN_BSTATS_G]);
}

static status backward_apply(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    gradient_apply f = {(const float *)o[BN_BAPPLY_X], (const float *)o[BN_BAPPLY_GAMMA],
                        (const float *)o[BN_BAPPLY_MEAN], (const float *)o[BN_BAPPLY_INVSTD],
                        (const double *)o[BN_BAPPLY_SUMS], (const double *)o[BN_BAPPLY_COUNT], 0};
    return launch(k, s, backward_apply_kernel, apply_grid(rows_of(a), a->c), dim3(WARP, APPLY_LANES), f,
                  (const float *)o[BN_BAPPLY_G], rows_of(a), a->c, (float *)o[BN_BAPPLY_DX]);
}

extern "C" {
const cuda_kernel_entry cuda_batchnorm_forward = {prepare_sums, forward, nullptr};
const cuda_kernel_entry cuda_batchnorm_inference = {prepare_inference, inference, nullptr};
const cuda_kernel_entry cuda_batchnorm_backward = {prepare_sums, backward, nullptr};
const cuda_kernel_entry cuda_batchnorm_stats = {prepare_sums, stats, nullptr};
const cuda_kernel_entry cuda_batchnorm_apply = {nullptr, apply, nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_stats = {prepare_sums, backward_stats, nullptr};
const cuda_kernel_entry cuda_batchnorm_backward_apply = {nullptr, backward_apply, nullptr};
}
