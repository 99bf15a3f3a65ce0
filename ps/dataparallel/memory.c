/* The memory of a rank under `dp`: chunks of parameters, arenas, staging buffers, the bytes that the ledger
 * counts in each phase of a step, and the formula with which these bytes are compared. */
#include "ps/dataparallel/dataparallel.h"

#include "common/memory/plan.h"

/* ---- chunks ------------------------------------------------------------------------------------ */

static void close_chunk(dp_chunks *c, int next)
{
    dp_chunk *last = &c->list[c->count];
    if (last->count == 0) return;
    if (last->count > c->most_pieces) c->most_pieces = last->count;
    if (last->bytes > c->largest_bytes) c->largest_bytes = last->bytes;
    c->list[++c->count] = (dp_chunk){.first = next};
}

status dp_chunks_make(const param_set *set, bool within, int64_t limit, ps_memory *memory, dp_chunks *out)
{
    int params = set->model->param_count;
    list_cut cut = {.limit = limit, .within = within};
    bool before, after;
    *out = (dp_chunks){.list = ps_allocate(memory, params + 1, sizeof *out->list)};
    TRY(ps_memory_check(memory, "the chunks of the parameters"));
    for (int i = 0; i < params; i++) {
        int64_t bytes = set->pieces[i].count * dtype_size(set->type);
        list_cut_add(&cut, bytes, &before, &after);
        if (before) close_chunk(out, i);
        out->list[out->count].count++;
        out->list[out->count].bytes += bytes;
        if (after) close_chunk(out, i + 1);
    }
    close_chunk(out, params);
    return STATUS_OK;
}

/* ---- arenas and staging buffers ------------------------------------------------------------------ */

/* Allocates memory for the outputs of all ranks. The loss replaces the outputs by the gradients of the
 * outputs. */
static status open_outputs(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    sync_exchange *x = c->exchange;
    TRY(ledger_blame(LEDGER_OUTPUTS, device_allocate(c->device, c->params->params.kind,
                                                     (size_t)(x->largest * x->output_bytes), &e->outputs)));
    x->all_outputs = x->all_gradients = e->outputs.data;
    return STATUS_OK;
}

static status open_buffer(dp_engine *e, dp_tensor tensor, size_t bytes, bool nccl)
{
    device_memory *buffer = &e->buffers[tensor];
    bool shared = e->options.payload != PS_PAYLOAD_ZMQ && !nccl && tensor <= DP_TENSOR_OUTPUTS;
    TRY(device_allocate(e->host, shared ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE, bytes, buffer));
    return device_pin(e->copies.device, buffer->data, buffer->bytes);
}

static status open_staging(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const sync_exchange *x = c->exchange;
    device_config host = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = 1};
    size_t arena = (size_t)(c->params->arena_elements * e->element);
    bool root = dp_is_root(e), nccl = e->options.payload == PS_PAYLOAD_NCCL;
    size_t bytes[DP_TENSORS] = {[DP_TENSOR_SUMS] = (size_t)e->largest_sum * sizeof(double)};
    if (nccl && root) bytes[DP_TENSOR_TARGET] = x->target->bytes; /* rank 0 counts the targets of each part */
    if (!nccl) {
        bytes[DP_TENSOR_INPUT] = x->input->bytes;
        bytes[DP_TENSOR_TARGET] = x->target->bytes;
        bytes[DP_TENSOR_BUFFERS] = c->params->buffers.bytes;
        /* Every rank except rank 0 receives frames in the staging buffer of the parameters. For segments that
         * it does not have, the rank exports this buffer instead. */
        bytes[DP_TENSOR_PARAMS] = arena;
        bytes[root ? DP_TENSOR_OUTPUTS : DP_TENSOR_GRADS] = root ? e->outputs.bytes : arena;
        bytes[DP_TENSOR_PART] = root ? 0 : (size_t)(x->largest * x->output_bytes);
    }
    TRY(device_open(&host, &e->host));
    for (int i = 0; i < DP_TENSORS; i++)
        if (bytes[i] > 0) TRY(open_buffer(e, (dp_tensor)i, bytes[i], nccl));
    return STATUS_OK;
}

status dp_open_memory(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    e->copies = sync_staging_on(c->device, c->compute);
    e->parts = ps_allocate(&e->memory, c->world, sizeof *e->parts);
    if (dp_is_root(e))
        e->shares = ps_allocate(&e->memory, (int64_t)c->world * e->largest_sum, sizeof *e->shares);
    TRY(ps_memory_check(&e->memory, "the parts of the ranks"));
    if (dp_is_root(e) && dp_one_loss(e)) TRY(open_outputs(e));
    if (!e->copies.separate) return STATUS_OK;
    if (dp_is_root(e) && e->options.payload != PS_PAYLOAD_NCCL)
        TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(c->device, DEVICE_MEMORY_PRIVATE,
                                                         (size_t)e->reduce.largest_bytes, &e->landing)));
    return open_staging(e);
}

void dp_close_memory(dp_engine *e)
{
    device *d = e->base.context.device;
    for (int i = 0; i < DP_TENSORS; i++) {
        if (!e->buffers[i].data) continue;
        device_unpin(d, e->buffers[i].data);
        device_free(e->host, &e->buffers[i]);
    }
    device_close(&e->host);
    device_free(d, &e->landing);
    device_free(d, &e->outputs);
    ps_memory_free(&e->memory);
}

char *dp_address(const dp_engine *e, dp_tensor tensor, void *data)
{
    return e->buffers[tensor].data ? e->buffers[tensor].data : data;
}

status dp_copy_down(dp_engine *e, void *host, const void *data, int64_t bytes)
{
    TRY(sync_copy_down(&e->copies, host, data, bytes));
    return sync_staging_end(&e->copies);
}

status dp_stage_down(dp_engine *e, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes)
{
    char *buffer = e->buffers[tensor].data;
    if (!buffer || bytes == 0) return STATUS_OK;
    return dp_copy_down(e, buffer + offset, (const char *)data + offset, bytes);
}

status dp_stage_up(dp_engine *e, dp_tensor tensor, void *data, int64_t offset, int64_t bytes)
{
    const char *buffer = e->buffers[tensor].data;
    if (!buffer || bytes == 0) return STATUS_OK;
    return sync_copy_up(&e->copies, (char *)data + offset, buffer + offset, bytes);
}

/* ---- the ledger -------------------------------------------------------------------------------- */

/* Sets the number of bytes that the ledger counts for an account. If the lifetimes are PyTorch's, the
 * ledger counts the bytes that PyTorch would hold at this time. This number may be larger than the number
 * of bytes that this program has allocated. */
static void hold(const dp_engine *e, ledger_class class, int64_t *account, int64_t bytes)
{
    if (bytes > *account)
        ledger_acquire(e->base.context.ledger, class, bytes - *account, bytes - *account);
    else
        ledger_release(e->base.context.ledger, class, *account - bytes, *account - bytes);
    *account = bytes;
}

static int64_t param_bytes(const dp_engine *e)
{
    return e->base.context.params->logical_bytes;
}

void dp_account_begin_batch(dp_engine *e)
{
    /* Removes the replica of an evaluation, or the buffers of the previous micro-batch. */
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, 0);
    if (e->accumulates) return;
    hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
}

void dp_account_replicate(dp_engine *e)
{
    hold(e, LEDGER_REPLICAS, &e->replica, param_bytes(e) + e->base.context.params->buffer_bytes);
}

/* ---- outputs and loss ------------------------------------------------------------------------- */

void dp_account_outputs(dp_engine *e, int more)
{
    const sync_exchange *x = e->base.context.exchange;
    if (!dp_is_root(e) || !dp_one_loss(e)) return;
    hold(e, LEDGER_OUTPUTS, &e->outputs_held,
         e->loaded * (x->output_bytes + (dp_lean(e) ? 0 : more * x->loss_output_bytes)));
}

/* Counts the gradient of this rank's part in the same way as a value of the program, because the program
 * later removes the gradient from the ledger. */
void dp_account_end_loss(dp_engine *e)
{
    const sync_exchange *x = e->base.context.exchange;
    int64_t own = dp_mine(e)->samples * x->output_bytes;
    if (dp_is_root(e)) {
        hold(e, LEDGER_OUTPUTS, &e->outputs_held, (dp_lean(e) ? 1 : 2) * e->loaded * x->output_bytes);
        ledger_release(e->base.context.ledger, LEDGER_OUTPUTS, own, own);
        e->outputs_held -= own;
    }
    ledger_acquire(e->base.context.ledger, LEDGER_OUTPUTS, own, plan_align(own));
}

/* ---- parameters and gradients ------------------------------------------------------------------ */

void dp_account_gradient_ready(dp_engine *e, int param)
{
    int64_t bytes = e->base.context.params->pieces[param].count * e->element;
    hold(e, LEDGER_OUTPUTS, &e->outputs_held, 0);
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, e->replica - bytes);
    if (!e->accumulates) hold(e, LEDGER_GRADIENTS, &e->gradients, e->gradients + bytes);
}

void dp_account_begin_reduce(dp_engine *e)
{
    int64_t chunk = dp_lean(e) ? 0 : e->reduce.largest_bytes;
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, e->base.context.params->buffer_bytes);
    hold(e, LEDGER_GRADIENTS, &e->gradients, param_bytes(e));
    if (dp_is_root(e) && !dp_lean(e)) hold(e, LEDGER_GRADIENTS, &e->results_held, param_bytes(e));
    hold(e, LEDGER_BUCKETS, &e->chunk_held, dp_is_root(e) ? 2 * chunk : chunk);
}

void dp_account_reduced(dp_engine *e)
{
    hold(e, LEDGER_BUCKETS, &e->chunk_held, 0);
}

void dp_account_end_reduce(dp_engine *e)
{
    bool root = dp_is_root(e), keeps = root && e->policy.keep_grads;
    if (!root) hold(e, LEDGER_REPLICAS, &e->replica, 0);
    if (keeps) hold(e, LEDGER_GRADIENTS, &e->kept_held, param_bytes(e));
    if (keeps) hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
    if (!root || keeps || !dp_lean(e)) hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
}

/* ---- the formula ------------------------------------------------------------------------------- */

const ps_dp_phase_info *ps_dp_phase_describe(ps_dp_phase p)
{
    static const ps_dp_phase_info phases[] = {
#define PHASE_INFO(name, text, torch, autocast, lean, phase)                                                 \
    {text, torch, autocast, lean, LEDGER_PHASE_##phase},
        PS_DP_PHASE_LIST(PHASE_INFO)
#undef PHASE_INFO
    };
    return &phases[p];
}

const char *ps_dp_formula(const ps_dp_sizes *s, ps_dp_phase p)
{
    const ps_dp_phase_info *info = ps_dp_phase_describe(p);
    if (s->lean) return info->lean;
    return s->loss_outputs == s->outputs ? info->torch : info->autocast;
}

int64_t ps_dp_difference(const ps_dp_sizes *s, ps_dp_phase p)
{
    /* G + S, and the additional bytes of the current and the next batch */
    int64_t rest = s->kept + s->state + s->batch + s->ahead;
    switch (p) {
    case PS_DP_OPTIMIZED:
        return 2 * s->parameters + s->state + s->buffers + s->ahead;
    case PS_DP_REPLICATED:
        return rest;
    case PS_DP_FORWARD_END:
        return rest + s->outputs + (s->lean ? 0 : s->loss_outputs);
    case PS_DP_LOSS_BACKWARD:
        return rest + s->outputs + (s->lean ? 0 : 3 * s->loss_outputs);
    case PS_DP_BACKWARD:
        return rest + (s->lean ? 1 : 2) * s->outputs - s->other_output;
    case PS_DP_REDUCE_BEGINS:
        return s->parameters + rest;
    case PS_DP_REDUCE_ENDS:
        return (s->lean ? 1 : 2) * s->parameters + rest;
    case PS_DP_PHASE_COUNT:
        break;
    }
    return 0;
}
