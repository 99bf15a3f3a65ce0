/* y = act(x w^T + b) with weights [out, in] (torch.nn.Linear) in the order in which the input's columns
 * run: for a flattened image the weights were permuted to h, w, c (device_reference.c). */
#include "common/device/reference/reference_kernels.h"

#include <string.h>

enum { PANEL = 64 }; /* outputs whose weights are transposed at a time */

static status prepare_forward(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)(PANEL * kernel->base.op.u.linear.in) * sizeof(double);
    return STATUS_OK;
}

/* y (m, out) = x (m, in) * w (out, in)^T + b */
static void multiply(const linear_attributes *a, int64_t m, const double *x, const double *w, const double *b,
                     double *y, double *panel)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t o = 0; o < a->out; o++) y[i * a->out + o] = a->bias ? b[o] : 0;
    for (int64_t first = 0; first < a->out; first += PANEL) {
        int64_t width = a->out - first < PANEL ? a->out - first : PANEL;
        for (int64_t o = 0; o < width; o++)
            for (int64_t i = 0; i < a->in; i++) panel[i * width + o] = w[(first + o) * a->in + i];
        reference_matmul(m, width, a->in, (matrix_view){x, a->in, 1}, panel, width, y + first, a->out);
    }
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    int64_t m = reference_rows(scalars, a->m);
    double *y = operands[LINEAR_FWD_Y], *slope = operands[LINEAR_FWD_SLOPE];
    multiply(a, m, operands[LINEAR_FWD_X], operands[LINEAR_FWD_W], operands[LINEAR_FWD_B], y, workspace);
    if (a->act == ACTIVATION_NONE) return;
    bool keep = slope && a->act != ACTIVATION_RELU;
    for (int64_t i = 0; i < m * a->out; i++) {
        if (keep) slope[i] = reference_activate_backward(a->act, y[i], 1);
        y[i] = reference_activate(a->act, y[i]);
    }
}

/* dx (m, in) = dpre (m, out) * w (out, in) */
static void backward_data(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    int64_t m = reference_rows(scalars, a->m);
    const double *dpre = operands[LINEAR_BWD_DATA_DY];
    double *dx = operands[LINEAR_BWD_DATA_DX];
    if (!kernel->base.op.accumulate) memset(dx, 0, (size_t)(m * a->in) * sizeof *dx);
    reference_matmul(m, a->in, a->out, (matrix_view){dpre, a->out, 1}, operands[LINEAR_BWD_DATA_W], a->in,
                      dx, a->in);
}

/* dpre = dy * act', dw (out, in) = dpre^T * x, db = column sums of dpre */
static void backward_weights(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const linear_attributes *a = &kernel->base.op.u.linear;
    int64_t m = reference_rows(scalars, a->m);
    const double *kept = operands[LINEAR_BWD_WEIGHTS_ACT];
    double *dpre = operands[LINEAR_BWD_WEIGHTS_DY];
    double *dw = operands[LINEAR_BWD_WEIGHTS_DW], *db = operands[LINEAR_BWD_WEIGHTS_DB];
    bool add = reference_accumulates(&kernel->base.op, scalars);
    if (a->act != ACTIVATION_NONE)
        for (int64_t i = 0; i < m * a->out; i++)
            dpre[i] = a->act == ACTIVATION_RELU ? reference_activate_backward(a->act, kept[i], dpre[i])
                                                : kept[i] * dpre[i];
    if (!add) memset(dw, 0, (size_t)(a->out * a->in) * sizeof *dw);
    matrix_view transposed = {dpre, 1, a->out};
    reference_matmul(a->out, a->in, m, transposed, operands[LINEAR_BWD_WEIGHTS_X], a->in, dw, a->in);
    if (!a->bias) return;
    for (int64_t o = 0; o < a->out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) sum += dpre[i * a->out + o];
        db[o] = (add ? db[o] : 0) + sum;
    }
}

const host_kernel_entry reference_linear_forward = {prepare_forward, forward, NULL};
const host_kernel_entry reference_linear_backward_data = {NULL, backward_data, NULL};
const host_kernel_entry reference_linear_backward_weights = {NULL, backward_weights, NULL};
