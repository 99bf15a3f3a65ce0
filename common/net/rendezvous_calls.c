/* The packets of a rank, and the collective calls of a rank. */
#include "common/net/rendezvous_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLICE_MS = 50, /* time between two calls of canceled() */
    /* If this number of consecutive handshakes end without an error message, the key counts as wrong. One
     * handshake is not enough, because a store that is closing may also end a handshake. */
    HANG_UPS = 3,
    PIECE_BYTES = 1 << 20, /* bytes per piece in rendezvous_gather() */
};

void rendezvous_release_blobs(rendezvous *r)
{
    for (int i = 0; i < r->blob_count; i++) zmq_msg_close(&r->blobs[i]);
    r->blob_count = 0;
}

status rendezvous_send(rendezvous *r, const rendezvous_packet *packet, const rendezvous_blob *blob)
{
    size_t bytes = blob ? blob->bytes : 0;
    size_t used = rendezvous_pack(packet, r->packet, RENDEZVOUS_PACKET_CAP);
    if (used == 0) return fail(STATUS_INTERNAL, "rendezvous: a packet above %d bytes", RENDEZVOUS_PACKET_CAP);
    /* Allocated before the packet is sent, so that a failed allocation leaves no incomplete message. */
    zmq_msg_t part;
    if (zmq_msg_init_size(&part, bytes) != 0)
        return fail(STATUS_SYSTEM, "rendezvous: no memory to send %zu bytes", bytes);
    if (bytes > 0) memcpy(zmq_msg_data(&part), blob->data, bytes);
    int sent = zmq_send(r->socket.zmq, r->packet, used, ZMQ_DONTWAIT | (blob ? ZMQ_SNDMORE : 0));
    status result = sent >= 0         ? STATUS_OK
                    : errno == ENOMEM ? fail(STATUS_SYSTEM, "rendezvous: no memory to send a packet")
                                      : STATUS_AGAIN;
    if (sent < 0 || !blob || zmq_msg_send(&part, r->socket.zmq, ZMQ_DONTWAIT) < 0) zmq_msg_close(&part);
    return result;
}

status rendezvous_receive(rendezvous *r, rendezvous_packet *out)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    status result = STATUS_AGAIN;
    while (result == STATUS_AGAIN && zmq_msg_recv(&part, r->socket.zmq, ZMQ_DONTWAIT) >= 0)
        if (zmq_msg_size(&part) > 0)
            result = rendezvous_unpack(zmq_msg_data(&part), zmq_msg_size(&part), r->arena, out);
    bool more = zmq_msg_more(&part);
    zmq_msg_close(&part);
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT) rendezvous_release_blobs(r);
    while (more) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, r->socket.zmq, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(&part);
        if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count < r->options.world) {
            zmq_msg_t *blob = &r->blobs[r->blob_count++];
            result = zsocket_align(&part);
            zmq_msg_init(blob);
            zmq_msg_move(blob, &part);
        }
        zmq_msg_close(&part);
    }
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count != out->blobs)
        return fail(STATUS_PROTOCOL, "rendezvous: expected %d blobs in a result, got %d", out->blobs,
                    r->blob_count);
    return result;
}

void rendezvous_read_events(rendezvous *r)
{
    for (zsocket_event event; (event = zsocket_next_event(&r->socket)) != ZSOCKET_NO_EVENT;) {
        if (event == ZSOCKET_UP) {
            r->connected = r->hello_due = true;
            r->hang_ups = 0;
        }
        if (event == ZSOCKET_DOWN && r->connected) r->lost = true;
        if (event == ZSOCKET_REFUSED) r->refused_by_stranger = true;
        if (event == ZSOCKET_DENIED || (event == ZSOCKET_HUNG_UP && ++r->hang_ups == HANG_UPS))
            r->denied = true;
    }
}

status rendezvous_wait_briefly(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    int64_t now_ns = clock_now_ns();
    /* While the rank waits for ranks that have not joined, it records progress, because the connect limit
     * already bounds this wait. */
    if (o->slot && !r->joined) rank_slot_touch(o->slot, now_ns);
    if (!r->joined && o->canceled && o->canceled(o->context)) {
        if (r->canceled_ns == 0) r->canceled_ns = now_ns;
        if (now_ns - r->canceled_ns >= RENDEZVOUS_CANCEL_NS)
            return fail(STATUS_STOPPED, "rendezvous: stopped on request");
    }
    zmq_pollitem_t items[] = {{.socket = r->socket.zmq, .events = ZMQ_POLLIN},
                              {.socket = r->socket.monitor, .events = ZMQ_POLLIN}};
    if (r->socket.zmq)
        zmq_poll(items, 2, SLICE_MS);
    else
        clock_sleep_ns(SLICE_MS * NS_PER_MS);
    return STATUS_OK;
}

/* Time that the store has after a deadline to report that the deadline was missed. If the store does not
 * report in time, it counts as dead. */
#define GRACE_NS (2 * NS_PER_S)

/* Returns STATUS_AGAIN if the result has not arrived yet. */
static status read_result(rendezvous *r, const char *what)
{
    rendezvous_packet packet;
    rendezvous_read_events(r);
    for (status result; (result = rendezvous_receive(r, &packet)) != STATUS_AGAIN;) {
        if (result != STATUS_OK) return result;
        if (packet.kind == RENDEZVOUS_RESULT && packet.sequence == r->sequence) return STATUS_OK;
        if (packet.kind == RENDEZVOUS_FAILED) return fail(packet.code, "%s", packet.text);
        r->left = r->left || packet.kind == RENDEZVOUS_BYE;
    }
    if (!r->lost && !r->left) return STATUS_AGAIN;
    return fail(STATUS_PEER, "rendezvous at %s, %s: rank 0 %s", r->address, what,
                r->left ? "has left" : "is lost");
}

bool rendezvous_has_failed(void *r)
{
    return read_result(r, "set-up") != STATUS_AGAIN;
}

void rendezvous_fail(rendezvous *r, status code, const char *text)
{
    const rendezvous_packet failure = {.kind = RENDEZVOUS_FAILED, .code = code, .text = text};
    if (r) rendezvous_send(r, &failure, NULL);
}

static status wait_result(rendezvous *r, const char *what, int64_t deadline_ns, int64_t limit_ns)
{
    for (;;) {
        status result = read_result(r, what);
        if (result != STATUS_AGAIN) return result;
        int64_t now_ns = clock_now_ns(), moved_ns = status_table_others_ns(r->options.table, r->options.slot);
        if (now_ns >= deadline_ns && now_ns >= moved_ns + limit_ns + GRACE_NS)
            return fail(STATUS_PEER, "rendezvous at %s, %s: rank 0 does not answer", r->address, what);
        TRY(rendezvous_wait_briefly(r));
    }
}

/* Makes a collective call. The result consists of the blobs of ranks `root` to `root` + count - 1. */
static status call(rendezvous *r, const char *operation, const char *tag, int root, int count,
                   const void *data, size_t bytes, int64_t deadline_ns)
{
    char what[STORE_CALL_BYTES];
    int length = snprintf(what, sizeof what, "%s '%s'", operation, tag);
    if (length >= STORE_CALL_BYTES || bytes > RENDEZVOUS_BLOB_MAX)
        return fail(STATUS_INTERNAL, "rendezvous: %s: expected at most %d bytes, got %zu", what,
                    RENDEZVOUS_BLOB_MAX, bytes);
    if (r->options.slot) rank_slot_enter(r->options.slot, RANK_RENDEZVOUS, clock_now_ns());
    int64_t left = deadline_ns - clock_now_ns();
    rendezvous_packet packet = {.kind = RENDEZVOUS_CALL,
                                .sequence = r->sequence,
                                .call = what,
                                .root = root,
                                .blobs = count,
                                .timeout_ms = left > 0 ? (left + NS_PER_MS - 1) / NS_PER_MS : 0};
    status sent = rendezvous_send(r, &packet, &(rendezvous_blob){data, bytes});
    /* STATUS_AGAIN means that the connection is lost, which wait_result() reports. */
    if (sent != STATUS_OK && sent != STATUS_AGAIN) return sent;
    TRY(wait_result(r, what, deadline_ns < CLOCK_NEVER - GRACE_NS ? deadline_ns + GRACE_NS : CLOCK_NEVER,
                    left));
    r->sequence++;
    return STATUS_OK;
}

status rendezvous_allgather(rendezvous *r, const char *tag, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out)
{
    TRY(call(r, "allgather", tag, 0, r->options.world, data, bytes, deadline_ns));
    for (int i = 0; i < r->options.world; i++)
        out[i] = (rendezvous_blob){zmq_msg_data(&r->blobs[i]), zmq_msg_size(&r->blobs[i])};
    return STATUS_OK;
}

status rendezvous_broadcast(rendezvous *r, const char *tag, int root, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out)
{
    bool sends = r->options.rank == root;
    TRY(call(r, "broadcast", tag, root, 1, sends ? data : "", sends ? bytes : 0, deadline_ns));
    *out = (rendezvous_blob){zmq_msg_data(&r->blobs[0]), zmq_msg_size(&r->blobs[0])};
    return STATUS_OK;
}

status rendezvous_barrier(rendezvous *r, const char *tag, int64_t deadline_ns)
{
    return call(r, "barrier", tag, 0, 0, "", 0, deadline_ns);
}

status rendezvous_sum(rendezvous *r, const char *tag, double *values, int count, int64_t deadline_ns)
{
    size_t bytes = (size_t)count * sizeof *values;
    TRY(call(r, "sum", tag, 0, r->options.world, values, bytes, deadline_ns));
    for (int rank = 0; rank < r->options.world; rank++) {
        const double *terms = zmq_msg_data(&r->blobs[rank]);
        if (zmq_msg_size(&r->blobs[rank]) != bytes)
            return fail(STATUS_PROTOCOL, "rendezvous: sum '%s': rank %d has %zu bytes, rank %d has %zu", tag,
                        rank, zmq_msg_size(&r->blobs[rank]), r->options.rank, bytes);
        for (int i = 0; i < count; i++) values[i] = rank == 0 ? terms[i] : values[i] + terms[i];
    }
    return STATUS_OK;
}

status rendezvous_gather(rendezvous *r, const char *tag, int rank, int world, const char *text, size_t length,
                         int64_t limit_ns, text_buffer *out)
{
    rendezvous_blob *got = calloc((size_t)world, sizeof *got);
    status rc = got ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the texts of %d ranks", world);
    bool more = true;
    for (size_t at = 0; more && rc == STATUS_OK; at += PIECE_BYTES) {
        size_t left = at < length ? length - at : 0;
        rc = rendezvous_allgather(r, tag, text + length - left, left < PIECE_BYTES ? left : PIECE_BYTES,
                                  clock_now_ns() + limit_ns, got);
        more = false;
        for (int i = 0; i < world && rc == STATUS_OK; i++) {
            more = more || got[i].bytes == PIECE_BYTES;
            if (rank != 0) continue;
            text_append(&out[i], "%.*s", (int)got[i].bytes, (const char *)got[i].data);
            if (out[i].out_of_memory) rc = fail(STATUS_SYSTEM, "no memory for the %s of rank %d", tag, i);
        }
    }
    free(got);
    return rc;
}
