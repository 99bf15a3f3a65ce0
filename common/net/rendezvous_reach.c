/* Finding the store, and the packets to and from it. */
#include "common/base/text.h"
#include "common/net/rendezvous_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    SLICE_MS = 50,         /* between looks at `canceled` */
    FLUSH_MS = 200,        /* for a goodbye */
    LOOKUP_NS = 200000000, /* between looks at the file of file:// */
    QUEUE = 8,
    HANG_UPS = 3,          /* a store ends a handshake with another key without a word, so does one that ends */
};
#define PEER_TIMEOUT_NS (10 * NS_PER_S)

void rendezvous_forget_blobs(rendezvous *r)
{
    for (int i = 0; i < r->blob_count; i++) zmq_msg_close(&r->blobs[i]);
    r->blob_count = 0;
}

status rendezvous_send(rendezvous *r, const rendezvous_packet *packet, const void *data, size_t bytes,
                       bool blob)
{
    size_t used = rendezvous_pack(packet, r->packet, RENDEZVOUS_PACKET_CAP);
    if (used == 0) return fail(STATUS_INTERNAL, "rendezvous: a packet above %d bytes", RENDEZVOUS_PACKET_CAP);
    if (zmq_send(r->socket, r->packet, used, ZMQ_DONTWAIT | (blob ? ZMQ_SNDMORE : 0)) < 0)
        return STATUS_AGAIN;
    if (blob) zmq_send(r->socket, data, bytes, ZMQ_DONTWAIT);
    return STATUS_OK;
}

static status say_hello(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    const rendezvous_packet hello = {
        .kind = RENDEZVOUS_HELLO,
        .protocol = RENDEZVOUS_PROTOCOL,
        .program = o->program,
        .token = r->token,
        .config_hash = o->config_hash,
        .config_text = o->config_text,
        .rank = o->rank,
        .world = o->world,
        .host = host,
        .pid = (uint32_t)getpid(),
    };
    return rendezvous_send(r, &hello, NULL, 0, false);
}

status rendezvous_read(rendezvous *r, rendezvous_packet *out)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    status result = STATUS_AGAIN;
    while (result == STATUS_AGAIN && zmq_msg_recv(&part, r->socket, ZMQ_DONTWAIT) >= 0)
        if (zmq_msg_size(&part) > 0)
            result = rendezvous_unpack(zmq_msg_data(&part), zmq_msg_size(&part), r->arena, out);
    bool more = zmq_msg_more(&part);
    zmq_msg_close(&part);
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT) rendezvous_forget_blobs(r);
    while (more) {
        zmq_msg_t *blob = &r->blobs[r->blob_count];
        bool keep = result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count < r->options.world;
        if (!keep) blob = &part;
        zmq_msg_init(blob);
        if (zmq_msg_recv(blob, r->socket, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(blob);
        if (keep) {
            r->blob_count++;
            status aligned = zsocket_align(blob);
            if (aligned != STATUS_OK) return aligned;
        }
        else {
            zmq_msg_close(blob);
        }
    }
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count != out->blobs)
        return fail(STATUS_PROTOCOL, "rendezvous: found %d blobs in a result, expected %d", r->blob_count,
                    out->blobs);
    return result;
}

void rendezvous_notice(rendezvous *r)
{
    for (zsocket_event event; (event = zsocket_monitor_next(r->monitor)) != ZSOCKET_NO_EVENT;) {
        if (event == ZSOCKET_UP) {
            r->connected = r->hello_due = true;
            r->hang_ups = 0;
        }
        if (event == ZSOCKET_DOWN && r->connected) r->lost = true;
        if (event == ZSOCKET_REFUSED) r->refused_by_stranger = true;
        if (event == ZSOCKET_DENIED || (event == ZSOCKET_HUNG_UP && ++r->hang_ups == HANG_UPS)) r->denied = true;
    }
}

status rendezvous_sleep(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    /* Each wait has a deadline of its own, so it is no hang: it counts as progress. */
    if (o->slot) rank_slot_touch(o->slot, clock_now_ns());
    if (!r->joined && o->canceled && o->canceled(o->context))
        return fail(STATUS_STOPPED, "rendezvous: stopped on request");
    zmq_pollitem_t items[] = {{.socket = r->socket, .events = ZMQ_POLLIN},
                              {.socket = r->monitor, .events = ZMQ_POLLIN}};
    if (r->socket)
        zmq_poll(items, 2, SLICE_MS);
    else
        clock_sleep_ns(SLICE_MS * NS_PER_MS);
    return STATUS_OK;
}

static void disconnect(rendezvous *r, int flush_ms)
{
    zsocket_monitor_close(r->socket, r->monitor);
    zsocket_close(r->socket, flush_ms);
    r->socket = r->monitor = NULL;
    r->connected = r->lost = r->hello_due = r->denied = false;
    r->hang_ups = 0;
}

static status connect_to(rendezvous *r, const char *url)
{
    zsocket_options options = {
        .type = ZMQ_DEALER,
        .frame_bytes = RENDEZVOUS_BLOB_MAX,
        .queue = QUEUE + r->options.world,
        .peer_timeout_ns = strncmp(url, "tcp:", 4) == 0 ? PEER_TIMEOUT_NS : 0,
        .rank = r->options.rank,
        .key = strncmp(url, "inproc:", 7) == 0 ? NULL : r->key,
    };
    /* Two processes that claim the same rank must look different to the store. */
    if (getrandom(&options.token, sizeof options.token, 0) != (ssize_t)sizeof options.token)
        return fail_errno(STATUS_SYSTEM, "rendezvous: no random number");
    TRY(zsocket_open(r->context, &options, &r->socket));
    TRY(zsocket_monitor_open(r->context, r->socket, &r->monitor));
    TRY(zsocket_connect(r->socket, url));
    r->connected = r->hello_due = strncmp(url, "inproc:", 7) == 0; /* the monitor does not report these */
    return STATUS_OK;
}

/* For file://: reads the address, and connects anew where it has changed. */
static status follow_file(rendezvous *r, int64_t *lookup_ns)
{
    char address[PLACE_TEXT], key[NET_KEY_TEXT];
    uint64_t token;
    if (!r->place.path[0] || r->options.rank == 0 || clock_now_ns() < *lookup_ns) return STATUS_OK;
    *lookup_ns = clock_now_ns() + LOOKUP_NS;
    if (!rendezvous_place_lookup(&r->place, address, &token, key)) return STATUS_OK;
    if (r->options.token && token != r->options.token) return STATUS_OK; /* of an earlier job */
    if (r->socket && strcmp(address, r->address) == 0 && token == r->token) return STATUS_OK;
    if (r->socket) disconnect(r, 0);
    snprintf(r->address, sizeof r->address, "%s", address);
    snprintf(r->key, sizeof r->key, "%s", key);
    r->token = token;
    return connect_to(r, address);
}

static status denied(const rendezvous *r)
{
    return fail(STATUS_PERMISSION, "rendezvous at %s: rank %d is refused: it has another key than rank 0 (HARNESS_KEY)",
                r->address, r->options.rank);
}

static status too_late(const rendezvous *r)
{
    char why[PLACE_TEXT + 128], limit[32];
    const char *where = r->address[0] ? r->address : r->options.url;
    if (r->denied) return denied(r);
    text_format_duration(limit, sizeof limit, (double)r->options.connect_limit_ns);
    if (!r->socket)
        snprintf(why, sizeof why, ": there is no such file of this job");
    else if (r->refused_by_stranger)
        snprintf(why, sizeof why, ": who listens there does not speak this protocol");
    else if (r->connected)
        snprintf(why, sizeof why, ": who listens there does not answer");
    else
        rendezvous_place_diagnose(where, why, sizeof why);
    return fail(STATUS_PEER, "rendezvous at %s: rank %d did not reach rank 0 within %s%s", where,
                r->options.rank, limit, why);
}

static status converse(rendezvous *r, bool *welcome)
{
    rendezvous_packet packet;
    if (!r->socket) return STATUS_OK;
    rendezvous_notice(r);
    if (r->denied && !r->place.path[0]) return denied(r); /* a file may be of an earlier job */
    r->lost = false; /* not greeted yet: the socket connects again by itself */
    if (r->hello_due && say_hello(r) == STATUS_OK) r->hello_due = false;
    status result = rendezvous_read(r, &packet);
    if (result == STATUS_AGAIN) return STATUS_OK;
    if (result != STATUS_OK) return result;
    if (packet.kind == RENDEZVOUS_REFUSED || packet.kind == RENDEZVOUS_FAILED)
        return fail(packet.code, "%s", packet.text);
    *welcome = packet.kind == RENDEZVOUS_WELCOME;
    return STATUS_OK;
}

status rendezvous_reach(rendezvous *r, int64_t deadline_ns)
{
    bool welcome = false;
    int64_t lookup_ns = 0;
    const char *url = r->store ? store_own_url(r->store) : r->place.connect;
    if (url[0]) TRY(connect_to(r, url));
    for (;;) {
        TRY(follow_file(r, &lookup_ns));
        TRY(converse(r, &welcome));
        if (welcome) return STATUS_OK;
        if (clock_now_ns() >= deadline_ns) return too_late(r);
        TRY(rendezvous_sleep(r));
    }
}

void rendezvous_leave(rendezvous *r)
{
    rendezvous_packet packet;
    if (!r->socket) return;
    rendezvous_notice(r);
    while (!r->left && rendezvous_read(r, &packet) == STATUS_OK) r->left = packet.kind == RENDEZVOUS_BYE;
    bool there = r->connected && !r->lost && !r->left; /* whoever is gone already is not waited for */
    if (there) rendezvous_send(r, &(rendezvous_packet){.kind = RENDEZVOUS_BYE}, NULL, 0, false);
    disconnect(r, there ? FLUSH_MS : 0);
}
