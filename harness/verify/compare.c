#include "harness/verify/compare.h"

#include <math.h>
#include <stdio.h>

static const double float64_limit = 1e-9; /* of the tensor's norm; of the loss */
static const double kink_limit = 0.05;    /* of a gradient's l2 */
/* Products of bfloat16, whose rounding unit is 2^-9: of the loss; of a tensor's l2. */
static const double bfloat16_loss_limit = 0x1p-7, bfloat16_limit = 0.05;
static const double unreliable = 1e-3;    /* of its l2: PyTorch's float32 error above it tells nothing */

static void judge(comparison *c, const char *what, double found, double expected, double limit)
{
    double off = fabs(found - expected);
    double share = off == 0 ? 0 : limit > 0 ? off / limit : INFINITY;
    if (isnan(found)) share = INFINITY;
    if (share <= c->share && c->what[0]) return;
    c->share = share;
    c->found = found;
    c->expected = expected;
    snprintf(c->what, sizeof c->what, "%s", what);
}

static double loss_limit(comparison_precision precision, double expected, double error)
{
    double floor = 1e-6 * fabs(expected);
    switch (precision) {
    case COMPARE_FLOAT64: return float64_limit * fabs(expected);
    case COMPARE_BFLOAT16: return bfloat16_loss_limit * fabs(expected);
    case COMPARE_FLOAT32: break;
    }
    return 8 * (error > floor ? error : floor);
}

void compare_loss(comparison *c, comparison_precision precision, const golden_file *file, int64_t step, int rank,
                  double loss)
{
    int64_t at = step * file->losses_per_step + rank;
    char what[96];
    snprintf(what, sizeof what, "loss of step %lld, rank %d", (long long)step, rank);
    judge(c, what, loss, file->loss[at], loss_limit(precision, file->loss[at], file->loss_error[at]));
}

void compare_mean_loss(comparison *c, comparison_precision precision, const golden_file *file, int64_t step, double loss)
{
    double expected = 0, error = 0;
    for (int r = 0; r < file->losses_per_step; r++) {
        expected += file->loss[step * file->losses_per_step + r] / file->losses_per_step;
        error += file->loss_error[step * file->losses_per_step + r] / file->losses_per_step;
    }
    char what[96];
    snprintf(what, sizeof what, "loss of step %lld", (long long)step);
    judge(c, what, loss, expected, loss_limit(precision, expected, error));
}

typedef struct digest {
    double l2, sum;
} digest;

static digest digest_of(const double *values, int64_t count)
{
    double squares = 0, sum = 0, carry = 0; /* Kahan: a sum of millions is held to 1e-9 of the norm */
    for (int64_t i = 0; i < count; i++) {
        squares += values[i] * values[i];
        double y = values[i] - carry, t = sum + y;
        carry = (t - sum) - y;
        sum = t;
    }
    return (digest){sqrt(squares), sum};
}

void compare_tensor(comparison *c, comparison_precision precision, const golden_tensor *t, const char *kind,
                    const double *values)
{
    bool wide = precision == COMPARE_FLOAT64;
    c->tensors++;
    if (!wide && t->error > unreliable * t->l2) {
        c->unchecked++;
        return;
    }
    char what[sizeof c->what];
    digest d = digest_of(values, t->elements);
    if (precision == COMPARE_BFLOAT16) {
        snprintf(what, sizeof what, "%s %s l2", kind, t->name);
        judge(c, what, d.l2, t->l2, bfloat16_limit * t->l2);
        return;
    }
    /* A gradient that is zero but for rounding (an attention key's bias) has no norm to speak of. Its
     * float32 error is then the floor: 1e-7 of the norm of all tensors together, which takes its place. */
    double scale = float64_limit * (t->l2 > 10 * t->error ? t->l2 : 1e7 * t->error);
    double root = sqrt((double)t->elements);
    snprintf(what, sizeof what, "%s %s l2", kind, t->name);
    judge(c, what, d.l2, t->l2, wide ? scale : 8 * t->error);
    snprintf(what, sizeof what, "%s %s sum", kind, t->name);
    judge(c, what, d.sum, t->sum, wide ? scale : 200 * t->error);
    for (int i = 0; i < t->sample_count; i++) {
        snprintf(what, sizeof what, "%s %s[%lld]", kind, t->name, (long long)t->sample_index[i]);
        judge(c, what, values[t->sample_index[i]], t->sample_value[i], wide ? scale : 32 * t->error / root);
    }
}

void compare_tensor_with_kinks(comparison *c, comparison_precision precision, const golden_tensor *t, const char *kind,
                               const double *values)
{
    double limit = precision == COMPARE_BFLOAT16 ? 2 * kink_limit : kink_limit;
    c->tensors++;
    if (t->error > kink_limit * t->l2) {
        c->unchecked++;
        return;
    }
    char what[sizeof c->what];
    snprintf(what, sizeof what, "%s %s l2", kind, t->name);
    judge(c, what, digest_of(values, t->elements).l2, t->l2, limit * t->l2);
}
