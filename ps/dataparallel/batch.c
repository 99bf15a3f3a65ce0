/* Plans the batch, splits it as torch.chunk does, and moves parts of tensors between rank 0 and other
 * ranks. */
#include "common/base/least.h"
#include "ps/dataparallel/dataparallel.h"

int64_t dp_plan_batch(sync_engine *base, const sync_step *step, int64_t batch)
{
    dp_engine *e = dp_engine_of(base);
    dp_account_begin_batch(e);
    if (!e->accumulates) e->contributors = 0;
    e->step = step->index;
    e->sums = 0;
    return dp_is_root(e) ? batch * context_of(e)->world : 0;
}

/* Returns the part of a rank. Splits the batch as torch.chunk does: every rank has ceil(batch / n) samples
 * until no samples are left. The last ranks may have fewer samples, or none. */
static dp_part part_of(int64_t samples, int world, int rank)
{
    int64_t chunk = (samples + world - 1) / world, first = least(samples, chunk * rank);
    return (dp_part){.first = first, .samples = least(chunk, samples - first)};
}

/* Counts the targets of a part, except ignored targets. `all_targets` is in host memory. If `exist` is false,
 * as on a virtual device, targets have no values. The result is then proportional to the samples of the
 * part. */
static int64_t count_targets(const sync_exchange *x, const dp_part *p, const void *all_targets, bool exist)
{
    int64_t first = p->first * x->targets_each, count = p->samples * x->targets_each, counted = 0;
    if (x->target_type != DTYPE_I32) return count;
    if (!exist) return x->loaded > 0 ? p->samples * x->targets / x->loaded : 0;
    const int32_t *targets = (const int32_t *)all_targets + first;
    for (int64_t i = 0; i < count; i++) counted += targets[i] != LOSS_IGNORE;
    return counted;
}

/* Splits the loaded batch into one part for each rank. */
static status cut_batch(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    char *staged = e->buffers[DP_TENSOR_TARGET].data;
    int64_t bytes = x->loaded * x->target_bytes;
    if (staged && bytes > 0) TRY(dp_copy_down(e, staged, x->target->data, bytes));
    e->loaded = x->loaded;
    e->present = 0;
    for (int r = 0; r < context_of(e)->world; r++) {
        dp_part *p = &e->parts[r];
        *p = part_of(e->loaded, context_of(e)->world, r);
        p->targets =
            count_targets(x, p, staged ? staged : x->target->data, ps_has_bytes(context_of(e)->device));
        e->present += p->samples > 0;
    }
    return STATUS_OK;
}

/* ---- parts ------------------------------------------------------------------------------------ */

static int64_t part_bytes(const dp_flow *f, const dp_part *p)
{
    return p->samples * f->each;
}

/* Adds the transfer of a part between rank 0 and another rank. On rank 0, the part belongs to `peer`. On
 * any other rank, the part belongs to the calling rank. */
static status add_part(dp_engine *e, const dp_flow *f, int peer)
{
    bool root = dp_is_root(e), sends = root != f->to_root;
    const dp_part *p = root ? &e->parts[peer] : dp_mine(e);
    int64_t at = p->first * f->each;
    if (p->samples == 0) return STATUS_OK;
    if (e->calls) return dp_nccl_add(e, sends, peer, f->data + (root ? at : 0), part_bytes(f, p));
    dp_transfer *transfer = dp_hub_add(e->hub, sends ? DP_SEND : DP_RECEIVE, peer, f->kind, e->step, f->key);
    dp_hub_set_tensor(transfer, dp_address(e, f->tensor, f->data), root ? at : 0, part_bytes(f, p));
    transfer->shared = e->member.segments;
    char *remote = root ? NULL : dp_remote(e, f->segment);
    if (transfer->shared && remote) transfer->remote = remote + at;
    return STATUS_OK;
}

status dp_add_parts(dp_engine *e, const dp_flow *f)
{
    if (!dp_is_root(e)) return add_part(e, f, 0);
    for (int r = 1; r < e->present; r++) TRY(add_part(e, f, r));
    return STATUS_OK;
}

/* Copies the parts that an exchange moves. If `up` is true, copies from the host to the device, after the
 * exchange. Otherwise copies from the device to the host, before the exchange. */
static status copy_parts(dp_engine *e, const dp_flow *f, bool up)
{
    const dp_part *own = dp_mine(e);
    int64_t bytes = part_bytes(f, own), at = dp_is_root(e) ? bytes : 0;
    char *mapped = dp_is_root(e) || bytes == 0 ? NULL : dp_mapped(e, f->segment);
    if (mapped) mapped += own->first * f->each;
    if (mapped && up) return sync_copy_up(&e->copies, f->data, mapped, bytes);
    if (mapped) return dp_copy_down(e, mapped, f->data, bytes);
    if (dp_is_root(e)) bytes = e->loaded * f->each - bytes;
    if (up) return dp_stage_up(e, f->tensor, f->data, at, bytes);
    return dp_stage_down(e, f->tensor, f->data, at, bytes);
}

status dp_exchange(dp_engine *e, const dp_flow *f, dp_call call)
{
    bool sends = dp_is_root(e) != f->to_root;
    if (sends) TRY(copy_parts(e, f, false));
    TRY(dp_nccl_begin(e, call));
    TRY(dp_add_parts(e, f));
    TRY(e->calls ? dp_nccl_end(e) : dp_hub_run(e->hub, NULL));
    return sends ? STATUS_OK : copy_parts(e, f, true);
}

/* ---- the batch -------------------------------------------------------------------------------- */

/* Describes the flow of the inputs and, if every rank computes a loss, the flow of the targets. Returns the
 * number of flows. */
static int flows_of(const dp_engine *e, dp_flow flows[2])
{
    const sync_exchange *x = context_of(e)->exchange;
    flows[0] = (dp_flow){MESSAGE_INPUTS, 0, false, DP_TENSOR_INPUT, PS_SEGMENT_INPUT, x->input->data,
                         x->input_bytes};
    flows[1] = (dp_flow){MESSAGE_INPUTS, 1, false, DP_TENSOR_TARGET, PS_SEGMENT_TARGET, x->target->data,
                         x->target_bytes};
    return dp_one_loss(e) ? 1 : 2;
}

/* Scatters the batch through NCCL. The hub has already sent the sizes of the parts. */
static status scatter_by_nccl(dp_engine *e, const dp_flow *flows, int count)
{
    TRY(dp_nccl_begin(e, DP_CALL_INPUTS));
    for (int i = 0; i < count; i++) TRY(dp_add_parts(e, &flows[i]));
    return dp_nccl_end(e);
}

static status scatter(dp_engine *e, const sync_step *step)
{
    dp_flow flows[2];
    int count = flows_of(e, flows);
    TRY(cut_batch(e));
    TRY(copy_parts(e, &flows[0], false));
    for (int r = 1; r < context_of(e)->world; r++) {
        dp_transfer *transfer = dp_hub_add(e->hub, DP_SEND, r, MESSAGE_CONTROL, step->index, 0);
        transfer->header.count = e->parts[r].samples;
        transfer->header.integers[DP_INT_TARGETS] = e->parts[r].targets;
        transfer->header.integers[DP_INT_TOTAL] = e->loaded;
        transfer->header.integers[DP_INT_PRESENT] = e->present;
        for (int i = 0; i < count && !e->calls; i++) TRY(add_part(e, &flows[i], r));
    }
    TRY(dp_hub_run(e->hub, NULL));
    return e->calls ? scatter_by_nccl(e, flows, count) : STATUS_OK;
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
    dp_flow flows[2];
    int count = flows_of(e, flows);
    if (e->hub->port.agent)
        TRY(receive_part(e, step, mine));
    else
        assume_part(e, mine);
    if (e->calls) return scatter_by_nccl(e, flows, count);
    for (int i = 0; i < count; i++) TRY(add_part(e, &flows[i], 0));
    TRY(dp_hub_run(e->hub, NULL));
    for (int i = 0; i < count; i++) TRY(copy_parts(e, &flows[i], true));
    return STATUS_OK;
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
