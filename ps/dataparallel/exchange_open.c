/* Opens and closes a hub with its memory and its agent. */
#include "ps/dataparallel/exchange.h"

#include <stdlib.h>

static status open_parts(dp_hub *h)
{
    const sync_context *c = h->context;
    ps_memory *m = &h->memory;
    h->compute = sync_staging_on(c->device, c->compute);
    h->ticket.wake = true;
    /* Messages of the current exchange and of the next exchange may be held. */
    h->held_capacity = 2 * h->most_transfers + c->world;
    h->transfers = ps_allocate(m, h->most_transfers, sizeof *h->transfers);
    h->held = ps_allocate(m, h->held_capacity, sizeof *h->held);
    h->arrived = ps_allocate(m, h->keys, sizeof *h->arrived);
    h->sources = ps_allocate(m, (int64_t)h->threads * c->world, sizeof *h->sources);
    TRY(ps_memory_check(m, "the exchanges of a rank"));
    TRY(device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &h->staging.stream));
    h->staging = sync_staging_on(c->device, h->staging.stream);
    return device_fence_open(c->device, &h->done);
}

status dp_hub_open(const dp_hub *setup, dp_hub **out)
{
    dp_hub *h = *out = calloc(1, sizeof *h);
    if (!h) return fail(STATUS_SYSTEM, "no memory for the exchanges of a rank");
    *h = *setup;
    status rc = open_parts(h);
    if (rc != STATUS_OK) dp_hub_close(out);
    return rc;
}

void dp_hub_close(dp_hub **pointer)
{
    dp_hub *h = *pointer;
    if (!h) return;
    sync_agent_close(&h->port.agent);
    /* Messages must be released before the transport ends. */
    for (int i = 0; i < h->held_count; i++) ps_port_release(&h->port, &h->held[i]);
    for (int i = 0; i < h->count; i++) ps_port_release(&h->port, &h->transfers[i].message);
    ps_port_close(&h->port);
    device_fence_close(&h->done);
    device_stream_close(&h->staging.stream);
    ps_memory_free(&h->memory);
    free(h);
    *pointer = NULL;
}
