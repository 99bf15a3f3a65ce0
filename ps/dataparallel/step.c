/* The calls of a step. Each call runs an exchange with the hub, and waits until the exchange has ended. */
#include "ps/dataparallel/dataparallel.h"

#include "common/device/sim/device_sim.h"
#include "common/sync/average.h"

/* ---- parameters and buffers -------------------------------------------------------------------- */

static dp_region chunk_region(const dp_engine *e, const dp_chunk *chunk, void *arena)
{
    piece_list pieces = param_set_pieces(context_of(e)->params, chunk->first, chunk->count);
    return (dp_region){arena, pieces, e->element};
}

static int64_t arena_bytes(const dp_engine *e)
{
    return context_of(e)->params->arena_elements * e->element;
}

static int64_t buffer_bytes(const dp_engine *e)
{
    return context_of(e)->params->buffer_elements * e->element;
}

/* Adds the transfers of a replica. Buffers are always sent in message frames: if other ranks copied the
 * buffers from shared memory, rank 0's forward pass might change the buffers before the copy. */
static void add_replica(dp_engine *e, int peer, int64_t step)
{
    const param_set *set = context_of(e)->params;
    char *params = dp_address(e, DP_TENSOR_PARAMS, set->params.data);
    char *buffers = dp_address(e, DP_TENSOR_BUFFERS, set->buffers.data);
    bool root = dp_is_root(e);
    for (int k = 0; k < e->replicate.count; k++) {
        dp_transfer *transfer =
            dp_hub_add(e->hub, root ? DP_SEND : DP_RECEIVE, peer, MESSAGE_PARAMETERS, step, k);
        transfer->region = chunk_region(e, &e->replicate.list[k], params);
        transfer->shared = e->member.segments;
        if (!root) transfer->remote = dp_remote(e, PS_SEGMENT_PARAMS);
    }
    if (set->model->buffer_count == 0) return;
    dp_transfer *transfer = dp_hub_add(e->hub, root ? DP_SEND : DP_RECEIVE, peer, MESSAGE_BUFFERS, step, 0);
    transfer->region = (dp_region){buffers, {set->buffer_pieces, set->model->buffer_count}, e->element};
}

static status send_replicas(dp_engine *e, int receivers, int64_t step)
{
    const param_set *set = context_of(e)->params;
    if (receivers > 1) {
        TRY(dp_stage_down(e, DP_TENSOR_PARAMS, set->params.data, 0, arena_bytes(e)));
        TRY(dp_stage_down(e, DP_TENSOR_BUFFERS, set->buffers.data, 0, buffer_bytes(e)));
    }
    for (int r = 1; r < receivers; r++) add_replica(e, r, step);
    return dp_hub_run(e->hub, NULL);
}

static status receive_replica(dp_engine *e, int64_t step)
{
    param_set *set = context_of(e)->params;
    param_set_forget_bf16_copy(set);
    add_replica(e, 0, step);
    TRY(dp_hub_run(e->hub, NULL));
    const char *params = dp_mapped(e, PS_SEGMENT_PARAMS);
    if (params)
        TRY(sync_copy_up(&e->copies, set->params.data, params, arena_bytes(e)));
    else
        TRY(dp_stage_up(e, DP_TENSOR_PARAMS, set->params.data, 0, arena_bytes(e)));
    return dp_stage_up(e, DP_TENSOR_BUFFERS, set->buffers.data, 0, buffer_bytes(e));
}

static status replicate(dp_engine *e, int64_t step, bool to_all)
{
    const sync_context *c = context_of(e);
    int receivers = to_all ? c->world : e->present;
    bool root = dp_is_root(e), receives = !root && (to_all || dp_takes_part(e));
    if (root && receivers > 1 && !to_all)
        sim_device_wire(c->device, receivers, c->params->model->param_count);
    if (receives) dp_account_replicate(e);
    if (e->by_nccl) return receivers > 1 ? dp_nccl_replicate(e) : STATUS_OK;
    if (root) return send_replicas(e, receivers, step);
    return receives ? receive_replica(e, step) : STATUS_OK;
}

status dp_begin_forward(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, step->index, false));
    sim_device_await_wiring(base->context.device);
    /* In PyTorch, the replicas are threads that share one Python interpreter. */
    sim_device_share_interpreter(base->context.device, e->present);
    return STATUS_OK;
}

status dp_flush(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, DP_FLUSH + e->settles++, true));
    return sync_staging_end(&e->copies);
}

/* ---- outputs and loss -------------------------------------------------------------------------- */

/* Describes the flow of the outputs or, if `gradients` is true, of the gradients of the outputs. The
 * gradients replace the outputs in memory. */
static dp_flow outputs_of(const dp_engine *e, bool gradients)
{
    const sync_exchange *x = context_of(e)->exchange;
    void *all = gradients ? x->all_gradients : x->all_outputs,
         *own = gradients ? x->output_gradient : x->output;
    return (dp_flow){.kind = gradients ? MESSAGE_OUTPUT_GRADIENT : MESSAGE_OUTPUTS,
                     .to_root = !gradients,
                     .tensor = dp_is_root(e) ? DP_TENSOR_OUTPUTS : DP_TENSOR_PART,
                     .segment = PS_SEGMENT_OUTPUTS,
                     .data = dp_is_root(e) ? all : own,
                     .each = x->output_bytes};
}

/* In virtual time, gathers the tensors that replicas return in addition to the loss. The gather only takes
 * time and moves no values. Rank 0 also spends the time of copying the tensors of rank 0. */
static status gather_returned(dp_engine *e)
{
    dp_flow returned = outputs_of(e, false);
    returned.data = context_of(e)->exchange->output;
    returned.each = e->returned;
    if (dp_is_root(e))
        sync_spend_pass(context_of(e)->device, 2.0 * (double)(dp_mine(e)->samples * e->returned), 0);
    TRY(dp_add_parts(e, &returned));
    return dp_hub_run(e->hub, NULL);
}

status dp_gather_outputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    dp_flow outputs = outputs_of(e, false);
    (void)step;
    sim_device_share_interpreter(base->context.device, 0);
    if (e->returned > 0 && dp_takes_part(e)) TRY(gather_returned(e));
    if (!dp_one_loss(e)) return STATUS_OK;
    if (dp_takes_part(e)) dp_account_outputs(e, 0);
    if (dp_takes_part(e) && dp_is_root(e))
        TRY(sync_copy_within(&e->copies, x->all_outputs, x->output, dp_mine(e)->samples * x->output_bytes));
    return dp_exchange(e, &outputs, DP_CALL_OUTPUTS);
}

void dp_loss(sync_engine *base, const sync_step *step, int64_t *targets, bool *here)
{
    dp_engine *e = dp_engine_of(base);
    *targets = step->targets;
    if (dp_one_loss(e)) {
        *targets = 0;
        for (int r = 0; r < base->context.world; r++) *targets += e->parts[r].targets;
    }
    dp_account_outputs(e, 1); /* the result of log_softmax */
    ledger_enter(base->context.ledger, LEDGER_PHASE_LOSS_GRADIENT);
    dp_account_outputs(e, 3); /* the result of log_softmax, and two gradients */
    *here = dp_one_loss(e) ? dp_is_root(e) : dp_takes_part(e);
}

status dp_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    dp_flow gradients = outputs_of(e, true);
    (void)step;
    if (!dp_one_loss(e)) return STATUS_OK;
    if (dp_takes_part(e)) dp_account_end_loss(e);
    if (dp_takes_part(e) && dp_is_root(e))
        TRY(sync_copy_within(&e->copies, x->output_gradient, x->all_gradients,
                             dp_mine(e)->samples * x->output_bytes));
    return dp_exchange(e, &gradients, DP_CALL_GRADIENT);
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
    bool root = dp_is_root(e), mean = !dp_one_loss(e);
    char *grads = root ? set->grads.data : dp_address(e, DP_TENSOR_GRADS, set->grads.data);
    dp_sum sum = {.present = e->contributors,
                  .before = mean && e->policy.divide_before ? e->contributors : 1,
                  .after = mean && !e->policy.divide_before ? e->contributors : 1};
    if (e->by_nccl) return e->contributors > 1 ? dp_nccl_reduce(e, &sum) : STATUS_OK;
    if (!root) TRY(dp_stage_down(e, DP_TENSOR_GRADS, set->grads.data, 0, arena_bytes(e)));
    for (int k = 0; k < e->reduce.count; k++) {
        for (int r = root ? 1 : 0; r < (root ? e->contributors : 1); r++) {
            dp_transfer *transfer =
                dp_hub_add(e->hub, root ? DP_REDUCE : DP_SEND, r, MESSAGE_PUSH, step->index, k);
            transfer->region = chunk_region(e, &e->reduce.list[k], grads);
            transfer->shared = e->member.segments;
            if (root) transfer->remote = ps_segment(&e->member, r, PS_SEGMENT_GRADS);
        }
    }
    return dp_hub_run(e->hub, &sum);
}

/* Ends a micro-batch that only accumulates gradients. Waits until no rank reads the parameters of rank 0 any
 * more. */
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
    if (contributes || e->by_nccl) TRY(reduce(e, step));
    if (contributes) dp_account_reduced(e);
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    dp_account_end_reduce(e);
    return STATUS_OK;
}

/* ---- sums of layers ---------------------------------------------------------------------------- */

/* Moves `count` values of each rank to or from rank 0. On rank 0 the values of rank r begin at values[r *
 * stride]. */
static status move_sums(dp_engine *e, bool to_root, int64_t number, double *values, int count, int64_t stride)
{
    bool root = dp_is_root(e);
    for (int r = root ? 1 : 0; r < (root ? e->present : 1); r++) {
        dp_transfer *transfer =
            dp_hub_add(e->hub, root == to_root ? DP_RECEIVE : DP_SEND, r, MESSAGE_SUM, e->step, number);
        dp_hub_set_tensor(transfer, values + r * stride, 0, count * (int64_t)sizeof *values);
    }
    return dp_hub_run(e->hub, NULL);
}

/* Sums `values`, which are in host memory, over the ranks that have samples. */
static status sum_over_ranks(dp_engine *e, double *values, int count)
{
    int64_t number = e->sums++;
    TRY(move_sums(e, true, number, dp_is_root(e) ? e->shares : values, count, e->largest_sum));
    for (int r = 1; dp_is_root(e) && r < e->present; r++)
        sync_add_values(context_of(e)->device, values, e->shares + (int64_t)r * e->largest_sum, count);
    return move_sums(e, false, number, values, count, 0);
}

status dp_group_sum(sync_engine *base, double *values, int count)
{
    dp_engine *e = dp_engine_of(base);
    int64_t bytes = count * (int64_t)sizeof *values;
    if (e->present < 2) {
        e->sums++;
        return STATUS_OK;
    }
    TRY(dp_stage_down(e, DP_TENSOR_SUMS, values, 0, bytes));
    TRY(sum_over_ranks(e, (double *)(void *)dp_address(e, DP_TENSOR_SUMS, values), count));
    return dp_stage_up(e, DP_TENSOR_SUMS, values, 0, bytes);
}
