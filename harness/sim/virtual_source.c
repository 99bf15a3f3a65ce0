#include "harness/sim/virtual_job_impl.h"

#include "common/ops/op.h"

#include <stdlib.h>

typedef struct virtual_source {
    batch_source base;
    const dataset *set;
    sampler sampler;
    int first, end;   /* Ranks [first, end), whose batches the source gives. */
    int32_t *targets; /* [batch][sequence] if targets are masked, else NULL. */
    /* State of a loader. `actor` is NULL if batches take no time. */
    sim_actor *actor;
    int64_t step;   /* Last batch given. -1 before the first. */
    sim_time ready; /* Time at which the last batch given was ready. */
    /* Time between batches. Workers and pinning thread work on different batches at the same time, so the
     * slower of them sets the pace. */
    sim_time period;
} virtual_source;

/* Writes the targets of a span after `before` samples. Returns the number of targets that count. */
static int64_t draw_targets(virtual_source *s, const sampler_span *span, int64_t before)
{
    int64_t sequence = s->base.form.sequence, counted = 0;
    for (int64_t i = 0; i < span->count; i++) {
        int32_t *row = s->targets + (before + i) * sequence;
        dataset_target(s->set, DATA_TRAIN, sampler_position(&s->sampler, span, i), row);
        for (int64_t t = 0; t < sequence; t++) counted += row[t] != LOSS_IGNORE;
    }
    return counted;
}

/* Returns the time at which the batch of `step` is ready. */
static sim_time ready_time(const virtual_source *s, int64_t step)
{
    return step == s->step ? s->ready : s->ready + s->period;
}

static bool is_ready(batch_source *base, int64_t step)
{
    const virtual_source *s = (const virtual_source *)base;
    return !s->actor || s->actor->time >= ready_time(s, step);
}

sim_loader_price virtual_source_load(batch_source *source, sim_actor *actor, int workers, double rate)
{
    virtual_source *s = (virtual_source *)source;
    int64_t samples = source->largest_batch,
            bytes = samples * data_form_input_elements(&source->form) * (int64_t)sizeof(float);
    sim_loader_price price =
        sim_price_loader(actor->simulation->profile, (double)samples, (double)bytes, workers, rate);
    s->actor = actor;
    s->step = -1;
    s->ready = actor->time;
    s->period = sim_later(price.workers_time, price.pin);
    return price;
}

static status next_batch(batch_source *base, int64_t step, batch_view *out)
{
    virtual_source *s = (virtual_source *)base;
    if (s->actor) {
        s->ready = ready_time(s, step);
        s->step = step;
        s->actor->time = sim_later(s->actor->time, s->ready);
    }
    batch_position position = batch_position_of_step(base, step);
    *out = (batch_view){
        .targets = s->targets, .step = step, .epoch = position.epoch, .epoch_step = position.epoch_step};
    for (int r = s->first; r < s->end; r++) {
        sampler_span span = sampler_span_of(&s->sampler, r, position.epoch_step);
        if (s->targets)
            out->targets_counted += draw_targets(s, &span, out->count);
        else
            out->targets_counted += span.count * data_form_target_elements(&base->form);
        out->count += span.count;
        out->padding += span.padding;
    }
    return STATUS_OK;
}

static void close_source(batch_source *base)
{
    free(((virtual_source *)base)->targets);
    free(base);
}

static const batch_source_type type = {
    .next = next_batch, .ready = is_ready, .give_back = batch_source_ignore_return, .close = close_source};

status virtual_source_open(const dataset *set, const sampler_config *sampler, int rank, bool whole,
                           batch_source **out)
{
    virtual_source *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a virtual batch");
    *out = &s->base;
    s->set = set;
    s->first = whole ? 0 : rank;
    s->end = whole ? sampler->world : rank + 1;
    s->base = (batch_source){.type = &type,
                             .form = dataset_describe(set)->form,
                             .largest_batch = sampler->batch * (s->end - s->first)};
    TRY(sampler_init(&s->sampler, sampler));
    s->base.steps_per_epoch = s->sampler.steps;
    if (s->base.form.target != DATA_TARGET_MASKED) return STATUS_OK;
    s->targets = calloc((size_t)(s->base.largest_batch * s->base.form.sequence), sizeof *s->targets);
    return s->targets ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a virtual batch");
}
