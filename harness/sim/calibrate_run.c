/* Training steps of a ResNet-18 and a small BERT on one rank, every operation timed. */
#include "common/base/clock.h"
#include "harness/sim/calibrate_impl.h"
#include "models/models.h"

#include <stdlib.h>

static const model_options models[] = {
    {.name = "resnet18", .image = 32, .classes = 10},
    {.name = "bert", .head = MODEL_HEAD_CLS},
};
static const int64_t batches[] = {32, 8};

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
    calibration_run *r = context;
    int64_t now = clock_now_ns();
    if (r->repeat >= 0) r->times[(op - r->program->ops) * CALIBRATION_REPEATS + r->repeat] = now - r->since;
    r->since = clock_now_ns();
}

/* ---- life ------------------------------------------------------------------------------------- */

status calibration_model(int model, nn_model **out)
{
    return model_build(&models[model], out);
}

void calibration_close(calibration_run *r)
{
    optimizer_close(&r->optimizer);
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

static status open_memory(calibration_run *r, int64_t batch)
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

status calibration_open(calibration_run *r, int model, int threads)
{
    int64_t batch = batches[model];
    device_config device = {.name = "cpu", .world = 1, .threads = threads};
    nn_program_config program = {.batch = batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    param_set_config params = {.param_kind = DEVICE_MEMORY_SHARED, .grad_kind = DEVICE_MEMORY_SHARED, .gradients = true};
    *r = (calibration_run){.repeat = -1};
    r->memory.activations.fd = r->memory.workspace.fd = r->memory.loss.fd = r->input.fd = r->target.fd = -1;
    TRY(calibration_model(model, &r->model));
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    TRY(nn_program_compile(r->model, &program, &r->program));
    TRY(param_set_open(r->device, r->model, r->program, &params, &r->params));
    TRY(param_set_initialize(r->params, r->stream, 1));
    TRY(nn_instance_open(r->device, r->stream, r->program, r->params, &r->instance));
    optimizer_options options = optimizer_defaults(OPTIMIZER_SGD);
    TRY(optimizer_open(r->device, &options, r->params->type, r->params->arena_elements, r->model->parameter_elements,
                       &r->ledger, &r->optimizer));
    r->times = calloc((size_t)r->program->op_count * CALIBRATION_REPEATS, sizeof *r->times);
    if (!r->times) return fail(STATUS_SYSTEM, "no memory for times");
    return open_memory(r, batch);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static status update(calibration_run *r)
{
    param_set *set = r->params;
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    int64_t begin = clock_now_ns();
    TRY(optimizer_update(r->optimizer, r->stream, set->params.data, set->grads.data, all, 0, 0.0, 1.0));
    if (r->repeat >= 0) r->updates[r->repeat] = clock_now_ns() - begin;
    return STATUS_OK;
}

status calibration_step(calibration_run *r, int repeat)
{
    nn_observer observer = {.context = r,
                            .need = ignore_param,
                            .ready = ignore_param,
                            .group_sum = ignore_sum,
                            .after_op = after_op};
    op_scalars scalars = {.loss_normalizer = 1};
    nn_cursor cursor = {0};
    r->repeat = repeat;
    r->since = clock_now_ns();
    TRY(nn_instance_run(r->instance, &cursor, r->program->op_count, &observer, &scalars, &r->ledger));
    return update(r);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double calibration_median(int64_t *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (double)values[count / 2];
}

double calibration_op_ns(calibration_run *r, int op)
{
    return calibration_median(&r->times[(int64_t)op * CALIBRATION_REPEATS], CALIBRATION_REPEATS);
}
