/* A kernel of the virtual device holds only the time of an operation. All ranks of a simulation share the
 * kernels, so the simulation owns them. */
#include "common/base/random.h"
#include "common/device/sim/sim_impl.h"
#include "common/memory/piece.h"

#include <math.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

typedef struct kernel_table {
    device owner;
    void *tree; /* search tree of sim_kernel by operation */
} kernel_table;

static void free_table(void *table)
{
    tdestroy(((kernel_table *)table)->tree, free);
    free(table);
}

static int compare_ops(const void *a, const void *b)
{
    return memcmp(&((const sim_kernel *)a)->base.op, &((const sim_kernel *)b)->base.op, sizeof(op_desc));
}

static status find_table(simulation *s, kernel_table **out)
{
    if (!s->devices) {
        kernel_table *t = calloc(1, sizeof *t);
        if (!t) return fail(STATUS_SYSTEM, "no memory for kernels");
        t->owner.backend = &device_sim;
        s->devices = t;
        s->free_devices = free_table;
    }
    *out = s->devices;
    return STATUS_OK;
}

/* Returns the number of elements of an operation that runs over pieces, and 0 for other operations. */
static double elements_of(const op_desc *op)
{
    switch (op->kind) {
    case OP_sgd:
    case OP_adam:
    case OP_sum_squares:
        return (double)op->u.optimizer.count;
    case OP_divide:
    case OP_fill:
        return (double)op->u.elementwise.count;
    default:
        return 0;
    }
}

status sim_prepare(device *base, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    simulation *s = ((sim_device *)base)->simulation;
    kernel_table *table = NULL;
    TRY(find_table(s, &table));
    sim_kernel wanted;
    memcpy(&wanted.base.op, op, sizeof *op);
    sim_kernel **found = tfind(&wanted, &table->tree, compare_ops), *k = found ? *found : NULL;
    if (!k) {
        k = calloc(1, sizeof *k);
        if (k) memcpy(&k->base.op, op, sizeof *op);
        if (!k || !tsearch(k, &table->tree, compare_ops)) {
            free(k);
            return fail(STATUS_SYSTEM, "no memory for a kernel of %s", op_name(op->kind));
        }
        k->base.device = &table->owner;
        k->price = sim_price_op(s->profile, s->config.precision, op);
        k->parts = sim_price_parts(s->profile, s->config.precision, op);
        k->contention = sim_price_contention(s->profile, op);
        k->elements = elements_of(op);
    }
    *out = &k->base;
    return STATUS_OK;
}

void sim_release(device_kernel *kernel)
{
    /* the simulation frees the kernels */
}

static op_desc with_rows(const op_desc *op, int64_t rows)
{
    op_desc less = *op;
    switch (op->kind) {
    case OP_linear_forward:
    case OP_linear_backward_data:
    case OP_linear_backward_weights:
        less.u.linear.m = rows;
        break;
    case OP_layernorm_forward:
    case OP_layernorm_backward:
        less.u.layernorm.m = rows;
        break;
    case OP_gather_rows:
    case OP_scatter_rows:
        less.u.rows.selected = rows;
        break;
    case OP_cross_entropy:
    case OP_mean_squared_error:
        less.u.loss.rows = rows;
        break;
    default:
        break;
    }
    return less;
}

static double price_of(const sim_device *d, const sim_kernel *k, const op_scalars *scalars)
{
    if (!scalars) return k->price;
    if (k->elements > 0 && scalars->pieces) {
        piece_list pieces = {scalars->pieces, scalars->piece_count};
        return k->price * ((double)piece_list_elements(pieces) / k->elements);
    }
    if (scalars->rows <= 0) return k->price;
    op_desc less = with_rows(&k->base.op, scalars->rows);
    return sim_price_op(d->simulation->profile, d->simulation->config.precision, &less);
}

static double jitter_of(sim_device *d)
{
    if (!d->jitter) return 1;
    double spread = sim_profile_get(d->simulation->profile, SIM_JITTER_KERNEL);
    return 1 + spread * fabs(random_normal(d->jitter, d->launches++));
}

sim_time sim_kernel_time(sim_device *d, const sim_kernel *k, const op_scalars *scalars)
{
    /* A recorded time includes the overheads of its kernels. */
    sim_time overhead = k->base.op.kind == OP_recorded ? 0 : d->overhead;
    double price = price_of(d, k, scalars) * (d->contends ? k->contention : 1) * d->slowdown * jitter_of(d);
    return overhead + (sim_time)llround(price);
}

void sim_device_spend_op(device *base, const op_desc *op)
{
    sim_device *d = (sim_device *)base;
    const simulation *s = sim_device_simulation(base);
    if (!s) return;
    double price = sim_price_op(s->profile, s->config.precision, op) * d->slowdown;
    if (d->contends) price *= sim_price_contention(s->profile, op);
    sim_actor_spend(sim_actor_of(d), d->launch + d->overhead + (sim_time)llround(price));
}
