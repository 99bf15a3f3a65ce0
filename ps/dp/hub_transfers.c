/* Transfers of an exchange: sent, received, held where they arrive before their exchange, and summed in rank
 * order. */
#include "ps/dp/hub_impl.h"

#include "common/net/status_table.h"
#include "common/reduce/reduce.h"

#include <inttypes.h>

int64_t dp_region_bytes(const dp_region *r)
{
    return piece_list_elements((piece_list){r->pieces, r->count}) * r->element;
}

static status copy_region(hub *h, const dp_region *r, char *to, const char *from)
{
    for (int i = 0; i < r->count; i++) {
        int64_t at = r->pieces[i].offset * r->element;
        TRY(sync_copy_within(&h->staging, to + at, from + at, r->pieces[i].count * r->element));
    }
    return sync_staging_end(&h->staging);
}

/* ---- sums of gradients ------------------------------------------------------------------------- */

typedef struct sum_job {
    hub *hub;
    dp_transfer *transfers; /* of the key, present - 1 */
} sum_job;

/* Element `at` of piece `index` of what a transfer has brought. */
static const char *brought(const dp_transfer *transfer, int index, int64_t at)
{
    const dp_region *r = &transfer->region;
    if (!transfer->shared)
        return (const char *)ps_message_frame(&transfer->message, index).data + at * r->element;
    return transfer->remote + (r->pieces[index].offset + at) * r->element;
}

static status sum_range(void *context, int thread, int index, int64_t at, int64_t count)
{
    const sum_job *j = context;
    hub *h = j->hub;
    const dp_sum *sum = &h->shared->sum;
    const dp_region *r = &j->transfers[0].region;
    int64_t offset = (r->pieces[index].offset + at) * r->element;
    const void **sources = h->sources + (int64_t)thread * h->c->context->world;
    void *out = sum->grads + offset;
    sources[0] = out;
    for (int i = 1; i < sum->present; i++) sources[i] = brought(&j->transfers[i - 1], index, at);
    reduce_average(sum->type, out, sources, sum->present, count, sum->before, sum->after);
    return STATUS_OK;
}

static status sum_piece_on_gpu(const sum_job *j, int index)
{
    hub *h = j->hub;
    const dp_sum *sum = &h->shared->sum;
    const dp_region *r = &j->transfers[0].region;
    char *own = sum->grads + r->pieces[index].offset * r->element;
    h->contributions[0] = (sync_contribution){own, true};
    for (int i = 1; i < sum->present; i++) {
        const dp_transfer *transfer = &j->transfers[i - 1];
        h->contributions[i] =
            (sync_contribution){brought(transfer, index, 0), transfer->shared && h->c->peers};
    }
    return sync_staging_sum(&h->staging, sum->type, own, h->contributions, sum->present,
                            r->pieces[index].count, sum->before, sum->after, h->c->landing);
}

static status sum_on_gpu(const sum_job *j)
{
    for (int i = 0; i < j->transfers[0].region.count; i++) TRY(sum_piece_on_gpu(j, i));
    return sync_staging_end(&j->hub->staging);
}

status hub_sum(hub *h, int key)
{
    sum_job j = {h, &h->shared->transfers[key * (h->shared->sum.present - 1)]};
    device *d = h->c->context->device;
    if (h->staging.separate)
        TRY(sum_on_gpu(&j));
    else if (ps_has_bytes(d))
        TRY(ps_thread_pool_run(
            h->pool, (piece_list){j.transfers[0].region.pieces, j.transfers[0].region.count}, sum_range, &j));
    else
        ps_charge_pass(d, (double)(dp_region_bytes(&j.transfers[0].region) * (h->shared->sum.present + 1)),
                       0);
    for (int i = 0; i < h->shared->sum.present - 1; i++) ps_port_release(h->port, &j.transfers[i].message);
    return STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static void transfer_done(hub *h, dp_transfer *transfer, int64_t now_ns)
{
    transfer->done = true;
    h->open_transfers--;
    h->last_message_ns = now_ns;
}

static status send_transfer(hub *h, dp_transfer *transfer, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    message_frame frames[MESSAGE_FRAMES_MAX];
    int count = transfer->shared ? 0 : r->count;
    for (int i = 0; i < count; i++)
        frames[i] = (message_frame){r->base + r->pieces[i].offset * r->element,
                                    (size_t)(r->pieces[i].count * r->element)};
    if (transfer->shared && transfer->remote && !transfer->copied)
        TRY(copy_region(h, r, transfer->remote, r->base));
    transfer->copied = true;
    TRY(ps_port_send(h->port, transfer->peer, &transfer->header, frames, count, &h->ticket,
                     dp_region_bytes(r)));
    rank_slot_agent(h->c->context->slot, RANK_PUSH, (int)transfer->header.key, now_ns);
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* A peer without room does not hold up the others; its turn comes again. */
status hub_send_transfers(hub *h, int64_t now_ns, bool *worked)
{
    int blocked = -1;
    for (int i = 0; i < h->listed && h->open_transfers > 0; i++) {
        dp_transfer *transfer = &h->shared->transfers[i];
        if (transfer->done || transfer->direction != DP_SEND || transfer->peer == blocked) continue;
        status rc = send_transfer(h, transfer, now_ns);
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

static status malformed(const hub *h, const ps_message *m)
{
    const message_header *got = &m->header;
    return fail(STATUS_PROTOCOL,
                "rank %d: rank %d sent %s of step %" PRId64 ", key %" PRId64
                ", in %d frames: not of this exchange",
                h->c->context->rank, m->peer, message_kind_name(got->kind), got->step, got->key, got->frames);
}

static dp_transfer *find_transfer(hub *h, const ps_message *m)
{
    for (int i = 0; i < h->listed; i++) {
        dp_transfer *transfer = &h->shared->transfers[i];
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
static status receive_transfer(hub *h, dp_transfer *transfer, ps_message *m, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    if (!fits(transfer, m)) {
        status rc = malformed(h, m);
        ps_port_release(h->port, m);
        return rc;
    }
    ps_port_count_received(h->port, m->peer, dp_region_bytes(r));
    transfer->header = m->header;
    if (transfer->direction == DP_REDUCE) {
        int key = (int)m->header.key;
        transfer->message = *m;
        if (++h->arrived[key] == h->shared->sum.present - 1) TRY(hub_sum(h, key));
    } else {
        if (transfer->shared && transfer->remote) TRY(copy_region(h, r, r->base, transfer->remote));
        for (int i = 0; i < m->header.frames; i++)
            sync_copy(h->c->context->device, r->base + r->pieces[i].offset * r->element,
                      ps_message_frame(m, i).data, (size_t)(r->pieces[i].count * r->element));
        ps_port_release(h->port, m);
    }
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* Between exchanges the transfers are the compute thread's, which lists the next one. A peer is at most one
 * exchange ahead: more than `held` has room for is no mistake of timing. */
status hub_handle(void *context, ps_message *m, int64_t now_ns)
{
    hub *h = context;
    status rc;
    dp_transfer *transfer = h->running ? find_transfer(h, m) : NULL;
    if (transfer) return receive_transfer(h, transfer, m, now_ns);
    if (m->header.kind != MESSAGE_FAILED && h->held_count < h->held_capacity) {
        h->held[h->held_count++] = *m;
        return STATUS_OK;
    }
    rc = m->header.kind == MESSAGE_FAILED ? ps_message_failure(m) : malformed(h, m);
    ps_port_release(h->port, m);
    return rc;
}

status hub_receive_held(hub *h, int64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < h->held_count; i++) {
        ps_message m = h->held[i];
        dp_transfer *transfer = find_transfer(h, &m);
        if (transfer)
            TRY(receive_transfer(h, transfer, &m, now_ns));
        else
            h->held[kept++] = m;
    }
    h->held_count = kept;
    return STATUS_OK;
}
