/* The optimizers torch.optim.SGD, Adam and AdamW as PyTorch documents them, and other operations over the
 * pieces of an arena that a launch lists. */
#include "common/device/reference/reference_kernels.h"
#include "common/memory/piece.h"

#include <math.h>

/* Returns the scaled gradient of element i. If the gradient is not finite, sets `nonfinite`. */
static double gradient_at(const host_call *call, int64_t i)
{
    double g = call->scalars->gradient_scale * ((const double *)call->operands[OPT_GRAD])[i];
    if (call->scalars->nonfinite && !isfinite(g))
        __atomic_store_n(call->scalars->nonfinite, 1, __ATOMIC_RELAXED);
    return g;
}

/* Computes
 *
 *   g = scale grad + weight_decay p
 *   b = momentum b + (1 - dampening) g, or b = g at the first step
 *   p -= lr d
 *
 * where d is g + momentum b with Nesterov momentum, b with plain momentum, and g without momentum. */
void reference_sgd(const host_call *call)
{
    const optimizer_attributes *a = &call->op->u.optimizer;
    const op_scalars *s = call->scalars;
    double *param = call->operands[OPT_PARAM], *buffer = call->operands[OPT_STATE1];
    for (const piece *p = s->pieces; p < s->pieces + s->piece_count; p++)
        for (int64_t i = p->offset; i < p->offset + p->count; i++) {
            double g = gradient_at(call, i) + s->weight_decay * param[i];
            if (a->momentum != 0) {
                buffer[i] = s->first_step ? g : a->momentum * buffer[i] + (1 - a->dampening) * g;
                g = a->nesterov ? g + a->momentum * buffer[i] : buffer[i];
            }
            param[i] -= s->learning_rate * g;
        }
}

/* Kingma and Ba, "Adam", 2015, and for decoupled weight decay Loshchilov and Hutter, "Decoupled Weight Decay
 * Regularization", 2019.
 *
 *   Adam  g = scale grad + weight_decay p        AdamW  g = scale grad, p -= lr weight_decay p
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p -= lr (m / correction1) / (sqrt(v / correction2) + eps) */
void reference_adam(const host_call *call)
{
    const optimizer_attributes *a = &call->op->u.optimizer;
    const op_scalars *s = call->scalars;
    double *param = call->operands[OPT_PARAM], *m = call->operands[OPT_STATE1],
           *v = call->operands[OPT_STATE2];
    for (const piece *p = s->pieces; p < s->pieces + s->piece_count; p++)
        for (int64_t i = p->offset; i < p->offset + p->count; i++) {
            double g = gradient_at(call, i);
            if (a->decoupled)
                param[i] -= s->learning_rate * s->weight_decay * param[i];
            else
                g += s->weight_decay * param[i];
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
            double step = m[i] / s->bias_correction1;
            param[i] -= s->learning_rate * step / (sqrt(v[i] / s->bias_correction2) + a->eps);
        }
}

void reference_sum_squares(const host_call *call)
{
    const op_scalars *s = call->scalars;
    const double *x = call->operands[SUMSQ_X];
    double *out = call->operands[SUMSQ_OUT];
    for (const piece *p = s->pieces; p < s->pieces + s->piece_count; p++)
        for (int64_t i = p->offset; i < p->offset + p->count; i++) *out += x[i] * x[i];
}

void reference_divide(const host_call *call)
{
    const op_scalars *s = call->scalars;
    double *x = call->operands[DIVIDE_X];
    for (const piece *p = s->pieces; p < s->pieces + s->piece_count; p++)
        for (int64_t i = p->offset; i < p->offset + p->count; i++) x[i] /= s->divisor;
}

void reference_fill(const host_call *call)
{
    const op_scalars *s = call->scalars;
    double *x = call->operands[FILL_X];
    for (const piece *p = s->pieces; p < s->pieces + s->piece_count; p++)
        for (int64_t i = p->offset; i < p->offset + p->count; i++) x[i] = 0;
}
