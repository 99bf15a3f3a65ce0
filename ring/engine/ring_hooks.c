/* PowerSGD within the engine. A bucket travels twice: first P of its matrices together with the tensors that
 * do not pay, then Q. */
#include "common/device/sim/device_sim.h"
#include "ring/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

status ring_powersgd_open(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    size_t params = (size_t)set->model->param_count;
    ring_powersgd *h = &e->powersgd;
    if (e->settings.hook != RING_HOOK_POWERSGD) return STATUS_OK;
    int64_t largest = 1;
    for (size_t i = 0; i < params; i++)
        if (e->tensors[i].elements > largest) largest = e->tensors[i].elements;
    h->virtual = sim_device_simulation(e->base.context.device) != NULL;
    h->errors = calloc(1, h->virtual ? 1 : (size_t)e->memory.bucket_bytes);
    h->matrices = calloc(params + 1, sizeof *h->matrices);
    h->plain = calloc(params + 1, sizeof *h->plain);
    h->factors = calloc(params + 1, sizeof *h->factors);
    h->scratch = calloc(h->virtual ? 1 : (size_t)largest, (size_t)dtype_size(set->type));
    if (!h->errors || !h->matrices || !h->plain || !h->factors || !h->scratch)
        return fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
    return STATUS_OK;
}

void ring_powersgd_close(ring_engine *e)
{
    free(e->powersgd.errors);
    free(e->powersgd.matrices);
    free(e->powersgd.plain);
    free(e->powersgd.factors);
    free(e->powersgd.scratch);
}

bool ring_powersgd_active(const ring_engine *e, int64_t step)
{
    return e->settings.hook == RING_HOOK_POWERSGD && step >= e->settings.powersgd_start;
}

/* Lays a bucket's P and uncompressed tensors out from `at`, its Q behind them; returns the end. */
static float *lay_out(ring_engine *e, int k, float *at)
{
    const nn_model *m = e->base.context.params->model;
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->list.buckets[k];
    int rank = e->settings.powersgd_rank;
    h->factors[k].p = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->list.tensors[i];
        int64_t rows = m->params[param].shape.dims[0], cols = m->params[param].elements / rows;
        int64_t offset = e->buckets[k].offset / (int64_t)sizeof(float) + e->places[param].offset;
        h->matrices[param] = (powersgd_matrix){.rows = rows, .cols = cols};
        h->plain[param] = at;
        if (!powersgd_pays(rows, cols, rank)) {
            at += m->params[param].elements;
            continue;
        }
        h->matrices[param].m = (float *)e->memory.buckets + offset;
        h->matrices[param].error = h->virtual ? NULL : h->errors + offset;
        h->matrices[param].p = at;
        at += rows * rank;
    }
    h->factors[k].p_count = at - h->factors[k].p;
    h->factors[k].q = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        powersgd_matrix *x = &h->matrices[e->list.tensors[i]];
        if (!x->m) continue;
        x->q = at;
        at += x->cols * rank;
        if (!h->virtual) powersgd_start(x, rank, m->params[e->list.tensors[i]].name);
    }
    h->factors[k].q_count = at - h->factors[k].q;
    return at;
}

void ring_powersgd_use_buckets(ring_engine *e)
{
    float *at = e->memory.factors;
    for (int k = 0; k < e->list.count; k++) at = lay_out(e, k, at);
}

static size_t bytes_of(const ring_engine *e, int param)
{
    return (size_t)e->tensors[param].elements * sizeof(float);
}

static float *bucket_place(const ring_engine *e, int param)
{
    return (float *)ring_bucket_data(e, e->places[param].bucket) + e->places[param].offset;
}

/* ---- what is done with a matrix; without tensor bytes whoever acts spends the time of it --------- */

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

static void project(ring_engine *e, const powersgd_matrix *x, int rank)
{
    if (!e->powersgd.virtual) {
        powersgd_project(x, rank);
        return;
    }
    spend_pass(e, OP_add, x->rows * x->cols);
    spend_product(e, OP_linear_forward, x->rows, x->cols, rank);
}

/* Every column of P against those before it: a dot product and a sum, and its own norm and division. */
static void back_project(ring_engine *e, const powersgd_matrix *x, int rank)
{
    if (!e->powersgd.virtual) {
        powersgd_back_project(x, rank);
        return;
    }
    for (int k = 0; k < rank; k++) spend_pass(e, OP_add, 2 * (k + 1) * x->rows);
    spend_product(e, OP_linear_backward_weights, x->rows, x->cols, rank);
}

static void restore(ring_engine *e, const powersgd_matrix *x, int rank)
{
    if (!e->powersgd.virtual) {
        powersgd_restore(x, rank);
        return;
    }
    spend_pass(e, OP_divide, x->rows * x->cols);
    spend_product(e, OP_linear_forward, x->rows, rank, x->cols);
    spend_pass(e, OP_add, x->rows * x->cols);
}

static void copy_plain(ring_engine *e, float *to, const float *from, int param)
{
    if (e->powersgd.virtual) spend_pass(e, OP_divide, e->tensors[param].elements);
    else memcpy(to, from, bytes_of(e, param));
}

/* ---- a bucket --------------------------------------------------------------------------------- */

collective_call ring_powersgd_call(ring_engine *e, int k, int phase)
{
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->list.buckets[k];
    int rank = e->settings.powersgd_rank;
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->list.tensors[i];
        const powersgd_matrix *x = &h->matrices[param];
        if (x->m && phase == 0)
            project(e, x, rank);
        else if (x->m)
            back_project(e, x, rank);
        else if (phase == 0)
            copy_plain(e, h->plain[param], bucket_place(e, param), param);
        else
            copy_plain(e, bucket_place(e, param), h->plain[param], param);
    }
    collective_buffer all = {.base = phase == 0 ? h->factors[k].p : h->factors[k].q};
    return (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                             .op = REDUCE_MEAN,
                             .type = DTYPE_F32,
                             .tag = k,
                             .count = phase == 0 ? h->factors[k].p_count : h->factors[k].q_count,
                             .in = all,
                             .out = all};
}

void ring_powersgd_finish(ring_engine *e, int k)
{
    const bucket *b = &e->list.buckets[k];
    for (int i = b->first; i < b->first + b->count; i++) {
        const powersgd_matrix *x = &e->powersgd.matrices[e->list.tensors[i]];
        if (x->m) restore(e, x, e->settings.powersgd_rank);
    }
}
