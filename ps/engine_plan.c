/* The engine where memory is planned and nothing runs: worker and server are opened, and count what they hold;
 * there is nobody to talk to. */
#include "ps/engine_impl.h"

static status plan_handshake(sync_engine *e, sync_blob *out)
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

static status plan_finish(sync_engine *e, const sync_step *step)
{
    if (step->synchronize) ps_engine_count_optimizer_state((ps_engine *)e);
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

const sync_engine_type ps_engine_planning = {
    .name = "ps",
    .close = ps_engine_close,
    .handshake = plan_handshake,
    .connect = plan_connect,
    .plan_batch = sync_default_plan_batch,
    .scatter_inputs = sync_default_stage,
    .begin_forward = sync_default_stage,
    .need = sync_default_param,
    .place_outputs = sync_default_stage,
    .loss = sync_default_loss,
    .scatter_output_gradient = sync_default_stage,
    .ready = sync_default_param,
    .finish = plan_finish,
    .flush = sync_default_flush,
    .group_sum = plan_group_sum,
    .reduced_gradients = plan_reduced_gradients,
    .counters = plan_counters,
};
