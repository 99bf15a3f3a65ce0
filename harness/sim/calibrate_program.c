#include "harness/sim/calibrate_program.h"

#include <stdlib.h>

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

static status open_memory(calibration_program *p, int64_t batch)
{
    const nn_model *m = p->model;
    device *d = p->device;
    nn_memory *memory = &p->memory;
    memory->activation_bytes = p->program->activation_bytes;
    memory->workspace_bytes = (int64_t)nn_instance_workspace(p->instance);
    size_t input = (size_t)(batch * shape_elements(m->layers[0].sample)) * sizeof(float);
    size_t target = (size_t)(batch * m->rows_per_sample) * sizeof(int32_t);
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->activation_bytes, &memory->activations));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->workspace_bytes, &memory->workspace));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &memory->loss));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, input, &p->input));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, target, &p->target));
    nn_bindings bindings = {.memory = memory, .input = p->input.data, .target = p->target.data};
    return nn_instance_bind(p->instance, &bindings);
}

status calibration_program_open(calibration_program *p, device *d, device_stream *s, const calibration_workload *w,
                                device_memory_kind kind)
{
    nn_program_config program = {.batch = w->batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    param_set_config params = {.param_kind = kind, .grad_kind = kind, .gradients = true};
    *p = (calibration_program){.device = d, .stream = s};
    p->memory.activations.fd = p->memory.workspace.fd = p->memory.loss.fd = p->input.fd = p->target.fd = -1;
    TRY(model_build(&w->model, &p->model));
    TRY(nn_program_compile(p->model, &program, &p->program));
    TRY(param_set_open(d, p->model, p->program, &params, &p->params));
    TRY(param_set_initialize(p->params, s, 1));
    TRY(nn_instance_open(d, s, p->program, p->params, &p->instance));
    return open_memory(p, w->batch);
}

void calibration_program_close(calibration_program *p)
{
    if (!p->device) return;
    nn_instance_close(&p->instance);
    param_set_close(&p->params);
    nn_program_free(&p->program);
    nn_model_free(&p->model);
    device_free(p->device, &p->memory.activations);
    device_free(p->device, &p->memory.workspace);
    device_free(p->device, &p->memory.loss);
    device_free(p->device, &p->input);
    device_free(p->device, &p->target);
}

status calibration_program_run(calibration_program *p, void (*after_op)(void *context, const nn_op *op), void *context,
                               ledger *l)
{
    nn_observer observer = {.context = context,
                            .need = ignore_param,
                            .ready = ignore_param,
                            .group_sum = ignore_sum,
                            .after_op = after_op};
    op_scalars scalars = {.loss_normalizer = 1};
    nn_cursor cursor = {0};
    return nn_instance_run(p->instance, &cursor, p->program->op_count, &observer, &scalars, l);
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
