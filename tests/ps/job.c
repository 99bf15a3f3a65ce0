#include "tests/ps/job.h"

#include "common/base/random.h"
#include "ps/ps.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#define RATE 0.125

/* Builds a model of convolutions, BatchNorm with buffers, and a linear layer with a bias. Parameters have 8
 * to 1152 elements. */
static void build_model(bool sync, nn_model **out)
{
    nn_model *m;
    assert_ok(nn_model_create("job", &m));
    nn_ref x = nn_input_image(m, 4, 4, 3);
    x = nn_conv2d(m, x, "conv1", 8, 3, 1, 1, false, nn_init_default());
    x = nn_activation(m, nn_batchnorm(m, x, "bn1", 1e-5, sync), ACTIVATION_RELU);
    x = nn_conv2d(m, x, "conv2", 16, 3, 1, 1, false, nn_init_default());
    x = nn_activation(m, nn_batchnorm(m, x, "bn2", 1e-5, sync), ACTIVATION_RELU);
    x = nn_linear(m, nn_global_avgpool(m, x), "fc", 5, true, nn_init_default());
    assert_ok(nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY));
    *out = m;
}

static void parse_options(job *j)
{
    option_binding binding = {.table = &ps_option_table, .storage = &j->options};
    char text[512];
    char *words[32];
    int count = 0;
    assert_ok(options_defaults(&binding, 1));
    snprintf(text, sizeof text, "%s", j->config.options ? j->config.options : "");
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    const char *positional[32];
    int positional_count = 0;
    assert_ok(options_parse(&binding, 1, count, words, positional, &positional_count));
    /* No option keeps a pointer into `text`, since the only text option has its default. */
    assert_int_equal(positional_count, 0);
}

void job_open(const job_config *config, job *j)
{
    *j = (job){.config = *config, .token = random_token()};
    if (!j->config.device) j->config.device = "reference";
    if (!j->config.policy) j->config.policy = "sync";
    if (!j->config.stall_timeout_ns) j->config.stall_timeout_ns = 60 * NS_PER_S;
    if (j->config.scale == 0) j->config.scale = 1;
    if (j->config.optimizer.lr == 0) j->config.optimizer = optimizer_defaults(OPTIMIZER_SGD);
    parse_options(j);
    build_model(config->sync_batchnorm, &j->model);
    bool wide = strcmp(j->config.device, "reference") == 0;
    nn_program_config program = {
        .batch = 2, .mode = NN_TRAIN, .type = wide ? DTYPE_F64 : DTYPE_F32, .world = config->world};
    assert_ok(nn_program_compile(j->model, &program, &j->program));
    assert_ok(status_table_create(j->token, config->world, &j->table));
    if (!config->processes) assert_ok(transport_hub_open(&j->hub));
}

void job_close(job *j)
{
    transport_hub_close(&j->hub);
    status_table_close(&j->table);
    nn_program_free(&j->program);
    nn_model_free(&j->model);
}

double job_param(const param_set *set, const void *arena, int param, int64_t i)
{
    int64_t at = set->pieces[param].offset + i;
    return set->type == DTYPE_F64 ? ((const double *)arena)[at] : ((const float *)arena)[at];
}

void job_set(const param_set *set, void *arena, int param, int64_t i, double value)
{
    int64_t at = set->pieces[param].offset + i;
    if (set->type == DTYPE_F64)
        ((double *)arena)[at] = value;
    else
        ((float *)arena)[at] = (float)value;
}

double job_gradient(int rank, int64_t round, int param, int64_t i)
{
    return (double)((rank * 7 + round * 5 + param * 3 + i) % 11 - 4);
}

double job_initial(int param, int64_t i)
{
    return (double)((param * 5 + i) % 13 - 6);
}

double job_buffer(int rank, int64_t step, int buffer)
{
    return (double)(rank * 1000 + (step + 1) * 10 + buffer);
}

static void write_buffers(const job_rank *r, int64_t step)
{
    const param_set *set = r->params;
    for (int b = 0; b < set->model->buffer_count; b++) {
        for (int64_t i = 0; i < set->buffer_pieces[b].count; i++) {
            double value = job_buffer(r->rank, step, b);
            int64_t at = set->buffer_pieces[b].offset + i;
            if (set->type == DTYPE_F64)
                ((double *)set->buffers.data)[at] = value;
            else
                ((float *)set->buffers.data)[at] = (float)value;
        }
    }
}

void job_expect_buffers(job_rank *r, int of_rank, int64_t step)
{
    const param_set *set = r->params;
    for (int b = 0; b < set->model->buffer_count && !r->error[0]; b++) {
        for (int64_t i = 0; i < set->buffer_pieces[b].count && !r->error[0]; i++) {
            int64_t at = set->buffer_pieces[b].offset + i;
            const void *buffers = set->buffers.data;
            double found =
                set->type == DTYPE_F64 ? ((const double *)buffers)[at] : ((const float *)buffers)[at];
            if (found != job_buffer(of_rank, step, b))
                snprintf(r->error, sizeof r->error, "rank %d, step %d, buffer %d: found %g, expected %g",
                         r->rank, (int)r->next, b, found, job_buffer(of_rank, step, b));
        }
    }
}

void job_expect_params(job_rank *r, const param_set *expected)
{
    const param_set *set = r->params;
    for (int p = 0; p < set->model->param_count && !r->error[0]; p++) {
        for (int64_t i = 0; i < set->pieces[p].count && !r->error[0]; i++) {
            double found = job_param(set, set->params.data, p, i);
            double wanted = job_param(expected, expected->params.data, p, i);
            if (found != wanted)
                snprintf(r->error, sizeof r->error,
                         "rank %d, after %d steps, %s[%d]: found %.17g, expected %.17g", r->rank,
                         (int)r->next, set->model->params[p].name, (int)i, found, wanted);
        }
    }
}

static void fill_params(const param_set *set)
{
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++)
            job_set(set, set->params.data, p, i, job_initial(p, i));
}

/* ---- a rank ----------------------------------------------------------------------------------- */

static status open_memory(job_rank *r, const sync_requirements *needs)
{
    job *j = r->job;
    param_set_config config = {.param_kind = needs->param_kind,
                               .grad_kind = needs->grad_kind,
                               .buffer_kind = needs->buffer_kind,
                               .gradients = true};
    TRY(param_set_open(r->device, j->model, j->program, &config, &r->params));
    const param_set *set = r->params;
    int64_t reserved = (set->arena_elements + set->buffer_elements) * dtype_size(set->type);
    ledger_acquire(&r->ledger, needs->param_class, set->logical_bytes + set->buffer_bytes, reserved);
    fill_params(set);
    write_buffers(r, -1);
    return optimizer_open(r->device, &j->config.optimizer, set->type, set->arena_elements,
                          j->model->parameter_elements, &r->ledger, &r->optimizer);
}

status job_rank_open(job *j, int rank, job_rank *r)
{
    const job_config *c = &j->config;
    *r = (job_rank){.job = j, .rank = rank};
    sync_requirements needs;
    device_config device = {
        .name = c->device, .rank = rank, .world = c->world, .local_rank = rank, .threads = 1};
    TRY(sync_ps.requirements(&j->options, c->policy, c->world, &needs));
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    TRY(open_memory(r, &needs));
    sync_context context = {.rank = rank,
                            .world = c->world,
                            .job_token = j->token,
                            .device = r->device,
                            .compute = r->stream,
                            .params = r->params,
                            .program = j->program,
                            .optimizer = r->optimizer,
                            .ledger = &r->ledger,
                            .slot = status_table_slot(j->table, rank),
                            .options = &j->options,
                            .policy = c->policy,
                            .stall_timeout_ns = c->stall_timeout_ns,
                            .inline_progress = c->inline_progress,
                            .divide = c->divide,
                            .hub = j->hub};
    return sync_open(&sync_ps, &context, &r->engine);
}

void job_rank_close(job_rank *r)
{
    sync_close(&r->engine);
    optimizer_close(&r->optimizer);
    param_set_close(&r->params);
    device_stream_close(&r->stream);
    device_close(&r->device);
}

typedef struct running {
    job *job;
    job_function function;
    int servers; /* number of separate servers */
} running;

typedef struct exchanging {
    local_ranks *group;
    int member;
} exchanging;

static status exchange(void *context, sync_blob mine, const sync_blob **handshakes)
{
    exchanging *x = context;
    return local_ranks_exchange(x->group, x->member, mine, handshakes);
}

status job_serve(job *j, int member,
                 status (*exchange_handshakes)(void *context, sync_blob mine, const sync_blob **handshakes),
                 void *exchange_context)
{
    const job_config *c = &j->config;
    job_rank r = {.job = j};
    sync_requirements needs;
    device_config device = {.name = c->device, .world = 1, .threads = 1};
    status rc;
    TRY_GOTO(rc, sync_ps.requirements(&j->options, c->policy, c->world, &needs), out);
    TRY_GOTO(rc, device_open(&device, &r.device), out);
    param_set_config arenas = {.param_kind = needs.param_kind};
    TRY_GOTO(rc, param_set_open(r.device, j->model, j->program, &arenas, &r.params), out);
    TRY_GOTO(rc,
             optimizer_open(r.device, &c->optimizer, r.params->type, r.params->arena_elements,
                            j->model->parameter_elements, &r.ledger, &r.optimizer),
             out);
    sync_context server = {.rank = member,
                           .world = c->world,
                           .job_token = j->token,
                           .device = r.device,
                           .params = r.params,
                           .program = j->program,
                           .optimizer = r.optimizer,
                           .ledger = &r.ledger,
                           .options = &j->options,
                           .policy = c->policy,
                           .stall_timeout_ns = c->stall_timeout_ns,
                           .divide = c->divide,
                           .hub = j->hub};
    rc = ps_server_main(&server, exchange_handshakes, exchange_context);
out:
    optimizer_close(&r.optimizer);
    param_set_close(&r.params);
    device_close(&r.device);
    return rc;
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    running *run = context;
    exchanging x = {group, rank};
    if (rank >= run->job->config.world) return job_serve(run->job, rank, exchange, &x);
    job_rank r;
    sync_blob mine;
    const sync_blob *handshakes;
    status rc;
    TRY_GOTO(rc, job_rank_open(run->job, rank, &r), out);
    TRY_GOTO(rc, sync_ps.handshake(r.engine, &mine), out);
    TRY_GOTO(rc, local_ranks_exchange(group, rank, mine, &handshakes), out);
    TRY_GOTO(rc, sync_ps.connect(r.engine, handshakes), out);
    TRY_GOTO(rc, run->function(group, &r), out);
    if (r.error[0])
        TRY_GOTO(rc, (fail)(STATUS_MISMATCH, "%s", r.error),
                 out); /* in parentheses, since cmocka has a macro fail() */
    if (run->servers == 0) rc = local_ranks_barrier(group);
out:
    job_rank_close(&r);
    return rc;
}

status job_run(job *j, job_function function)
{
    running run = {.job = j, .function = function};
    TRY(ps_server_processes(&j->options, j->config.policy, j->config.world, &run.servers));
    return local_ranks_run(j->config.world + run.servers, run_rank, &run);
}

/* ---- a step ----------------------------------------------------------------------------------- */

sync_step job_begin(const job_rank *r)
{
    return (sync_step){
        .index = r->next, .samples = 2, .targets = 2, .learning_rate = RATE, .synchronize = true};
}

status job_forward(job_rank *r, const sync_step *step)
{
    const nn_program *p = r->job->program;
    TRY(sync_ps.begin_forward(r->engine, step));
    if (strcmp(r->job->config.policy, "sync") == 0) job_expect_buffers(r, 0, r->next - 1);
    write_buffers(r, r->next);
    for (int op = 0; op < p->forward_end; op++)
        for (int i = 0; i < p->ops[op].need_count; i++)
            TRY(sync_ps.need(r->engine, p->needs[p->ops[op].need_first + i]));
    return sync_ps.end_forward(r->engine, step);
}

static void compute_gradient(const job_rank *r, int param)
{
    for (int64_t i = 0; i < r->params->pieces[param].count; i++)
        job_set(r->params, r->params->grads.data, param, i,
                r->job->config.scale * job_gradient(r->rank, r->next, param, i));
}

status job_backward(job_rank *r, const sync_step *step)
{
    for (int i = 0; i < r->job->program->ready_count; i++) {
        int param = r->job->program->ready_order[i];
        compute_gradient(r, param);
        TRY(sync_ps.ready(r->engine, param));
    }
    TRY(sync_ps.reduce(r->engine, step));
    r->next++;
    return STATUS_OK;
}

status job_step(job_rank *r)
{
    sync_step step = job_begin(r);
    TRY(job_forward(r, &step));
    return job_backward(r, &step);
}

/* ---- the same by plain loops ------------------------------------------------------------------ */

void job_reference_open(const job *j, job_reference *r)
{
    *r = (job_reference){0};
    device_config device = {.name = j->config.device, .world = 1, .threads = 1};
    param_set_config config = {.gradients = true};
    assert_ok(device_open(&device, &r->device));
    assert_ok(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    assert_ok(param_set_open(r->device, j->model, j->program, &config, &r->params));
    fill_params(r->params);
    assert_ok(optimizer_open(r->device, &j->config.optimizer, r->params->type, r->params->arena_elements,
                             j->model->parameter_elements, &r->ledger, &r->optimizer));
}

static double average(const job *j, const param_set *set, int64_t round, int param, int64_t i)
{
    double n = j->config.world, sum = 0;
    bool before = j->config.divide == SHARED_DIVIDE_BEFORE;
    for (int rank = 0; rank < j->config.world; rank++) {
        double g = j->config.scale * job_gradient(rank, round, param, i);
        if (set->type == DTYPE_F64)
            sum += before ? g / n : g;
        else
            sum = (float)((float)sum + (before ? (float)g / (float)n : (float)g));
    }
    if (before) return sum;
    return set->type == DTYPE_F64 ? sum / n : (float)sum / (float)n;
}

void job_reference_step(const job *j, job_reference *r, int64_t round)
{
    const param_set *set = r->params;
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++)
            job_set(set, set->grads.data, p, i, average(j, set, round, p, i));
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    double limit = j->config.optimizer.clip_norm, scale = 1, squares = 0;
    if (limit > 0) {
        assert_ok(optimizer_sum_squares(r->optimizer, r->stream, set->grads.data, all, &squares));
        scale = optimizer_clip_scale(limit, squares);
    }
    assert_ok(optimizer_update(r->optimizer, r->stream, set->params.data, set->grads.data, all, round, RATE,
                               scale));
}

void job_reference_close(job_reference *r)
{
    optimizer_close(&r->optimizer);
    param_set_close(&r->params);
    device_stream_close(&r->stream);
    device_close(&r->device);
}
