/* The stage before the forward pass: what all ranks must have alike. A stage that STATUS_AGAIN has left is
 * called again, and goes on where it stood. */
#include "ring/engine/engine_impl.h"

#include <inttypes.h>
#include <string.h>

static void reset_step(ring_engine *e)
{
    size_t params = (size_t)ring_params(e);
    bucket_begin_step(&e->schedule);
    memset(e->compute.ready, 0, params * sizeof *e->compute.ready);
    if (e->compute.cycle_begins) memset(e->compute.seen, 0, params * sizeof *e->compute.seen);
}

/* What rank 0 has sent is every parameter once. */
static status take_order(ring_engine *e)
{
    int params = ring_params(e);
    bool *taken = e->compute.ready; /* reset behind this */
    memset(taken, 0, (size_t)params * sizeof *taken);
    for (int i = 0; i < params; i++) {
        int param = e->memory.order[i];
        if (param < 0 || param >= params || taken[param])
            return ring_give_up(e, fail(STATUS_PROTOCOL,
                                        "rank 0's order of gradients: found parameter %d at place "
                                        "%d of %d",
                                        param, i, params));
        taken[param] = true;
        e->compute.order[i] = param;
    }
    return STATUS_OK;
}

/* Rank 0's order becomes everyone's. */
static status rebuild(ring_engine *e)
{
    if (e->compute.waiting == 0)
        for (int i = 0; i < ring_params(e); i++) e->memory.order[i] = e->compute.order[i];
    TRY(ring_run_job(e, RING_JOB_ORDER, 0));
    TRY(take_order(e));
    TRY(ring_use_plan(e, &e->settings.later));
    e->compute.rebuild = false;
    reset_step(e);
    return STATUS_OK;
}

/* Who has data in this step. */
static status exchange_activity(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    if (e->compute.waiting == 0) e->memory.activity[c->rank] = e->compute.has_data;
    TRY(ring_run_job(e, RING_JOB_ACTIVITY, 0));
    e->compute.active = 0;
    e->compute.root = -1;
    for (int r = 0; r < c->world; r++) {
        if (!e->memory.activity[r]) continue;
        if (e->compute.root < 0) e->compute.root = r;
        e->compute.active++;
    }
    if (e->compute.root < 0) e->compute.root = 0;
    if (e->settings.join != RING_JOIN_ACTIVE || e->compute.active == 0) e->compute.active = c->world;
    return STATUS_OK;
}

static status check_data(ring_engine *e, const sync_step *step)
{
    if (step->samples > 0 || e->settings.join != RING_JOIN_NONE) return STATUS_OK;
    return ring_give_up(e, fail(STATUS_CONFIG,
                                "rank %d has no data in step %" PRId64 ": --join lets it take part without",
                                e->base.context.rank, step->index));
}

static status share_buffers(ring_engine *e)
{
    if (e->compute.waiting == 0) TRY(ring_flatten_buffers(e));
    TRY(ring_run_job(e, RING_JOB_BUFFERS, e->compute.root));
    return ring_unflatten_buffers(e);
}

status ring_begin_forward(sync_engine *base, const sync_step *step)
{
    ring_engine *e = ring_of(base);
    bool buffers = ring_has_buffers(e) && e->compute.cycle_begins;
    switch (e->compute.begin) {
    case BEGIN_STEP:
        TRY(check_data(e, step));
        e->compute.step = *step;
        e->compute.has_data = (e->compute.has_data && !e->compute.cycle_begins) || step->samples > 0;
        reset_step(e);
        e->compute.begin = BEGIN_PARAMETERS;
        /* fall through */
    case BEGIN_PARAMETERS:
        if (!e->compute.started && base->context.world > 1) {
            param_set_forget_narrow(base->context.params);
            TRY(ring_run_job(e, RING_JOB_PARAMETERS, 0));
        }
        e->compute.begin = BEGIN_ORDER;
        /* fall through */
    case BEGIN_ORDER:
        if (e->compute.rebuild) TRY(rebuild(e));
        e->compute.begin = BEGIN_ACTIVITY;
        /* fall through */
    case BEGIN_ACTIVITY:
        if (e->settings.join != RING_JOIN_NONE) TRY(exchange_activity(e));
        e->compute.begin = BEGIN_BUFFERS;
        /* fall through */
    case BEGIN_BUFFERS:
        if (buffers && (e->settings.broadcast_buffers || !e->compute.started)) TRY(share_buffers(e));
    }
    e->compute.begin = BEGIN_STEP;
    e->compute.started = true;
    e->compute.cycle_begins = false;
    return step->synchronize ? ring_mark_unused(e) : STATUS_OK;
}
