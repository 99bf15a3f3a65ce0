/* PowerSGD on the GPU that the collectives' stream belongs to. */
#include "ring/engine/engine_impl.h"

#include <stdlib.h>

static status gpu_open(ring_engine *e, int64_t largest)
{
    ring_powersgd *h = &e->powersgd;
    device *d = e->base.context.device;
    size_t bytes = (size_t)e->memory.bucket_bytes;
    TRY(powersgd_module_open(&h->gpu));
    TRY(ledger_blame(LEDGER_WORKSPACE, device_allocate(d, DEVICE_MEMORY_PRIVATE, bytes, &h->gpu_errors)));
    h->errors = h->gpu_errors.data;
    h->scratch = calloc((size_t)largest * 3, (size_t)dtype_size(e->base.context.params->type));
    return h->scratch ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the state of PowerSGD");
}

static void gpu_close(ring_engine *e)
{
    device_free(e->base.context.device, &e->powersgd.gpu_errors);
    free(e->powersgd.scratch);
}

static status gpu_start(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    ring_powersgd *h = &e->powersgd;
    return powersgd_start_on_device(set->device, e->base.context.compute, &h->matrices[param],
                                    e->settings.powersgd_rank, set->model->params[param].name,
                                    &set->layouts[param], h->scratch);
}

static status gpu_project(ring_engine *e, const powersgd_matrix *x, int phase)
{
    const powersgd_module *gpu = e->powersgd.gpu;
    return (phase == 0 ? gpu->project : gpu->back_project)(e->stream, x, e->settings.powersgd_rank);
}

static status gpu_restore(ring_engine *e, const powersgd_matrix *x)
{
    return e->powersgd.gpu->restore(e->stream, x, e->settings.powersgd_rank);
}

static status gpu_copy(ring_engine *e, float *to, const float *from, int64_t count)
{
    return device_convert(e->stream, to, DTYPE_F32, from, DTYPE_F32, count, 1);
}

static status gpu_settle(ring_engine *e)
{
    return device_stream_synchronize(e->stream);
}

const ring_powersgd_place ring_powersgd_on_gpu = {gpu_open,    gpu_close, gpu_start, gpu_project,
                                                  gpu_restore, gpu_copy,  gpu_settle};
