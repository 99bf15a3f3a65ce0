#include "common/nn/program.h"

#include "common/nn/program_build.h"

#include <assert.h>
#include <stdlib.h>

enum {
    MOST_PER_NODE = 16,  /* largest number of operations per node, and also of values per node */
    MOST_PER_SEGMENT = 3 /* largest number of values per segment of a recording */
};

/* The operands of each operation, in the order of its slots (op.h). */
static const uint8_t operand_names[OP_COUNT][OP_MAX_OPERANDS] = {
    [OP_conv2d_forward] = {X, WEIGHT, BIAS, Y},
    [OP_conv2d_backward_data] = {DY, WEIGHT, DX},
    [OP_conv2d_backward_weights] = {X, DY, DPARAM0, DPARAM1},
    [OP_linear_forward] = {X, WEIGHT, BIAS, Y, SLOPE},
    [OP_linear_backward_data] = {DY, WEIGHT, DX},
    [OP_linear_backward_weights] = {X, DY, DPARAM0, DPARAM1, SLOPE},
    [OP_batchnorm_forward] = {X, PARAM0, PARAM1, RESIDUAL, BUFFER0, BUFFER1, Y, MEAN, INVSTD},
    [OP_batchnorm_inference] = {X, PARAM0, PARAM1, RESIDUAL, BUFFER0, BUFFER1, Y},
    [OP_batchnorm_backward] = {X, Y, PARAM0, PARAM1, RESIDUAL, MEAN, INVSTD, DY, DY2, DX, DPARAM0, DPARAM1,
                               DRESIDUAL},
    [OP_batchnorm_stats] = {X, SUMS},
    [OP_batchnorm_apply] = {X, PARAM0, PARAM1, RESIDUAL, BUFFER0, BUFFER1, Y, MEAN, INVSTD, SUMS},
    [OP_batchnorm_backward_stats] = {X, Y, PARAM0, PARAM1, RESIDUAL, MEAN, INVSTD, DY, DY2, NONE, DPARAM0,
                                     DPARAM1, DRESIDUAL, DSUMS},
    [OP_batchnorm_backward_apply] = {X, PARAM0, MEAN, INVSTD, DRESIDUAL, DX, DSUMS, COUNT},
    [OP_layernorm_forward] = {X, RESIDUAL, PARAM0, PARAM1, Y, SUM, MEAN, INVSTD},
    [OP_layernorm_backward] = {SUM, PARAM0, MEAN, INVSTD, DY, DSUM, DX, DPARAM0, DPARAM1},
    [OP_activation_forward] = {X, Y},
    [OP_activation_backward] = {X, DY, DX},
    [OP_add] = {X, RESIDUAL, Y},
    [OP_concat_forward] = {Y, PART, PART + 1, PART + 2, PART + 3, PART + 4, PART + 5},
    [OP_concat_backward] = {DY, DPART, DPART + 1, DPART + 2, DPART + 3, DPART + 4, DPART + 5},
    [OP_maxpool_forward] = {X, Y, INDEX},
    [OP_maxpool_backward] = {DY, INDEX, DX},
    [OP_avgpool_forward] = {X, Y},
    [OP_avgpool_backward] = {DY, DX},
    [OP_embedding_forward] = {X, PARAM0, PARAM1, PARAM2, Y},
    [OP_embedding_backward] = {X, DY, DPARAM0, DPARAM1, DPARAM2},
    [OP_attention_forward] = {X, K, V, Y, LSE},
    [OP_attention_backward] = {X, K, V, Y, LSE, DY, DX, DK, DV},
    [OP_gather_rows] = {X, NONE, Y},
    [OP_scatter_rows] = {DY, NONE, DX},
};

nn_op *build_op(build *b, op_kind kind, const build_node *node)
{
    nn_program *p = b->program;
    nn_op *op = &p->ops[p->op_count++];
    assert(p->op_count <= b->node_count * MOST_PER_NODE + 1);
    *op = (nn_op){.desc = {.kind = kind, .type = p->config.type, .bf16 = p->config.bf16},
                  .layer = node ? (int)(node->layer - b->model->layers) : b->model->output,
                  .weight_param = NN_NONE,
                  .rows_vary = !node || (b->head_node >= 0 && node >= &b->nodes[b->head_node])};
    return op;
}

/* Sets two fields of the operation that depend on operand `o`. Sets `accumulate` if an earlier operation
 * writes the same gradient, and `x_f32` if the operand is the batch's samples and activations are
 * bfloat16. */
static void bind(build *b, nn_op *op, const nn_operand *o)
{
    bool weights = op->weight_param != NN_NONE;
    bool tokens = op->desc.kind == OP_embedding_forward || op->desc.kind == OP_embedding_backward;
    if (o->space == NN_SPACE_GRAD) {
        op->desc.accumulate |= b->written[o->index];
        b->written[o->index] = true;
    }
    if (o->space != NN_SPACE_INPUT || !op->desc.bf16) return;
    /* Samples are not bfloat16. They have the program's type, or are tokens. */
    op->desc.x_f32 = weights;
    if (!weights && !tokens)
        b->failure = fail(STATUS_CONFIG,
                          "layer %s: expected a convolution, linear layer or embedding to read bfloat16 "
                          "samples, got %s",
                          b->model->layers[op->layer].name, op_name(op->desc.kind));
}

nn_op *build_emit(build *b, op_kind kind, const build_node *node)
{
    nn_op *op = build_op(b, kind, node);
    op_class class = op_class_of(kind);
    op->desc.u = node->attributes;
    if (class == OP_CLASS_CONVOLUTION || class == OP_CLASS_GEMM) op->weight_param = node->layer->param[0];
    for (int s = 0; s < OP_MAX_OPERANDS; s++) {
        op->operands[s] = node->at[operand_names[kind][s]];
        bind(b, op, &op->operands[s]);
    }
    return op;
}

nn_operand build_move_rows(build *b, op_kind kind, nn_operand rows)
{
    const build_node *head = &b->nodes[b->head_node];
    shape s = build_shape(b, b->model->layers[head->x].sample);
    nn_operand moved = build_value(b, s, build_storage(b), LEDGER_ACTIVATIONS);
    nn_op *op = build_op(b, kind, head);
    op->desc.u.rows = (rows_attributes){.rows = s.dims[0], .hidden = s.dims[1], .selected = s.dims[0]};
    op->operands[0] = rows; /* gather and scatter have the same slots */
    op->operands[1] = (nn_operand){NN_SPACE_INDEX, 0, 0};
    op->operands[2] = moved;
    return moved;
}

nn_operand build_value(build *b, shape s, dtype type, ledger_class c)
{
    nn_program *p = b->program;
    int64_t elements = shape_elements(s);
    if (b->failure != STATUS_OK) return (nn_operand){0};
    if (elements > SHAPE_MOST_ELEMENTS) {
        char text[96];
        b->failure = fail(STATUS_CONFIG, "model %s: expected tensors of at most %lld elements, got shape %s",
                          b->model->name, (long long)SHAPE_MOST_ELEMENTS, shape_format(text, sizeof text, s));
        return (nn_operand){0};
    }
    assert(p->value_count < b->node_count * MOST_PER_NODE + 1);
    p->values[p->value_count] = (nn_value){
        .shape = s, .type = type, .bytes = elements * dtype_size(type), .ledger_class = c, .first = -1};
    return (nn_operand){NN_SPACE_VALUE, p->value_count++, 0};
}

dtype build_storage(const build *b)
{
    return b->program->config.bf16 ? DTYPE_BF16 : b->program->config.type;
}

shape build_shape(const build *b, shape sample)
{
    const int64_t *d = sample.dims, batch = b->program->config.batch;
    if (sample.rank == 3) return shape_4d(batch, d[0], d[1], d[2]);
    return sample.rank == 2 ? shape_2d(batch * d[0], d[1]) : shape_2d(batch, d[0]);
}

static status allocate_tables(build *b)
{
    nn_program *p = b->program;
    const nn_recording *r = b->model->recording;
    size_t layers = (size_t)b->model->layer_count, params = (size_t)b->model->param_count + 1,
           ops = r ? (size_t)r->segment_count + 1 : layers * MOST_PER_NODE;
    b->nodes = calloc(layers, sizeof *b->nodes);
    b->layers = calloc(layers, sizeof *b->layers);
    b->written = calloc(params, sizeof *b->written);
    p->needs = calloc(2 * params, sizeof *p->needs);
    p->releases = calloc(2 * params, sizeof *p->releases);
    p->ready_order = calloc(params, sizeof *p->ready_order);
    p->ops = calloc(ops, sizeof *p->ops);
    p->values = calloc(r ? MOST_PER_SEGMENT * ops : ops, sizeof *p->values);
    if (b->nodes && b->layers && b->written && p->needs && p->releases && p->ready_order && p->ops &&
        p->values)
        return STATUS_OK;
    return fail(STATUS_SYSTEM, "no memory to compile model %s", b->model->name);
}

static status compile(build *b)
{
    TRY(allocate_tables(b));
    if (b->model->recording) {
        TRY(build_recorded(b));
        return build_finish(b);
    }
    build_fuse(b);
    TRY(build_forward(b));
    b->program->forward_end = b->program->op_count;
    TRY(build_loss(b));
    b->program->loss_end = b->program->op_count;
    if (b->program->config.mode == NN_TRAIN) TRY(build_backward(b));
    return build_finish(b);
}

/* A stage that sends its output has no loss. */
static nn_program_config effective(const nn_model *model, const nn_program_config *config)
{
    nn_program_config c = *config;
    c.external_loss |= model->sent;
    c.masked_loss &= !model->sent;
    return c;
}

nn_program *nn_program_share(nn_program *p, const nn_model *model, const nn_program_config *config)
{
    const nn_program_config a = p->config, b = effective(model, config);
    bool same = p->model == model && a.batch == b.batch && a.mode == b.mode && a.type == b.type &&
                a.bf16 == b.bf16 && a.masked_loss == b.masked_loss && a.external_loss == b.external_loss &&
                a.world == b.world;
    p->more_owners += same;
    return same ? p : NULL;
}

status nn_program_compile(const nn_model *model, const nn_program_config *config, nn_program **out)
{
    *out = NULL;
    if (config->batch < 1)
        return fail(STATUS_CONFIG, "--batch: expected at least 1, got %lld", (long long)config->batch);
    nn_program *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory to compile model %s", model->name);
    p->model = model;
    p->config = effective(model, config);
    p->input_value = p->input_gradient_value = NN_NONE;
    build b = {.model = model, .program = p, .head_node = -1};
    status rc = compile(&b);
    free(b.nodes);
    free(b.layers);
    free(b.written);
    if (rc != STATUS_OK) nn_program_free(&p);
    *out = p;
    return rc;
}

int nn_program_largest_sum(const nn_program *program)
{
    int largest = 0;
    for (int op = 0; op < program->op_count; op++)
        if (program->ops[op].group_reduce > largest) largest = program->ops[op].group_reduce;
    return largest;
}

void nn_program_free(nn_program **program)
{
    nn_program *p = *program;
    *program = NULL;
    if (!p || p->more_owners-- > 0) return;
    free(p->ops);
    free(p->values);
    free(p->needs);
    free(p->releases);
    free(p->births);
    free(p->deaths);
    free(p->ready_order);
    free(p);
}

int64_t nn_program_peak_bytes(const nn_program *program)
{
    int64_t live = 0, peak = 0;
    for (int i = 0; i < program->op_count; i++) {
        const nn_op *op = &program->ops[i];
        for (int j = 0; j < op->live_count; j++)
            live += program->values[program->births[op->live_first + j]].bytes;
        if (live > peak) peak = live;
        for (int j = 0; j < op->dead_count; j++)
            live -= program->values[program->deaths[op->dead_first + j]].bytes;
    }
    return peak;
}
