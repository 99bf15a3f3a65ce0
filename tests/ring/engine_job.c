#include "tests/ring/engine_job.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model -------------------------------------------------------------------------------- */

/* Builds a model of convolutions, BatchNorm and linear layers, with parameters of very different sizes and
 * with buffers. */
static status build(nn_model **out)
{
    nn_model *m = NULL;
    TRY(nn_model_create("job", &m));
    nn_ref x = nn_input_image(m, 8, 8, 3);
    x = nn_conv2d(m, x, "conv1", 16, 3, 1, 1, false, nn_init_default());
    x = nn_batchnorm(m, x, "bn1", 1e-5, false);
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_conv2d(m, x, "conv2", 16, 3, 1, 1, true, nn_init_default());
    x = nn_batchnorm(m, x, "bn2", 1e-5, false);
    x = nn_global_avgpool(m, x);
    x = nn_linear(m, x, "fc1", 100, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "fc2", 60, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "fc3", 10, true, nn_init_default());
    status rc = nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
    *out = m;
    return rc;
}

/* ---- values ----------------------------------------------------------------------------------- */

double job_value(int rank, int64_t step, int param, int64_t i)
{
    return (double)((i * 3 + rank * 5 + step * 2 + param + i / 7) % 7 - 3);
}

double job_mean(int world, int64_t step, int param, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < world; r++) sum += job_value(r, step, param, i);
    return sum;
}

double job_element(const engine_rank *r, const device_memory *arena, int param, int64_t i)
{
    int64_t at = r->params->pieces[param].offset + i;
    return r->params->type == DTYPE_F64 ? ((const double *)arena->data)[at]
                                        : ((const float *)arena->data)[at];
}

void job_set_element(const engine_rank *r, const device_memory *arena, int param, int64_t i, double value)
{
    int64_t at = r->params->pieces[param].offset + i;
    if (r->params->type == DTYPE_F64)
        ((double *)arena->data)[at] = value;
    else
        ((float *)arena->data)[at] = (float)value;
}

/* ---- steps ------------------------------------------------------------------------------------ */

sync_step job_step_of(const engine_rank *r, int64_t index)
{
    (void)r;
    return (sync_step){
        .index = index, .samples = 4, .targets = 4, .learning_rate = 0.125, .synchronize = true};
}

status job_begin(engine_rank *r, const sync_step *step)
{
    ledger_enter(&r->ledger, LEDGER_PHASE_BEGIN);
    return sync_begin_forward(r->engine, step);
}

status job_backward(engine_rank *r, const sync_step *step, const bool *skip, int turn)
{
    const nn_program *p = r->job->program;
    ledger_enter(&r->ledger, LEDGER_PHASE_BACKWARD);
    for (int k = 0; k < p->ready_count; k++) {
        int param = p->ready_order[(k + turn) % p->ready_count];
        if (skip && skip[param]) continue;
        for (int64_t i = 0; i < r->params->pieces[param].count; i++)
            job_set_element(r, &r->params->grads, param, i,
                            r->context->world * job_value(r->context->rank, step->index, param, i));
        TRY(sync_ready(r->engine, param));
    }
    return STATUS_OK;
}

status job_finish(engine_rank *r, const sync_step *step)
{
    ledger_enter(&r->ledger, LEDGER_PHASE_REDUCE);
    TRY(sync_reduce(r->engine, step));
    if (step->synchronize) {
        TRY(sync_begin_update(r->engine, step));
        TRY(sync_take_norm(r->engine));
        TRY(sync_update(r->engine, step));
    }
    int64_t now = clock_now_ns();
    anatomy_phase phase = {r->ended_ns, STEP_OTHER};
    sync_end_step(r->engine, (anatomy_span){r->ended_ns, now}, &phase, 1, &r->figures);
    r->ended_ns = now;
    return STATUS_OK;
}

status job_whole_step(engine_rank *r, int64_t index)
{
    sync_step step = job_step_of(r, index);
    TRY(job_begin(r, &step));
    TRY(job_backward(r, &step, NULL, 0));
    return job_finish(r, &step);
}

status job_check_gradients(const engine_rank *r, int64_t step)
{
    const param_set *set = r->params;
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++) {
            double found = job_element(r, &set->grads, p, i), right = job_mean(r->context->world, step, p, i);
            if (found != right)
                return rank_error(STATUS_MISMATCH,
                                  "policy %s, step %lld, %s[%lld]: found %.9g, expected %.9g", r->job->policy,
                                  (long long)step, set->model->params[p].name, (long long)i, found, right);
        }
    return STATUS_OK;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static status parse_options(engine_rank *r)
{
    option_binding binding = {.table = &ring_option_table, .storage = &r->options};
    const char *positional[JOB_WORDS];
    char *words[JOB_WORDS];
    int count = 0, positionals;
    TRY(options_defaults(&binding, 1));
    while (count < JOB_WORDS && r->job->words[count]) {
        snprintf(r->words[count], sizeof r->words[count], "%s", r->job->words[count]);
        words[count] = r->words[count];
        count++;
    }
    return options_parse(&binding, 1, count, words, positional, &positionals);
}

static status open_engine(engine_rank *r)
{
    engine_job *job = r->job;
    sync_context context = {.rank = r->context->rank,
                            .world = r->context->world,
                            .job_token = r->context->token,
                            .device = r->device,
                            .compute = r->stream,
                            .params = r->params,
                            .program = job->program,
                            .optimizer = r->optimizer,
                            .ledger = &r->ledger,
                            .slot = &r->slot,
                            .options = &r->options,
                            .policy = job->policy,
                            .stall_timeout_ns = job->stall_timeout_ns ? job->stall_timeout_ns : 20 * NS_PER_S,
                            .inline_progress = job->inline_progress,
                            .divide = job->divide};
    return sync_open(&sync_ring, &context, &r->engine);
}

static status open_rank(engine_rank *r)
{
    engine_job *job = r->job;
    sync_requirements needs;
    optimizer_options sgd = optimizer_defaults(OPTIMIZER_SGD);
    device_config config = {.name = job->device ? job->device : "cpu",
                            .rank = r->context->rank,
                            .world = r->context->world,
                            .threads = 1};
    rank_slot_begin(&r->slot, r->context->rank);
    TRY(device_open(&config, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    TRY(parse_options(r));
    TRY(sync_ring.requirements(&r->options, job->policy, job->world, &needs));
    param_set_config kinds = {.param_kind = needs.param_kind,
                              .grad_kind = needs.grad_kind,
                              .buffer_kind = needs.buffer_kind,
                              .gradients = true};
    TRY(param_set_open(r->device, job->model, job->program, &kinds, &r->params));
    TRY(optimizer_open(r->device, &sgd, r->params->type, r->params->arena_elements, 1, &r->ledger,
                       &r->optimizer));
    if (job->prepare) job->prepare(r);
    return open_engine(r);
}

static void close_rank(engine_rank *r)
{
    sync_close(&r->engine);
    optimizer_close(&r->optimizer);
    param_set_close(&r->params);
    device_stream_close(&r->stream);
    if (r->device) device_close(&r->device);
}

static status rank_of_job(rank_context *context)
{
    engine_job *job = (engine_job *)context->shared;
    engine_rank rank = {.context = context, .job = job};
    status rc = open_rank(&rank);
    if (rc == STATUS_OK) rc = sync_handshake(rank.engine, &job->handshakes[context->rank]);
    pthread_barrier_wait(&job->barrier);
    if (rc == STATUS_OK) rc = sync_connect(rank.engine, job->handshakes);
    pthread_barrier_wait(&job->barrier); /* ranks read each other's handshakes until this barrier */
    if (rc == STATUS_OK) rc = job->body(&rank);
    close_rank(&rank);
    return rc;
}

static status compile(engine_job *job)
{
    bool wide = job->device && strcmp(job->device, "reference") == 0;
    nn_program_config config = {
        .batch = 4, .mode = NN_TRAIN, .type = wide ? DTYPE_F64 : DTYPE_F32, .world = 1};
    TRY(build(&job->model));
    TRY(nn_program_compile(job->model, &config, &job->program));
    job->program->ops[0].group_reduce = job->group_values;
    return STATUS_OK;
}

#include <cmocka.h>

void engine_job_run(engine_job *job, rank_context *results)
{
    error_clear();
    if (compile(job) != STATUS_OK) fail_msg("the model: %s", error_message());
    pthread_barrier_init(&job->barrier, NULL, (unsigned)job->world);
    ranks_run(job->world, rank_of_job, job, results);
    pthread_barrier_destroy(&job->barrier);
    nn_program_free(&job->program);
    nn_model_free(&job->model);
}

void engine_job_run_well(engine_job *job)
{
    rank_context results[RANKS_MAX];
    engine_job_run(job, results);
    for (int r = 0; r < job->world; r++)
        if (results[r].error.code != STATUS_OK)
            fail_msg("policy %s %s, rank %d of %d: %s", job->policy, job->words[0] ? job->words[0] : "", r,
                     job->world, results[r].error.message);
}
