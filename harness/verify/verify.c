#include "harness/verify/verify.h"

#include "common/base/random.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- limits of deviations (tests/golden/README.md, "Two comparisons") ---------------------------- */

static const double float64_limit = 1e-9; /* Relative to a tensor's norm, or to the loss. */
/* Limit for networks with ReLU, relative to a gradient's L2 norm. */
static const double kink_limit = 0.05;
/* Limits for GEMMs that round their inputs, relative to the compared figure. The unit roundoff of TF32 is
 * 2^-11, and the unit roundoff of bfloat16 is 2^-9. */
static const struct {
    double loss;
    double l2;    /* Limit of the L2 norm of a tensor. */
    double kinks; /* Limit of the L2 norm of a gradient in a network with ReLU. */
} rounded[] = {[DEVICE_PRECISION_TF32] = {0x1p-9, 0.05 / 4, 0.05 + 0.05 / 4},
               [DEVICE_PRECISION_BF16] = {0x1p-7, 0.05, 0.05 + 0.05}};
/* Relative error of PyTorch's float32 values above which a tensor is not compared. */
static const double unreliable = 1e-3;

static void judge(comparison *c, const char *what, double found, double expected, double limit)
{
    double off = fabs(found - expected);
    double share = off == 0 ? 0 : limit > 0 ? off / limit : INFINITY;
    if (isnan(found)) share = INFINITY;
    if (share <= c->share && c->what[0]) return;
    c->share = share;
    c->found = found;
    c->expected = expected;
    snprintf(c->what, sizeof c->what, "%s", what);
}

static bool is_rounded(const comparison *c)
{
    return !c->exact && c->precision != DEVICE_PRECISION_F32;
}

static double loss_limit(const comparison *c, double expected, double error)
{
    if (is_rounded(c)) return rounded[c->precision].loss * fabs(expected);
    if (c->exact) return float64_limit * fabs(expected);
    return 8 * fmax(error, 1e-6 * fabs(expected));
}

/* Compares the loss of a rank. If `rank` is -1, compares a loss over the batches of all ranks with the mean
 * of the ranks' losses. The loss over all batches equals this mean if all ranks have the same number of
 * targets. */
static void compare_loss(comparison *c, const golden_file *file, int64_t step, int rank, double loss)
{
    int first = rank < 0 ? 0 : rank, count = rank < 0 ? file->losses_per_step : 1;
    double expected = 0, error = 0;
    char what[96];
    for (int r = first; r < first + count; r++) {
        expected += file->loss[step * file->losses_per_step + r] / count;
        error += file->loss_error[step * file->losses_per_step + r] / count;
    }
    int used = snprintf(what, sizeof what, "loss of step %lld", (long long)step);
    if (rank >= 0) snprintf(what + used, sizeof what - (size_t)used, ", rank %d", rank);
    judge(c, what, loss, expected, loss_limit(c, expected, error));
}

typedef struct digest {
    double l2, sum;
} digest;

static digest digest_of(const double *values, int64_t count)
{
    /* Kahan summation: the sum of millions of values must be exact to 1e-9 of the norm. */
    double squares = 0, sum = 0, carry = 0;
    for (int64_t i = 0; i < count; i++) {
        squares += values[i] * values[i];
        double y = values[i] - carry, t = sum + y;
        carry = (t - sum) - y;
        sum = t;
    }
    return (digest){sqrt(squares), sum};
}

/* Compares a tensor; `values` are in PyTorch's order. `kind` is the word for the tensor in messages, such as
 * "gradient". In networks with ReLU (`kinks`) and with rounded GEMMs, compares only the L2 norm. */
static void compare_tensor(comparison *c, const golden_tensor *t, bool kinks, const char *kind,
                           const double *values)
{
    bool exact = c->exact, coarse = is_rounded(c);
    char what[sizeof c->what];
    c->tensors++;
    if (!exact && t->error > (kinks ? kink_limit : unreliable) * t->l2) {
        c->unchecked++;
        return;
    }
    /* The limit is relative to the tensor's norm. A gradient that is zero except for rounding (the bias of an
     * attention key) has no useful norm. The float32 error of this gradient is about 1e-7 of the norm of all
     * tensors, so 1e7 times this error takes the place of the norm. */
    double scale = float64_limit * (t->l2 > 10 * t->error ? t->l2 : 1e7 * t->error);
    double root = sqrt((double)t->elements), limit = exact ? scale : 8 * t->error;
    if (kinks)
        limit = (coarse ? rounded[c->precision].kinks : kink_limit) * t->l2;
    else if (coarse)
        limit = rounded[c->precision].l2 * t->l2;
    digest d = digest_of(values, t->elements);
    snprintf(what, sizeof what, "%s %s l2", kind, t->name);
    judge(c, what, d.l2, t->l2, limit);
    if (kinks || coarse) return;
    snprintf(what, sizeof what, "%s %s sum", kind, t->name);
    judge(c, what, d.sum, t->sum, exact ? scale : 200 * t->error);
    for (int i = 0; i < t->sample_count; i++) {
        snprintf(what, sizeof what, "%s %s[%lld]", kind, t->name, (long long)t->sample_index[i]);
        judge(c, what, values[t->sample_index[i]], t->sample_value[i], exact ? scale : 32 * t->error / root);
    }
}

/* ---- a trajectory ------------------------------------------------------------------------------ */

typedef struct verification {
    const verify_config *config;
    nn_model *model;
    status_table *table;
    uint64_t token;
    sync_requirements needs;
    bool first_holds_all; /* True if rank 0 has the averages of all gradients. */
    /* Copy of golden_file.kinks, but false in float64. */
    bool kinks;
    double *losses;   /* [steps][world] */
    char *gradients;  /* Averaged gradients of all ranks, in host memory, in the type of the device. */
    double **buffers; /* [world * buffer_count] */
    comparison *out;
} verification;

static status load_params(const verification *v, trainer *t)
{
    const nn_model *m = v->model;
    param_set *set = trainer_params(t);
    TRY(param_set_initialize(set, trainer_stream(t), 0)); /* sets the buffers */
    for (int i = 0; i < m->param_count; i++) {
        float *values = malloc((size_t)m->params[i].elements * sizeof *values);
        if (!values) return fail(STATUS_SYSTEM, "no memory for parameter %s", m->params[i].name);
        golden_fill_param(v->config->file, &m->params[i], values);
        status rc = param_set_import(set, trainer_stream(t), set->params.data, i, DTYPE_F32, values);
        free(values);
        TRY(rc);
    }
    return STATUS_OK;
}

/* Copies the averaged gradients of this rank to the arena of all ranks. Servers hold disjoint shards, so each
 * rank copies its shard. After an all-reduce every rank holds all gradients, and only rank 0 copies. */
static status collect_gradients(verification *v, local_ranks *group, int rank, trainer *t)
{
    param_set *set = trainer_params(t);
    size_t size = (size_t)dtype_size(set->type);
    piece_list owned = {0};
    TRY(sync_flush(trainer_engine(t)));
    const char *arena = sync_reduced_gradients(trainer_engine(t), &owned);
    if (rank == 0) {
        v->gradients = calloc((size_t)set->arena_elements, size);
        if (!v->gradients)
            return fail(STATUS_SYSTEM, "no memory for the gradients of %s", v->config->file->path);
        piece_list all = param_set_pieces(set, 0, set->model->param_count);
        v->first_holds_all = arena && piece_list_elements(owned) == piece_list_elements(all);
    }
    TRY(local_ranks_barrier(group));
    if (rank > 0 && v->first_holds_all) owned.count = 0;
    for (int i = 0; arena && i < owned.count; i++) {
        size_t at = (size_t)owned.pieces[i].offset * size;
        TRY(device_download(trainer_stream(t), v->gradients + at, arena + at, set->type, set->type,
                            owned.pieces[i].count));
    }
    TRY(device_stream_synchronize(trainer_stream(t)));
    return local_ranks_barrier(group);
}

static status export_buffers(verification *v, int rank, trainer *t)
{
    const nn_model *m = v->model;
    for (int i = 0; i < m->buffer_count; i++) {
        double *values = malloc((size_t)m->buffers[i].elements * sizeof *values);
        if (!values) return fail(STATUS_SYSTEM, "no memory for buffer %s", m->buffers[i].name);
        v->buffers[rank * m->buffer_count + i] = values;
        TRY(param_set_export_buffer(trainer_params(t), trainer_stream(t), i, DTYPE_F64, values));
    }
    return STATUS_OK;
}

static const golden_tensor *find_tensor(const golden_tensors *tensors, const char *name)
{
    for (int i = 0; i < tensors->count; i++)
        if (strcmp(tensors->list[i].name, name) == 0) return &tensors->list[i];
    return NULL;
}

/* Compares all gradients, or all parameters if `gradients` is NULL. */
static status compare_params(verification *v, trainer *t, const golden_tensors *golden, const char *kind,
                             const char *gradients)
{
    const nn_model *m = v->model;
    param_set *set = trainer_params(t);
    if (golden->count != m->param_count)
        return fail(STATUS_DATA, "expected %d tensors, as the model %s has, got %d", m->param_count, m->name,
                    golden->count);
    for (int i = 0; i < m->param_count; i++) {
        const golden_tensor *g = find_tensor(golden, m->params[i].name);
        if (!g || g->elements != m->params[i].elements)
            return fail(STATUS_DATA, "%s is missing or has another shape than in the model",
                        m->params[i].name);
        double *values = malloc((size_t)g->elements * sizeof *values);
        if (!values) return fail(STATUS_SYSTEM, "no memory for parameter %s", g->name);
        status rc = gradients
                        ? param_set_export(set, NULL, gradients, i, DTYPE_F64, values)
                        : param_set_export(set, trainer_stream(t), set->params.data, i, DTYPE_F64, values);
        if (rc == STATUS_OK) compare_tensor(v->out, g, v->kinks, kind, values);
        free(values);
        TRY(rc);
    }
    return STATUS_OK;
}

static status run_steps(verification *v, local_ranks *group, int rank, trainer *t, batch_source *source)
{
    const golden_file *f = v->config->file;
    for (int64_t s = 0; s < f->steps; s++) {
        step_result result;
        TRY(trainer_step(t, source, s, s, &result));
        v->losses[s * f->world + rank] = result.loss;
        if (s + 1 == f->steps) TRY(export_buffers(v, rank, t));
        if (s > 0) continue;
        TRY(collect_gradients(v, group, rank, t));
        if (rank == 0) TRY(compare_params(v, t, &f->gradients, "gradient", v->gradients));
    }
    TRY(sync_flush(trainer_engine(t)));
    TRY(sync_gather_parameters(trainer_engine(t)));
    TRY(local_ranks_barrier(group));
    if (rank == 0 && !v->kinks) TRY(compare_params(v, t, &f->parameters_final, "parameter", NULL));
    return local_ranks_barrier(group); /* A peer may still use this rank's memory. */
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    verification *v = context;
    const verify_config *c = v->config;
    trainer_config config = {.sync.rank = rank,
                             .sync.world = c->file->world,
                             .sync.job_token = v->token,
                             .device = c->device,
                             .precision = c->precision,
                             .threads = c->threads,
                             .cuda_graph = c->cuda_graph,
                             .sync.share_gpu = true, /* Ranks are threads of one process. */
                             .model = v->model,
                             .engine = c->engine,
                             .sync.options = c->engine_options,
                             .sync.policy = c->policy,
                             .optimizer = &c->file->optimizer,
                             .batch = c->file->batch,
                             .masked_loss = true,
                             .total_steps = c->file->steps,
                             .prefetch = true,
                             .sync.slot = status_table_slot(v->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S,
                             .sync.divide = c->divide};
    trainer *t = NULL;
    batch_source *source = NULL;
    status rc;
    TRY_GOTO(rc, trainer_open(&config, &t), out);
    TRY_GOTO(rc, load_params(v, t), out);
    bool all = trainer_loads(t) == TRAINER_LOADS_ALL;
    TRY_GOTO(rc, golden_source_open(c->file, v->model, rank, all ? c->file->world : 1, &source), out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, t), out);
    rc = run_steps(v, group, rank, t, source);
out:
    trainer_close(&t); /* The trainer may still copy a batch. */
    if (source) batch_source_close(&source);
    return rc;
}

/* Compares losses and buffers after all ranks have ended. */
static status compare_rest(verification *v)
{
    const golden_file *f = v->config->file;
    const nn_model *m = v->model;
    for (int64_t s = 0; s < (v->kinks ? 1 : f->steps); s++) {
        if (v->needs.one_loss) compare_loss(v->out, f, s, -1, v->losses[s * f->world]);
        for (int r = 0; r < f->losses_per_step && !v->needs.one_loss; r++)
            compare_loss(v->out, f, s, r, v->losses[s * f->world + r]);
    }
    for (int r = 0; r < (v->needs.shares_buffers ? f->world : 1) && !v->kinks; r++) {
        for (int i = 0; i < m->buffer_count; i++) {
            char name[GOLDEN_NAME_MAX];
            snprintf(name, sizeof name, "rank%d.%s", r, m->buffers[i].name);
            const golden_tensor *g = find_tensor(&f->buffers_final, name);
            if (!g || g->elements != m->buffers[i].elements)
                return fail(STATUS_DATA, "buffer %s is missing or has another shape than in the model", name);
            compare_tensor(v->out, g, false, "buffer", v->buffers[r * m->buffer_count + i]);
        }
    }
    return STATUS_OK;
}

static status run_and_compare(verification *v)
{
    const verify_config *c = v->config;
    TRY(model_build(&c->file->model, &v->model));
    if (c->file->parameters != v->model->parameter_elements)
        return fail(STATUS_DATA, "expected %lld parameters, as the model %s has, got %lld",
                    (long long)v->model->parameter_elements, v->model->name, (long long)c->file->parameters);
    if (c->engine == &sync_none && c->file->world != 1)
        return fail(STATUS_CONFIG, "mode none: expected 1 rank, got %d", c->file->world);
    TRY(c->engine->requirements(c->engine_options, c->policy, c->file->world, &v->needs));
    TRY(status_table_create(v->token, c->file->world, &v->table));
    v->losses = calloc((size_t)(c->file->steps * c->file->world), sizeof *v->losses);
    v->buffers = calloc((size_t)(c->file->world * v->model->buffer_count + 1), sizeof *v->buffers);
    if (!v->losses || !v->buffers) return fail(STATUS_SYSTEM, "no memory to verify %s", c->file->path);
    TRY(local_ranks_run(c->file->world, run_rank, v));
    return compare_rest(v);
}

status verify_run(const verify_config *config, comparison *out)
{
    bool exact = strcmp(config->device, "reference") == 0;
    *out = (comparison){.exact = exact, .precision = config->precision};
    verification v = {
        .config = config, .token = random_token(), .kinks = !exact && config->file->kinks, .out = out};
    status rc = run_and_compare(&v);
    for (int i = 0; v.buffers && i < config->file->world * v.model->buffer_count; i++) free(v.buffers[i]);
    free(v.buffers);
    free(v.losses);
    free(v.gradients);
    status_table_close(&v.table);
    nn_model_free(&v.model);
    return rc;
}
