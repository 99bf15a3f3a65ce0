/* Batch normalization (Ioffe and Szegedy, 2015) with PyTorch's conventions, fused with the residual addition
 * and the activation that follow. Tensors are [rows, c] with rows = n h w. batchnorm_backward_cuda.cu has the
 * backward pass.
 *
 * Moments are computed from d = x - x[0], the difference from the first value of the channel. If the mean of
 * a channel is far larger than its standard deviation, E[x^2] - E[x]^2 loses precision, but E[d^2] - E[d]^2
 * does not. Statistics are computed from the stored x, which may have been rounded to bfloat16.
 *
 * Memory traffic: x is read twice, the residual is read once, and y is written once. A kernel that is not
 * fused with the convolution needs at least this traffic. */
#include "common/device/cuda/module/batchnorm.cuh"

/* ---- statistics ------------------------------------------------------------------------------- */

template <typename T, int PACK> struct moment_terms {
    static constexpr int SUMS = 2, V = PACK, AT_ONCE = 4;
    const T *x;
    int64_t c;
    struct first_row {
        float at[V];
    };
    __device__ first_row at_column(int64_t column) const
    {
        first_row first;
        load_pack<V>(x + column, first.at);
        return first;
    }
    __device__ pack<T, V> read(int64_t row, int64_t column) const
    {
        return take_pack<V>(x + row * c + column);
    }
    __device__ void add(const first_row &first, const pack<T, V> &taken, int64_t, int64_t,
                        float (*sums)[V]) const
    {
        float values[V];
        unpack<V>(taken, values);
        for (int v = 0; v < V; v++) {
            float d = values[v] - first.at[v];
            sums[0][v] += d;
            sums[1][v] = fmaf(d, d, sums[1][v]);
        }
    }
};

/* Results. Each array has c elements. */
struct statistics_out {
    float *mean, *invstd, *running_mean, *running_var;
    double momentum, eps;
    __device__ void set(int64_t column, double m, double var, double count) const
    {
        if (var < 0) var = 0;
        mean[column] = (float)m;
        invstd[column] = (float)(1 / sqrt(var + eps));
        running_mean[column] = (float)((1 - momentum) * running_mean[column] + momentum * m);
        running_var[column] =
            (float)((1 - momentum) * running_var[column] + momentum * (var * count / (count - 1)));
    }
};

template <typename T> struct batch_statistics {
    static constexpr int SUMS = 2;
    const T *x;
    double count;
    statistics_out out;
    __device__ void take(int64_t column, const double *sums) const
    {
        double d = sums[0] / count;
        out.set(column, load(x + column) + d, sums[1] / count - d * d, count);
    }
};

/* Computes the sums of x and x^2 from the sums of d and d^2. */
template <typename T> struct write_raw_sums {
    static constexpr int SUMS = 2;
    const T *x;
    double count;
    int64_t c;
    double *out; /* [2c + 1] */
    __device__ void take(int64_t column, const double *sums) const
    {
        double shift = load(x + column);
        out[column] = sums[0] + count * shift;
        out[c + column] = sums[1] + 2 * shift * sums[0] + count * shift * shift;
        if (column == 0) out[2 * c] = count;
    }
};

__global__ static void statistics_from_sums(int64_t c, const double *sums, statistics_out out)
{
    int64_t column = global_thread();
    if (column >= c) return;
    double count = sums[2 * c], m = sums[column] / count;
    out.set(column, m, sums[c + column] / count - m * m, count);
}

__global__ static void invstd_of(int64_t c, const float *var, double eps, float *invstd)
{
    int64_t column = global_thread();
    if (column < c) invstd[column] = (float)(1 / sqrt((double)var[column] + eps));
}

/* ---- y ---------------------------------------------------------------------------------------- */

template <typename T, int PACK, bool RESIDUAL> struct normalize_rule {
    static constexpr int V = PACK, AT_ONCE = RESIDUAL ? 2 : 4;
    struct row {
        pack<T, V> x, residual; /* residual is read only if RESIDUAL */
    };
    const T *x, *residual;
    channel_vectors f;
    int act;
    T *y;
    __device__ channels<V> at_column(int64_t column) const
    {
        return channels_at<V>(f, column);
    }
    __device__ row read(int64_t i) const
    {
        row taken;
        taken.x = take_pack<V>(x + i);
        if constexpr (RESIDUAL) taken.residual = take_pack<V>(residual + i);
        return taken;
    }
    __device__ void write(const channels<V> &kept, const row &taken, int64_t i) const
    {
        float values[V], more[V];
        unpack<V>(taken.x, values);
        for (int v = 0; v < V; v++) values[v] = argument(kept, v, values[v]);
        if constexpr (RESIDUAL) {
            unpack<V>(taken.residual, more);
            for (int v = 0; v < V; v++) values[v] += more[v];
        }
        for (int v = 0; v < V; v++) values[v] = activate(act, values[v]);
        store_pack<V>(y + i, values);
    }
};

template <typename T, int V>
static status normalize(const kernel_call &call, const float *mean, const float *invstd)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    const T *x = call[BN_FWD_X], *residual = call[BN_FWD_RESIDUAL];
    T *y = call[BN_FWD_Y];
    channel_vectors f = {mean, invstd, call[BN_FWD_GAMMA], call[BN_FWD_BETA]};
    if (residual) return apply_to(call, normalize_rule<T, V, true>{x, residual, f, a->act, y});
    return apply_to(call, normalize_rule<T, V, false>{x, nullptr, f, a->act, y});
}

template <typename T, int V, typename Finish> static status moments(const kernel_call &call, Finish finish)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    return column_sums(call, moment_terms<T, V>{call[BN_FWD_X], a->c}, finish, rows_of(a), a->c);
}

static status prepare_sums(cuda_kernel *k)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    k->base.workspace = column_workspace(rows_of(a), a->c, 2);
    return STATUS_OK;
}

static_assert((int)BN_FWD_Y == (int)BN_FWD_Y && (int)BN_FWD_INVSTD == (int)BN_FWD_INVSTD,
              "slots of the forward operations");

static statistics_out statistics_of(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    return {call[BN_FWD_MEAN],        call[BN_FWD_INVSTD], call[BN_FWD_RUNNING_MEAN],
            call[BN_FWD_RUNNING_VAR], a->momentum,         a->eps};
}

template <typename T> static status forward(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    batch_statistics<T> finish = {call[BN_FWD_X], (double)rows_of(a), statistics_of(call)};
    TRY(WITH_PACKS(moments, T, a->c, call, finish));
    return WITH_PACKS(normalize, T, a->c, call, call[BN_FWD_MEAN], call[BN_FWD_INVSTD]);
}

static status prepare_inference(cuda_kernel *k)
{
    k->base.workspace = (size_t)k->base.op.u.batchnorm.c * sizeof(float);
    return STATUS_OK;
}

template <typename T> static status inference(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    float *invstd = call.scratch();
    TRY(per_channel(call, invstd_of, call[BN_FWD_RUNNING_VAR], a->eps, invstd));
    return WITH_PACKS(normalize, T, a->c, call, call[BN_FWD_RUNNING_MEAN], invstd);
}

/* ---- SyncBatchNorm, in two halves --------------------------------------------------------------- */

template <typename T> static status stats(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    write_raw_sums<T> finish = {call[BN_STATS_X], (double)rows_of(a), a->c, call[BN_STATS_SUMS]};
    return WITH_PACKS(moments, T, a->c, call, finish);
}

template <typename T> static status apply(const kernel_call &call)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    TRY(per_channel(call, statistics_from_sums, call[BN_FWD_SUMS], statistics_of(call)));
    return WITH_PACKS(normalize, T, a->c, call, call[BN_FWD_MEAN], call[BN_FWD_INVSTD]);
}

extern "C" {
const cuda_kernel_entry cuda_batchnorm_forward = {prepare_sums, BY_STORAGE(forward), nullptr};
const cuda_kernel_entry cuda_batchnorm_inference = {prepare_inference, BY_STORAGE(inference), nullptr};
const cuda_kernel_entry cuda_batchnorm_stats = {prepare_sums, BY_STORAGE(stats), nullptr};
const cuda_kernel_entry cuda_batchnorm_apply = {nullptr, BY_STORAGE(apply), nullptr};
}
