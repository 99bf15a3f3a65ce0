/* Operations, timed one by one within training steps of a ResNet-18 and a small BERT on one rank. */
#include "common/base/clock.h"
#include "common/nn/instance.h"
#include "common/optim/optimizer.h"
#include "common/sim/price.h"
#include "harness/sim/calibrate.h"
#include "models/models.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 9, WARM = 2 };
#define SHORTEST_S 50e-6

static const model_options models[] = {
    {.name = "resnet18", .image = 32, .classes = 10},
    {.name = "bert", .head = MODEL_HEAD_CLS},
};
static const int64_t batches[] = {32, 8};

typedef struct run {
    device *device;
    device_stream *stream;
    nn_model *model;
    nn_program *program;
    param_set *params;
    nn_instance *instance;
    nn_memory memory;
    device_memory input, target;
    int64_t *times; /* [op_count][REPEATS] ns */
    int repeat;
    int64_t since;
} run;

static status ignore_param(void *context, int param)
{
    (void)context;
    (void)param;
    return STATUS_OK;
}

static status ignore_sum(void *context, double *values, int count)
{
    (void)context;
    (void)values;
    (void)count;
    return STATUS_OK;
}

static void after_op(void *context, const nn_op *op)
{
    run *r = context;
    int64_t now = clock_now_ns();
    if (r->repeat >= 0) r->times[(op - r->program->ops) * REPEATS + r->repeat] = now - r->since;
    r->since = clock_now_ns();
}

/* ---- life ------------------------------------------------------------------------------------- */

static void close_run(run *r)
{
    nn_instance_close(&r->instance);
    param_set_close(&r->params);
    nn_program_free(&r->program);
    nn_model_free(&r->model);
    if (r->device) {
        device_free(r->device, &r->memory.activations);
        device_free(r->device, &r->memory.workspace);
        device_free(r->device, &r->memory.loss);
        device_free(r->device, &r->input);
        device_free(r->device, &r->target);
    }
    device_stream_close(&r->stream);
    device_close(&r->device);
    free(r->times);
}

static status open_memory(run *r, int64_t batch)
{
    const nn_model *m = r->model;
    device *d = r->device;
    nn_memory *memory = &r->memory;
    memory->activation_bytes = r->program->activation_bytes;
    memory->workspace_bytes = (int64_t)nn_instance_workspace(r->instance);
    size_t input = (size_t)(batch * shape_elements(m->layers[0].sample)) * sizeof(float);
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->activation_bytes, &memory->activations));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->workspace_bytes, &memory->workspace));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &memory->loss));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, input, &r->input));
    size_t target = (size_t)(batch * m->rows_per_sample) * sizeof(int32_t);
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, target, &r->target));
    nn_bindings bindings = {.memory = memory, .input = r->input.data, .target = r->target.data};
    return nn_instance_bind(r->instance, &bindings);
}

static status open_run(run *r, int threads, const model_options *options, int64_t batch)
{
    device_config device = {.name = "cpu", .world = 1, .threads = threads};
    nn_program_config program = {.batch = batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    param_set_config params = {.gradients = true};
    *r = (run){.repeat = -1};
    r->memory.activations.fd = r->memory.workspace.fd = r->memory.loss.fd = r->input.fd = r->target.fd = -1;
    TRY(model_build(options, &r->model));
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    TRY(nn_program_compile(r->model, &program, &r->program));
    TRY(param_set_open(r->device, r->model, r->program, &params, &r->params));
    TRY(param_set_initialize(r->params, r->stream, 1));
    TRY(nn_instance_open(r->device, r->stream, r->program, r->params, &r->instance));
    r->times = calloc((size_t)r->program->op_count * REPEATS, sizeof *r->times);
    if (!r->times) return fail(STATUS_SYSTEM, "no memory for times");
    return open_memory(r, batch);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static status run_step(run *r, int64_t *ns)
{
    nn_observer observer = {.context = r,
                            .need = ignore_param,
                            .ready = ignore_param,
                            .group_sum = ignore_sum,
                            .after_op = after_op};
    op_scalars scalars = {.loss_normalizer = 1};
    ledger l = {0};
    nn_cursor cursor = {0};
    int64_t begin = r->since = clock_now_ns();
    TRY(nn_instance_run(r->instance, &cursor, r->program->op_count, &observer, &scalars, &l));
    *ns = clock_now_ns() - begin;
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median(int64_t *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (double)values[count / 2];
}

static status run_steps(run *r, double *step_ms)
{
    int64_t steps[REPEATS], unused;
    for (int i = 0; i < WARM; i++) TRY(run_step(r, &unused));
    for (r->repeat = 0; r->repeat < REPEATS; r->repeat++) TRY(run_step(r, &steps[r->repeat]));
    *step_ms = median(steps, REPEATS) * 1e-6;
    return STATUS_OK;
}

status calibrate_step(int threads, double *step_ms)
{
    run r;
    status rc = open_run(&r, threads, &models[0], batches[0]);
    if (rc == STATUS_OK) rc = run_steps(&r, step_ms);
    close_run(&r);
    return rc;
}

/* ---- classes ---------------------------------------------------------------------------------- */

/* What is added up over the operations of a class: measured time, and what a roofline of efficiency 1 gives.
 */
typedef struct sums {
    double measured_s[CALIBRATED_CLASSES], roofline_s[CALIBRATED_CLASSES];
} sums;

static void take_peak(run *r, calibration *c)
{
    for (int i = 0; i < r->program->op_count; i++) {
        double s = median(&r->times[(int64_t)i * REPEATS], REPEATS) * 1e-9;
        op_cost cost = op_cost_of(&r->program->ops[i].desc);
        double tflops = cost.flops / s * 1e-12, gbs = (cost.bytes_read + cost.bytes_written) / s * 1e-9;
        bool long_enough = s > SHORTEST_S; /* to be timed well */
        if (long_enough && tflops > c->peak_tflops) c->peak_tflops = tflops;
        if (long_enough && gbs > c->memory_gbs) c->memory_gbs = gbs;
        if (c->launch_us == 0 || s * 1e6 < c->launch_us) c->launch_us = s * 1e6;
    }
}

static void add_op(const calibration *c, const op_desc *op, double s, sums *out)
{
    op_cost cost = op_cost_of(op);
    int class = (int)sim_efficiency_of(op->kind) - SIM_CONVOLUTION_FORWARD;
    double arithmetic = cost.flops / (c->peak_tflops * 1e12);
    double traffic = (cost.bytes_read + cost.bytes_written) / (c->memory_gbs * 1e9);
    double net = s - c->launch_us * 1e-6;
    out->measured_s[class] += net > 0 ? net : 0;
    out->roofline_s[class] += arithmetic > traffic ? arithmetic : traffic;
}

/* The optimizer's pass over all parameters, plain SGD. */
static status add_update(run *r, const calibration *c, sums *out)
{
    optimizer_options options = optimizer_defaults(OPTIMIZER_SGD);
    const param_set *set = r->params;
    ledger l = {0};
    optimizer *o = NULL;
    int64_t times[REPEATS];
    int64_t logical = set->model->parameter_elements;
    TRY(optimizer_open(r->device, &options, set->type, set->arena_elements, logical, &l, &o));
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    status rc = STATUS_OK;
    for (int i = 0; i < REPEATS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        rc = optimizer_update(o, r->stream, set->params.data, set->grads.data, all, i, 0.0, 1.0);
        times[i] = clock_now_ns() - begin;
    }
    op_desc update = {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = logical}};
    if (rc == STATUS_OK) add_op(c, &update, median(times, REPEATS) * 1e-9, out);
    optimizer_close(&o);
    return rc;
}

static status add_run(run *r, const calibration *c, sums *out)
{
    for (int i = 0; i < r->program->op_count; i++)
        add_op(c, &r->program->ops[i].desc, (double)r->times[(int64_t)i * REPEATS + REPEATS / 2] * 1e-9, out);
    return add_update(r, c, out);
}

status calibrate_operations(calibration *c, double *step_ms)
{
    enum { MODELS = sizeof models / sizeof models[0] };
    run runs[MODELS];
    sums all = {{0}, {0}};
    status rc = STATUS_OK;
    int opened = 0;
    for (; opened < MODELS && rc == STATUS_OK; opened++) {
        double ms = 0;
        rc = open_run(&runs[opened], c->threads, &models[opened], batches[opened]);
        if (rc == STATUS_OK) rc = run_steps(&runs[opened], &ms);
        if (opened == 0) *step_ms = ms;
        if (rc == STATUS_OK) take_peak(&runs[opened], c);
    }
    for (int i = 0; i < MODELS && rc == STATUS_OK; i++) rc = add_run(&runs[i], c, &all);
    for (int k = 0; k < CALIBRATED_CLASSES && rc == STATUS_OK; k++)
        if (all.measured_s[k] > 0) c->efficiency[k] = all.roofline_s[k] / all.measured_s[k];
    for (int i = 0; i < opened; i++) close_run(&runs[i]);
    return rc;
}
