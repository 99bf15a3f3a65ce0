#include "common/nn/program.h"

#include "common/nn/program_build.h"

#include <stdlib.h>
#include <string.h>

static nn_op dropped_op; /* where writes go after memory ran out */

static void *grown(void *array, int count, int *capacity, size_t size, build *b)
{
    if (count < *capacity) return array;
    int more = *capacity ? *capacity * 2 : 64;
    void *bigger = realloc(array, (size_t)more * size);
    if (!bigger) {
        b->failure = fail(STATUS_SYSTEM, "no memory to compile model %s", b->model->name);
        return array;
    }
    *capacity = more;
    return bigger;
}

nn_op *build_op(build *b, op_kind kind, const build_node *node)
{
    nn_program *p = b->program;
    p->ops = grown(p->ops, p->op_count, &b->op_capacity, sizeof *p->ops, b);
    if (b->failure != STATUS_OK) return &dropped_op;
    nn_op *op = &p->ops[p->op_count++];
    *op = (nn_op){.desc = {.kind = kind, .type = p->config.type, .bf16 = p->config.bf16},
                  .layer = node ? node->layer_index : b->model->output,
                  .weight_param = NN_NONE};
    return op;
}

nn_operand build_value(build *b, shape s, dtype type, ledger_class c)
{
    nn_program *p = b->program;
    p->values = grown(p->values, p->value_count, &b->value_capacity, sizeof *p->values, b);
    if (b->failure != STATUS_OK) return (nn_operand){0};
    int64_t elements = shape_elements(s);
    if (elements > SHAPE_MOST_ELEMENTS) {
        char text[96];
        b->failure = fail(STATUS_CONFIG, "model %s: expected tensors of at most %lld elements, got shape %s", b->model->name,
                          (long long)SHAPE_MOST_ELEMENTS, shape_format(text, sizeof text, s));
        return (nn_operand){0};
    }
    p->values[p->value_count] = (nn_value){
        .shape = s, .type = type, .bytes = elements * dtype_size(type), .ledger_class = c, .first = -1};
    return (nn_operand){NN_SPACE_VALUE, p->value_count++, 0};
}

nn_operand build_param(int param)
{
    return param == NN_NONE ? (nn_operand){0} : (nn_operand){NN_SPACE_PARAM, param, 0};
}

nn_operand build_weight(const build *b, int param)
{
    nn_operand o = build_param(param);
    if (param != NN_NONE && b->program->config.bf16) o.space = NN_SPACE_BF16_COPY;
    return o;
}

dtype build_storage(const build *b)
{
    return b->program->config.bf16 ? DTYPE_BF16 : b->program->config.type;
}

nn_operand build_grad(build *b, int param, op_desc *desc)
{
    if (param == NN_NONE) return (nn_operand){0};
    if (b->written[param]) desc->accumulate = true;
    b->written[param] = true;
    return (nn_operand){NN_SPACE_GRAD, param, 0};
}

void build_need(build *b, nn_op *op, int param)
{
    nn_program *p = b->program;
    if (param == NN_NONE || b->needed[param]) return;
    b->needed[param] = true;
    if (op->need_count == 0) op->need_first = b->need_capacity;
    p->needs[b->need_capacity++] = param; /* holds every parameter once */
    op->need_count++;
}

int64_t build_batch(const build *b)
{
    return b->program->config.batch;
}

int64_t build_rows(const build *b, shape sample)
{
    int64_t rows = build_batch(b);
    for (int i = 0; i + 1 < sample.rank; i++) rows *= sample.dims[i];
    return rows;
}

static status allocate_tables(build *b)
{
    const nn_model *m = b->model;
    size_t layers = (size_t)m->layer_count, params = (size_t)m->param_count + 1;
    b->nodes = calloc(layers, sizeof *b->nodes);
    b->consumers = calloc(layers, sizeof *b->consumers);
    b->fused_into = calloc(layers, sizeof *b->fused_into);
    b->out = calloc(layers, sizeof *b->out);
    b->gradients = calloc(layers, sizeof *b->gradients);
    b->needed = calloc(params, sizeof *b->needed);
    b->written = calloc(params, sizeof *b->written);
    b->program->needs = calloc(params, sizeof *b->program->needs);
    b->program->readies = calloc(params, sizeof *b->program->readies);
    b->program->ready_order = calloc(params, sizeof *b->program->ready_order);
    if (b->nodes && b->consumers && b->fused_into && b->out && b->gradients && b->needed && b->written &&
        b->program->needs && b->program->readies && b->program->ready_order)
        return STATUS_OK;
    return fail(STATUS_SYSTEM, "no memory to compile model %s", m->name);
}

static void free_tables(build *b)
{
    free(b->nodes);
    free(b->consumers);
    free(b->fused_into);
    free(b->out);
    free(b->gradients);
    free(b->needed);
    free(b->written);
}

static status compile(build *b)
{
    TRY(allocate_tables(b));
    TRY(build_fuse(b));
    build_find_head(b);
    TRY(build_forward(b));
    b->program->forward_end = b->program->op_count;
    TRY(build_loss(b));
    b->program->loss_end = b->program->op_count;
    if (b->program->config.mode == NN_TRAIN) TRY(build_backward(b));
    TRY(b->failure);
    return build_finish(b);
}

status nn_program_compile(const nn_model *model, const nn_program_config *config, nn_program **out)
{
    *out = NULL;
    if (config->batch < 1)
        return fail(STATUS_CONFIG, "--batch: expected at least 1, got %lld", (long long)config->batch);
    nn_program *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory to compile model %s", model->name);
    p->model = model;
    p->config = *config;
    build b = {.model = model, .program = p};
    status rc = compile(&b);
    free_tables(&b);
    if (rc != STATUS_OK) nn_program_free(&p);
    *out = p;
    return rc;
}

void nn_program_free(nn_program **program)
{
    nn_program *p = *program;
    if (!p) return;
    free(p->ops);
    free(p->values);
    free(p->needs);
    free(p->readies);
    free(p->births);
    free(p->deaths);
    free(p->ready_order);
    free(p);
    *program = NULL;
}

int64_t nn_program_peak_bytes(const nn_program *program)
{
    int64_t live = 0, peak = 0;
    for (int i = 0; i < program->op_count; i++) {
        const nn_op *op = &program->ops[i];
        for (int j = 0; j < op->live_count; j++) live += program->values[program->births[op->live_first + j]].bytes;
        if (live > peak) peak = live;
        for (int j = 0; j < op->dead_count; j++) live -= program->values[program->deaths[op->dead_first + j]].bytes;
    }
    return peak;
}
