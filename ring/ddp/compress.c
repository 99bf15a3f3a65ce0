/* PowerSGD in the engine. A bucket takes two all-reduces. The first all-reduce sums P of each matrix and the
 * uncompressed tensors. The second all-reduce sums Q of each matrix. */
#include "common/device/sim/device_sim.h"
#include "ring/engine_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- on the host ------------------------------------------------------------------------------ */

static status host_start(ring_engine *e, int param)
{
    const nn_model *m = e->base.context.params->model;
    powersgd_start(&e->powersgd.matrices[param], e->powersgd.rank, m->params[param].name);
    return STATUS_OK;
}

static status host_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    (phase == 0 ? powersgd_project : powersgd_back_project)(x, e->powersgd.rank);
    return STATUS_OK;
}

static status host_restore(ring_engine *e, const powersgd_matrix *x)
{
    powersgd_restore(x, e->powersgd.rank);
    return STATUS_OK;
}

static status host_copy(ring_engine *e, float *to, const float *from, int64_t count)
{
    (void)e;
    memcpy(to, from, (size_t)count * sizeof(float));
    return STATUS_OK;
}

static const ring_powersgd_backend on_host = {host_start, host_project, host_restore, host_copy};

/* ---- on the GPU that the collectives' stream belongs to ----------------------------------------- */

static status gpu_start(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    ring_powersgd *h = &e->powersgd;
    return powersgd_start_on_device(set->device, e->base.context.compute, &h->matrices[param],
                                    e->powersgd.rank, set->model->params[param].name, &set->layouts[param],
                                    h->scratch);
}

static status gpu_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    const powersgd_module *gpu = e->powersgd.gpu;
    return (phase == 0 ? gpu->project : gpu->back_project)(e->stream, x, e->powersgd.rank);
}

static status gpu_restore(ring_engine *e, const powersgd_matrix *x)
{
    return e->powersgd.gpu->restore(e->stream, x, e->powersgd.rank);
}

static status gpu_copy(ring_engine *e, float *to, const float *from, int64_t count)
{
    return device_convert(e->stream, to, DTYPE_F32, from, DTYPE_F32, count, 1);
}

static const ring_powersgd_backend on_gpu = {gpu_start, gpu_project, gpu_restore, gpu_copy};

/* ---- in virtual time, without tensors: functions spend the time of the operations ---------------- */

static status virtual_start(ring_engine *e, int param)
{
    (void)e, (void)param;
    return STATUS_OK;
}

static void spend(ring_engine *e, const op_desc *op)
{
    sim_device_spend_op(e->base.context.device, op);
}

static void spend_pass(ring_engine *e, op_kind kind, int64_t elements)
{
    spend(e, &(op_desc){.kind = kind, .type = DTYPE_F32, .u.elementwise.count = elements});
}

static void spend_matmul(ring_engine *e, op_kind kind, int64_t m, int64_t in, int64_t out)
{
    spend(e, &(op_desc){.kind = kind, .type = DTYPE_F32, .u.linear = {.m = m, .in = in, .out = out}});
}

/* Phase 1 first makes the columns of P orthonormal. Each column takes a dot product and a sum with every
 * preceding column, then a norm and a division. */
static status virtual_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    int rank = e->powersgd.rank;
    if (phase == 0) spend_pass(e, OP_add, x->rows * x->cols);
    for (int k = 0; phase == 1 && k < rank; k++) spend_pass(e, OP_add, 2 * (k + 1) * x->rows);
    spend_matmul(e, phase == 0 ? OP_linear_forward : OP_linear_backward_weights, x->rows, x->cols, rank);
    return STATUS_OK;
}

static status virtual_restore(ring_engine *e, const powersgd_matrix *x)
{
    spend_pass(e, OP_divide, x->rows * x->cols);
    spend_matmul(e, OP_linear_forward, x->rows, e->powersgd.rank, x->cols);
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

static const ring_powersgd_backend without_tensors = {virtual_start, virtual_project, virtual_restore,
                                                      virtual_copy};

/* ---- buckets ---------------------------------------------------------------------------------- */

static status open_state(ring_engine *e)
{
    ring_powersgd *h = &e->powersgd;
    device *d = e->base.context.device;
    int64_t largest = 1;
    for (int i = 0; i < ring_params(e); i++)
        if (e->tensors[i].elements > largest) largest = e->tensors[i].elements;
    if (h->backend == &on_gpu) TRY(powersgd_module_open(&h->gpu));
    TRY(ledger_blame(LEDGER_WORKSPACE,
                     device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)e->memory.bucket_bytes, &h->errors)));
    h->scratch = calloc((size_t)largest * 3, (size_t)dtype_size(e->base.context.params->type));
    return h->scratch ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
}

status ring_powersgd_open(ring_engine *e)
{
    size_t params = (size_t)ring_params(e);
    ring_powersgd *h = &e->powersgd;
    if (e->settings.options.hook != RING_HOOK_POWERSGD) return STATUS_OK;
    bool real = device_get_info(e->base.context.device)->real;
    h->rank = (int)e->settings.options.powersgd_rank;
    h->backend = !real ? &without_tensors : e->stream ? &on_gpu : &on_host;
    h->plain_layout = h->backend == &on_host;
    h->matrices = calloc(params + 1, sizeof *h->matrices);
    h->plain = calloc(params + 1, sizeof *h->plain);
    h->factors = calloc(params + 1, sizeof *h->factors);
    if (!h->matrices || !h->plain || !h->factors)
        return fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
    return real ? open_state(e) : STATUS_OK;
}

void ring_powersgd_close(ring_engine *e)
{
    device_free(e->base.context.device, &e->powersgd.errors);
    free(e->powersgd.scratch);
    free(e->powersgd.matrices);
    free(e->powersgd.plain);
    free(e->powersgd.factors);
}

/* Assigns addresses in memory.factors to the values of bucket `k`. P and the uncompressed tensors begin at
 * `*end`, and Q follows. Sets `*end` to the end of Q. */
static status lay_out(ring_engine *e, int k, float **end)
{
    const nn_model *m = e->base.context.params->model;
    float *at = *end;
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->schedule.buckets[k];
    int rank = e->powersgd.rank;
    ring_factors *f = &h->factors[k];
    f->values[0] = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->schedule.tensors[i];
        int64_t rows = m->params[param].shape.dims[0], cols = m->params[param].elements / rows;
        int64_t offset = e->buckets[k].offset / (int64_t)sizeof(float) + e->params[param].offset;
        h->matrices[param] = (powersgd_matrix){.rows = rows, .cols = cols};
        h->plain[param] = at;
        if (!powersgd_pays(rows, cols, rank)) {
            at += m->params[param].elements;
            continue;
        }
        h->matrices[param].m = (float *)e->memory.buckets + offset;
        if (h->errors.data) h->matrices[param].error = (float *)h->errors.data + offset;
        h->matrices[param].p = at;
        at += rows * rank;
    }
    f->counts[0] = at - f->values[0];
    f->values[1] = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        powersgd_matrix *x = &h->matrices[e->schedule.tensors[i]];
        if (!x->m) continue;
        x->q = at;
        at += x->cols * rank;
        TRY(h->backend->start(e, e->schedule.tensors[i]));
    }
    f->counts[1] = at - f->values[1];
    *end = at;
    return STATUS_OK;
}

status ring_powersgd_use_buckets(ring_engine *e)
{
    float *at = e->memory.factors;
    for (int k = 0; k < e->schedule.count; k++) TRY(lay_out(e, k, &at));
    return STATUS_OK;
}

/* Copies an uncompressed tensor from its bucket to memory.factors if `out` is true, else from memory.factors
 * to its bucket. */
static status copy_plain(ring_engine *e, int param, bool out)
{
    float *in_bucket = (float *)ring_bucket_data(e, e->schedule.bucket_of[param]) + e->params[param].offset;
    float *sent = e->powersgd.plain[param], *to = out ? sent : in_bucket, *from = out ? in_bucket : sent;
    return e->powersgd.backend->copy(e, to, from, e->tensors[param].elements);
}

status ring_powersgd_call(ring_engine *e, int k, int phase, collective_call *out)
{
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->schedule.buckets[k];
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->schedule.tensors[i];
        const powersgd_matrix *x = &h->matrices[param];
        TRY(x->m ? h->backend->project(e, x, phase) : copy_plain(e, param, phase == 0));
    }
    const ring_factors *f = &h->factors[k];
    *out = collective_in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F32, f->counts[phase], f->values[phase]);
    out->op = REDUCE_MEAN;
    out->tag = k;
    return STATUS_OK;
}

status ring_powersgd_finish(ring_engine *e, int k)
{
    const bucket *b = &e->schedule.buckets[k];
    const ring_powersgd *h = &e->powersgd;
    for (int i = b->first; i < b->first + b->count; i++) {
        const powersgd_matrix *x = &h->matrices[e->schedule.tensors[i]];
        if (x->m) TRY(h->backend->restore(e, x));
    }
    return STATUS_OK;
}
