/* PowerSGD within the engine. A bucket travels twice: first P of its matrices together with the tensors that
 * do not pay, then Q. */
#include "common/device/sim/device_sim.h"
#include "ring/engine/engine_impl.h"

#include <stdlib.h>

static const ring_powersgd_place *place_of(const ring_engine *e)
{
    if (sim_device_simulation(e->base.context.device)) return &ring_powersgd_virtual;
    return e->stream ? &ring_powersgd_on_gpu : &ring_powersgd_on_host;
}

status ring_powersgd_open(ring_engine *e)
{
    size_t params = (size_t)ring_params(e);
    ring_powersgd *h = &e->powersgd;
    if (e->settings.hook != RING_HOOK_POWERSGD) return STATUS_OK;
    int64_t largest = 1;
    for (size_t i = 0; i < params; i++)
        if (e->tensors[i].elements > largest) largest = e->tensors[i].elements;
    h->place = place_of(e);
    h->matrices = calloc(params + 1, sizeof *h->matrices);
    h->plain = calloc(params + 1, sizeof *h->plain);
    h->factors = calloc(params + 1, sizeof *h->factors);
    if (!h->matrices || !h->plain || !h->factors)
        return fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
    return h->place->open(e, largest);
}

void ring_powersgd_close(ring_engine *e)
{
    if (e->powersgd.place) e->powersgd.place->close(e);
    free(e->powersgd.matrices);
    free(e->powersgd.plain);
    free(e->powersgd.factors);
}

bool ring_powersgd_active(const ring_engine *e, int64_t step)
{
    return e->settings.hook == RING_HOOK_POWERSGD && step >= e->settings.powersgd_start;
}

/* Lays a bucket's P and uncompressed tensors out from `*end`, its Q behind them, and moves the end. */
static status lay_out(ring_engine *e, int k, float **end)
{
    const nn_model *m = e->base.context.params->model;
    float *at = *end;
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->schedule.buckets[k];
    int rank = e->settings.powersgd_rank;
    h->factors[k].p = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->schedule.tensors[i];
        int64_t rows = m->params[param].shape.dims[0], cols = m->params[param].elements / rows;
        int64_t offset = e->buckets[k].offset / (int64_t)sizeof(float) + e->offsets[param];
        h->matrices[param] = (powersgd_matrix){.rows = rows, .cols = cols};
        h->plain[param] = at;
        if (!powersgd_pays(rows, cols, rank)) {
            at += m->params[param].elements;
            continue;
        }
        h->matrices[param].m = (float *)e->memory.buckets + offset;
        h->matrices[param].error = h->errors ? h->errors + offset : NULL;
        h->matrices[param].p = at;
        at += rows * rank;
    }
    h->factors[k].p_count = at - h->factors[k].p;
    h->factors[k].q = at;
    for (int i = b->first; i < b->first + b->count; i++) {
        powersgd_matrix *x = &h->matrices[e->schedule.tensors[i]];
        if (!x->m) continue;
        x->q = at;
        at += x->cols * rank;
        TRY(h->place->start(e, e->schedule.tensors[i]));
    }
    h->factors[k].q_count = at - h->factors[k].q;
    *end = at;
    return STATUS_OK;
}

status ring_powersgd_use_buckets(ring_engine *e)
{
    float *at = e->memory.factors;
    for (int k = 0; k < e->schedule.count; k++) TRY(lay_out(e, k, &at));
    return STATUS_OK;
}

/* Between a bucket and what travels of it. */
static status copy_plain(ring_engine *e, int param, bool out)
{
    float *in_bucket = (float *)ring_bucket_data(e, e->schedule.bucket_of[param]) + e->offsets[param];
    float *travels = e->powersgd.plain[param], *to = out ? travels : in_bucket,
          *from = out ? in_bucket : travels;
    return e->powersgd.place->copy(e, to, from, e->tensors[param].elements);
}

status ring_powersgd_call(ring_engine *e, int k, int phase, collective_call *out)
{
    ring_powersgd *h = &e->powersgd;
    const bucket *b = &e->schedule.buckets[k];
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->schedule.tensors[i];
        const powersgd_matrix *x = &h->matrices[param];
        TRY(x->m ? h->place->project(e, x, phase) : copy_plain(e, param, phase == 0));
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
    const bucket *b = &e->schedule.buckets[k];
    const ring_powersgd *h = &e->powersgd;
    for (int i = b->first; i < b->first + b->count; i++) {
        const powersgd_matrix *x = &h->matrices[e->schedule.tensors[i]];
        if (x->m) TRY(h->place->restore(e, x));
    }
    return h->place->flush(e);
}
