#include "common/sync/engine.h"

#include "common/trace/trace.h"

#include "common/base/clock.h"

status sync_default_plan_batch(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out)
{
    (void)e;
    (void)step;
    *out = (sync_batch){.load = batch, .train = batch};
    return STATUS_OK;
}

status sync_default_stage(sync_engine *e, const sync_step *step)
{
    (void)e;
    (void)step;
    return STATUS_OK;
}

status sync_default_param(sync_engine *e, int param)
{
    (void)e;
    (void)param;
    return STATUS_OK;
}

status sync_default_loss(sync_engine *e, const sync_step *step, double *normalizer, bool *here)
{
    (void)e;
    *normalizer = step->targets > 0 ? (double)step->targets : 1.0;
    *here = true;
    return STATUS_OK;
}

status sync_default_settle(sync_engine *e)
{
    (void)e;
    return STATUS_OK;
}

static int64_t arena_bytes(const param_set *set)
{
    return set->arena_elements * dtype_size(set->type);
}

void sync_hold_gradients(sync_engine *e)
{
    const param_set *set = e->context.params;
    ledger_acquire(e->context.ledger, LEDGER_GRADIENTS, set->logical_bytes, arena_bytes(set));
}

void sync_drop_gradients(sync_engine *e)
{
    const param_set *set = e->context.params;
    ledger_release(e->context.ledger, LEDGER_GRADIENTS, set->logical_bytes, arena_bytes(set));
}

/* Copies in bfloat16 are written beside their parameters, so that the next forward pass need not make them. */
static status update_all(const sync_context *c, const sync_step *step, const void *grads, double scale)
{
    param_set *set = c->params;
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    if (!param_set_has_narrow(set))
        return optimizer_update(c->optimizer, c->compute, set->params.data, grads, all, step->index, step->learning_rate,
                                scale);
    TRY(optimizer_update_narrow(c->optimizer, c->compute, set->params.data, set->narrow.data, grads, all, step->index,
                                step->learning_rate, scale));
    set->narrow_kept = set->narrow_current = true;
    return STATUS_OK;
}

status sync_update_parameters(sync_engine *e, const sync_step *step, const void *grads, double *norm_scratch,
                              int64_t *spent_ns)
{
    const sync_context *c = &e->context;
    const optimizer_options *o = optimizer_get_options(c->optimizer);
    piece_list all = param_set_pieces(c->params, 0, c->params->model->param_count);
    int64_t begin = device_now_ns(c->device);
    double scale = 1.0;
    TRY(device_mark(c->compute, SYNC_MARK_UPDATE));
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    optimizer_begin_state(c->optimizer);
    if (o->clip_norm > 0) {
        *norm_scratch = 0;
        TRY(optimizer_sum_squares(c->optimizer, c->compute, grads, all, norm_scratch));
        scale = optimizer_clip_scale(o->clip_norm, *norm_scratch);
    }
    TRY(update_all(c, step, grads, scale));
    TRY(device_mark(c->compute, SYNC_MARK_UPDATED));
    int64_t end = device_now_ns(c->device);
    trace_slice(c->trace, TRACE_OPTIMIZER, "update", TRACE_NO_INDEX, begin, end);
    *spent_ns += end - begin;
    return STATUS_OK;
}

/* ---- recorded passes -------------------------------------------------------------------------- */

status sync_leave_record(const sync_context *context)
{
    return context->recorder ? context->recorder->leave(context->recorder) : STATUS_OK;
}

status sync_enter_record(const sync_context *context)
{
    return context->recorder ? context->recorder->enter(context->recorder) : STATUS_OK;
}

bool sync_replays(const sync_context *context)
{
    return context->recorder && context->recorder->replays;
}
