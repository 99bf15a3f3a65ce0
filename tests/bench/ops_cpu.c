/* bench_ops MODEL [--threads N] [--steps N] [--device NAME] [--precision P]: runs training steps of a model,
 * and times each operation in the order in which they run. Prints one line for each kind and shape of
 * operations: how often it occurs in a step, microseconds per call (median over all calls), its share of the
 * step, GFLOP/s, and the GB/s that would result if every operand were read or written once. On a GPU, marks
 * between the operations give the times by the GPU's own clock. */
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/nn/instance.h"
#include "common/optim/optimizer.h"
#include "models/models.h"
#include "tests/bench/floor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_model {
    model_options options;
    int64_t batch;
} bench_model;

/* Shapes as in the published comparisons. If an option is 0, the model's default holds. */
static const bench_model bench_models[] = {
    {{.name = "wine_mlp"}, 32},
    {{.name = "lenet"}, 32},
    {{.name = "resnet18", .image = 32, .classes = 10}, 32},
    {{.name = "resnet50"}, 4},
    {{.name = "vgg16"}, 4},
    {{.name = "bert_base", .head = MODEL_HEAD_CLS}, 4},
    {{.name = "bert_large", .head = MODEL_HEAD_CLS, .sequence = 128}, 4},
    {{.name = "bert", .head = MODEL_HEAD_CLS}, 8},
    {{.name = "gpt2"}, 4},
};
enum { BENCH_MODELS = sizeof bench_models / sizeof bench_models[0] };

typedef struct bench_options {
    const char *device;
    int precision; /* A device_precision. */
    int64_t threads, steps, batch;
} bench_options;

static const char *const precision_names[] = {"float32", "tf32", "bf16", NULL};

static const option bench_option_list[] = {
    {.name = "device",
     .argument = "NAME",
     .type = OPTION_TEXT,
     .offset = offsetof(bench_options, device),
     .initial = "cpu",
     .help = "cpu, cuda or reference"},
    {.name = "precision",
     .type = OPTION_CHOICE,
     .offset = offsetof(bench_options, precision),
     .initial = "float32",
     .choices = precision_names,
     .help = "of products"},
    {.name = "threads",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(bench_options, threads),
     .initial = "1",
     .low = 1,
     .high = 1024,
     .help = "compute threads"},
    {.name = "steps",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(bench_options, steps),
     .initial = "7",
     .low = 1,
     .high = 100000,
     .help = "steps to time, after two to warm up"},
    {.name = "batch",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(bench_options, batch),
     .low = 1,
     .high = 100000,
     .help = "samples [the model's]"},
};
static const option_table bench_option_table = {"Bench", bench_option_list,
                                                sizeof bench_option_list / sizeof bench_option_list[0]};

/* Operations of one kind and shape. */
typedef struct group {
    op_desc desc;
    int count;      /* Number of these operations in a step. */
    int64_t *times; /* [steps * count] */
    int64_t used;
} group;

typedef struct bench {
    bench_options options;
    nn_model *model;
    nn_program *program;
    device *device;
    device_stream *stream;
    param_set *params;
    nn_instance *instance;
    optimizer *optimizer;
    nn_memory memory;
    device_memory input, target;
    group *groups;
    int group_count;
    int64_t last;  /* Time at which the previous operation ended. */
    bool by_marks; /* True if the device runs behind the host, so that marks measure the times. */
    int marked;    /* Number of operations of this step that have been launched so far. */
    /* [op_count + 1] The operations in the order in which they run. */
    const op_desc **order;
    bool timed;
    ledger ledger;
    bench_floor floor;
} bench;

/* ---- setting up ------------------------------------------------------------------------------- */

static status fill_batch(bench *b, int64_t batch)
{
    const nn_model *m = b->model;
    int64_t inputs = batch * shape_elements(m->layers[0].sample);
    int64_t targets = batch * m->rows_per_sample * (m->loss == NN_LOSS_MSE ? m->classes : 1);
    bool tokens = m->input_kind == NN_INPUT_TOKENS, values = m->loss == NN_LOSS_MSE;
    dtype compute = device_get_info(b->device)->compute_type, input_type = tokens ? DTYPE_I32 : compute;
    uint64_t bound = tokens ? (uint64_t)m->params[0].shape.dims[0] : 1, start = random_start(1, 1);
    char *host = malloc((size_t)(inputs + targets) * 4);
    if (!host) return fail(STATUS_SYSTEM, "no memory for a batch");
    for (int64_t i = 0; i < inputs + targets; i++) {
        bool integer = i < inputs ? tokens : !values;
        uint64_t at = (uint64_t)i;
        if (integer)
            ((int32_t *)host)[i] =
                (int32_t)random_below(start, at, i < inputs ? bound : (uint64_t)m->classes);
        else
            ((float *)host)[i] = (float)random_signed(start, at);
    }
    status rc;
    TRY_GOTO(rc, device_allocate(b->device, DEVICE_MEMORY_PRIVATE, (size_t)inputs * 8, &b->input), done);
    TRY_GOTO(rc, device_allocate(b->device, DEVICE_MEMORY_PRIVATE, (size_t)targets * 8, &b->target), done);
    dtype host_type = tokens ? DTYPE_I32 : DTYPE_F32, target_type = values ? DTYPE_F32 : DTYPE_I32;
    TRY_GOTO(rc, device_upload(b->stream, b->input.data, host, host_type, input_type, inputs), done);
    rc = device_upload(b->stream, b->target.data, host + inputs * 4, target_type,
                       values ? compute : DTYPE_I32, targets);
done:
    free(host);
    return rc;
}

static status open_memory(bench *b)
{
    nn_memory *memory = &b->memory;
    memory->activation_bytes = b->program->activation_bytes;
    memory->workspace_bytes = (int64_t)nn_instance_workspace(b->instance);
    device *d = b->device;
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->activation_bytes, &memory->activations));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->workspace_bytes, &memory->workspace));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &memory->loss));
    nn_bindings bindings = {.memory = memory, .input = b->input.data, .target = b->target.data};
    return nn_instance_bind(b->instance, &bindings);
}

static status bench_open(bench *b, const bench_model *model)
{
    device_config config = {.name = b->options.device,
                            .world = 1,
                            .threads = (int)b->options.threads,
                            .precision = b->options.precision};
    TRY(device_open(&config, &b->device));
    TRY(device_stream_open(b->device, DEVICE_STREAM_COMPUTE, &b->stream));
    TRY(model_build(&model->options, &b->model));
    dtype type = device_get_info(b->device)->compute_type;
    int64_t batch = b->options.batch ? b->options.batch : model->batch;
    TRY(bench_floor_measure(b->device, b->stream, &b->floor));
    nn_program_config program = {
        .batch = batch, .mode = NN_TRAIN, .type = type, .bf16 = device_get_info(b->device)->bf16, .world = 1};
    TRY(nn_program_compile(b->model, &program, &b->program));
    param_set_config params = {.gradients = true, .bf16_copy = true};
    TRY(param_set_open(b->device, b->model, b->program, &params, &b->params));
    TRY(param_set_initialize(b->params, b->stream, 1));
    TRY(nn_instance_open(b->device, b->stream, b->program, b->params, &b->instance));
    TRY(fill_batch(b, batch));
    TRY(open_memory(b));
    optimizer_options sgd = {.kind = OPTIMIZER_SGD, .lr = 1e-4, .momentum = 0.9};
    int64_t elements = b->params->arena_elements;
    return optimizer_open(b->device, &sgd, type, elements, elements, &b->ledger, &b->optimizer);
}

static void bench_close(bench *b)
{
    optimizer_close(&b->optimizer);
    nn_instance_close(&b->instance);
    param_set_close(&b->params);
    nn_program_free(&b->program);
    nn_model_free(&b->model);
    if (b->device) {
        device_memory *memories[] = {&b->memory.activations, &b->memory.workspace, &b->memory.loss, &b->input,
                                     &b->target};
        for (int i = 0; i < 5; i++) device_free(b->device, memories[i]);
        device_stream_close(&b->stream);
    }
    device_close(&b->device);
    for (int i = 0; i < b->group_count; i++) free(b->groups[i].times);
    free(b->groups);
    free(b->order);
}

/* ---- timing ----------------------------------------------------------------------------------- */

static group *group_of(bench *b, const op_desc *desc)
{
    for (int i = 0; i < b->group_count; i++)
        if (memcmp(&b->groups[i].desc, desc, sizeof *desc) == 0) return &b->groups[i];
    b->groups[b->group_count].desc = *desc;
    return &b->groups[b->group_count++];
}

/* Opens one more group than there are operations in the program: the last one is for the optimizer. */
static status open_groups(bench *b)
{
    const nn_program *p = b->program;
    b->groups = calloc((size_t)p->op_count + 1, sizeof *b->groups);
    b->order = calloc((size_t)p->op_count + 1, sizeof *b->order);
    if (!b->groups || !b->order) return fail(STATUS_SYSTEM, "no memory");
    b->by_marks = !device_get_info(b->device)->host_addressable;
    if (b->by_marks && p->op_count + 2 > DEVICE_MARKS)
        return fail(STATUS_CONFIG, "%s: expected at most %d operations, got %d", b->model->name,
                    DEVICE_MARKS - 2, p->op_count);
    for (int i = 0; i < p->op_count; i++) group_of(b, &p->ops[i].desc)->count++;
    op_desc sgd = {.kind = OP_sgd,
                   .type = p->config.type,
                   .u.optimizer = {.count = b->params->arena_elements, .momentum = 0.9}};
    group_of(b, &sgd)->count = 1;
    for (int i = 0; i < b->group_count; i++) {
        b->groups[i].times = calloc((size_t)(b->options.steps * b->groups[i].count), sizeof(int64_t));
        if (!b->groups[i].times) return fail(STATUS_SYSTEM, "no memory");
    }
    return STATUS_OK;
}

/* Mark i stands after operation i - 1 of the step. */
static status take_marks(bench *b)
{
    TRY(device_stream_synchronize(b->stream));
    for (int i = 0; i < b->marked && b->timed; i++) {
        group *g = group_of(b, b->order[i]);
        g->times[g->used++] = device_mark_ns(b->stream, i + 1) - device_mark_ns(b->stream, i);
    }
    return STATUS_OK;
}

static void record(bench *b, const op_desc *desc)
{
    if (b->by_marks) {
        b->order[b->marked++] = desc;
        device_mark(b->stream, b->marked);
        return;
    }
    int64_t now = clock_now_ns();
    if (b->timed) {
        group *g = group_of(b, desc);
        g->times[g->used++] = now - b->last;
    }
    b->last = clock_now_ns();
}

static void after_op(void *context, const nn_op *op)
{
    record(context, &op->desc);
}

static status ignore_param(void *context, int param)
{
    (void)context, (void)param;
    return STATUS_OK;
}

static status ignore_sum(void *context, double *values, int count)
{
    (void)context, (void)values, (void)count;
    return STATUS_OK;
}

static status run_step(bench *b, int64_t step)
{
    const nn_program *p = b->program;
    nn_observer observer = {.context = b,
                            .need = ignore_param,
                            .ready = ignore_param,
                            .group_sum = ignore_sum,
                            .after_op = after_op};
    op_scalars scalars = {.loss_normalizer = (double)(p->config.batch * b->model->rows_per_sample)};
    b->last = clock_now_ns();
    b->marked = 0;
    if (b->by_marks) TRY(device_mark(b->stream, 0));
    TRY(nn_run(b->instance, NN_FORWARD, NN_BACKWARD, &observer, &scalars, &b->ledger));
    TRY(optimizer_update(b->optimizer, b->stream, b->params->params.data, b->params->grads.data,
                         param_set_pieces(b->params, 0, b->model->param_count), step, 1e-4, 1));
    record(b, &b->groups[b->group_count - 1].desc);
    return b->by_marks ? take_marks(b) : STATUS_OK;
}

/* ---- report ----------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static double median_ns(const group *g)
{
    qsort(g->times, (size_t)g->used, sizeof *g->times, by_time);
    return (double)g->times[g->used / 2];
}

static void describe(char *out, size_t size, const op_desc *op)
{
    const conv2d_attributes *c = &op->u.conv2d;
    const linear_attributes *l = &op->u.linear;
    const batchnorm_attributes *b = &op->u.batchnorm;
    const layernorm_attributes *n = &op->u.layernorm;
    const pool_attributes *p = &op->u.pool;
    const attention_attributes *a = &op->u.attention;
    out[0] = '\0';
    switch (op_class_of(op->kind)) {
    case OP_CLASS_CONVOLUTION:
        snprintf(out, size,
                 "%" PRId64 "x%" PRId64 "x%" PRId64 " %" PRId64 "->%" PRId64 " %" PRId64 "x%" PRId64
                 "/%" PRId64,
                 c->n, c->h, c->w, c->c, c->k, c->r, c->s, c->stride);
        break;
    case OP_CLASS_GEMM:
        snprintf(out, size, "%" PRId64 "x%" PRId64 "->%" PRId64 " %s", l->m, l->in, l->out,
                 activation_name(l->act));
        break;
    case OP_CLASS_NORMALIZATION:
        if (op->kind == OP_layernorm_forward || op->kind == OP_layernorm_backward)
            snprintf(out, size, "%" PRId64 "x%" PRId64 "%s", n->m, n->c, n->residual ? " residual" : "");
        else
            snprintf(out, size, "%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " %s%s%s", b->n, b->h, b->w,
                     b->c, activation_name(b->act), b->residual ? " residual" : "", b->dy2 ? " dy2" : "");
        break;
    case OP_CLASS_POOLING:
        snprintf(out, size,
                 "%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " %" PRId64 "x%" PRId64 "/%" PRId64, p->n,
                 p->h, p->w, p->c, p->r, p->s, p->stride);
        break;
    case OP_CLASS_ATTENTION:
        snprintf(out, size, "%" PRId64 "x%" PRId64 " %" PRId64 "x%" PRId64 "%s", a->batch, a->sequence,
                 a->heads, a->width, a->causal ? " causal" : "");
        break;
    default:
        break;
    }
}

static void report(const bench *b, const int64_t *step_times)
{
    double total = 0, flops = 0, floor = 0;
    for (int i = 0; i < b->group_count; i++) total += median_ns(&b->groups[i]) * b->groups[i].count;
    printf("%-26s %-34s %5s %11s %7s %8s %8s %8s\n", "operation", "shape", "count", "us", "share", "GFLOP/s",
           "GB/s", "/floor");
    for (int i = 0; i < b->group_count; i++) {
        const group *g = &b->groups[i];
        double ns = median_ns(g);
        op_cost cost = op_cost_of(&g->desc);
        char shape[96];
        describe(shape, sizeof shape, &g->desc);
        double least = bench_floor_ns(&b->floor, &g->desc);
        printf("%-26s %-34s %5d %11.2f %6.2f%% %8.1f %8.1f %8.2f\n", op_name(g->desc.kind), shape, g->count,
               ns * 1e-3, 100 * ns * g->count / total, cost.flops / ns,
               (cost.bytes_read + cost.bytes_written) / ns, ns / least);
        floor += least * g->count;
        flops += cost.flops * g->count;
    }
    double step = (double)step_times[b->options.steps / 2];
    printf("%s, batch %" PRId64 ", %s: median step %.3f ms, %.1f GFLOP/s, best %.3f ms\n", b->model->name,
           b->program->config.batch, device_get_info(b->device)->description, step * 1e-6, flops / step,
           (double)step_times[0] * 1e-6);
    printf("floor: %.3f ms, at %.1f GFLOP/s in matrix products and %.1f GB/s through memory; a step takes "
           "%.2f times as long\n",
           floor * 1e-6, b->floor.flops_per_ns, b->floor.bytes_per_ns, step / floor);
    int64_t last = b->options.steps - 1;
    if (last > 0)
        printf("%" PRId64 " rounds, spread %.1f %%\n", b->options.steps,
               100 * (double)(step_times[last] - step_times[0]) / step);
    else
        printf("a single measurement\n");
}

static status bench_run(bench *b, const bench_model *model)
{
    TRY(bench_open(b, model));
    TRY(open_groups(b));
    int64_t *times = calloc((size_t)b->options.steps, sizeof *times);
    if (!times) return fail(STATUS_SYSTEM, "no memory");
    status rc = STATUS_OK;
    for (int64_t step = 0; step < b->options.steps + 2 && rc == STATUS_OK; step++) {
        b->timed = step >= 2;
        int64_t begin = clock_now_ns();
        rc = run_step(b, step);
        if (b->timed) times[step - 2] = clock_now_ns() - begin;
    }
    if (rc == STATUS_OK) rc = bench_floor_measure(b->device, b->stream, &b->floor);
    qsort(times, (size_t)b->options.steps, sizeof *times, by_time);
    if (rc == STATUS_OK) report(b, times);
    free(times);
    return rc;
}

static status parse(int argc, char **argv, bench_options *options, const bench_model **out)
{
    option_binding binding = {.table = &bench_option_table, .storage = options};
    const char *positional[64];
    int count = 0, index;
    if (argc > 64) return fail(STATUS_USAGE, "bench_ops: too many words");
    TRY(options_defaults(&binding, 1));
    TRY(options_parse(&binding, 1, argc - 1, argv + 1, positional, &count));
    TRY(text_parse_choice("MODEL", count == 1 ? positional[0] : "", &bench_models[0].options.name,
                          sizeof bench_models[0], BENCH_MODELS, &index));
    *out = &bench_models[index];
    return STATUS_OK;
}

static int help(void)
{
    text_buffer text = {0};
    bench_options options;
    options_help(&(option_binding){.table = &bench_option_table, .storage = &options}, 1, true, &text);
    printf("usage: bench_ops MODEL [options]\n%s", text.data);
    text_free(&text);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return help();
    bench b = {
        .memory = {.activations.fd = -1, .workspace.fd = -1, .loss.fd = -1}, .input.fd = -1, .target.fd = -1};
    const bench_model *model = NULL;
    status rc = parse(argc, argv, &b.options, &model);
    if (rc == STATUS_OK) rc = bench_run(&b, model);
    bench_close(&b);
    if (rc != STATUS_OK) fprintf(stderr, "bench_ops: %s\n", error_message());
    return status_exit_code(rc);
}
