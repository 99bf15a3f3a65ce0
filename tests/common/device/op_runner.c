#include "tests/common/device/op_runner.h"

#include "common/reduce/half.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Guard bytes around every tensor. Read as bfloat16, float or double they are NaN. */
enum { GUARD_BYTES = 64, GUARD_VALUE = 0xff };

/* Returns false for updates and for operations over arenas: they have no tensors in bfloat16. */
static bool has_activations(const op_case *c)
{
    op_kind kind = c->steps[0].op.kind;
    return op_class_of(kind) != OP_CLASS_OPTIMIZER && kind != OP_divide && kind != OP_fill;
}

/* If the device stores activations as bfloat16, all tensors are bfloat16 except the parameters W and B,
 * gradients of parameters, statistics, and the targets of a regression. */
bool op_runner_is_bf16(const op_runner *r, int tensor)
{
    static const char *const wide[] = {"mean", "invstd", "running_mean", "running_var", "lse", "targets"};
    const case_tensor *t = &r->c->tensors[tensor];
    if (!device_get_info(r->device)->bf16 || t->type != CASE_COMPUTE || !has_activations(r->c)) return false;
    if (t->parameter) return strcmp(t->name, "w") == 0 || strcmp(t->name, "b") == 0;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (strcmp(t->name, wide[i]) == 0) return false;
    return !t->layout_of;
}

void op_runner_round(const op_runner *r, case_state *state)
{
    case_state_round(state, device_get_info(r->device)->compute_type);
    for (int i = 1; i <= r->c->tensor_count; i++)
        for (int64_t j = 0; state->values[i] && op_runner_is_bf16(r, i) && j < r->c->tensors[i].count; j++)
            state->values[i][j] = bf16_to_float(bf16_from_float((float)state->values[i][j]));
}

static dtype type_on(const op_runner *r, int tensor)
{
    if (op_runner_is_bf16(r, tensor)) return DTYPE_BF16;
    switch (r->c->tensors[tensor].type) {
    case CASE_F64:
        return DTYPE_F64;
    case CASE_I32:
        return DTYPE_I32;
    case CASE_U8:
        return DTYPE_U8;
    default:
        return device_get_info(r->device)->compute_type;
    }
}

static size_t bytes_of(const op_runner *r, int tensor)
{
    return (size_t)(r->c->tensors[tensor].count * dtype_size(type_on(r, tensor)));
}

/* Chooses the layout of a parameter: the first operation that uses the parameter decides. */
static void choose_layout(op_runner *r, int tensor)
{
    for (int i = 0; i < r->c->step_count; i++)
        for (int slot = 0; slot < OP_MAX_OPERANDS; slot++) {
            if (r->c->steps[i].operand[slot] != tensor) continue;
            op_desc op = r->c->steps[i].op;
            op.type = device_get_info(r->device)->compute_type;
            must(
                device_choose_layout(r->device, &op, slot, r->c->tensors[tensor].shape, &r->layouts[tensor]));
            assert_int_equal(r->layouts[tensor].elements, r->c->tensors[tensor].count);
            return;
        }
}

void op_runner_open(device *d, const op_case *c, op_runner *r)
{
    *r = (op_runner){.c = c, .device = d};
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &r->stream));
    for (int i = 1; i <= c->tensor_count; i++) {
        if (c->tensors[i].base) continue;
        must(device_allocate(d, DEVICE_MEMORY_PRIVATE, bytes_of(r, i) + 2 * GUARD_BYTES, &r->memory[i]));
        if (c->tensors[i].parameter) choose_layout(r, i);
    }
    for (int i = 0; i < c->step_count; i++) {
        op_desc op = c->steps[i].op;
        op.type = device_get_info(d)->compute_type;
        op.bf16 = device_get_info(d)->bf16 && has_activations(c);
        int layout = c->steps[i].layout;
        must(device_prepare(d, &op, layout ? &r->layouts[layout] : NULL, &r->kernels[i]));
        size_t workspace = device_kernel_workspace(r->kernels[i]);
        if (workspace) must(device_allocate(d, DEVICE_MEMORY_PRIVATE, workspace, &r->workspace[i]));
    }
}

void op_runner_close(op_runner *r)
{
    for (int i = 0; i < CASE_MAX_STEPS; i++) {
        device_release(&r->kernels[i]);
        device_free(r->device, &r->workspace[i]);
    }
    for (int i = 0; i < CASE_MAX_TENSORS; i++) device_free(r->device, &r->memory[i]);
    device_stream_close(&r->stream);
}

static void to_type(dtype type, const double *from, void *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (type == DTYPE_F64)
            ((double *)to)[i] = from[i];
        else if (type == DTYPE_F32)
            ((float *)to)[i] = (float)from[i];
        else if (type == DTYPE_BF16)
            ((uint16_t *)to)[i] = bf16_from_float((float)from[i]);
        else if (type == DTYPE_I32)
            ((int32_t *)to)[i] = (int32_t)from[i];
        else
            ((uint8_t *)to)[i] = (uint8_t)from[i];
    }
}

static void from_type(dtype type, const void *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (type == DTYPE_F64)
            to[i] = ((const double *)from)[i];
        else if (type == DTYPE_F32)
            to[i] = ((const float *)from)[i];
        else if (type == DTYPE_BF16)
            to[i] = bf16_to_float(((const uint16_t *)from)[i]);
        else if (type == DTYPE_I32)
            to[i] = ((const int32_t *)from)[i];
        else
            to[i] = ((const uint8_t *)from)[i];
    }
}

static const device_layout *layout_of(const op_runner *r, int tensor)
{
    int parameter = r->c->tensors[tensor].layout_of;
    return parameter && !r->layouts[parameter].plain ? &r->layouts[parameter] : NULL;
}

/* A layout is made for the device's compute type. A copy of the parameter in bfloat16 has the same layout. */
static void pack(const op_runner *r, int tensor, const double *values, void *to)
{
    dtype type = device_get_info(r->device)->compute_type;
    int64_t count = r->c->tensors[tensor].count;
    void *plain = malloc((size_t)(count * dtype_size(type))),
         *packed = malloc((size_t)(count * dtype_size(type)));
    double *wide = malloc((size_t)count * sizeof *wide);
    assert_true(plain && packed && wide);
    to_type(type, values, plain, count);
    must(device_layout_pack(r->device, layout_of(r, tensor), plain, packed));
    from_type(type, packed, wide, count);
    to_type(type_on(r, tensor), wide, to, count);
    free(plain);
    free(packed);
    free(wide);
}

static void unpack(const op_runner *r, int tensor, const void *from, double *values)
{
    dtype type = device_get_info(r->device)->compute_type;
    int64_t count = r->c->tensors[tensor].count;
    void *plain = malloc((size_t)(count * dtype_size(type))),
         *packed = malloc((size_t)(count * dtype_size(type)));
    assert_true(plain && packed);
    from_type(type_on(r, tensor), from, values, count);
    to_type(type, values, packed, count);
    must(device_layout_unpack(r->device, layout_of(r, tensor), packed, plain));
    from_type(type, plain, values, count);
    free(plain);
    free(packed);
}

void op_runner_load(op_runner *r, const case_state *state)
{
    for (int i = 1; i <= r->c->tensor_count; i++) {
        if (r->c->tensors[i].base) continue;
        size_t bytes = bytes_of(r, i), whole = bytes + 2 * GUARD_BYTES;
        char *image = malloc(whole);
        assert_true(image);
        memset(image, GUARD_VALUE, whole);
        if (layout_of(r, i))
            pack(r, i, state->values[i], image + GUARD_BYTES);
        else
            to_type(type_on(r, i), state->values[i], image + GUARD_BYTES, r->c->tensors[i].count);
        must(device_upload(r->stream, r->memory[i].data, image, DTYPE_U8, DTYPE_U8, (int64_t)whole));
        must(device_stream_synchronize(r->stream));
        free(image);
    }
}

void op_runner_run(op_runner *r, int first_step, int end_step)
{
    const op_case *c = r->c;
    for (int i = first_step; i < end_step; i++) {
        void *operands[OP_MAX_OPERANDS] = {0};
        for (int slot = 0; slot < OP_MAX_OPERANDS; slot++) {
            int tensor = c->steps[i].operand[slot];
            if (!tensor) continue;
            int64_t offset = c->tensors[tensor].offset * dtype_size(type_on(r, tensor));
            operands[slot] = (char *)r->memory[case_owner(c, tensor)].data + GUARD_BYTES + offset;
        }
        must(device_launch(r->stream, r->kernels[i], operands, &c->scalars, r->workspace[i].data));
    }
    must(device_stream_synchronize(r->stream));
}

static void check_guard(const op_runner *r, int tensor, const char *guard, const char *where)
{
    for (int i = 0; i < GUARD_BYTES; i++)
        if ((unsigned char)guard[i] != GUARD_VALUE)
            fail_msg("%s: byte %d %s tensor %s was overwritten", r->c->name, i, where,
                     r->c->tensors[tensor].name);
}

void op_runner_store(op_runner *r, case_state *state)
{
    for (int i = 1; i <= r->c->tensor_count; i++) {
        if (r->c->tensors[i].base) continue;
        size_t bytes = bytes_of(r, i), whole = bytes + 2 * GUARD_BYTES;
        char *image = malloc(whole);
        assert_true(image);
        must(device_download(r->stream, image, r->memory[i].data, DTYPE_U8, DTYPE_U8, (int64_t)whole));
        must(device_stream_synchronize(r->stream));
        check_guard(r, i, image, "before");
        check_guard(r, i, image + GUARD_BYTES + bytes, "after");
        if (layout_of(r, i))
            unpack(r, i, image + GUARD_BYTES, state->values[i]);
        else
            from_type(type_on(r, i), image + GUARD_BYTES, state->values[i], r->c->tensors[i].count);
        free(image);
    }
}

void op_runner_step(op_runner *r, int step, const case_state *from, case_state *to)
{
    op_runner_load(r, from);
    op_runner_run(r, step, step + 1);
    op_runner_store(r, to);
}
