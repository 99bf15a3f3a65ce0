/* The losses torch.nn.CrossEntropyLoss and MSELoss with reduction "sum". The caller divides the summed loss
 * to obtain the mean. The gradients are divided by the normalizer here. */
#include "common/device/reference/reference_kernels.h"

#include <math.h>

typedef struct softmax_row {
    double largest, sum; /* the largest logit, and the sum of exp(logit - largest) */
    int64_t argmax;      /* index of the largest logit, the first if several are equal */
} softmax_row;

static softmax_row softmax_of(const double *logits, int64_t classes)
{
    softmax_row s = {logits[0], 0, 0};
    for (int64_t i = 1; i < classes; i++)
        if (logits[i] > s.largest) {
            s.largest = logits[i];
            s.argmax = i;
        }
    for (int64_t i = 0; i < classes; i++) s.sum += exp(logits[i] - s.largest);
    return s;
}

/* Computes loss = log sum_i exp(l_i) - l_target and dl_i = (softmax(l)_i - [i = target]) / normalizer. */
void reference_cross_entropy(const host_call *call)
{
    const loss_attributes *a = &call->op->u.loss;
    const int32_t *targets = call->operands[LOSS_TARGETS];
    double *sums = call->operands[LOSS_SUMS];
    sums[0] = sums[1] = 0;
    for (int64_t row = 0; row < host_rows(call, a->rows); row++) {
        const double *logits = (const double *)call->operands[LOSS_LOGITS] + row * a->classes;
        double *dlogits = a->gradient ? (double *)call->operands[LOSS_DLOGITS] + row * a->classes : NULL;
        bool counts = targets[row] != LOSS_IGNORE;
        softmax_row s = softmax_of(logits, a->classes);
        if (counts) {
            sums[0] += s.largest + log(s.sum) - logits[targets[row]];
            sums[1] += s.argmax == targets[row];
        }
        for (int64_t i = 0; dlogits && i < a->classes; i++) {
            double probability = exp(logits[i] - s.largest) / s.sum;
            dlogits[i] = counts ? (probability - (i == targets[row])) / call->scalars->loss_normalizer : 0;
        }
    }
}

/* Computes loss = sum (y - t)^2 and dy = 2 (y - t) / normalizer. */
void reference_mean_squared_error(const host_call *call)
{
    const loss_attributes *a = &call->op->u.loss;
    const double *y = call->operands[LOSS_LOGITS], *targets = call->operands[LOSS_TARGETS];
    double *dy = call->operands[LOSS_DLOGITS], *sums = call->operands[LOSS_SUMS];
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < host_rows(call, a->rows) * a->classes; i++) {
        double difference = y[i] - targets[i];
        sums[0] += difference * difference;
        if (a->gradient) dy[i] = 2 * difference / call->scalars->loss_normalizer;
    }
}
