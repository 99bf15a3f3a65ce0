/* The engine where memory is planned and nothing runs: what a step does to the ledger, without anybody to talk to.
 * Batches are full ones. */
#include "ps/dp/dp_impl.h"

static status plan_offer(sync_engine *e, sync_blob *out)
{
    (void)e;
    *out = (sync_blob){0};
    return STATUS_OK;
}

static status plan_connect(sync_engine *e, const sync_blob *offers)
{
    (void)e, (void)offers;
    return STATUS_OK;
}

static status plan_scatter_inputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    sync_exchange *x = base->context.exchange;
    (void)step;
    e->loaded = dp_is_root(e) ? x->loaded : x->largest * base->context.world;
    dp_cut(e);
    x->samples = dp_mine(e)->samples;
    x->targets = x->samples * x->targets_each;
    return STATUS_OK;
}

static status plan_begin_forward(sync_engine *e, const sync_step *step)
{
    (void)step;
    dp_lives_replicate(dp_engine_of(e));
    return STATUS_OK;
}

static status plan_place_outputs(sync_engine *e, const sync_step *step)
{
    (void)step;
    dp_lives_gather(dp_engine_of(e));
    return STATUS_OK;
}

static status plan_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    (void)step;
    if (!dp_one_loss(e)) return STATUS_OK;
    dp_lives_end_loss(e);
    if (!dp_is_root(e)) dp_lives_take_gradient(e);
    return STATUS_OK;
}

static status plan_finish(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    dp_lives_begin_reduce(e);
    dp_lives_reduced(e);
    ledger_enter(base->context.ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    dp_lives_end_reduce(e);
    if (!dp_is_root(e)) return STATUS_OK;
    return sync_update_parameters(base, step, dp_final_gradients(e)->data, &e->norm_scratch, &e->optimizer_ns);
}

static status plan_settle(sync_engine *e)
{
    dp_lives_replicate(dp_engine_of(e));
    return STATUS_OK;
}

static status plan_group_sum(sync_engine *e, double *values, int count)
{
    (void)e, (void)values, (void)count;
    return STATUS_OK;
}

static const void *plan_reduced_gradients(sync_engine *e, piece_list *owned)
{
    (void)e;
    *owned = (piece_list){NULL, 0};
    return NULL;
}

static void plan_counters(sync_engine *e, sync_counters *out)
{
    (void)e;
    *out = (sync_counters){0};
}

const sync_engine_type ps_dp_planning = {
    .name = "ps",
    .close = ps_dp_close,
    .offer = plan_offer,
    .connect = plan_connect,
    .plan_batch = dp_plan_batch,
    .scatter_inputs = plan_scatter_inputs,
    .begin_forward = plan_begin_forward,
    .need = sync_default_param,
    .place_outputs = plan_place_outputs,
    .loss = dp_loss,
    .scatter_output_gradient = plan_scatter_output_gradient,
    .ready = dp_ready,
    .finish = plan_finish,
    .settle = plan_settle,
    .group_sum = plan_group_sum,
    .reduced_gradients = plan_reduced_gradients,
    .counters = plan_counters,
};
