/* Linear layers: y = act(x w^T + b) with weights [out, in] (torch.nn.Linear). The columns of the weights are
 * in the order of the input's columns. If the input is a flattened image, layout.c has permuted the columns
 * of the weights from c, h, w to h, w, c. */
#include "common/device/reference/reference_kernels.h"

#include <string.h>

/* Computes y (m, out) = x (m, in) * w (out, in)^T + b, then the activation. Transposes the weights of one
 * panel of outputs at a time. */
void reference_linear_forward(const host_call *call)
{
    const linear_attributes *a = &call->op->u.linear;
    int64_t m = host_rows(call, a->m);
    const double *w = call->operands[LINEAR_FWD_W], *b = call->operands[LINEAR_FWD_B];
    double *y = call->operands[LINEAR_FWD_Y], *slope = call->operands[LINEAR_FWD_SLOPE],
           *panel = call->workspace;
    matrix_view x = {call->operands[LINEAR_FWD_X], a->in, 1};
    for (int64_t i = 0; i < m * a->out; i++) y[i] = a->bias ? b[i % a->out] : 0;
    for (int64_t first = 0; first < a->out; first += REFERENCE_PANEL) {
        int64_t width = a->out - first < REFERENCE_PANEL ? a->out - first : REFERENCE_PANEL;
        for (int64_t o = 0; o < width; o++)
            for (int64_t i = 0; i < a->in; i++) panel[i * width + o] = w[(first + o) * a->in + i];
        reference_matmul(m, width, a->in, x, panel, width, y + first, a->out);
    }
    if (a->act == ACTIVATION_NONE) return;
    bool keep = slope && a->act != ACTIVATION_RELU;
    for (int64_t i = 0; i < m * a->out; i++) {
        if (keep) slope[i] = reference_activate_backward(a->act, y[i], 1);
        y[i] = reference_activate(a->act, y[i]);
    }
}

/* Computes dx (m, in) = dpre (m, out) * w (out, in). */
void reference_linear_backward_data(const host_call *call)
{
    const linear_attributes *a = &call->op->u.linear;
    int64_t m = host_rows(call, a->m);
    const double *dpre = call->operands[LINEAR_BWD_DATA_DY];
    double *dx = call->operands[LINEAR_BWD_DATA_DX];
    if (!call->op->accumulate) memset(dx, 0, (size_t)(m * a->in) * sizeof *dx);
    reference_matmul(m, a->in, a->out, (matrix_view){dpre, a->out, 1}, call->operands[LINEAR_BWD_DATA_W],
                     a->in, dx, a->in);
}

/* Computes dpre = dy * act' in place, dw (out, in) = dpre^T * x, and db = the column sums of dpre. */
void reference_linear_backward_weights(const host_call *call)
{
    const linear_attributes *a = &call->op->u.linear;
    int64_t m = host_rows(call, a->m);
    const double *kept = call->operands[LINEAR_BWD_WEIGHTS_ACT];
    double *dpre = call->operands[LINEAR_BWD_WEIGHTS_DY];
    double *dw = call->operands[LINEAR_BWD_WEIGHTS_DW];
    bool add = host_accumulates(call);
    if (a->act != ACTIVATION_NONE)
        for (int64_t i = 0; i < m * a->out; i++)
            dpre[i] = a->act == ACTIVATION_RELU ? reference_activate_backward(a->act, kept[i], dpre[i])
                                                : kept[i] * dpre[i];
    if (!add) memset(dw, 0, (size_t)(a->out * a->in) * sizeof *dw);
    matrix_view transposed = {dpre, 1, a->out};
    reference_matmul(a->out, a->in, m, transposed, call->operands[LINEAR_BWD_WEIGHTS_X], a->in, dw, a->in);
    if (a->bias) reference_column_sums(dpre, m, a->out, add, call->operands[LINEAR_BWD_WEIGHTS_DB]);
}
