/* Transfers of an exchange: sent, received, held where they arrive before their exchange, and summed in rank order. */
#include "ps/dp/hub_impl.h"

#include "common/net/status_table.h"
#include "common/reduce/reduce.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_AT_ONCE = 64 };

int64_t dp_region_bytes(const dp_region *r)
{
    return piece_list_elements((piece_list){r->pieces, r->count}) * r->element;
}

static status copy_region(dp_hub *hub, const dp_region *r, char *to, const char *from)
{
    for (int i = 0; i < r->count; i++) {
        int64_t at = r->pieces[i].offset * r->element;
        TRY(sync_copy_within(&hub->staging, to + at, from + at, r->pieces[i].count * r->element));
    }
    return sync_staging_end(&hub->staging);
}

/* ---- sums of gradients ------------------------------------------------------------------------- */

status hub_sum_open(dp_hub *hub)
{
    const sync_context *c = hub->c.context;
    size_t threads = (size_t)hub->c.threads, world = (size_t)c->world;
    hub->arrived = calloc((size_t)hub->c.keys + 1, sizeof *hub->arrived);
    hub->sources = calloc(threads * world, sizeof *hub->sources);
    hub->contributions = calloc(world, sizeof *hub->contributions);
    if (!hub->arrived || !hub->sources || !hub->contributions)
        return fail(STATUS_SYSTEM, "no memory for the sums of gradients");
    TRY(device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &hub->stream));
    hub->staging = sync_staging_on(c->device, hub->stream);
    hub->compute = sync_staging_on(c->device, c->compute);
    return ps_thread_pool_open(hub->c.threads, &hub->pool);
}

void hub_sum_close(dp_hub *hub)
{
    ps_thread_pool_close(&hub->pool);
    device_stream_close(&hub->stream);
    free(hub->arrived);
    free(hub->sources);
    free(hub->contributions);
}

typedef struct sum_job {
    dp_hub *hub;
    dp_transfer *transfers; /* of the key, present - 1 */
} sum_job;

/* Element `at` of piece `index` of what a transfer has brought. */
static const char *brought(const dp_transfer *transfer, int index, int64_t at)
{
    const dp_region *r = &transfer->region;
    if (!transfer->shared) return (const char *)ps_message_frame(&transfer->message, index).data + at * r->element;
    return transfer->remote + (r->pieces[index].offset + at) * r->element;
}

static status sum_range(void *context, int thread, int index, int64_t at, int64_t count)
{
    const sum_job *j = context;
    dp_hub *hub = j->hub;
    const dp_sum *sum = &hub->sum;
    const dp_region *r = &j->transfers[0].region;
    int64_t offset = (r->pieces[index].offset + at) * r->element;
    const void **sources = hub->sources + (int64_t)thread * hub->c.context->world;
    void *out = sum->grads + offset;
    sources[0] = out;
    for (int i = 1; i < sum->present; i++) sources[i] = brought(&j->transfers[i - 1], index, at);
    if (sum->divides) reduce_average(sum->type, out, sources, sum->present, count, sum->divide_before);
    else reduce_many(sum->type, REDUCE_SUM, &out, 1, sources, sum->present, count);
    return STATUS_OK;
}

static status sum_piece_on_gpu(const sum_job *j, int index)
{
    dp_hub *hub = j->hub;
    const dp_sum *sum = &hub->sum;
    const dp_region *r = &j->transfers[0].region;
    double divisor = sum->divides ? sum->present : 1;
    char *own = sum->grads + r->pieces[index].offset * r->element;
    hub->contributions[0] = (sync_contribution){own, true};
    for (int i = 1; i < sum->present; i++) {
        const dp_transfer *transfer = &j->transfers[i - 1];
        hub->contributions[i] = (sync_contribution){brought(transfer, index, 0), transfer->shared && hub->c.peers};
    }
    return sync_staging_sum(&hub->staging, sum->type, own, hub->contributions, sum->present, r->pieces[index].count,
                            sum->divide_before ? divisor : 1, sum->divide_before ? 1 : divisor, hub->c.landing);
}

static status sum_on_gpu(const sum_job *j)
{
    for (int i = 0; i < j->transfers[0].region.count; i++) TRY(sum_piece_on_gpu(j, i));
    return sync_staging_end(&j->hub->staging);
}

status hub_sum(dp_hub *hub, int key)
{
    sum_job j = {hub, &hub->transfers[key * (hub->sum.present - 1)]};
    device *d = hub->c.context->device;
    if (hub->staging.separate)
        TRY(sum_on_gpu(&j));
    else if (ps_has_bytes(d))
        TRY(ps_thread_pool_run(hub->pool, (piece_list){j.transfers[0].region.pieces, j.transfers[0].region.count}, sum_range, &j));
    else
        ps_charge_pass(d, (double)(dp_region_bytes(&j.transfers[0].region) * (hub->sum.present + 1)), 0);
    for (int i = 0; i < hub->sum.present - 1; i++) ps_port_release(&hub->port, &j.transfers[i].message);
    return STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static void transfer_done(dp_hub *hub, dp_transfer *transfer, int64_t now_ns)
{
    transfer->done = true;
    hub->open_transfers--;
    hub->last_message_ns = now_ns;
}

static status send_transfer(dp_hub *hub, dp_transfer *transfer, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    message_frame frames[MESSAGE_FRAMES_MAX];
    int count = transfer->shared ? 0 : r->count;
    for (int i = 0; i < count; i++)
        frames[i] = (message_frame){r->base + r->pieces[i].offset * r->element,
                                    (size_t)(r->pieces[i].count * r->element)};
    if (transfer->shared && transfer->remote && !transfer->copied) TRY(copy_region(hub, r, transfer->remote, r->base));
    transfer->copied = true;
    TRY(ps_port_send(&hub->port, transfer->peer, &transfer->header, frames, count, &hub->ticket, dp_region_bytes(r)));
    rank_slot_agent(hub->c.context->slot, RANK_PUSH, (int)transfer->header.key, now_ns);
    transfer_done(hub, transfer, now_ns);
    return STATUS_OK;
}

/* A peer without room does not hold up the others; its turn comes again. */
status hub_send_transfers(dp_hub *hub, int64_t now_ns, bool *worked)
{
    int blocked = -1;
    for (int i = 0; i < hub->listed && hub->open_transfers > 0; i++) {
        dp_transfer *transfer = &hub->transfers[i];
        if (transfer->done || transfer->direction != DP_SEND || transfer->peer == blocked) continue;
        status rc = send_transfer(hub, transfer, now_ns);
        if (rc == STATUS_AGAIN)
            blocked = transfer->peer;
        else if (rc != STATUS_OK)
            return rc;
        else
            *worked = true;
    }
    return STATUS_OK;
}

/* ---- receiving -------------------------------------------------------------------------------- */

static status malformed(const dp_hub *hub, const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL,
                "rank %d: rank %d sent %s of step %" PRId64 ", key %" PRId64
                ", in %d frames: not of this exchange",
                hub->c.context->rank, m->peer, message_kind_name(h->kind), h->step, h->key, h->frames);
}

static dp_transfer *find_transfer(dp_hub *hub, const ps_message *m)
{
    for (int i = 0; i < hub->listed; i++) {
        dp_transfer *transfer = &hub->transfers[i];
        if (transfer->done || transfer->direction == DP_SEND || transfer->peer != m->peer) continue;
        const message_header *a = &transfer->header, *b = &m->header;
        if (a->kind == b->kind && a->step == b->step && a->key == b->key) return transfer;
    }
    return NULL;
}

static bool fits(const dp_transfer *transfer, const ps_message *m)
{
    const dp_region *r = &transfer->region;
    if (m->header.frames != (transfer->shared ? 0 : r->count)) return false;
    for (int i = 0; i < m->header.frames; i++)
        if (ps_message_frame(m, i).bytes != (size_t)(r->pieces[i].count * r->element)) return false;
    return true;
}

/* Takes over the message. */
static status receive_transfer(dp_hub *hub, dp_transfer *transfer, ps_message *m, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    if (!fits(transfer, m)) {
        status rc = malformed(hub, m);
        ps_port_release(&hub->port, m);
        return rc;
    }
    ps_port_count_received(&hub->port, m->peer, dp_region_bytes(r));
    transfer->header = m->header;
    if (transfer->direction == DP_REDUCE) {
        int key = (int)m->header.key;
        transfer->message = *m;
        if (++hub->arrived[key] == hub->sum.present - 1) TRY(hub_sum(hub, key));
    } else {
        if (transfer->shared && transfer->remote) TRY(copy_region(hub, r, r->base, transfer->remote));
        for (int i = 0; i < m->header.frames; i++)
            sync_copy(hub->c.context->device, r->base + r->pieces[i].offset * r->element,
                    ps_message_frame(m, i).data, (size_t)(r->pieces[i].count * r->element));
        ps_port_release(&hub->port, m);
    }
    transfer_done(hub, transfer, now_ns);
    return STATUS_OK;
}

/* Between exchanges the transfers are the compute thread's, which lists the next one. A peer is at most one exchange
 * ahead: more than `held` has room for is no mistake of timing. */
static status handle(dp_hub *hub, ps_message *m, int64_t now_ns)
{
    hub->was_connected[m->peer] = true;
    if (m->header.kind == MESSAGE_FAILED) {
        status rc = ps_message_failure(m);
        ps_port_release(&hub->port, m);
        return rc;
    }
    dp_transfer *transfer = hub->running ? find_transfer(hub, m) : NULL;
    if (transfer) return receive_transfer(hub, transfer, m, now_ns);
    if (hub->held_count < hub->held_capacity) {
        hub->held[hub->held_count++] = *m;
        return STATUS_OK;
    }
    status rc = malformed(hub, m);
    ps_port_release(&hub->port, m);
    return rc;
}

status hub_receive_held(dp_hub *hub, int64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < hub->held_count; i++) {
        ps_message m = hub->held[i];
        dp_transfer *transfer = find_transfer(hub, &m);
        if (transfer)
            TRY(receive_transfer(hub, transfer, &m, now_ns));
        else
            hub->held[kept++] = m;
    }
    hub->held_count = kept;
    return STATUS_OK;
}

status hub_receive(dp_hub *hub, int64_t now_ns, bool *worked)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        ps_message m;
        status rc = ps_port_receive(&hub->port, &m);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        if (rc != STATUS_OK) return rc;
        *worked = true;
        TRY(handle(hub, &m, now_ns));
    }
    return STATUS_OK;
}
