/* The memory of a rank under `dp`: chunks of parameters, arenas, staging buffers, the ledger's count over the
 * phases of a step, and the formula that this count is compared with. */
#include "ps/dp/dp_impl.h"

#include "common/memory/plan.h"

#include <stdlib.h>

/* ---- chunks ------------------------------------------------------------------------------------ */

static void close_chunk(dp_chunks *c, int next)
{
    dp_chunk *last = &c->list[c->count];
    if (last->count == 0) return;
    if (last->count > c->most_pieces) c->most_pieces = last->count;
    if (last->bytes > c->largest_bytes) c->largest_bytes = last->bytes;
    c->list[++c->count] = (dp_chunk){.first = next};
}

status dp_chunks_make(const param_set *set, bool within, int64_t limit, dp_chunks *out)
{
    int params = set->model->param_count;
    list_cut cut = {.limit = limit, .within = within};
    bool before, after;
    *out = (dp_chunks){.list = calloc((size_t)params + 1, sizeof *out->list)};
    if (!out->list) return fail(STATUS_SYSTEM, "no memory for the chunks of %d parameters", params);
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

void dp_chunks_free(dp_chunks *chunks)
{
    free(chunks->list);
    *chunks = (dp_chunks){0};
}

/* ---- arenas ------------------------------------------------------------------------------------ */

/* Returns the bytes of the largest batch's outputs, in the type in which the program stores them. */
static int64_t largest_output(const dp_engine *e)
{
    const sync_exchange *x = e->base.context.exchange;
    return x->largest * x->output_bytes;
}

/* Allocates memory for the outputs of all ranks, which the loss replaces by their gradients. */
static status open_outputs(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    TRY(ledger_blame(LEDGER_OUTPUTS, device_allocate(c->device, c->params->params.kind,
                                                     (size_t)largest_output(e), &e->outputs)));
    c->exchange->all_outputs = c->exchange->all_gradients = e->outputs.data;
    return STATUS_OK;
}

static status open_landing(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    if (!sync_memory_is_separate(c->device) || e->options->payload == PS_PAYLOAD_NCCL) return STATUS_OK;
    size_t chunk = (size_t)e->reduce.largest_bytes;
    return ledger_blame(LEDGER_BUCKETS,
                        device_allocate(c->device, DEVICE_MEMORY_PRIVATE, chunk, &e->landing));
}

static status open_buffer(dp_engine *e, dp_tensor tensor, size_t bytes)
{
    dp_staging *p = &e->staging;
    bool shared = e->options->payload != PS_PAYLOAD_ZMQ && !p->nccl && tensor <= DP_TENSOR_OUTPUTS;
    TRY(device_allocate(p->host, shared ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE, bytes,
                        &p->buffers[tensor]));
    return device_pin(p->copies.device, p->buffers[tensor].data, p->buffers[tensor].bytes);
}

static status open_staging(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const sync_exchange *x = c->exchange;
    dp_staging *p = &e->staging;
    for (int i = 0; i < DP_TENSORS; i++) p->buffers[i].fd = -1;
    p->copies = sync_staging_on(c->device, c->compute);
    if (!p->copies.separate) return STATUS_OK;
    device_config host = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = 1};
    TRY(device_open(&host, &p->host));
    p->nccl = e->options->payload == PS_PAYLOAD_NCCL;
    size_t arena = (size_t)c->params->arena_elements * e->element;
    bool root = dp_is_root(e);
    size_t bytes[DP_TENSORS] = {[DP_TENSOR_INPUT] = p->nccl ? 0 : x->input->bytes,
                                [DP_TENSOR_TARGET] =
                                    p->nccl && !root ? 0 : x->target->bytes, /* rank 0 counts targets */
                                [DP_TENSOR_BUFFERS] = p->nccl ? 0 : c->params->buffers.bytes,
                                [DP_TENSOR_SUMS] = (size_t)e->largest_sum * sizeof(double)};
    if (!p->nccl) {
        /* Ranks other than rank 0 receive frames in the buffer of parameters, and export this buffer in place
         * of segments that they do not have. */
        bytes[DP_TENSOR_PARAMS] = arena;
        bytes[root ? DP_TENSOR_OUTPUTS : DP_TENSOR_GRADS] = root ? e->outputs.bytes : arena;
        bytes[DP_TENSOR_PART] = root ? 0 : (size_t)largest_output(e);
    }
    for (int i = 0; i < DP_TENSORS; i++)
        if (bytes[i] > 0) TRY(open_buffer(e, (dp_tensor)i, bytes[i]));
    return STATUS_OK;
}

status dp_open_memory(dp_engine *e)
{
    if (dp_is_root(e)) {
        if (dp_one_loss(e)) TRY(open_outputs(e));
        TRY(open_landing(e));
        e->shares = calloc((size_t)e->base.context.world * (size_t)e->largest_sum + 1, sizeof *e->shares);
        if (!e->shares) return fail(STATUS_SYSTEM, "no memory for the sums of layers");
    }
    return open_staging(e);
}

/* ---- staging buffers -------------------------------------------------------------------------- */

void dp_staging_close(dp_staging *p)
{
    for (int i = 0; i < DP_TENSORS; i++) {
        if (!p->buffers[i].data) continue;
        device_unpin(p->copies.device, p->buffers[i].data);
        device_free(p->host, &p->buffers[i]);
    }
    device_close(&p->host);
}

bool dp_is_staged(const dp_staging *p, dp_tensor tensor)
{
    if (!p->copies.separate || tensor == DP_TENSOR_SUMS) return p->copies.separate;
    return !p->nccl;
}

char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data)
{
    return dp_is_staged(p, tensor) ? p->buffers[tensor].data : data;
}

status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes)
{
    TRY(sync_copy_down(&p->copies, host, data, bytes));
    return sync_staging_end(&p->copies);
}

status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return dp_copy_down(p, (char *)p->buffers[tensor].data + offset, (const char *)data + offset, bytes);
}

status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return sync_copy_up(&p->copies, (char *)data + offset, (const char *)p->buffers[tensor].data + offset,
                        bytes);
}

/* ---- the ledger -------------------------------------------------------------------------------- */

static ledger *ledger_of(const dp_engine *e)
{
    return e->base.context.ledger;
}

/* Sets the bytes that the ledger counts for an account. PyTorch's lifetimes need more memory than this
 * program allocates. With PyTorch's lifetimes the ledger counts the bytes that PyTorch would hold, for as
 * long as PyTorch would hold the bytes. */
static void hold(const dp_engine *e, ledger_class class, int64_t *account, int64_t bytes)
{
    if (bytes > *account)
        ledger_acquire(ledger_of(e), class, bytes - *account, bytes - *account);
    else
        ledger_release(ledger_of(e), class, *account - bytes, *account - bytes);
    *account = bytes;
}

static int64_t all_outputs(const dp_engine *e)
{
    return e->loaded * e->base.context.exchange->output_bytes;
}

static int64_t all_loss_outputs(const dp_engine *e)
{
    return e->loaded * e->base.context.exchange->loss_output_bytes;
}

static int64_t own_output(const dp_engine *e)
{
    return dp_mine(e)->samples * e->base.context.exchange->output_bytes;
}

static int64_t param_bytes(const dp_engine *e)
{
    return e->base.context.params->logical_bytes;
}

void dp_account_begin_batch(dp_engine *e)
{
    /* Frees the replica of an evaluation, or the buffers of the last micro-batch. */
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, 0);
    if (e->accumulates) return;
    hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
}

void dp_account_replicate(dp_engine *e)
{
    if (!dp_is_root(e))
        hold(e, LEDGER_REPLICAS, &e->replica, param_bytes(e) + e->base.context.params->buffer_bytes);
}

/* ---- outputs and loss ------------------------------------------------------------------------- */

void dp_account_gather(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e)) hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e));
}

void dp_account_log_softmax(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e) && !dp_lean(e))
        hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e) + all_loss_outputs(e));
}

void dp_account_loss_gradients(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e) && !dp_lean(e))
        hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e) + 3 * all_loss_outputs(e));
}

/* Counts the gradient of this rank's part as a value of the program, which reports when it is freed. */
static void hand_over_gradient(const dp_engine *e, int64_t held)
{
    int64_t own = own_output(e);
    if (held > 0) ledger_release(ledger_of(e), LEDGER_OUTPUTS, held, held);
    ledger_acquire(ledger_of(e), LEDGER_OUTPUTS, own, plan_align(own));
}

void dp_account_end_loss(dp_engine *e)
{
    if (!dp_is_root(e) || !dp_one_loss(e)) return;
    hold(e, LEDGER_OUTPUTS, &e->outputs_held, (dp_lean(e) ? 1 : 2) * all_outputs(e));
    hand_over_gradient(e, own_output(e));
    e->outputs_held -= own_output(e);
}

void dp_account_take_gradient(dp_engine *e)
{
    hand_over_gradient(e, 0);
}

/* ---- parameters and gradients ------------------------------------------------------------------ */

void dp_account_gradient_ready(dp_engine *e, int param)
{
    int64_t bytes = e->base.context.params->pieces[param].count * (int64_t)e->element;
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
    if (!dp_is_root(e)) {
        hold(e, LEDGER_REPLICAS, &e->replica, 0);
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
        return;
    }
    if (e->policy.keep_grads) {
        hold(e, LEDGER_GRADIENTS, &e->kept_held, param_bytes(e));
        hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    } else if (!dp_lean(e)) {
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    }
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
    int64_t rest = s->kept + s->state + s->batch + s->ahead; /* G + S, and the batches */
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

int64_t ps_dp_measured(const ledger *l, ps_dp_phase p)
{
    ledger_phase phase = ps_dp_phase_describe(p)->phase;
    return l->phase_end[phase] - l->phase_end_classes[phase][LEDGER_WORKSPACE];
}
