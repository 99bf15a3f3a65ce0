/* The stages: rounds of the star, each waited for. */
#include "ps/dp/dp_impl.h"

#include "ps/compute.h"

#include <string.h>

static const sync_context *context_of(const dp_engine *e)
{
    return &e->base.context;
}

/* ---- parameters and buffers -------------------------------------------------------------------- */

static dp_region chunk_region(const dp_engine *e, const dp_chunk *chunk, void *arena)
{
    const param_set *set = context_of(e)->params;
    return (dp_region){arena, set->pieces + chunk->first, chunk->count, (int64_t)e->element};
}

static int64_t arena_bytes(const dp_engine *e)
{
    return context_of(e)->params->arena_elements * (int64_t)e->element;
}

static int64_t buffer_bytes(const dp_engine *e)
{
    return context_of(e)->params->buffer_elements * (int64_t)e->element;
}

/* Buffers travel in frames: rank 0 changes its own in the forward pass that begins at once. */
static void add_replica(dp_engine *e, int peer, int64_t step)
{
    const param_set *set = context_of(e)->params;
    char *params = dp_place_of(&e->places, DP_AT_PARAMS, set->params.data);
    char *buffers = dp_place_of(&e->places, DP_AT_BUFFERS, set->buffers.data);
    dp_direction direction = dp_is_root(e) ? DP_SEND : DP_RECEIVE;
    for (int k = 0; k < e->replicate.count; k++) {
        dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_PARAMETERS, step, k);
        item->region = chunk_region(e, &e->replicate.list[k], params);
        item->shared = dp_shares(e);
        if (!dp_is_root(e)) item->remote = dp_remote(e, 0, PS_SEGMENT_PARAMS);
    }
    if (set->model->buffer_count == 0) return;
    dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_BUFFERS, step, 0);
    item->region = (dp_region){buffers, set->buffer_pieces, set->model->buffer_count, (int64_t)e->element};
}

static status fetch_replica(dp_engine *e)
{
    const param_set *set = context_of(e)->params;
    TRY(dp_fetch(&e->places, DP_AT_PARAMS, set->params.data, 0, arena_bytes(e)));
    return dp_fetch(&e->places, DP_AT_BUFFERS, set->buffers.data, 0, buffer_bytes(e));
}

static status store_replica(dp_engine *e)
{
    param_set *set = context_of(e)->params;
    const char *params = dp_in_sight(e, PS_SEGMENT_PARAMS);
    param_set_forget_narrow(set);
    if (params) TRY(dp_store_from(&e->places, set->params.data, params, arena_bytes(e)));
    else TRY(dp_store(&e->places, DP_AT_PARAMS, set->params.data, 0, arena_bytes(e)));
    return dp_store(&e->places, DP_AT_BUFFERS, set->buffers.data, 0, buffer_bytes(e));
}

static status replicate(dp_engine *e, int64_t step, bool to_all)
{
    dp_star_begin(e->star);
    if (!dp_is_root(e)) {
        if (!to_all && !dp_takes_part(e)) return STATUS_OK;
        dp_lives_replicate(e);
        param_set_forget_narrow(context_of(e)->params);
        add_replica(e, 0, step);
    }
    int receivers = to_all ? context_of(e)->world : e->present;
    if (dp_is_root(e) && receivers > 1) TRY(fetch_replica(e));
    for (int r = 1; dp_is_root(e) && r < receivers; r++) add_replica(e, r, step);
    TRY(dp_star_run(e->star, NULL));
    return dp_is_root(e) ? STATUS_OK : store_replica(e);
}

status dp_begin_forward(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, step->index, false));
    ps_share_interpreter(base->context.device, e->present); /* a thread a replica */
    return STATUS_OK;
}

status dp_flush(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    TRY(ps_peers_open(&e->member, &e->meeting));
    TRY(replicate(e, DP_FLUSH + e->settles++, true));
    ps_peers_close(&e->member, &e->meeting); /* if this was the end, memory may go from now on */
    return e->places.device ? device_stream_synchronize(base->context.compute) : STATUS_OK;
}

/* ---- outputs and loss -------------------------------------------------------------------------- */

/* The slice of a part, in the memory of all outputs or of their gradients. */
static dp_item *add_outputs(dp_engine *e, dp_direction direction, int peer, const dp_part *p,
                            message_kind kind, int64_t step, void *base)
{
    int64_t each = context_of(e)->exchange->output_bytes;
    dp_item *item = dp_star_add(e->star, direction, peer, kind, step, 0);
    item->shared = dp_shares(e);
    item->region = dp_plain_region(e, peer, DP_PIECE_OUTPUTS, base, dp_is_root(e) ? p->first * each : 0,
                                   p->samples * each);
    return item;
}

static int64_t output_bytes(const dp_engine *e, int64_t samples)
{
    return samples * context_of(e)->exchange->output_bytes;
}

/* Of the ranks behind rank 0. */
static int64_t others_output(const dp_engine *e)
{
    return output_bytes(e, e->loaded - e->parts[0].samples);
}

/* To where rank 0 gathers them, where that is in sight. */
static status add_own_outputs(dp_engine *e, const sync_step *step)
{
    const sync_exchange *x = context_of(e)->exchange;
    int64_t at = output_bytes(e, dp_mine(e)->first), bytes = output_bytes(e, dp_mine(e)->samples);
    char *from = dp_place_of(&e->places, DP_AT_PART, x->output), *gathered = dp_in_sight(e, PS_SEGMENT_OUTPUTS);
    if (gathered) TRY(dp_fetch_to(&e->places, gathered + at, x->output, bytes));
    else TRY(dp_fetch(&e->places, DP_AT_PART, x->output, 0, bytes));
    dp_item *item = add_outputs(e, DP_SEND, 0, dp_mine(e), MESSAGE_OUTPUTS, step->index, from);
    char *remote = dp_remote(e, 0, PS_SEGMENT_OUTPUTS);
    if (remote) item->remote = remote + at;
    return STATUS_OK;
}

status dp_place_outputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    ps_share_interpreter(base->context.device, 1);
    if (!dp_one_loss(e) || !dp_takes_part(e)) return STATUS_OK;
    dp_lives_gather(e);
    dp_star_begin(e->star);
    if (dp_is_root(e)) {
        TRY(dp_copy(&e->places, base->context.device, x->all_outputs, x->output,
                    output_bytes(e, dp_mine(e)->samples)));
        char *outputs = dp_place_of(&e->places, DP_AT_OUTPUTS, x->all_outputs);
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_RECEIVE, r, &e->parts[r], MESSAGE_OUTPUTS, step->index, outputs);
    } else {
        TRY(add_own_outputs(e, step));
    }
    TRY(dp_star_run(e->star, NULL));
    if (!dp_is_root(e)) return STATUS_OK;
    return dp_store(&e->places, DP_AT_OUTPUTS, x->all_outputs, output_bytes(e, dp_mine(e)->samples), others_output(e));
}

status dp_loss(sync_engine *base, const sync_step *step, double *normalizer, bool *here)
{
    dp_engine *e = dp_engine_of(base);
    int64_t targets = step->targets;
    if (dp_one_loss(e)) {
        targets = 0;
        for (int r = 0; r < base->context.world; r++) targets += e->parts[r].targets;
    }
    dp_lives_log_softmax(e);
    ledger_enter(base->context.ledger, LEDGER_PHASE_LOSS_GRADIENT);
    dp_lives_loss_gradients(e);
    *normalizer = targets > 0 ? (double)targets : 1.0;
    *here = dp_one_loss(e) ? dp_is_root(e) : dp_takes_part(e);
    return STATUS_OK;
}

status dp_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    if (!dp_one_loss(e) || !dp_takes_part(e)) return STATUS_OK;
    dp_lives_end_loss(e);
    dp_star_begin(e->star);
    if (dp_is_root(e)) {
        TRY(dp_copy(&e->places, base->context.device, x->output_gradient, x->all_gradients,
                    output_bytes(e, dp_mine(e)->samples)));
        TRY(dp_fetch(&e->places, DP_AT_OUTPUTS, x->all_outputs,
                     e->gradient_offset + output_bytes(e, dp_mine(e)->samples), others_output(e)));
        char *gradients = dp_place_of(&e->places, DP_AT_OUTPUTS, x->all_outputs) + e->gradient_offset;
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_SEND, r, &e->parts[r], MESSAGE_OUTPUT_GRADIENT, step->index, gradients);
        return dp_star_run(e->star, NULL);
    }
    dp_lives_take_gradient(e);
    int64_t at = e->gradient_offset + output_bytes(e, dp_mine(e)->first);
    dp_item *item = add_outputs(e, DP_RECEIVE, 0, dp_mine(e), MESSAGE_OUTPUT_GRADIENT, step->index,
                                dp_place_of(&e->places, DP_AT_PART, x->output_gradient));
    char *remote = dp_remote(e, 0, PS_SEGMENT_OUTPUTS), *scattered = dp_in_sight(e, PS_SEGMENT_OUTPUTS);
    if (remote) item->remote = remote + at;
    TRY(dp_star_run(e->star, NULL));
    int64_t bytes = output_bytes(e, dp_mine(e)->samples);
    if (scattered) return dp_store_from(&e->places, x->output_gradient, scattered + at, bytes);
    return dp_store(&e->places, DP_AT_PART, x->output_gradient, 0, bytes);
}

/* ---- gradients -------------------------------------------------------------------------------- */

status dp_ready(sync_engine *base, int param)
{
    dp_lives_gradient_ready(dp_engine_of(base), param);
    return STATUS_OK;
}

static status reduce(dp_engine *e, const sync_step *step)
{
    const param_set *set = context_of(e)->params;
    char *grads = dp_place_of(&e->places, DP_AT_GRADS, set->grads.data);
    dp_sum sum = {.type = set->type,
                  .own = set->grads.data,
                  .out = dp_lean(e) ? set->grads.data : e->results.data,
                  .keys = e->reduce.count,
                  .present = e->contributors,
                  .divides = !dp_one_loss(e),
                  .divide_before = e->policy.divide_before};
    if (!dp_is_root(e)) TRY(dp_fetch(&e->places, DP_AT_GRADS, set->grads.data, 0, arena_bytes(e)));
    dp_star_begin(e->star);
    for (int k = 0; k < e->reduce.count; k++) {
        for (int r = 1; dp_is_root(e) && r < e->contributors; r++) {
            dp_item *item = dp_star_add(e->star, DP_REDUCE, r, MESSAGE_PUSH, step->index, k);
            item->region = chunk_region(e, &e->reduce.list[k], set->grads.data);
            item->shared = dp_shares(e);
            item->remote = dp_segment(e, r, PS_SEGMENT_GRADS);
        }
        if (dp_is_root(e)) continue;
        dp_item *item = dp_star_add(e->star, DP_SEND, 0, MESSAGE_PUSH, step->index, k);
        item->region = chunk_region(e, &e->reduce.list[k], grads);
        item->shared = dp_shares(e);
    }
    TRY(dp_star_run(e->star, &sum));
    if (!dp_is_root(e) || e->contributors > 1 || dp_lean(e)) return STATUS_OK;
    return dp_copy(&e->places, context_of(e)->device, sum.out, sum.own, arena_bytes(e)); /* nobody to add up with */
}

/* Behind a micro-batch that only accumulates: what rank 0 has handed out is no longer read. */
static status acknowledge(dp_engine *e, const sync_step *step)
{
    dp_star_begin(e->star);
    for (int r = 1; dp_is_root(e) && r < e->present; r++)
        dp_star_add(e->star, DP_RECEIVE, r, MESSAGE_ACKNOWLEDGE, step->index, 0);
    if (!dp_is_root(e) && dp_takes_part(e))
        dp_star_add(e->star, DP_SEND, 0, MESSAGE_ACKNOWLEDGE, step->index, 0);
    return dp_star_run(e->star, NULL);
}

status dp_finish(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_context *c = context_of(e);
    e->accumulates = !step->synchronize;
    if (e->present > e->contributors) e->contributors = e->present;
    if (e->accumulates) return acknowledge(e, step);
    if (c->rank < e->contributors) {
        dp_lives_begin_reduce(e);
        TRY(reduce(e, step));
        dp_lives_reduced(e);
    }
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    dp_lives_end_reduce(e);
    if (!dp_is_root(e)) return STATUS_OK;
    if (e->policy.keep_grads)
        TRY(dp_copy(&e->places, c->device, e->kept.data, dp_lean(e) ? c->params->grads.data : e->results.data,
                    arena_bytes(e)));
    return sync_update_parameters(base, step, dp_final_gradients(e)->data, &e->norm_scratch,
                                  &e->optimizer_ns);
}
