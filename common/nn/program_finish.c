/* The last steps of compilation. They find the first and the last use of each parameter, the operation after
 * which each gradient is ready, results that can overwrite an operand, and the lifetime and the offset of
 * every value. */
#include "common/nn/program_build.h"

#include "common/memory/plan.h"

#include <stdlib.h>

/* A result that may overwrite an operand (op.h), as a pair of slots. If an operation has several rules, the
 * first rule that is possible applies. */
typedef struct in_place_rule {
    op_kind kind;
    int out, in;
} in_place_rule;

static const in_place_rule in_place_rules[] = {
    {OP_add, ADD_Y, ADD_A},
    {OP_add, ADD_Y, ADD_B},
    {OP_activation_forward, ACT_FWD_Y, ACT_FWD_X},
    {OP_activation_backward, ACT_BWD_DX, ACT_BWD_DY},
    {OP_batchnorm_backward, BN_BWD_DRESIDUAL, BN_BWD_DY},
    {OP_batchnorm_backward, BN_BWD_DX, BN_BWD_DY},
    {OP_layernorm_forward, LN_FWD_SUM, LN_FWD_X},
    {OP_layernorm_backward, LN_BWD_DX, LN_BWD_DY},
    {OP_cross_entropy, LOSS_DLOGITS, LOSS_LOGITS},
    {OP_mean_squared_error, LOSS_DLOGITS, LOSS_LOGITS},
};

static status no_memory(const nn_program *p)
{
    return fail(STATUS_SYSTEM, "no memory to compile model %s", p->model->name);
}

static void find_lifetimes(nn_program *p)
{
    for (int v = 0; v < p->value_count; v++) p->values[v].first = p->values[v].last = -1;
    for (int i = 0; i < p->op_count; i++) {
        for (int s = 0; s < OP_MAX_OPERANDS; s++) {
            const nn_operand *o = &p->ops[i].operands[s];
            if (o->space != NN_SPACE_VALUE) continue;
            nn_value *v = &p->values[o->index];
            if (v->first < 0) v->first = i;
            v->last = i;
        }
    }
    /* The next input may arrive right after the last operation, so the value is reserved for the whole
     * program. */
    if (p->input_value != NN_NONE) {
        p->values[p->input_value].first = 0;
        p->values[p->input_value].last = p->op_count - 1;
    }
    if (p->input_gradient_value != NN_NONE) p->values[p->input_gradient_value].last = p->op_count - 1;
    /* The output and its gradient must stay in memory between the forward and the backward pass, because
     * other code or other ranks use them. */
    if (!p->config.external_loss) return;
    nn_value *output = &p->values[p->output_value];
    if (output->last < p->forward_end - 1) output->last = p->forward_end - 1;
    if (p->output_gradient_value != NN_NONE) p->values[p->output_gradient_value].first = p->forward_end;
}

static bool may_share(const nn_program *p, const nn_operand *out, const nn_operand *in, int op)
{
    if (out->space != NN_SPACE_VALUE || in->space != NN_SPACE_VALUE || out->index == in->index) return false;
    const nn_value *to = &p->values[out->index], *from = &p->values[in->index];
    return out->offset_bytes == 0 && in->offset_bytes == 0 && to->first == op && from->last == op &&
           to->bytes == from->bytes && to->type == from->type && to->ledger_class == from->ledger_class;
}

static void replace_value(nn_program *p, int from_op, int value, int by)
{
    for (int i = from_op; i < p->op_count; i++)
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            if (p->ops[i].operands[s].space == NN_SPACE_VALUE && p->ops[i].operands[s].index == value)
                p->ops[i].operands[s].index = by;
    int *named[] = {&p->output_value, &p->output_gradient_value, &p->input_gradient_value};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (*named[i] == value) *named[i] = by;
    p->values[by].last = p->values[value].last;
    p->values[value].first = p->values[value].last = -1;
}

static void share_in_place(nn_program *p)
{
    enum { RULES = sizeof in_place_rules / sizeof in_place_rules[0] };
    for (int i = 0; i < p->op_count; i++) {
        nn_op *op = &p->ops[i];
        for (int r = 0; r < RULES; r++) {
            const in_place_rule *rule = &in_place_rules[r];
            if (rule->kind != op->desc.kind) continue;
            const nn_operand *out = &op->operands[rule->out], *in = &op->operands[rule->in];
            if (may_share(p, out, in, i)) replace_value(p, i, out->index, in->index);
        }
    }
}

/* Returns true for the gradient of the output if the program does not compute the loss. The code that
 * receives this gradient counts it in the ledger. */
static bool comes_from_outside(const nn_program *p, int value)
{
    return p->config.external_loss && value == p->output_gradient_value;
}

/* Lists all values in the order of their first use (`births`), and in the order of their last use (`deaths`).
 * Each operation gets a range of each list. */
static status list_events(nn_program *p)
{
    p->births = calloc((size_t)p->value_count + 1, sizeof *p->births);
    p->deaths = calloc((size_t)p->value_count + 1, sizeof *p->deaths);
    if (!p->births || !p->deaths) return no_memory(p);
    int born = 0, dead = 0;
    for (int i = 0; i < p->op_count; i++) {
        nn_op *op = &p->ops[i];
        op->live_first = born;
        op->dead_first = dead;
        for (int v = 0; v < p->value_count; v++) {
            if (p->values[v].first == i && !comes_from_outside(p, v)) p->births[born++] = v;
            if (p->values[v].last == i && p->values[v].first >= 0) p->deaths[dead++] = v;
        }
        op->live_count = born - op->live_first;
        op->dead_count = dead - op->dead_first;
    }
    return STATUS_OK;
}

static status place_values(nn_program *p)
{
    plan_range *ranges = calloc((size_t)p->value_count + 1, sizeof *ranges);
    if (!ranges) return no_memory(p);
    for (int v = 0; v < p->value_count; v++) {
        const nn_value *value = &p->values[v];
        ranges[v] = (plan_range){
            .bytes = value->first < 0 ? 0 : value->bytes, .first = value->first, .last = value->last};
    }
    status rc = plan_place(ranges, p->value_count, &p->activation_bytes);
    for (int v = 0; v < p->value_count; v++) p->values[v].offset = ranges[v].offset;
    free(ranges);
    return rc;
}

/* Lists gradients in the order in which they become ready. A gradient is ready after the last operation that
 * writes it. Gradients of one operation are in reverse order of registration. Parameters whose gradient no
 * operation writes are not listed. */
static status order_readiness(nn_program *p)
{
    int params = p->model->param_count;
    /* [params] index + 1 of the last operation that writes the gradient, or 0. */
    int *last = calloc((size_t)params + 1, sizeof *last);
    if (!last) return no_memory(p);
    for (int i = 0; i < p->op_count; i++)
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            if (p->ops[i].operands[s].space == NN_SPACE_GRAD) last[p->ops[i].operands[s].index] = i + 1;
    for (int i = 0; i < p->op_count; i++) {
        p->ops[i].ready_first = p->ready_count;
        for (int param = params - 1; param >= 0; param--)
            if (last[param] == i + 1) p->ready_order[p->ready_count++] = param;
        p->ops[i].ready_count = p->ready_count - p->ops[i].ready_first;
    }
    free(last);
    return STATUS_OK;
}

/* Lists the gradients in the order in which the recording says that they become ready. */
static void copy_readiness(nn_program *p)
{
    for (int i = 0; i < p->op_count; i++) {
        const nn_segment *s = &p->model->recording->segments[i];
        p->ops[i].ready_first = p->ready_count;
        for (int j = 0; j < s->ready_count; j++) p->ready_order[p->ready_count++] = s->ready[j];
        p->ops[i].ready_count = s->ready_count;
    }
}

/* Number of parameters that an operation may use. */
static int use_count(const nn_program *p, int op)
{
    return p->model->recording ? p->model->recording->segments[op].use_count : OP_MAX_OPERANDS;
}

/* Returns a parameter that the operation uses, or NN_NONE if operand `use` is something else. */
static int param_of(const nn_program *p, int op, int use)
{
    if (p->model->recording) return p->model->recording->segments[op].uses[use];
    const nn_operand *o = &p->ops[op].operands[use];
    bool used = o->space == NN_SPACE_PARAM || o->space == NN_SPACE_BF16_COPY || o->space == NN_SPACE_GRAD;
    return used ? o->index : NN_NONE;
}

typedef struct use_lists {
    int needs, releases;
    int *first, *last; /* [params] index + 1 of the operation, or 0 if the pass does not use the parameter */
} use_lists;

/* Lists the first and the last use of each parameter in operations [begin, end). */
static void list_pass(nn_program *p, int begin, int end, use_lists *l)
{
    int params = p->model->param_count;
    for (int i = 0; i < params; i++) l->first[i] = l->last[i] = 0;
    for (int i = begin; i < end; i++) {
        nn_op *op = &p->ops[i];
        op->need_first = l->needs;
        for (int s = 0; s < use_count(p, i); s++) {
            int param = param_of(p, i, s);
            if (param == NN_NONE) continue;
            if (!l->first[param]) p->needs[l->needs++] = param;
            if (!l->first[param]) l->first[param] = i + 1;
            l->last[param] = i + 1;
        }
        op->need_count = l->needs - op->need_first;
    }
    for (int i = begin; i < end; i++) {
        nn_op *op = &p->ops[i];
        op->release_first = l->releases;
        for (int s = 0; s < use_count(p, i); s++) {
            int param = param_of(p, i, s);
            if (param == NN_NONE || l->last[param] != i + 1) continue;
            p->releases[l->releases++] = param;
            /* Lists the parameter only once, even if the operation also writes the gradient. */
            l->last[param] = 0;
        }
        op->release_count = l->releases - op->release_first;
    }
}

static status order_uses(nn_program *p)
{
    size_t params = (size_t)p->model->param_count + 1;
    use_lists l = {.first = calloc(2 * params, sizeof *l.first)};
    if (!l.first) return no_memory(p);
    l.last = l.first + params;
    list_pass(p, 0, p->forward_end, &l);
    list_pass(p, p->loss_end, p->op_count, &l);
    free(l.first);
    return STATUS_OK;
}

status build_finish(build *b)
{
    nn_program *p = b->program;
    TRY(order_uses(p));
    if (p->model->recording) {
        copy_readiness(p);
    } else {
        TRY(order_readiness(p));
        find_lifetimes(p);
        share_in_place(p);
    }
    TRY(list_events(p));
    return place_values(p);
}
