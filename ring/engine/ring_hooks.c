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
    h->virtual = sim_device_simulation(set->device) != NULL;
    if (h->virtual) largest = 1;
    if (e->stream) {
        TRY(powersgd_module_open(&h->gpu));
        size_t bytes = (size_t)e->memory.bucket_bytes;
        TRY(ledger_blame(LEDGER_WORKSPACE, device_allocate(set->device, DEVICE_MEMORY_PRIVATE, bytes, &h->gpu_errors)));
        h->errors = h->gpu_errors.data;
        largest *= 3;
    } else {
        h->errors = calloc(1, h->virtual ? 1 : (size_t)e->memory.bucket_bytes);
    }
    h->matrices = calloc(params + 1, sizeof *h->matrices);
    h->plain = calloc(params + 1, sizeof *h->plain);
    h->factors = calloc(params + 1, sizeof *h->factors);
    h->scratch = calloc((size_t)largest, (size_t)dtype_size(set->type));
    if (!h->errors || !h->matrices || !h->plain || !h->factors || !h->scratch)
        return fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
    return STATUS_OK;
}

void ring_powersgd_close(ring_engine *e)
{
    device_free(e->base.context.device, &e->powersgd.gpu_errors);
    if (!e->powersgd.gpu) free(e->powersgd.errors);
    free(e->powersgd.matrices);
    free(e->powersgd.plain);
    free(e->powersgd.factors);
    free(e->powersgd.scratch);
}

bool ring_powersgd_active(const ring_engine *e, int64_t step)
{
    return e->settings.hook == RING_HOOK_POWERSGD && step >= e->settings.powersgd_start;
}

static status start(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    ring_powersgd *h = &e->powersgd;
    const powersgd_matrix *x = &h->matrices[param];
    const char *name = set->model->params[param].name;
    int rank = e->settings.powersgd_rank;
    if (h->virtual) return STATUS_OK;
    if (h->gpu)
        return powersgd_start_on_device(set->device, e->base.context.compute, x, rank, name, &set->layouts[param], h->scratch);
    powersgd_start(x, rank, name);
    return STATUS_OK;
}

/* Lays a bucket's P and uncompressed tensors out from `*end`, its Q behind them, and moves the end. */
static status lay_out(ring_engine *e, int k, float **end)
{
    const nn_model *m = e->base.context.params->model;
    float *at = *end;
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
        TRY(start(e, e->list.tensors[i]));
    }
    h->factors[k].q_count = at - h->factors[k].q;
    *end = at;
    return STATUS_OK;
}

status ring_powersgd_use_buckets(ring_engine *e)
{
    float *at = e->memory.factors;
    for (int k = 0; k < e->list.count; k++) TRY(lay_out(e, k, &at));
    return STATUS_OK;
}

/* ---- what is done with a matrix: without tensor bytes whoever acts spends the time of it --------- */

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

/* Of the second phase every column of P against those before it: a dot product and a sum, its norm, a division. */
static void spend_projection(ring_engine *e, const powersgd_matrix *x, int phase)
{
    int rank = e->settings.powersgd_rank;
    if (phase == 0) spend_pass(e, OP_add, x->rows * x->cols);
    for (int k = 0; phase == 1 && k < rank; k++) spend_pass(e, OP_add, 2 * (k + 1) * x->rows);
    spend_product(e, phase == 0 ? OP_linear_forward : OP_linear_backward_weights, x->rows, x->cols, rank);
}

static void spend_restore(ring_engine *e, const powersgd_matrix *x)
{
    spend_pass(e, OP_divide, x->rows * x->cols);
    spend_product(e, OP_linear_forward, x->rows, e->settings.powersgd_rank, x->cols);
    spend_pass(e, OP_add, x->rows * x->cols);
}

/* Between a bucket and what travels of it. */
static status copy_plain(ring_engine *e, int param, bool out)
{
    int64_t count = e->tensors[param].elements;
    float *in_bucket = (float *)ring_bucket_data(e, e->places[param].bucket) + e->places[param].offset;
    float *travels = e->powersgd.plain[param], *to = out ? travels : in_bucket, *from = out ? in_bucket : travels;
    if (e->powersgd.virtual) {
        spend_pass(e, OP_divide, count);
        return STATUS_OK;
    }
    if (e->powersgd.gpu) return device_convert(e->stream, to, DTYPE_F32, from, DTYPE_F32, count, 1);
    memcpy(to, from, (size_t)count * sizeof(float));
    return STATUS_OK;
}

static status project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    const powersgd_module *gpu = e->powersgd.gpu;
    int rank = e->settings.powersgd_rank;
    if (e->powersgd.virtual) {
        spend_projection(e, x, phase);
        return STATUS_OK;
    }
    if (gpu) return (phase == 0 ? gpu->project : gpu->back_project)(e->stream, x, rank);
    (phase == 0 ? powersgd_project : powersgd_back_project)(x, rank);
    return STATUS_OK;
}

status ring_powersgd_call(ring_engine *e, int k, int phase, collective_call *out)
{
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->list.buckets[k];
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->list.tensors[i];
        const powersgd_matrix *x = &h->matrices[param];
        TRY(x->m ? project(e, x, phase) : copy_plain(e, param, phase == 0));
    }
    collective_buffer all = {.base = phase == 0 ? h->factors[k].p : h->factors[k].q};
    *out = (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                             .op = REDUCE_MEAN,
                             .type = DTYPE_F32,
                             .tag = k,
                             .count = phase == 0 ? h->factors[k].p_count : h->factors[k].q_count,
                             .in = all,
                             .out = all};
    return STATUS_OK;
}

status ring_powersgd_finish(ring_engine *e, int k)
{
    const bucket *b = &e->list.buckets[k];
    const powersgd_module *gpu = e->powersgd.gpu;
    for (int i = b->first; i < b->first + b->count; i++) {
        const powersgd_matrix *x = &e->powersgd.matrices[e->list.tensors[i]];
        if (!x->m) continue;
        if (e->powersgd.virtual) spend_restore(e, x);
        else if (gpu) TRY(gpu->restore(e->stream, x, e->settings.powersgd_rank));
        else powersgd_restore(x, e->settings.powersgd_rank);
    }
    return gpu ? device_stream_synchronize(e->stream) : STATUS_OK;
}
