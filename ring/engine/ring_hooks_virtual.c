/* PowerSGD without tensors: whoever acts spends the time of what it would do. */
#include "common/device/sim/device_sim.h"
#include "ring/engine/engine_impl.h"

#include <string.h>

/* Neither errors nor scratch. */
static status virtual_open(ring_engine *e, int64_t largest)
{
    (void)e;
    (void)largest;
    return STATUS_OK;
}

static void virtual_close(ring_engine *e)
{
    (void)e;
}

static status virtual_start(ring_engine *e, int param)
{
    (void)e;
    (void)param;
    return STATUS_OK;
}

static void spend_pass(ring_engine *e, op_kind kind, int64_t elements)
{
    op_desc op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.type = DTYPE_F32;
    op.u.elementwise.count = elements;
    sim_device_spend_op(e->base.context.device, &op);
}

static void spend_product(ring_engine *e, op_kind kind, int64_t m, int64_t in, int64_t out)
{
    op_desc op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.type = DTYPE_F32;
    op.u.linear.m = m;
    op.u.linear.in = in;
    op.u.linear.out = out;
    sim_device_spend_op(e->base.context.device, &op);
}

/* Of the second phase every column of P against those before it: a dot product and a sum, its norm, a
 * division. */
static status virtual_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    int rank = e->settings.powersgd_rank;
    if (phase == 0) spend_pass(e, OP_add, x->rows * x->cols);
    for (int k = 0; phase == 1 && k < rank; k++) spend_pass(e, OP_add, 2 * (k + 1) * x->rows);
    spend_product(e, phase == 0 ? OP_linear_forward : OP_linear_backward_weights, x->rows, x->cols, rank);
    return STATUS_OK;
}

static status virtual_restore(ring_engine *e, const powersgd_matrix *x)
{
    spend_pass(e, OP_divide, x->rows * x->cols);
    spend_product(e, OP_linear_forward, x->rows, e->settings.powersgd_rank, x->cols);
    spend_pass(e, OP_add, x->rows * x->cols);
    return STATUS_OK;
}

static status virtual_copy(ring_engine *e, float *to, const float *from, int64_t count)
{
    (void)to;
    (void)from;
    spend_pass(e, OP_divide, count);
    return STATUS_OK;
}

static status virtual_settle(ring_engine *e)
{
    (void)e;
    return STATUS_OK;
}

const ring_powersgd_place ring_powersgd_virtual = {virtual_open,    virtual_close,   virtual_start,
                                                   virtual_project, virtual_restore, virtual_copy,
                                                   virtual_settle};
