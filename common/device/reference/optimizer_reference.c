/* torch.optim.SGD, Adam and AdamW as their documentation's algorithms state them, and what passes over
 * related operations. Each visits the elements of the launch's pieces. */
#include "common/device/reference/reference_kernels.h"
#include "common/memory/piece.h"

#include <math.h>

static void check_gradient(const op_scalars *scalars, double scaled)
{
    if (scalars->nonfinite && !isfinite(scaled)) __atomic_store_n(scalars->nonfinite, 1, __ATOMIC_RELAXED);
}

/* g = scale grad + weight_decay p;  b = momentum b + (1 - dampening) g, at the first step b = g;
 * p -= lr (g + momentum b) with Nesterov, lr b without, lr g without momentum */
static void sgd(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    const optimizer_attributes *a = &kernel->base.op.u.optimizer;
    const double *grad = operands[OPT_GRAD];
    double *param = operands[OPT_PARAM], *buffer = operands[OPT_STATE1];
    for (int p = 0; p < scalars->piece_count; p++) {
        piece part = scalars->pieces[p];
        for (int64_t i = part.offset; i < part.offset + part.count; i++) {
            double g = scalars->gradient_scale * grad[i] + scalars->weight_decay * param[i];
            check_gradient(scalars, scalars->gradient_scale * grad[i]);
            if (a->momentum != 0) {
                buffer[i] = scalars->first_step ? g : a->momentum * buffer[i] + (1 - a->dampening) * g;
                g = a->nesterov ? g + a->momentum * buffer[i] : buffer[i];
            }
            param[i] -= scalars->learning_rate * g;
        }
    }
}

/* Kingma and Ba, "Adam", 2015; decoupled weight decay: Loshchilov and Hutter, "Decoupled Weight Decay
 * Regularization", 2019.
 *   Adam  g = scale grad + weight_decay p        AdamW  g = scale grad, p -= lr weight_decay p
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p -= lr (m / correction1) / (sqrt(v / correction2) + eps) */
static void adam(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    const optimizer_attributes *a = &kernel->base.op.u.optimizer;
    const double *grad = operands[OPT_GRAD];
    double *param = operands[OPT_PARAM], *m = operands[OPT_STATE1], *v = operands[OPT_STATE2];
    for (int p = 0; p < scalars->piece_count; p++) {
        piece part = scalars->pieces[p];
        for (int64_t i = part.offset; i < part.offset + part.count; i++) {
            double g = scalars->gradient_scale * grad[i];
            check_gradient(scalars, g);
            if (a->decoupled)
                param[i] -= scalars->learning_rate * scalars->weight_decay * param[i];
            else
                g += scalars->weight_decay * param[i];
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
            double step = m[i] / scalars->bias_correction1;
            param[i] -= scalars->learning_rate * step / (sqrt(v[i] / scalars->bias_correction2) + a->eps);
        }
    }
}

static void sum_squares(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                        void *workspace)
{
    const double *x = operands[SUMSQ_X];
    double *out = operands[SUMSQ_OUT];
    for (int p = 0; p < scalars->piece_count; p++) {
        piece part = scalars->pieces[p];
        for (int64_t i = part.offset; i < part.offset + part.count; i++) *out += x[i] * x[i];
    }
}

static void divide(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    double *x = operands[DIVIDE_X];
    for (int p = 0; p < scalars->piece_count; p++) {
        piece part = scalars->pieces[p];
        for (int64_t i = part.offset; i < part.offset + part.count; i++) x[i] /= scalars->divisor;
    }
}

static void fill(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    double *x = operands[FILL_X];
    for (int p = 0; p < scalars->piece_count; p++) {
        piece part = scalars->pieces[p];
        for (int64_t i = part.offset; i < part.offset + part.count; i++) x[i] = 0;
    }
}

const host_kernel_entry reference_sgd = {NULL, sgd, NULL};
const host_kernel_entry reference_adam = {NULL, adam, NULL};
const host_kernel_entry reference_sum_squares = {NULL, sum_squares, NULL};
const host_kernel_entry reference_divide = {NULL, divide, NULL};
const host_kernel_entry reference_fill = {NULL, fill, NULL};
