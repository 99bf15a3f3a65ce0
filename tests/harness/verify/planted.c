#include "tests/harness/verify/planted.h"

#include "common/device/device_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static planted_error planted;
static atomic_int made;

void planted_set(planted_error error)
{
    planted = error;
    atomic_store(&made, 0);
}

int planted_count(void)
{
    return atomic_load(&made);
}

static double get(const void *tensor, dtype type, int64_t i)
{
    return type == DTYPE_F64 ? ((const double *)tensor)[i] : (double)((const float *)tensor)[i];
}

static void set(void *tensor, dtype type, int64_t i, double value)
{
    if (type == DTYPE_F64)
        ((double *)tensor)[i] = value;
    else
        ((float *)tensor)[i] = (float)value;
}

static void exchange(void *tensor, dtype type, int64_t i, int64_t j)
{
    double kept = get(tensor, type, i);
    set(tensor, type, i, get(tensor, type, j));
    set(tensor, type, j, kept);
}

static bool is_update(const op_desc *op)
{
    return op->kind == OP_sgd || op->kind == OP_adam;
}

static void before(const op_desc *op, void *const *operands, op_scalars *scalars)
{
    const conv2d_attributes *conv = &op->u.conv2d;
    switch (planted) {
    case PLANTED_NO_DECAY:
    case PLANTED_MORE_DECAY:
        if (!is_update(op)) return;
        scalars->weight_decay *= planted == PLANTED_NO_DECAY ? 0 : 1.1;
        break;
    case PLANTED_GRADIENT_OF_ALL:
        if (!is_update(op)) return;
        scalars->gradient_scale *= 1.05;
        break;
    case PLANTED_COLORS:
        if (op->kind != OP_conv2d_forward || conv->c != 3) return;
        for (int64_t i = 0; i < conv->n * conv->h * conv->w; i++)
            exchange(operands[CONV_FWD_X], op->type, 3 * i, 3 * i + 2);
        break;
    default:
        return;
    }
    atomic_fetch_add(&made, 1);
}

/* Replaces the update of the running variance by one without Bessel's correction. The forward pass has
 * computed new = (1 - m) old + m s with momentum m and s = biased * count / (count - 1). */
static void bias_variance(const batchnorm_attributes *a, dtype type, const double *old, void *running)
{
    double count = (double)(a->n * a->h * a->w), m = a->momentum;
    for (int64_t i = 0; i < a->c; i++) {
        double unbiased = (get(running, type, i) - (1 - m) * old[i]) / m;
        set(running, type, i, (1 - m) * old[i] + m * unbiased * (count - 1) / count);
    }
}

static void after(const op_desc *op, void *const *operands, const double *old)
{
    switch (planted) {
    case PLANTED_GRADIENT_OF_LAYER:
        if (op->kind != OP_linear_backward_weights) return;
        for (int64_t i = 0; i < op->u.linear.in * op->u.linear.out; i++)
            set(operands[LINEAR_BWD_WEIGHTS_DW], op->type, i,
                1.05 * get(operands[LINEAR_BWD_WEIGHTS_DW], op->type, i));
        break;
    case PLANTED_CHANNELS:
        if (op->kind != OP_batchnorm_backward) return;
        exchange(operands[BN_BWD_DGAMMA], op->type, 0, 1);
        break;
    case PLANTED_BIASED_VARIANCE:
        if (op->kind != OP_batchnorm_forward) return;
        bias_variance(&op->u.batchnorm, op->type, old, operands[BN_FWD_RUNNING_VAR]);
        break;
    default:
        return;
    }
    atomic_fetch_add(&made, 1);
}

static double *copy_variance(const op_desc *op, void *const *operands)
{
    if (op->kind != OP_batchnorm_forward) return NULL;
    double *old = malloc((size_t)op->u.batchnorm.c * sizeof *old);
    for (int64_t i = 0; old && i < op->u.batchnorm.c; i++)
        old[i] = get(operands[BN_FWD_RUNNING_VAR], op->type, i);
    return old;
}

status __real_device_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                            const op_scalars *scalars, void *workspace);
status __wrap_device_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                            const op_scalars *scalars, void *workspace);

status __wrap_device_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                            const op_scalars *scalars, void *workspace)
{
    op_scalars changed = scalars ? *scalars : (op_scalars){0};
    double *old = copy_variance(&kernel->op, operands);
    before(&kernel->op, operands, &changed);
    status rc = __real_device_launch(s, kernel, operands, scalars ? &changed : NULL, workspace);
    after(&kernel->op, operands, old);
    free(old);
    return rc;
}
