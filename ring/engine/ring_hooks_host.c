/* PowerSGD on the host. */
#include "ring/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

static status host_open(ring_engine *e, int64_t largest)
{
    ring_powersgd *h = &e->powersgd;
    h->errors = calloc(1, (size_t)e->memory.bucket_bytes);
    h->scratch = calloc((size_t)largest, (size_t)dtype_size(e->base.context.params->type));
    return h->errors && h->scratch ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
}

static void host_close(ring_engine *e)
{
    free(e->powersgd.errors);
    free(e->powersgd.scratch);
}

static status host_start(ring_engine *e, int param)
{
    const nn_model *m = e->base.context.params->model;
    powersgd_start(&e->powersgd.matrices[param], e->settings.powersgd_rank, m->params[param].name);
    return STATUS_OK;
}

static status host_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    (phase == 0 ? powersgd_project : powersgd_back_project)(x, e->settings.powersgd_rank);
    return STATUS_OK;
}

static status host_restore(ring_engine *e, const powersgd_matrix *x)
{
    powersgd_restore(x, e->settings.powersgd_rank);
    return STATUS_OK;
}

static status host_copy(ring_engine *e, float *to, const float *from, int64_t count)
{
    (void)e;
    memcpy(to, from, (size_t)count * sizeof(float));
    return STATUS_OK;
}

static status host_settle(ring_engine *e)
{
    (void)e;
    return STATUS_OK;
}

const ring_powersgd_place ring_powersgd_on_host = {host_open,    host_close, host_start, host_project,
                                                   host_restore, host_copy,  host_settle};
