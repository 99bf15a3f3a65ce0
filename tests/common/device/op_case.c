#include "tests/common/device/op_case.h"

#include "common/base/random.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void case_begin(op_case *c, const char *format, ...)
{
    *c = (op_case){.seed = 1};
    va_list args;
    va_start(args, format);
    vsnprintf(c->name, sizeof c->name, format, args);
    va_end(args);
}

int case_tensor_add(op_case *c, const char *name, case_fill fill, int64_t rows, int64_t columns)
{
    assert(c->tensor_count + 1 < CASE_MAX_TENSORS);
    int index = ++c->tensor_count;
    case_tensor *t = &c->tensors[index];
    *t = (case_tensor){.fill = fill, .count = rows * columns, .used = rows * columns, .columns = columns};
    snprintf(t->name, sizeof t->name, "%s", name);
    return index;
}

int case_input(op_case *c, const char *name, int64_t rows, int64_t columns)
{
    return case_tensor_add(c, name, FILL_SIGNED, rows, columns);
}

int case_output(op_case *c, const char *name, int64_t rows, int64_t columns)
{
    return case_tensor_add(c, name, FILL_OUTPUT, rows, columns);
}

int case_parameter(op_case *c, const char *name, case_fill fill, shape plain)
{
    int64_t rows = plain.rank > 1 ? plain.dims[0] : 1;
    int index = case_tensor_add(c, name, fill, rows, shape_elements(plain) / rows);
    c->tensors[index].parameter = true;
    c->tensors[index].layout_of = index;
    c->tensors[index].shape = plain;
    return index;
}

int case_parameter_gradient(op_case *c, const char *name, int parameter, bool adds)
{
    int index = case_parameter(c, name, adds ? FILL_SIGNED : FILL_OUTPUT, c->tensors[parameter].shape);
    c->tensors[index].parameter = false;
    c->tensors[index].layout_of = parameter;
    return index;
}

int case_view(op_case *c, const char *name, int base, int64_t offset)
{
    int index = case_tensor_add(c, name, FILL_OUTPUT, 0, 1);
    c->tensors[index].base = base;
    c->tensors[index].offset = offset;
    c->tensors[index].type = c->tensors[base].type;
    return index;
}

int case_integers(op_case *c, const char *name, case_fill fill, int64_t count, int64_t bound)
{
    int index = case_tensor_add(c, name, fill, count, 1);
    c->tensors[index].type = CASE_I32;
    c->tensors[index].bound = bound;
    return index;
}

case_step *case_add_step(op_case *c, const op_desc *op, const int operand[OP_MAX_OPERANDS], unsigned written)
{
    assert(c->step_count < CASE_MAX_STEPS);
    case_step *step = &c->steps[c->step_count++];
    *step = (case_step){.op = *op, .written = written};
    memcpy(step->operand, operand, sizeof step->operand);
    return step;
}

void case_objective(op_case *c, int output, int weights)
{
    assert(c->objective_count < CASE_MAX_PAIRS);
    c->objective[c->objective_count++] = (case_pair){output, weights, false};
}

void case_gradient(op_case *c, int input, int gradient, bool adds)
{
    assert(c->gradient_count < CASE_MAX_PAIRS);
    c->gradients[c->gradient_count++] = (case_pair){input, gradient, adds};
}

int case_owner(const op_case *c, int tensor)
{
    return c->tensors[tensor].base ? c->tensors[tensor].base : tensor;
}

bool case_writes(const op_case *c, int step, int tensor)
{
    for (int slot = 0; slot < OP_MAX_OPERANDS; slot++)
        if (c->steps[step].written >> slot & 1 && case_owner(c, c->steps[step].operand[slot]) == tensor)
            return true;
    return false;
}

int case_find(const op_case *c, const char *name)
{
    for (int i = 1; i <= c->tensor_count; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return i;
    return CASE_NONE;
}

static double initial_value(const case_tensor *t, uint64_t start, int64_t i)
{
    uint64_t at = (uint64_t)i;
    if (i >= t->used) return t->type == CASE_COMPUTE ? NAN : 0;
    switch (t->fill) {
    case FILL_OUTPUT:
        return t->type == CASE_COMPUTE || t->type == CASE_F64 ? NAN : 99;
    case FILL_SIGNED:
        return random_signed(start, at);
    case FILL_OFFSET:
        return 8 + random_signed(start, at);
    case FILL_POSITIVE:
        return 0.5 + random_uniform(start, at);
    case FILL_INDEX:
        return floor(random_uniform(start, at) * (double)t->bound);
    case FILL_TARGET:
        return i % 4 == 1 ? LOSS_IGNORE : floor(random_uniform(start, at) * (double)t->bound);
    case FILL_DISTINCT:
        return (double)((3 + 5 * i) % t->bound);
    case FILL_ZERO:
        break;
    }
    return 0;
}

void case_state_open(const op_case *c, case_state *out)
{
    *out = (case_state){.c = c};
    for (int i = 1; i <= c->tensor_count; i++) {
        const case_tensor *t = &c->tensors[i];
        if (t->base) continue;
        out->values[i] = malloc((size_t)t->count * sizeof(double));
        assert(out->values[i]);
        uint64_t start = random_start(c->seed, random_fnv1a64(t->name));
        for (int64_t j = 0; j < t->count; j++) out->values[i][j] = initial_value(t, start, j);
    }
}

void case_state_close(case_state *state)
{
    for (int i = 0; i < CASE_MAX_TENSORS; i++) free(state->values[i]);
    *state = (case_state){0};
}

void case_state_copy(case_state *to, const case_state *from)
{
    for (int i = 1; i <= from->c->tensor_count; i++)
        if (from->values[i])
            memcpy(to->values[i], from->values[i], (size_t)from->c->tensors[i].count * sizeof(double));
}

void case_state_round(case_state *state, dtype type)
{
    if (type != DTYPE_F32) return;
    for (int i = 1; i <= state->c->tensor_count; i++)
        for (int64_t j = 0; state->values[i] && j < state->c->tensors[i].count; j++)
            if (state->c->tensors[i].type == CASE_COMPUTE) state->values[i][j] = (float)state->values[i][j];
}
