/* The stages of a step. Each stage is an exchange with the hub, and waits for it. */
#include "ps/dp/dp_impl.h"

#include "ps/compute.h"

#include <string.h>

/* ---- parameters and buffers -------------------------------------------------------------------- */

static dp_region chunk_region(const dp_engine *e, const dp_chunk *chunk, void *arena)
{
    const param_set *set = context_of(e)->params;
    return (dp_region){arena, {set->pieces + chunk->first, chunk->count}, (int64_t)e->element};
}

static int64_t arena_bytes(const dp_engine *e)
{
    return context_of(e)->params->arena_elements * (int64_t)e->element;
}

static int64_t buffer_bytes(const dp_engine *e)
{
    return context_of(e)->params->buffer_elements * (int64_t)e->element;
}

/* Adds the transfers of a replica. Buffers always travel in message frames, because rank 0's forward pass
 * changes the buffers before other ranks could copy them from shared memory. */
static void add_replica(dp_engine *e, int peer, int64_t step)
{
    const param_set *set = context_of(e)->params;
    char *params = dp_staged_address(&e->staging, DP_TENSOR_PARAMS, set->params.data);
    char *buffers = dp_staged_address(&e->staging, DP_TENSOR_BUFFERS, set->buffers.data);
    dp_direction direction = dp_is_root(e) ? DP_SEND : DP_RECEIVE;
    for (int k = 0; k < e->replicate.count; k++) {
        dp_transfer *transfer = dp_hub_add(e->hub, direction, peer, MESSAGE_PARAMETERS, step, k);
        transfer->region = chunk_region(e, &e->replicate.list[k], params);
        transfer->shared = dp_shares(e);
        if (!dp_is_root(e)) transfer->remote = dp_remote(e, 0, PS_SEGMENT_PARAMS);
    }
    if (set->model->buffer_count == 0) return;
    dp_transfer *transfer = dp_hub_add(e->hub, direction, peer, MESSAGE_BUFFERS, step, 0);
    transfer->region =
        (dp_region){buffers, {set->buffer_pieces, set->model->buffer_count}, (int64_t)e->element};
}

static status fetch_replica(dp_engine *e)
{
    const param_set *set = context_of(e)->params;
    TRY(dp_stage_down(&e->staging, DP_TENSOR_PARAMS, set->params.data, 0, arena_bytes(e)));
    return dp_stage_down(&e->staging, DP_TENSOR_BUFFERS, set->buffers.data, 0, buffer_bytes(e));
}

static status store_replica(dp_engine *e)
{
    param_set *set = context_of(e)->params;
    const char *params = dp_mapped(e, PS_SEGMENT_PARAMS);
    param_set_forget_bf16_copy(set);
    if (params)
        TRY(sync_copy_up(&e->staging.copies, set->params.data, params, arena_bytes(e)));
    else
        TRY(dp_stage_up(&e->staging, DP_TENSOR_PARAMS, set->params.data, 0, arena_bytes(e)));
    return dp_stage_up(&e->staging, DP_TENSOR_BUFFERS, set->buffers.data, 0, buffer_bytes(e));
}

static status replicate(dp_engine *e, int64_t step, bool to_all)
{
    int receivers = to_all ? context_of(e)->world : e->present;
    if (dp_is_root(e) && receivers > 1 && !to_all)
        ps_wire(context_of(e)->device, receivers, context_of(e)->params->model->param_count);
    if (!dp_is_root(e) && (to_all || dp_takes_part(e))) dp_account_replicate(e);
    if (e->nccl) return receivers > 1 ? dp_nccl_replicate(e) : STATUS_OK;
    if (!dp_is_root(e)) {
        if (!to_all && !dp_takes_part(e)) return STATUS_OK;
        param_set_forget_bf16_copy(context_of(e)->params);
    }
    if (!dp_is_root(e)) add_replica(e, 0, step);
    if (dp_is_root(e) && receivers > 1) TRY(fetch_replica(e));
    for (int r = 1; dp_is_root(e) && r < receivers; r++) add_replica(e, r, step);
    TRY(dp_hub_run(e->hub, NULL));
    return dp_is_root(e) ? STATUS_OK : store_replica(e);
}

status dp_begin_forward(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, step->index, false));
    ps_await_wiring(base->context.device);
    ps_share_interpreter(base->context.device, e->present); /* one thread per replica */
    return STATUS_OK;
}

status dp_flush(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, DP_FLUSH + e->settles++, true));
    return sync_staging_end(&e->staging.copies);
}

/* ---- outputs and loss -------------------------------------------------------------------------- */

static dp_transfer *add_outputs(dp_engine *e, dp_direction direction, int peer, const dp_part *p,
                                message_kind kind, int64_t step, void *base)
{
    int64_t each = context_of(e)->exchange->output_bytes;
    dp_transfer *transfer = dp_hub_add(e->hub, direction, peer, kind, step, 0);
    transfer->shared = dp_shares(e);
    transfer->region = dp_plain_region(e, peer, DP_PIECE_OUTPUTS, base, dp_is_root(e) ? p->first * each : 0,
                                       p->samples * each);
    return transfer;
}

static int64_t output_bytes(const dp_engine *e, int64_t samples)
{
    return samples * context_of(e)->exchange->output_bytes;
}

static int64_t others_output(const dp_engine *e)
{
    return output_bytes(e, e->loaded - e->parts[0].samples);
}

/* Adds the transfer of this rank's outputs, and copies them to rank 0's memory if it is mapped. */
static status add_own_outputs(dp_engine *e, const sync_step *step)
{
    const sync_exchange *x = context_of(e)->exchange;
    int64_t at = output_bytes(e, dp_mine(e)->first), bytes = output_bytes(e, dp_mine(e)->samples);
    char *from = dp_staged_address(&e->staging, DP_TENSOR_PART, x->output),
         *gathered = dp_mapped(e, PS_SEGMENT_OUTPUTS);
    if (gathered)
        TRY(dp_copy_down(&e->staging, gathered + at, x->output, bytes));
    else
        TRY(dp_stage_down(&e->staging, DP_TENSOR_PART, x->output, 0, bytes));
    dp_transfer *transfer = add_outputs(e, DP_SEND, 0, dp_mine(e), MESSAGE_OUTPUTS, step->index, from);
    char *remote = dp_remote(e, 0, PS_SEGMENT_OUTPUTS);
    if (remote) transfer->remote = remote + at;
    return STATUS_OK;
}

/* Gathers the tensors that replicas return in addition to the loss, in virtual time. Only the time of this
 * gather matters, so no values move. Rank 0 is also charged for the copy of the tensors of rank 0. */
static status gather_returned(dp_engine *e, const sync_step *step)
{
    void *place = context_of(e)->exchange->output;
    if (dp_is_root(e))
        ps_charge_pass(context_of(e)->device, 2.0 * (double)(dp_mine(e)->samples * e->returned), 0);
    for (int r = dp_is_root(e) ? 1 : 0; r < (dp_is_root(e) ? e->present : 1); r++) {
        int64_t samples = dp_is_root(e) ? e->parts[r].samples : dp_mine(e)->samples;
        dp_transfer *transfer =
            dp_hub_add(e->hub, dp_is_root(e) ? DP_RECEIVE : DP_SEND, r, MESSAGE_OUTPUTS, step->index, 0);
        transfer->region = dp_plain_region(e, r, DP_PIECE_OUTPUTS, place, 0, samples * e->returned);
    }
    return dp_hub_run(e->hub, NULL);
}

status dp_gather_outputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    ps_share_interpreter(base->context.device, 0);
    if (e->returned > 0 && dp_takes_part(e)) TRY(gather_returned(e, step));
    if (!dp_one_loss(e)) return STATUS_OK;
    if (!dp_takes_part(e)) return dp_nccl_sends(e) ? dp_nccl_gather_outputs(e) : STATUS_OK;
    dp_account_gather(e);
    if (dp_is_root(e))
        TRY(sync_copy_within(&e->staging.copies, x->all_outputs, x->output,
                             output_bytes(e, dp_mine(e)->samples)));
    if (dp_nccl_sends(e)) return dp_nccl_gather_outputs(e);
    if (dp_is_root(e)) {
        char *outputs = dp_staged_address(&e->staging, DP_TENSOR_OUTPUTS, x->all_outputs);
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_RECEIVE, r, &e->parts[r], MESSAGE_OUTPUTS, step->index, outputs);
    } else {
        TRY(add_own_outputs(e, step));
    }
    TRY(dp_hub_run(e->hub, NULL));
    if (!dp_is_root(e)) return STATUS_OK;
    return dp_stage_up(&e->staging, DP_TENSOR_OUTPUTS, x->all_outputs, output_bytes(e, dp_mine(e)->samples),
                       others_output(e));
}

void dp_loss(sync_engine *base, const sync_step *step, int64_t *targets, bool *here)
{
    dp_engine *e = dp_engine_of(base);
    *targets = step->targets;
    if (dp_one_loss(e)) {
        *targets = 0;
        for (int r = 0; r < base->context.world; r++) *targets += e->parts[r].targets;
    }
    dp_account_log_softmax(e);
    ledger_enter(base->context.ledger, LEDGER_PHASE_LOSS_GRADIENT);
    dp_account_loss_gradients(e);
    *here = dp_one_loss(e) ? dp_is_root(e) : dp_takes_part(e);
}

status dp_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    if (!dp_one_loss(e)) return STATUS_OK;
    if (!dp_takes_part(e)) return dp_nccl_sends(e) ? dp_nccl_scatter_gradient(e) : STATUS_OK;
    dp_account_end_loss(e);
    if (!dp_is_root(e)) dp_account_take_gradient(e);
    if (dp_is_root(e))
        TRY(sync_copy_within(&e->staging.copies, x->output_gradient, x->all_gradients,
                             output_bytes(e, dp_mine(e)->samples)));
    if (dp_nccl_sends(e)) return dp_nccl_scatter_gradient(e);
    if (dp_is_root(e)) {
        TRY(dp_stage_down(&e->staging, DP_TENSOR_OUTPUTS, x->all_outputs,
                          output_bytes(e, dp_mine(e)->samples), others_output(e)));
        char *gradients = dp_staged_address(&e->staging, DP_TENSOR_OUTPUTS, x->all_outputs);
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_SEND, r, &e->parts[r], MESSAGE_OUTPUT_GRADIENT, step->index, gradients);
        return dp_hub_run(e->hub, NULL);
    }
    int64_t at = output_bytes(e, dp_mine(e)->first);
    dp_transfer *transfer = add_outputs(e, DP_RECEIVE, 0, dp_mine(e), MESSAGE_OUTPUT_GRADIENT, step->index,
                                        dp_staged_address(&e->staging, DP_TENSOR_PART, x->output_gradient));
    char *remote = dp_remote(e, 0, PS_SEGMENT_OUTPUTS), *scattered = dp_mapped(e, PS_SEGMENT_OUTPUTS);
    if (remote) transfer->remote = remote + at;
    TRY(dp_hub_run(e->hub, NULL));
    int64_t bytes = output_bytes(e, dp_mine(e)->samples);
    if (scattered) return sync_copy_up(&e->staging.copies, x->output_gradient, scattered + at, bytes);
    return dp_stage_up(&e->staging, DP_TENSOR_PART, x->output_gradient, 0, bytes);
}

/* ---- gradients -------------------------------------------------------------------------------- */

status dp_ready(sync_engine *base, int param)
{
    dp_account_gradient_ready(dp_engine_of(base), param);
    return STATUS_OK;
}

static status reduce(dp_engine *e, const sync_step *step)
{
    const param_set *set = context_of(e)->params;
    char *grads = dp_staged_address(&e->staging, DP_TENSOR_GRADS, set->grads.data);
    dp_sum sum = {.type = set->type,
                  .grads = set->grads.data,
                  .keys = e->reduce.count,
                  .present = e->contributors,
                  .before = dp_one_loss(e) || !e->policy.divide_before ? 1 : e->contributors,
                  .after = dp_one_loss(e) || e->policy.divide_before ? 1 : e->contributors};
    if (e->nccl) return e->contributors > 1 ? dp_nccl_reduce(e, sum.before, sum.after) : STATUS_OK;
    if (!dp_is_root(e)) TRY(dp_stage_down(&e->staging, DP_TENSOR_GRADS, set->grads.data, 0, arena_bytes(e)));
    for (int k = 0; k < e->reduce.count; k++) {
        for (int r = 1; dp_is_root(e) && r < e->contributors; r++) {
            dp_transfer *transfer = dp_hub_add(e->hub, DP_REDUCE, r, MESSAGE_PUSH, step->index, k);
            transfer->region = chunk_region(e, &e->reduce.list[k], set->grads.data);
            transfer->shared = dp_shares(e);
            transfer->remote = dp_segment(e, r, PS_SEGMENT_GRADS);
        }
        if (dp_is_root(e)) continue;
        dp_transfer *transfer = dp_hub_add(e->hub, DP_SEND, 0, MESSAGE_PUSH, step->index, k);
        transfer->region = chunk_region(e, &e->reduce.list[k], grads);
        transfer->shared = dp_shares(e);
    }
    return dp_hub_run(e->hub, &sum);
}

/* Ends a micro-batch that only accumulates: waits until no rank reads rank 0's parameters any more. */
static status acknowledge(dp_engine *e, const sync_step *step)
{
    for (int r = 1; dp_is_root(e) && r < e->present; r++)
        dp_hub_add(e->hub, DP_RECEIVE, r, MESSAGE_ACKNOWLEDGE, step->index, 0);
    if (!dp_is_root(e) && dp_takes_part(e))
        dp_hub_add(e->hub, DP_SEND, 0, MESSAGE_ACKNOWLEDGE, step->index, 0);
    return dp_hub_run(e->hub, NULL);
}

status dp_reduce(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_context *c = context_of(e);
    e->accumulates = !step->synchronize;
    if (e->present > e->contributors) e->contributors = e->present;
    if (e->accumulates) return acknowledge(e, step);
    bool contributes = c->rank < e->contributors;
    if (contributes) dp_account_begin_reduce(e);
    if (contributes || e->nccl) TRY(reduce(e, step));
    if (contributes) dp_account_reduced(e);
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    dp_account_end_reduce(e);
    return STATUS_OK;
}

/* ---- sums of layers ---------------------------------------------------------------------------- */

static void add_sum(dp_engine *e, dp_direction direction, int peer, int64_t number, double *values, int count,
                    int64_t step)
{
    dp_transfer *transfer = dp_hub_add(e->hub, direction, peer, MESSAGE_SUM, step, number);
    transfer->region = dp_plain_region(e, peer, DP_PIECE_SUMS, values, 0, count * (int64_t)sizeof *values);
}

/* Sums `values`, in host memory, over the ranks with samples. */
static status sum_over_ranks(dp_engine *e, double *values, int count)
{
    int64_t number = e->sums++, step = e->step;
    if (!dp_is_root(e)) {
        add_sum(e, DP_SEND, 0, number, values, count, step);
        TRY(dp_hub_run(e->hub, NULL));
        add_sum(e, DP_RECEIVE, 0, number, values, count, step);
        return dp_hub_run(e->hub, NULL);
    }
    for (int r = 1; r < e->present; r++)
        add_sum(e, DP_RECEIVE, r, number, e->shares + (int64_t)r * e->largest_sum, count, step);
    TRY(dp_hub_run(e->hub, NULL));
    bool exist = ps_has_bytes(e->base.context.device);
    for (int r = 1; exist && r < e->present; r++)
        for (int i = 0; i < count; i++) values[i] += e->shares[(int64_t)r * e->largest_sum + i];
    for (int r = 1; r < e->present; r++) add_sum(e, DP_SEND, r, number, values, count, step);
    return dp_hub_run(e->hub, NULL);
}

status dp_group_sum(sync_engine *base, double *values, int count)
{
    dp_engine *e = dp_engine_of(base);
    int64_t bytes = count * (int64_t)sizeof *values;
    if (e->present < 2) {
        e->sums++;
        return STATUS_OK;
    }
    TRY(dp_stage_down(&e->staging, DP_TENSOR_SUMS, values, 0, bytes));
    TRY(sum_over_ranks(e, (double *)(void *)dp_staged_address(&e->staging, DP_TENSOR_SUMS, values), count));
    return dp_stage_up(&e->staging, DP_TENSOR_SUMS, values, 0, bytes);
}

void dp_counters(sync_engine *base, sync_counters *out)
{
    dp_engine *e = dp_engine_of(base);
    *out = (sync_counters){.updates_skipped = optimizer_skipped(base->context.optimizer)};
    dp_hub_collect(e->hub, out);
    dp_nccl_collect(e, out);
}
