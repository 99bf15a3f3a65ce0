/* Plans the batch, cuts it as torch.chunk does, and scatters the parts from rank 0. */
#include "ps/dp/dp_impl.h"

#include "ps/compute.h"

enum { KEY_INPUTS = DP_PIECE_INPUTS, KEY_TARGETS = DP_PIECE_TARGETS };

status dp_plan_batch(sync_engine *base, const sync_step *step, int64_t batch, sync_batch *out)
{
    dp_engine *e = dp_engine_of(base);
    const sync_context *c = context_of(e);
    dp_account_begin_batch(e);
    if (!e->accumulates) e->contributors = 0;
    e->step = step->index;
    *out = (sync_batch){.load = dp_is_root(e) ? batch * c->world : 0, .train = batch};
    e->sums = 0;
    return STATUS_OK;
}

/* Cuts as torch.chunk does: ceil(batch / n) samples per rank, the last part smaller or absent. */
static dp_part part_of(int64_t samples, int world, int rank)
{
    int64_t chunk = (samples + world - 1) / world, first = chunk * rank;
    if (first > samples) first = samples;
    return (dp_part){.first = first, .samples = samples - first < chunk ? samples - first : chunk};
}

/* Cuts e->loaded samples into the ranks' parts, without counting targets. */
static void cut(dp_engine *e)
{
    e->present = 0;
    for (int r = 0; r < context_of(e)->world; r++) {
        e->parts[r] = part_of(e->loaded, context_of(e)->world, r);
        e->present += e->parts[r].samples > 0;
    }
}

/* Counts the targets of a part, without the ignored ones. `all_targets` is in host memory. */
static int64_t count_targets(const sync_exchange *x, const dp_part *p, const void *all_targets, bool exist)
{
    int64_t first = p->first * x->targets_each, count = p->samples * x->targets_each, counted = 0;
    if (x->target_type != DTYPE_I32) return count;
    if (!exist)
        return x->loaded > 0 ? p->samples * x->targets / x->loaded
                             : 0; /* an equal share of the counted targets */
    const int32_t *targets = (const int32_t *)all_targets + first;
    for (int64_t i = 0; i < count; i++) counted += targets[i] != LOSS_IGNORE;
    return counted;
}

static status cut_batch(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    bool exist = ps_has_bytes(context_of(e)->device), gpu = e->staging.copies.separate;
    const void *targets = gpu ? e->staging.buffers[DP_TENSOR_TARGET].data : x->target->data;
    int64_t bytes = x->loaded * x->target_bytes;
    if (gpu && bytes > 0)
        TRY(dp_copy_down(&e->staging, e->staging.buffers[DP_TENSOR_TARGET].data, x->target->data, bytes));
    e->loaded = x->loaded;
    cut(e);
    for (int r = 0; r < context_of(e)->world; r++)
        e->parts[r].targets = count_targets(x, &e->parts[r], targets, exist);
    return dp_stage_down(&e->staging, DP_TENSOR_INPUT, x->input->data, e->parts[0].samples * x->input_bytes,
                         (x->loaded - e->parts[0].samples) * x->input_bytes);
}

static void add_batch(dp_engine *e, int peer, const dp_part *p, int key, int64_t step)
{
    const sync_exchange *x = context_of(e)->exchange;
    bool inputs = key == KEY_INPUTS;
    const device_memory *memory = inputs ? x->input : x->target;
    int64_t each = inputs ? x->input_bytes : x->target_bytes, at = p->first * each;
    dp_transfer *transfer =
        dp_hub_add(e->hub, dp_is_root(e) ? DP_SEND : DP_RECEIVE, peer, MESSAGE_INPUTS, step, key);
    transfer->shared = dp_shares(e);
    char *base = dp_staged_address(&e->staging, inputs ? DP_TENSOR_INPUT : DP_TENSOR_TARGET, memory->data);
    transfer->region = dp_plain_region(e, peer, key, base, dp_is_root(e) ? at : 0, p->samples * each);
    char *remote = dp_remote(e, 0, inputs ? PS_SEGMENT_INPUT : PS_SEGMENT_TARGET);
    if (!dp_is_root(e) && remote) transfer->remote = remote + at;
}

/* Copies a received tensor of the batch to the device, if the exchange has not copied the tensor. */
static status store_batch(dp_engine *e, const dp_part *p, int key)
{
    const sync_exchange *x = context_of(e)->exchange;
    bool inputs = key == KEY_INPUTS;
    void *to = inputs ? x->input->data : x->target->data;
    int64_t each = inputs ? x->input_bytes : x->target_bytes;
    const char *from = dp_mapped(e, inputs ? PS_SEGMENT_INPUT : PS_SEGMENT_TARGET);
    if (from) return sync_copy_up(&e->staging.copies, to, from + p->first * each, p->samples * each);
    return dp_stage_up(&e->staging, inputs ? DP_TENSOR_INPUT : DP_TENSOR_TARGET, to, 0, p->samples * each);
}

static status store_parts(dp_engine *e, const dp_part *p)
{
    if (p->samples == 0) return STATUS_OK;
    TRY(store_batch(e, p, KEY_INPUTS));
    return dp_one_loss(e) ? STATUS_OK : store_batch(e, p, KEY_TARGETS);
}

static void add_parts(dp_engine *e, int peer, const dp_part *p, int64_t step)
{
    if (p->samples == 0 || dp_nccl_sends(e)) return;
    add_batch(e, peer, p, KEY_INPUTS, step);
    if (!dp_one_loss(e)) add_batch(e, peer, p, KEY_TARGETS, step);
}

static status scatter(dp_engine *e, const sync_step *step)
{
    TRY(cut_batch(e));
    for (int r = 1; r < context_of(e)->world; r++) {
        dp_transfer *transfer = dp_hub_add(e->hub, DP_SEND, r, MESSAGE_CONTROL, step->index, 0);
        transfer->header.count = e->parts[r].samples;
        transfer->header.integers[DP_INT_TARGETS] = e->parts[r].targets;
        transfer->header.integers[DP_INT_TOTAL] = e->loaded;
        transfer->header.integers[DP_INT_PRESENT] = e->present;
        add_parts(e, r, &e->parts[r], step->index);
    }
    TRY(dp_hub_run(e->hub, NULL));
    return dp_nccl_sends(e) ? dp_nccl_scatter_batch(e) : STATUS_OK;
}

static status receive_part(dp_engine *e, const sync_step *step, dp_part *mine)
{
    const sync_context *c = context_of(e);
    const dp_transfer *transfer = dp_hub_add(e->hub, DP_RECEIVE, 0, MESSAGE_CONTROL, step->index, 0);
    TRY(dp_hub_run(e->hub, NULL));
    message_header h = transfer->header;
    e->loaded = h.integers[DP_INT_TOTAL];
    e->present = (int)h.integers[DP_INT_PRESENT];
    *mine = part_of(e->loaded, c->world, c->rank);
    mine->targets = h.integers[DP_INT_TARGETS];
    if (h.count != mine->samples || e->loaded > c->exchange->largest * c->world)
        return fail(
            STATUS_PROTOCOL,
            "rank 0 sent rank %d a part of %lld samples of a batch of %lld, expected %lld of at most %lld",
            c->rank, (long long)h.count, (long long)e->loaded, (long long)mine->samples,
            (long long)c->exchange->largest * c->world);
    return STATUS_OK;
}

/* Sets *mine to this rank's part of the largest batch. Used if the device only plans memory, because no
 * message from rank 0 arrives then. */
static void assume_part(dp_engine *e, dp_part *mine)
{
    const sync_context *c = context_of(e);
    e->loaded = c->exchange->largest * c->world;
    e->present = c->world;
    *mine = part_of(e->loaded, c->world, c->rank);
    mine->targets = mine->samples * c->exchange->targets_each;
}

static status join_batch(dp_engine *e, const sync_step *step)
{
    dp_part *mine = &e->parts[context_of(e)->rank];
    if (dp_plans(e))
        assume_part(e, mine);
    else
        TRY(receive_part(e, step, mine));
    if (dp_nccl_sends(e)) return dp_nccl_scatter_batch(e);
    add_parts(e, 0, mine, step->index);
    TRY(dp_hub_run(e->hub, NULL));
    return store_parts(e, mine);
}

status dp_scatter_inputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(dp_nccl_warm_up(e));
    TRY(dp_is_root(e) ? scatter(e, step) : join_batch(e, step));
    base->context.exchange->samples = dp_mine(e)->samples;
    base->context.exchange->targets = dp_mine(e)->targets;
    return STATUS_OK;
}
