/* The memory of a rank under `dp`: what only device 0 has, and mirrors. */
#include "ps/dp/dp_impl.h"

#include <stdlib.h>

/* As the program stores them. */
static int64_t largest_output(const dp_engine *e)
{
    const sync_exchange *x = e->base.context.exchange;
    return x->largest * x->output_bytes;
}

/* Rank 0's. Under PyTorch's lifetimes logits, log-softmax and the gradients of both are planned; with autocast all
 * but the logits in float32. */
static status open_outputs(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    int64_t each = largest_output(e), wide = c->exchange->largest * c->exchange->wide_output_bytes;
    e->gradient_offset = dp_lean(e) ? 0 : each;
    TRY(ledger_blame(LEDGER_OUTPUTS, device_allocate(c->device, e->base.context.params->params.kind,
                                                     (size_t)(dp_lean(e) ? each : each + 3 * wide), &e->outputs)));
    c->exchange->all_outputs = e->outputs.data;
    c->exchange->all_gradients = (char *)e->outputs.data + e->gradient_offset;
    return STATUS_OK;
}

/* On a GPU what comes passes through device memory before it is added. */
static status open_chunks(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const device_info *info = device_get_info(c->device);
    size_t chunk = (size_t)e->reduce.largest_bytes;
    if (!dp_lean(e)) {
        size_t bytes = dp_is_root(e) ? 2 * chunk : chunk;
        return ledger_blame(LEDGER_BUCKETS, device_allocate(c->device, DEVICE_MEMORY_PRIVATE, bytes, &e->chunks));
    }
    if (info->host_addressable || !info->real || !dp_is_root(e)) return STATUS_OK;
    return ledger_blame(LEDGER_BUCKETS, device_allocate(c->device, DEVICE_MEMORY_PRIVATE, chunk, &e->landing));
}

static status open_places(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const sync_exchange *x = c->exchange;
    size_t arena = (size_t)c->params->arena_elements * e->element;
    bool root = dp_is_root(e), peers = e->options->payload == PS_PAYLOAD_P2P;
    size_t bytes[DP_PLACES] = {[DP_AT_INPUT] = x->input->bytes,
                               [DP_AT_TARGET] = x->target->bytes,
                               [DP_AT_BUFFERS] = c->params->buffers.bytes,
                               [DP_AT_SUMS] = (size_t)e->largest_sum * sizeof(double)};
    if (!peers) {
        bytes[DP_AT_PARAMS] = arena; /* elsewhere what comes in frames, and what is shown where nothing else is */
        bytes[root ? DP_AT_OUTPUTS : DP_AT_GRADS] = root ? e->outputs.bytes : arena;
        bytes[DP_AT_PART] = root ? 0 : (size_t)largest_output(e);
    }
    return dp_places_open(&e->places, c, peers, e->options->payload != PS_PAYLOAD_ZMQ, bytes);
}

static status open_arenas(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    size_t arena = (size_t)c->params->arena_elements * e->element;
    TRY(open_chunks(e));
    if (!dp_is_root(e)) return STATUS_OK;
    if (dp_one_loss(e)) TRY(open_outputs(e));
    if (!dp_lean(e))
        TRY(ledger_blame(LEDGER_GRADIENTS, device_allocate(c->device, DEVICE_MEMORY_PRIVATE, arena, &e->results)));
    if (e->policy.keep_grads)
        TRY(ledger_blame(LEDGER_GRADIENTS, device_allocate(c->device, DEVICE_MEMORY_PRIVATE, arena, &e->kept)));
    e->shares = calloc((size_t)c->world * (size_t)e->largest_sum + 1, sizeof *e->shares);
    return e->shares ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the sums of layers");
}

status dp_open_memory(dp_engine *e)
{
    TRY(open_arenas(e));
    return open_places(e);
}
