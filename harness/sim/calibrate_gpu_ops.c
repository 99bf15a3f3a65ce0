/* Operations, timed one by one by the GPU's own clock within training steps of a ResNet-50 and a BERT-base. An efficiency
 * is what a roofline gives, summed over the operations of a class, over what they took: once over those that the roofline
 * has bound by arithmetic, once over those bound by memory. */
#include "common/nn/instance.h"
#include "common/optim/optimizer.h"
#include "common/sim/price.h"
#include "harness/sim/calibrate_gpu.h"
#include "models/models.h"

#include <stdlib.h>

enum { REPEATS = 7, WARM = 3, FIRST_MARK = 16, OF_PEAK = 0, OF_MEMORY = 1 };

typedef struct workload {
    model_options model;
    int64_t batch;
} workload;

static const workload on_gpu[] = {{{.name = "resnet50"}, 64},
                                  {{.name = "bert_base", .head = MODEL_HEAD_CLS, .sequence = 128}, 16}};
/* What the emulator does in seconds. */
static const workload on_emulator[] = {
    {{.name = "lenet"}, 2},
    {{.name = "bert", .head = MODEL_HEAD_CLS, .layers = 1, .hidden = 32, .heads = 2, .vocabulary = 64, .sequence = 8}, 2}};
enum { WORKLOADS = sizeof on_gpu / sizeof on_gpu[0] };

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
} run;

/* What is added up over a class: [class][side]. */
typedef struct sums {
    double measured_s[GPU_CLASSES][2], roofline_s[GPU_CLASSES][2];
} sums;

/* ---- life ------------------------------------------------------------------------------------- */

static void close_run(run *r)
{
    nn_instance_close(&r->instance);
    param_set_close(&r->params);
    nn_program_free(&r->program);
    nn_model_free(&r->model);
    device_free(r->device, &r->memory.activations);
    device_free(r->device, &r->memory.workspace);
    device_free(r->device, &r->memory.loss);
    device_free(r->device, &r->input);
    device_free(r->device, &r->target);
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
    size_t target = (size_t)(batch * m->rows_per_sample) * sizeof(int32_t);
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->activation_bytes, &memory->activations));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->workspace_bytes, &memory->workspace));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &memory->loss));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, input, &r->input));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, target, &r->target));
    nn_bindings bindings = {.memory = memory, .input = r->input.data, .target = r->target.data};
    return nn_instance_bind(r->instance, &bindings);
}

static status open_run(run *r, const workload *w)
{
    nn_program_config program = {.batch = w->batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    param_set_config params = {.gradients = true};
    TRY(model_build(&w->model, &r->model));
    TRY(nn_program_compile(r->model, &program, &r->program));
    if (r->program->op_count + FIRST_MARK >= DEVICE_MARKS)
        return fail(STATUS_INTERNAL, "%s has %d operations, more than there are marks", r->model->name,
                    r->program->op_count);
    TRY(param_set_open(r->device, r->model, r->program, &params, &r->params));
    TRY(param_set_initialize(r->params, r->stream, 1));
    TRY(nn_instance_open(r->device, r->stream, r->program, r->params, &r->instance));
    r->times = calloc((size_t)r->program->op_count * REPEATS, sizeof *r->times);
    if (!r->times) return fail(STATUS_SYSTEM, "no memory for times");
    return open_memory(r, w->batch);
}

/* ---- steps ------------------------------------------------------------------------------------ */

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

static void mark_op(void *context, const nn_op *op)
{
    run *r = context;
    device_mark(r->stream, FIRST_MARK + 1 + (int)(op - r->program->ops));
}

/* `repeat` is -1 in steps that do not count. */
static status run_step(run *r, int repeat)
{
    nn_observer observer = {.context = r,
                            .need = ignore_param,
                            .ready = ignore_param,
                            .group_sum = ignore_sum,
                            .after_op = mark_op};
    op_scalars scalars = {.loss_normalizer = 1};
    ledger l = {0};
    nn_cursor cursor = {0};
    TRY(device_mark(r->stream, 0));
    TRY(device_mark(r->stream, FIRST_MARK));
    TRY(nn_instance_run(r->instance, &cursor, r->program->op_count, &observer, &scalars, &l));
    TRY(device_stream_synchronize(r->stream));
    for (int i = 0; i < r->program->op_count && repeat >= 0; i++)
        r->times[(int64_t)i * REPEATS + repeat] =
            device_mark_ns(r->stream, FIRST_MARK + 1 + i) - device_mark_ns(r->stream, FIRST_MARK + i);
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median_s(int64_t *values)
{
    qsort(values, REPEATS, sizeof *values, by_value);
    return (double)values[REPEATS / 2] * 1e-9;
}

static void add_op(const gpu_calibration *c, const op_desc *op, double s, sums *out)
{
    op_cost cost = op_cost_of(op);
    int class = (int)sim_efficiency_of(op->kind) - SIM_CONVOLUTION_FORWARD;
    double arithmetic = cost.flops / (c->peak_tflops * 1e12);
    double traffic = (cost.bytes_read + cost.bytes_written) / (c->memory_gbs * 1e9);
    int side = arithmetic > traffic ? OF_PEAK : OF_MEMORY;
    double net = s - c->kernel_us * 1e-6;
    out->measured_s[class][side] += net > 0 ? net : 0;
    out->roofline_s[class][side] += side == OF_PEAK ? arithmetic : traffic;
}

/* The optimizer's pass over all parameters. */
static status add_update(run *r, const gpu_calibration *c, optimizer_kind kind, sums *out)
{
    optimizer_options options = optimizer_defaults(kind);
    const param_set *set = r->params;
    int64_t logical = set->model->parameter_elements, times[REPEATS];
    ledger l = {0};
    optimizer *o = NULL;
    TRY(optimizer_open(r->device, &options, set->type, set->arena_elements, logical, &l, &o));
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    status rc = STATUS_OK;
    for (int i = -1; i < REPEATS && rc == STATUS_OK; i++) {
        rc = device_mark(r->stream, FIRST_MARK);
        if (rc == STATUS_OK)
            rc = optimizer_update(o, r->stream, set->params.data, set->grads.data, all, i + 1, 0.0, 1.0);
        if (rc == STATUS_OK) rc = device_mark(r->stream, FIRST_MARK + 1);
        if (rc == STATUS_OK) rc = device_stream_synchronize(r->stream);
        if (i >= 0) times[i] = device_mark_ns(r->stream, FIRST_MARK + 1) - device_mark_ns(r->stream, FIRST_MARK);
    }
    op_desc update = {.kind = kind == OPTIMIZER_SGD ? OP_sgd : OP_adam, .type = DTYPE_F32, .u.optimizer = {.count = logical}};
    if (rc == STATUS_OK) add_op(c, &update, median_s(times), out);
    optimizer_close(&o);
    return rc;
}

static status add_workload(device *d, device_stream *s, const workload *w, const gpu_calibration *c, sums *out)
{
    run r = {.device = d, .stream = s};
    r.memory.activations.fd = r.memory.workspace.fd = r.memory.loss.fd = r.input.fd = r.target.fd = -1;
    status rc = open_run(&r, w);
    for (int i = -WARM; i < REPEATS && rc == STATUS_OK; i++) rc = run_step(&r, i < 0 ? -1 : i);
    for (int i = 0; rc == STATUS_OK && i < r.program->op_count; i++)
        add_op(c, &r.program->ops[i].desc, median_s(&r.times[(int64_t)i * REPEATS]), out);
    if (rc == STATUS_OK) rc = add_update(&r, c, OPTIMIZER_SGD, out);
    if (rc == STATUS_OK) rc = add_update(&r, c, OPTIMIZER_ADAM, out);
    close_run(&r);
    return rc;
}

status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c)
{
    sums all = {0};
    for (int i = 0; i < WORKLOADS; i++)
        TRY(add_workload(d, s, c->emulated ? &on_emulator[i] : &on_gpu[i], c, &all));
    for (int k = 0; k < GPU_CLASSES; k++) {
        double *e = c->efficiency[k];
        for (int side = 0; side < 2; side++)
            if (all.measured_s[k][side] > 0) e[side] = all.roofline_s[k][side] / all.measured_s[k][side];
        if (e[OF_PEAK] == 0) e[OF_PEAK] = e[OF_MEMORY]; /* a side that no operation was bound by takes the other's */
        if (e[OF_MEMORY] == 0) e[OF_MEMORY] = e[OF_PEAK];
    }
    return STATUS_OK;
}
