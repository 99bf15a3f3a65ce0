#include "common/nn/instance.h"

#include "common/memory/plan.h"

#include <stdlib.h>
#include <string.h>

/* Largest padding between a weight and its bias, in elements, with which one call converts both. */
enum { COPY_GAP = 64 };

typedef void *operand_row[OP_MAX_OPERANDS];

struct nn_instance {
    device *device;
    device_stream *stream;
    const nn_program *program;
    param_set *set;
    device_kernel **kernels; /* [op_count] */
    /* kernel that takes the time of a copy to bfloat16 in a simulation; NULL on a real device */
    device_kernel *rounder;
    operand_row *operands; /* [op_count], set by nn_instance_bind() */
    nn_memory *memory;
    size_t workspace;
};

/* Prepares `rounder`, a division with a bfloat16 result. The division moves as many bytes as a copy to
 * bfloat16. */
static status open_rounder(nn_instance *instance)
{
    const nn_program *p = instance->program;
    op_desc op;
    if (!p->config.bf16 || !device_get_info(instance->device)->simulated) return STATUS_OK;
    /* memset() also clears the padding, because operation descriptions are compared byte by byte. */
    memset(&op, 0, sizeof op);
    op.kind = OP_divide;
    op.type = p->config.type;
    op.bf16 = true;
    op.u.elementwise.count = p->model->parameter_elements;
    return device_prepare(instance->device, &op, NULL, &instance->rounder);
}

status nn_instance_open(device *d, device_stream *s, const nn_program *program, param_set *set,
                        nn_instance **out)
{
    *out = NULL;
    nn_instance *instance = calloc(1, sizeof *instance);
    if (!instance) return fail(STATUS_SYSTEM, "no memory for model %s", program->model->name);
    instance->device = d;
    instance->stream = s;
    instance->program = program;
    instance->set = set;
    instance->kernels = calloc((size_t)program->op_count, sizeof *instance->kernels);
    instance->operands = calloc((size_t)program->op_count, sizeof *instance->operands);
    status rc = STATUS_OK;
    if (!instance->kernels || !instance->operands) {
        rc = fail(STATUS_SYSTEM, "no memory for model %s", program->model->name);
        goto failed;
    }
    for (int i = 0; i < program->op_count; i++) {
        const nn_op *op = &program->ops[i];
        const device_layout *layout = op->weight_param == NN_NONE ? NULL : &set->layouts[op->weight_param];
        rc = device_prepare(d, &op->desc, layout, &instance->kernels[i]);
        if (rc != STATUS_OK) {
            error_context("model %s, layer %s", program->model->name, program->model->layers[op->layer].name);
            goto failed;
        }
        size_t workspace = device_kernel_workspace(instance->kernels[i]);
        if (workspace > instance->workspace) instance->workspace = workspace;
    }
    TRY_GOTO(rc, open_rounder(instance), failed);
    *out = instance;
    return STATUS_OK;
failed:
    nn_instance_close(&instance);
    return rc;
}

void nn_instance_close(nn_instance **pointer)
{
    nn_instance *instance = *pointer;
    if (!instance) return;
    for (int i = 0; instance->kernels && i < instance->program->op_count; i++)
        device_release(&instance->kernels[i]);
    device_release(&instance->rounder);
    free(instance->kernels);
    free(instance->operands);
    free(instance);
    *pointer = NULL;
}

size_t nn_instance_workspace(const nn_instance *instance)
{
    return instance->workspace;
}

/* Returns the address of a parameter for operation `op`. If the set gathers parameters, evaluation reads
 * `whole`, and training reads the units that are gathered for the pass. */
static char *param_base(const nn_instance *instance, int op, int param)
{
    const param_set *set = instance->set;
    bool cut = param_set_gathers(set), whole = instance->program->config.mode == NN_EVALUATE;
    int pass = op < instance->program->loss_end ? PARAM_FORWARD : PARAM_BACKWARD;
    const piece *places = cut && whole ? set->pieces : set->placed[pass];
    char *base = !cut                      ? set->params.data
                 : whole                   ? set->whole.data
                 : param_set_is_mixed(set) ? set->f32_params.data
                                           : set->gathered.data;
    return base + places[param].offset * dtype_size(set->type);
}

/* Returns the address of a parameter's bfloat16 copy. If precision is mixed, returns the address of the
 * parameter, which is bfloat16 itself. */
static char *bf16_copy_base(const nn_instance *instance, int op, int param)
{
    const param_set *set = instance->set;
    bool placed = param_set_is_mixed(set) && param_set_sharding(set) == PARAM_SHARD_ALL;
    int pass = op < instance->program->loss_end ? PARAM_FORWARD : PARAM_BACKWARD;
    char *base = !param_set_is_mixed(set) ? set->bf16_copy.data
                 : placed                 ? set->gathered.data
                                          : set->params.data;
    return base + (placed ? set->placed[pass] : set->pieces)[param].offset * dtype_size(DTYPE_BF16);
}

static void *resolve(const nn_instance *instance, const nn_bindings *bindings, int op, const nn_operand *o)
{
    const param_set *set = instance->set;
    char *const bases[] = {[NN_SPACE_VALUE] = bindings->memory->activations.data,
                           [NN_SPACE_GRAD] = param_set_is_mixed(set) ? set->f32_grads.data : set->grads.data,
                           [NN_SPACE_BUFFER] = set->buffers.data,
                           [NN_SPACE_INPUT] = bindings->input,
                           [NN_SPACE_TARGET] = bindings->target,
                           [NN_SPACE_INDEX] = bindings->index,
                           [NN_SPACE_LOSS] = bindings->memory->loss.data};
    int64_t size = dtype_size(set->type), offset = o->offset_bytes;
    if (o->space == NN_SPACE_NONE) return NULL;
    if (o->space == NN_SPACE_PARAM) return param_base(instance, op, o->index) + offset;
    if (o->space == NN_SPACE_BF16_COPY) return bf16_copy_base(instance, op, o->index) + offset;
    if (o->space == NN_SPACE_VALUE) offset += instance->program->values[o->index].offset;
    if (o->space == NN_SPACE_GRAD) offset += set->grads_placed[o->index].offset * size;
    if (o->space == NN_SPACE_BUFFER) offset += set->buffer_pieces[o->index].offset * size;
    return bases[o->space] + offset;
}

status nn_instance_bind(nn_instance *instance, const nn_bindings *bindings)
{
    const nn_program *p = instance->program;
    if (bindings->memory->activation_bytes < p->activation_bytes ||
        bindings->memory->workspace_bytes < (int64_t)instance->workspace)
        return fail(STATUS_INTERNAL, "model %s: expected the memory that it planned, got less",
                    p->model->name);
    instance->memory = bindings->memory;
    for (int i = 0; i < p->op_count; i++)
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            instance->operands[i][s] = resolve(instance, bindings, i, &p->ops[i].operands[s]);
    return STATUS_OK;
}

/* Begins or ends the lifetimes of values in the ledger. */
static void count_values(const nn_program *p, const int *values, int count, ledger *l,
                         void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    for (int i = 0; i < count; i++) {
        const nn_value *v = &p->values[values[i]];
        change(l, v->ledger_class, v->bytes, plan_align(v->bytes));
    }
}

/* Returns the smallest range of the arena that holds the weights and the bias of a forward operation. */
static piece bf16_copy_range(const nn_instance *instance, const nn_op *op)
{
    piece range = {0};
    for (int s = 0; s < OP_MAX_OPERANDS; s++) {
        if (op->operands[s].space != NN_SPACE_BF16_COPY) continue;
        piece p = instance->set->pieces[op->operands[s].index];
        int64_t begin = range.count && range.offset < p.offset ? range.offset : p.offset;
        int64_t end =
            range.offset + range.count > p.offset + p.count ? range.offset + range.count : p.offset + p.count;
        range = (piece){begin, end - begin};
    }
    return range;
}

static status copy_piece_to_bf16(const nn_instance *instance, piece p)
{
    const param_set *set = instance->set;
    if (instance->rounder) {
        void *operands[OP_MAX_OPERANDS] = {[DIVIDE_X] = set->params.data};
        op_scalars scalars = {.divisor = 1, .pieces = &p, .piece_count = 1};
        return device_launch(instance->stream, instance->rounder, operands, &scalars, NULL);
    }
    return device_convert(instance->stream, (char *)set->bf16_copy.data + p.offset * dtype_size(DTYPE_BF16),
                          DTYPE_BF16, (const char *)set->params.data + p.offset * dtype_size(set->type),
                          set->type, p.count, 1);
}

/* Copies the weight and the bias of a forward operation to bfloat16, unless the last update already wrote the
 * copy. Copies both in one call if they are close together. They can be far apart if the weight is tied. */
static status copy_weights_to_bf16(const nn_instance *instance, int index)
{
    const nn_op *op = &instance->program->ops[index];
    const param_set *set = instance->set;
    int64_t elements = 0;
    if (index >= instance->program->forward_end || set->bf16_copy_current || param_set_is_mixed(set))
        return STATUS_OK;
    for (int s = 0; s < OP_MAX_OPERANDS; s++)
        if (op->operands[s].space == NN_SPACE_BF16_COPY) elements += set->pieces[op->operands[s].index].count;
    piece all = bf16_copy_range(instance, op);
    if (elements == 0) return STATUS_OK;
    if (all.count <= elements + COPY_GAP) return copy_piece_to_bf16(instance, all);
    for (int s = 0; s < OP_MAX_OPERANDS; s++)
        if (op->operands[s].space == NN_SPACE_BF16_COPY)
            TRY(copy_piece_to_bf16(instance, set->pieces[op->operands[s].index]));
    return STATUS_OK;
}

static status run_op(nn_instance *instance, int index, const nn_observer *observer, const op_scalars *scalars,
                     ledger *l)
{
    const nn_program *p = instance->program;
    const nn_op *op = &p->ops[index];
    void *const *operands = instance->operands[index];
    int needs = observer->need && (observer->release || index < p->forward_end) ? op->need_count : 0;
    for (int i = 0; i < needs; i++) TRY(observer->need(observer->context, p->needs[op->need_first + i]));
    count_values(p, p->births + op->live_first, op->live_count, l, ledger_acquire);
    TRY(copy_weights_to_bf16(instance, index));
    TRY(device_launch(instance->stream, instance->kernels[index], operands, scalars,
                      instance->memory->workspace.data));
    if (op->group_reduce && observer->group_sum)
        TRY(observer->group_sum(observer->context, operands[op->group_slot], op->group_reduce));
    for (int i = 0; observer->ready && i < op->ready_count; i++)
        TRY(observer->ready(observer->context, p->ready_order[op->ready_first + i]));
    for (int i = 0; observer->release && i < op->release_count; i++)
        TRY(observer->release(observer->context, p->releases[op->release_first + i]));
    count_values(p, p->deaths + op->dead_first, op->dead_count, l, ledger_release);
    if (observer->after_op) observer->after_op(observer->context, op);
    return STATUS_OK;
}

status nn_run(nn_instance *instance, nn_pass first, nn_pass last, const nn_observer *observer,
              const op_scalars *scalars, ledger *l)
{
    const nn_program *p = instance->program;
    const int ends[] = {0, p->forward_end, p->loss_end, p->op_count};
    op_scalars all_rows = *scalars;
    all_rows.rows = 0;
    for (int i = ends[first]; i < ends[last + 1]; i++)
        TRY(run_op(instance, i, observer, p->ops[i].rows_vary ? scalars : &all_rows, l));
    return STATUS_OK;
}

void *nn_instance_value(const nn_instance *instance, int value)
{
    return (char *)instance->memory->activations.data + instance->program->values[value].offset;
}

double *nn_instance_loss_sums(const nn_instance *instance)
{
    return instance->memory->loss.data;
}
