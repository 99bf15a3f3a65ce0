/* The steps of a rank, which is a process or a virtual rank. */
#include "harness/rank/state.h"

/* ---- devices ---------------------------------------------------------------------------------- */

pipeline_place rank_stage_place(const run_config *c, int job, int number)
{
    const run_options *r = &c->run;
    int replicas = run_config_replicas(c, job);
    return (pipeline_place){.shape = {(pipeline_schedule)r->schedule, (int)r->stages, (int)r->accumulate},
                            .stage = number / replicas,
                            .replica = number % replicas,
                            .replicas = replicas,
                            .devices = r->stages_on == STAGES_ON_DEVICES};
}

status rank_device_open(rank_device *d, trainer_config config)
{
    if (d->stage) config.model = d->stage;
    if (d->stage && !config.remote) config.place = &d->place;
    config.sync.trace = d->trace.recorder;
    return trainer_open(&config, &d->trainer);
}

void rank_reset_peaks(rank_state *s)
{
    for (int d = 0; d < s->device_count; d++) ledger_reset_peaks(trainer_ledger(s->devices[d].trainer));
}

void rank_count(rank_state *s, bool measured)
{
    for (rank_device *d = s->devices; d < s->devices + s->device_count; d++)
        record_counters(&d->record, d->trainer, measured);
}

status rank_flush(rank_state *s)
{
    for (int d = 0; d < s->device_count; d++) TRY(sync_flush(trainer_engine(s->devices[d].trainer)));
    return STATUS_OK;
}

/* ---- steps ------------------------------------------------------------------------------------ */

int64_t rank_batch_of_step(const rank_state *s, int64_t step)
{
    return step * s->config->run.accumulate + s->batch_offset;
}

static status end_step(rank_state *s, rank_device *d, int64_t index)
{
    bool measured = s->measured[index % 2];
    step_result result;
    rank_trace_begin_step(&d->trace, index);
    if (d->record.late_parts)
        anatomy_keep_next(trainer_engine(d->trainer)->context.anatomy,
                          index + 1 >= s->steps.first + s->steps.warmup && record_keeps_soon(&d->record));
    TRY(trainer_end_step(d->trainer, &result));
    rank_trace_end_step(&d->trace, &result, trainer_ledger(d->trainer));
    if (d == s->devices) s->trained_ns += result.times.total;
    overlap_measure(&d->record.overlap, trainer_engine(d->trainer), &result, measured);
    s->world->step_ended(s, d, &result, measured);
    if (measured) record_step(&d->record, &result);
    return STATUS_OK;
}

status rank_end_steps(rank_state *s, int most)
{
    const trainer *first = s->devices[0].trainer;
    while (trainer_under_way(first) >= most) {
        int64_t index = s->next_step - trainer_under_way(first);
        for (int d = 0; d < s->device_count; d++) TRY(end_step(s, &s->devices[d], index));
    }
    return STATUS_OK;
}

/* Runs a step. A host that runs ahead begins the next step before this one has ended. */
static status run_step(rank_state *s, bool measured)
{
    int64_t index = s->next_step;
    trainer *first = s->devices[0].trainer;
    s->measured[index % 2] = measured;
    for (int d = 0; d < s->device_count; d++) rank_trace_begin_step(&s->devices[d].trace, index);
    TRY(trainer_begin_step(first, s->source, index, rank_batch_of_step(s, index)));
    s->next_step++;
    TRY(rank_end_steps(s, trainer_depth(first)));
    if (s->agreement.fd == 0) return STATUS_OK; /* only the first step is compared */
    TRY(rank_end_steps(s, 1));
    return agreement_write(&s->agreement, first);
}

status rank_run_steps(rank_state *s, int64_t end, bool measured)
{
    while (s->next_step < end && !s->stopped) {
        s->stopped = s->world->must_stop(s);
        if (s->stopped) break;
        TRY(run_step(s, measured));
        TRY(s->world->between_steps(s));
    }
    rank_count(s, measured);
    return STATUS_OK;
}
