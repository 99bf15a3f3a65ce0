/* The devices after the first, on a rank that has a device for each stage of the model (--stages-on
 * devices). */
#include "harness/run/rank_impl.h"

#include <stdlib.h>

static status open_device(rank_state *s, int stage, const trainer_config *first, rank_device *d)
{
    trainer_config config = *first;
    d->place = s->stage_place;
    d->place.stage = stage;
    TRY(nn_stage_model(s->model, &s->cut, stage, &d->stage));
    TRY(rank_trace_open(s->config, s->model, 0, false, &d->trace));
    config.model = d->stage;
    config.place = &d->place;
    config.trace = d->trace.recorder;
    TRY(trainer_open(&config, &d->trainer));
    return param_set_initialize(trainer_params(d->trainer), trainer_stream(d->trainer), s->config->run.seed);
}

status rank_devices_open(rank_state *s, const trainer_config *first)
{
    int count = run_config_devices(s->config);
    trainer *stages[NN_MOST_STAGES] = {s->trainer};
    batch_source *sources[NN_MOST_STAGES];
    if (count == 1) return STATUS_OK;
    s->devices = calloc((size_t)count, sizeof *s->devices);
    if (!s->devices) return fail(STATUS_SYSTEM, "no memory for %d devices", count);
    for (; s->device_count < count - 1; s->device_count++) {
        rank_device *d = &s->devices[s->device_count];
        status rc = open_device(s, s->device_count + 1, first, d);
        if (rc != STATUS_OK) s->device_count++; /* so that it is closed */
        TRY(rc);
        stages[s->device_count + 1] = d->trainer;
    }
    TRY(trainer_share_source(s->batches.training, &s->shared));
    for (int i = 0; i < count; i++) sources[i] = s->shared;
    trainer_join_devices(stages, sources, count);
    return STATUS_OK;
}

status rank_devices_connect(rank_state *s)
{
    for (int i = 0; i < s->device_count; i++) {
        trainer *t = s->devices[i].trainer;
        trainer_engine(t)->context.clock_ahead_ns = trainer_engine(s->trainer)->context.clock_ahead_ns;
        TRY(rank_exchange_handshakes(s, s->rendezvous, s->place->world, t));
    }
    return STATUS_OK;
}

status rank_devices_record(rank_state *s, int64_t evaluations)
{
    for (int i = 0; i < s->device_count; i++) {
        rank_device *d = &s->devices[i];
        trainer_set_total_steps(d->trainer, s->steps.end);
        rank_trace_choose(&d->trace, s->steps.first + s->steps.warmup);
        TRY(overlap_open(&d->overlap, s->model->param_count));
        TRY(record_init(&d->record, s->record.capacity, evaluations, s->record.world));
    }
    return STATUS_OK;
}

void rank_devices_begin_step(rank_state *s, int64_t index)
{
    for (int i = 0; i < s->device_count; i++) rank_trace_begin_step(&s->devices[i].trace, index);
}

status rank_devices_end_step(rank_state *s, int64_t index, bool measured, double *loss)
{
    for (int i = 0; i < s->device_count; i++) {
        rank_device *d = &s->devices[i];
        step_result result;
        rank_trace_begin_step(&d->trace, index);
        TRY(trainer_end_step(d->trainer, &result));
        rank_trace_end_step(&d->trace, &result, trainer_ledger(d->trainer));
        overlap_measure(&d->overlap, trainer_engine(d->trainer), &result, measured);
        if (measured) record_step(&d->record, &result);
        *loss = result.loss;
    }
    return STATUS_OK;
}

void rank_devices_begin_anew(rank_state *s)
{
    for (int i = 0; i < s->device_count; i++) trainer_begin_anew(s->devices[i].trainer);
}

void rank_devices_count(rank_state *s, bool measured)
{
    for (int i = 0; i < s->device_count; i++)
        record_counters(&s->devices[i].record, s->devices[i].trainer, &s->devices[i].seen, measured);
}

status rank_devices_flush(rank_state *s)
{
    for (int i = 0; i < s->device_count; i++) TRY(sync_flush(trainer_engine(s->devices[i].trainer)));
    return STATUS_OK;
}

void rank_devices_leave(rank_state *s)
{
    for (int i = 0; i < s->device_count; i++) trainer_leave(s->devices[i].trainer);
}

void rank_devices_close(rank_state *s)
{
    for (int i = 0; i < s->device_count; i++) {
        rank_device *d = &s->devices[i];
        trainer_close(&d->trainer);
        rank_trace_close(&d->trace);
        overlap_close(&d->overlap);
        record_deinit(&d->record);
        nn_model_free(&d->stage);
    }
    if (s->shared) batch_source_close(&s->shared);
    free(s->devices);
}
