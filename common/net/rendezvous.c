/* A rank joins the store, then makes collective calls. */
#include "common/net/rendezvous_impl.h"

#include "common/base/text.h"
#include "common/net/shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct rendezvous {
    rendezvous_options options;
    rendezvous_endpoints endpoints;
    char address[ADDRESS_TEXT];
    uint64_t token;
    char key[NET_KEY_TEXT]; /* "" among threads of one process */
    zsocket_context *context;
    bool own_context;
    store *store; /* only on rank 0 */
    status_sender *sender;
    int64_t canceled_ns; /* time at which `canceled` first returned true, or 0 */
    zsocket socket;
    bool refused_by_stranger, connected, lost;
    bool denied;    /* the store requires another key */
    int hang_ups;   /* consecutive handshakes that the listener has ended */
    bool hello_due; /* the connection is up, and the hello is not yet sent */
    bool left;      /* the store has said goodbye */
    bool counted;   /* the store has answered this rank's hello */
    bool joined;
    rendezvous_member *members; /* [world] */
    zmq_msg_t *blobs;           /* [blob_count], of the last result */
    int blob_count;
    uint64_t sequence;
    _Alignas(16) unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    uint8_t packet[RENDEZVOUS_PACKET_CAP];
};

enum {
    SLICE_MS = 50, /* time between two calls of canceled() */
    FLUSH_MS = 200,
    LOOKUP_NS = 200000000, /* time between two reads of the address file of file:// */
    QUEUE = 8,
    HANG_UPS = 3, /* a store ends handshakes silently if the key differs, or once if it is closing */
};
#define PEER_TIMEOUT_NS (10 * NS_PER_S)

static void release_blobs(rendezvous *r)
{
    for (int i = 0; i < r->blob_count; i++) zmq_msg_close(&r->blobs[i]);
    r->blob_count = 0;
}

static status send_packet(rendezvous *r, const rendezvous_packet *packet, const void *data, size_t bytes,
                          bool blob)
{
    size_t used = rendezvous_pack(packet, r->packet, RENDEZVOUS_PACKET_CAP);
    if (used == 0) return fail(STATUS_INTERNAL, "rendezvous: a packet above %d bytes", RENDEZVOUS_PACKET_CAP);
    zmq_msg_t part; /* allocated before the packet is sent, so no message is sent by half */
    if (zmq_msg_init_size(&part, bytes) != 0)
        return fail(STATUS_SYSTEM, "rendezvous: no memory to send %zu bytes", bytes);
    if (bytes > 0) memcpy(zmq_msg_data(&part), data, bytes);
    int sent = zmq_send(r->socket.zmq, r->packet, used, ZMQ_DONTWAIT | (blob ? ZMQ_SNDMORE : 0));
    status result = sent >= 0         ? STATUS_OK
                    : errno == ENOMEM ? fail(STATUS_SYSTEM, "rendezvous: no memory to send a packet")
                                      : STATUS_AGAIN;
    if (sent < 0 || !blob || zmq_msg_send(&part, r->socket.zmq, ZMQ_DONTWAIT) < 0) zmq_msg_close(&part);
    return result;
}

static status send_hello(rendezvous *r)
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
        .code = o->failure ? o->failure->code : STATUS_OK,
        .text = o->failure ? o->failure->message : NULL,
    };
    return send_packet(r, &hello, NULL, 0, false);
}

static status receive_packet(rendezvous *r, rendezvous_packet *out)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    status result = STATUS_AGAIN;
    while (result == STATUS_AGAIN && zmq_msg_recv(&part, r->socket.zmq, ZMQ_DONTWAIT) >= 0)
        if (zmq_msg_size(&part) > 0)
            result = rendezvous_unpack(zmq_msg_data(&part), zmq_msg_size(&part), r->arena, out);
    bool more = zmq_msg_more(&part);
    zmq_msg_close(&part);
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT) release_blobs(r);
    while (more) {
        zmq_msg_t *blob = &r->blobs[r->blob_count];
        bool keep = result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count < r->options.world;
        if (!keep) blob = &part;
        zmq_msg_init(blob);
        if (zmq_msg_recv(blob, r->socket.zmq, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(blob);
        if (keep) {
            r->blob_count++;
            status aligned = zsocket_align(blob);
            if (aligned != STATUS_OK) return aligned;
        } else {
            zmq_msg_close(blob);
        }
    }
    if (result == STATUS_OK && out->kind == RENDEZVOUS_RESULT && r->blob_count != out->blobs)
        return fail(STATUS_PROTOCOL, "rendezvous: expected %d blobs in a result, got %d", out->blobs,
                    r->blob_count);
    return result;
}

static void read_monitor(rendezvous *r)
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

static status wait_briefly(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    int64_t now_ns = clock_now_ns();
    /* The connect limit ends a wait for ranks that have not joined, so the wait counts as progress. */
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

static void disconnect(rendezvous *r, int flush_ms)
{
    zsocket_close(&r->socket, flush_ms);
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
    /* A random token distinguishes two processes that claim the same rank. */
    if (getrandom(&options.token, sizeof options.token, 0) != (ssize_t)sizeof options.token)
        return fail_errno(STATUS_SYSTEM, "rendezvous: no random number");
    TRY(zsocket_open(r->context, &options, &r->socket));
    TRY(zsocket_connect(&r->socket, url));
    r->connected = r->hello_due = strncmp(url, "inproc:", 7) == 0; /* the monitor does not report inproc:// */
    return STATUS_OK;
}

/* Reads the file of file://, and connects again if the address has changed. */
static status follow_file(rendezvous *r, int64_t *lookup_ns)
{
    char address[ADDRESS_TEXT], key[NET_KEY_TEXT];
    uint64_t token;
    if (!r->endpoints.path[0] || r->options.rank == 0 || clock_now_ns() < *lookup_ns) return STATUS_OK;
    *lookup_ns = clock_now_ns() + LOOKUP_NS;
    if (!rendezvous_address_lookup(&r->endpoints, address, &token, key)) return STATUS_OK;
    if (r->options.token && token != r->options.token) return STATUS_OK; /* the file is of an earlier job */
    if (r->socket.zmq && strcmp(address, r->address) == 0 && token == r->token) return STATUS_OK;
    if (r->socket.zmq) disconnect(r, 0);
    snprintf(r->address, sizeof r->address, "%s", address);
    snprintf(r->key, sizeof r->key, "%s", key);
    r->token = token;
    return connect_to(r, address);
}

static status denied(const rendezvous *r)
{
    return fail(STATUS_PERMISSION,
                "rendezvous at %s: rank %d is refused: its HARNESS_KEY differs from the key of rank 0",
                r->address, r->options.rank);
}

static status too_late(const rendezvous *r)
{
    char why[ADDRESS_TEXT + 128], limit[32];
    const char *where = r->address[0] ? r->address : r->options.url;
    if (r->denied) return denied(r);
    text_format_duration(limit, sizeof limit, (double)r->options.connect_limit_ns);
    if (!r->socket.zmq)
        snprintf(why, sizeof why, ": the file does not exist or is not from this job");
    else if (r->refused_by_stranger)
        snprintf(why, sizeof why, ": the program that listens there does not speak this protocol");
    else if (r->connected)
        snprintf(why, sizeof why, ": the program that listens there does not answer");
    else
        rendezvous_address_diagnose(where, why, sizeof why);
    return fail(STATUS_PEER, "rendezvous at %s: rank %d did not reach rank 0 within %s%s", where,
                r->options.rank, limit, why);
}

static status exchange_hello(rendezvous *r, bool *welcome)
{
    rendezvous_packet packet;
    if (!r->socket.zmq) return STATUS_OK;
    read_monitor(r);
    if (r->denied && !r->endpoints.path[0]) return denied(r); /* a file may be of an earlier job */
    r->lost = false; /* no hello yet: the socket reconnects by itself */
    status result = r->hello_due ? send_hello(r) : STATUS_AGAIN;
    if (result != STATUS_OK && result != STATUS_AGAIN) return result;
    if (result == STATUS_OK) r->hello_due = false;
    result = receive_packet(r, &packet);
    if (result == STATUS_AGAIN) return STATUS_OK;
    if (result != STATUS_OK) return result;
    r->counted = true;
    if (packet.kind == RENDEZVOUS_REFUSED || packet.kind == RENDEZVOUS_FAILED)
        return fail(packet.code, "%s", packet.text);
    *welcome = packet.kind == RENDEZVOUS_WELCOME;
    return STATUS_OK;
}

static status join_store(rendezvous *r, int64_t deadline_ns)
{
    bool welcome = false;
    int64_t lookup_ns = 0;
    const char *url = r->store ? r->store->own_url : r->endpoints.connect;
    if (url[0]) TRY(connect_to(r, url));
    for (;;) {
        TRY(follow_file(r, &lookup_ns));
        TRY(exchange_hello(r, &welcome));
        if (welcome) return STATUS_OK;
        if (clock_now_ns() >= deadline_ns) return too_late(r);
        TRY(wait_briefly(r));
    }
}

static void leave_store(rendezvous *r)
{
    rendezvous_packet packet;
    if (!r->socket.zmq) return;
    read_monitor(r);
    while (!r->left && receive_packet(r, &packet) == STATUS_OK) r->left = packet.kind == RENDEZVOUS_BYE;
    bool there = r->connected && !r->lost && !r->left; /* no goodbye to a store that is gone */
    if (there) send_packet(r, &(rendezvous_packet){.kind = RENDEZVOUS_BYE}, NULL, 0, false);
    disconnect(r, there ? FLUSH_MS : 0);
}

/* Time after a deadline until a store that has not reported the missed deadline counts as dead. */
#define GRACE_NS (2 * NS_PER_S)

/* Returns STATUS_AGAIN if the result has not arrived yet. */
static status read_result(rendezvous *r, const char *what)
{
    rendezvous_packet packet;
    read_monitor(r);
    for (status result; (result = receive_packet(r, &packet)) != STATUS_AGAIN;) {
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
    if (r) send_packet(r, &failure, NULL, 0, false);
}

static status wait_result(rendezvous *r, const char *what, int64_t deadline_ns, int64_t limit_ns)
{
    for (;;) {
        status result = read_result(r, what);
        if (result != STATUS_AGAIN) return result;
        int64_t now_ns = clock_now_ns(), moved_ns = status_table_others_ns(r->options.table, r->options.slot);
        if (now_ns >= deadline_ns && now_ns >= moved_ns + limit_ns + GRACE_NS)
            return fail(STATUS_PEER, "rendezvous at %s, %s: rank 0 does not answer", r->address, what);
        TRY(wait_briefly(r));
    }
}

static status call(rendezvous *r, rendezvous_operation operation, const char *tag, int root, const void *data,
                   size_t bytes, int64_t deadline_ns)
{
    char what[128];
    snprintf(what, sizeof what, "%s '%s'", rendezvous_operation_name(operation), tag);
    if (strlen(tag) >= STORE_TAG_BYTES || bytes > RENDEZVOUS_BLOB_MAX)
        return fail(STATUS_INTERNAL, "rendezvous: %s: expected at most %d bytes, got %zu", what,
                    RENDEZVOUS_BLOB_MAX, bytes);
    if (r->options.slot) rank_slot_enter(r->options.slot, RANK_RENDEZVOUS, clock_now_ns());
    int64_t left = deadline_ns - clock_now_ns();
    rendezvous_packet packet = {.kind = RENDEZVOUS_CALL,
                                .sequence = r->sequence,
                                .operation = operation,
                                .tag = tag,
                                .root = root,
                                .timeout_ms = left > 0 ? (left + NS_PER_MS - 1) / NS_PER_MS : 0};
    status sent = send_packet(r, &packet, data, bytes, true);
    if (sent != STATUS_OK && sent != STATUS_AGAIN) return sent; /* if AGAIN, wait_result() reports the loss */
    TRY(wait_result(r, what, deadline_ns < CLOCK_NEVER - GRACE_NS ? deadline_ns + GRACE_NS : CLOCK_NEVER,
                    left));
    r->sequence++;
    return STATUS_OK;
}

status rendezvous_allgather(rendezvous *r, const char *tag, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out)
{
    TRY(call(r, RENDEZVOUS_ALLGATHER, tag, 0, data, bytes, deadline_ns));
    for (int i = 0; i < r->options.world; i++)
        out[i] = (rendezvous_blob){zmq_msg_data(&r->blobs[i]), zmq_msg_size(&r->blobs[i])};
    return STATUS_OK;
}

status rendezvous_broadcast(rendezvous *r, const char *tag, int root, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out)
{
    bool sends = r->options.rank == root;
    TRY(call(r, RENDEZVOUS_BROADCAST, tag, root, sends ? data : "", sends ? bytes : 0, deadline_ns));
    *out = (rendezvous_blob){zmq_msg_data(&r->blobs[0]), zmq_msg_size(&r->blobs[0])};
    return STATUS_OK;
}

status rendezvous_barrier(rendezvous *r, const char *tag, int64_t deadline_ns)
{
    return call(r, RENDEZVOUS_BARRIER, tag, 0, "", 0, deadline_ns);
}

status rendezvous_sum(rendezvous *r, const char *tag, double *values, int count, int64_t deadline_ns)
{
    size_t bytes = (size_t)count * sizeof *values;
    TRY(call(r, RENDEZVOUS_SUM, tag, 0, values, bytes, deadline_ns));
    for (int rank = 0; rank < r->options.world; rank++) {
        const double *terms = zmq_msg_data(&r->blobs[rank]);
        if (zmq_msg_size(&r->blobs[rank]) != bytes)
            return fail(STATUS_PROTOCOL, "rendezvous: sum '%s': rank %d has %zu bytes, rank %d has %zu", tag,
                        rank, zmq_msg_size(&r->blobs[rank]), r->options.rank, bytes);
        for (int i = 0; i < count; i++) values[i] = rank == 0 ? terms[i] : values[i] + terms[i];
    }
    return STATUS_OK;
}

/* Exchanges the hosts and processes of all ranks. A failure names the missing ranks. */
static status join(rendezvous *r, int64_t deadline_ns)
{
    rendezvous_member own = {.pid = getpid(), .host_id = shm_host_id()};
    gethostname(own.host, sizeof own.host - 1);
    size_t world = (size_t)r->options.world;
    rendezvous_blob *blobs = calloc(world, sizeof *blobs);
    if (!blobs) return fail(STATUS_SYSTEM, "rendezvous: no memory");
    status result = rendezvous_allgather(r, "join", &own, sizeof own, deadline_ns, blobs);
    for (size_t i = 0; i < world && result == STATUS_OK; i++) {
        if (blobs[i].bytes == sizeof own)
            memcpy(&r->members[i], blobs[i].data, sizeof own);
        else
            result = fail(STATUS_PROTOCOL, "rendezvous: rank %zu joins with %zu bytes", i, blobs[i].bytes);
    }
    free(blobs);
    return result;
}

static status allocate(rendezvous *r)
{
    size_t world = (size_t)r->options.world;
    r->members = calloc(world, sizeof *r->members);
    r->blobs = calloc(world, sizeof *r->blobs);
    bool enough = r->members && r->blobs;
    return enough ? STATUS_OK : fail(STATUS_SYSTEM, "rendezvous: no memory for %zu ranks", world);
}

/* Takes the job's key, which distinguishes ranks from strangers. Threads of one process need no key. */
static status take_key(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (rendezvous_address_is_inproc(&r->endpoints)) return STATUS_OK;
    if (o->key && !net_key_is_valid(o->key))
        return fail(STATUS_PERMISSION, "rendezvous: expected a key of %d hexadecimal digits",
                    NET_KEY_TEXT - 1);
    if (!o->key && !r->endpoints.path[0])
        return fail(STATUS_PERMISSION,
                    "rendezvous %s: the ranks need a secret that they share: export HARNESS_KEY=$(openssl "
                    "rand -hex 32)",
                    o->url);
    snprintf(r->key, sizeof r->key, "%s", o->key ? o->key : "");
    return STATUS_OK;
}

static status open_context(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (!rendezvous_address_is_inproc(&r->endpoints)) {
        r->own_context = true;
        return zsocket_context_open(&r->context);
    }
    if (!o->hub) return fail(STATUS_INTERNAL, "rendezvous: %s needs a hub", o->url);
    r->context = transport_hub_context(o->hub);
    return STATUS_OK;
}

static status start_store(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (r->endpoints.path[0] && r->token == 0 &&
        getrandom(&r->token, sizeof r->token, 0) != (ssize_t)sizeof r->token)
        return fail_errno(STATUS_SYSTEM, "rendezvous: no random number");
    if (r->endpoints.path[0] && !r->key[0]) TRY(net_key_draw(r->key));
    TRY(store_start(o, &r->endpoints, r->token, r->key[0] ? r->key : NULL, r->context, &r->store));
    rendezvous_address_reachable(&r->endpoints, r->store->address, o->host, r->address);
    return rendezvous_address_publish(&r->endpoints, r->address, r->token, r->key);
}

/* Waits for ranks that have not joined yet, so they receive the error of the job. */
static void wait_for_the_others(const rendezvous *r, int64_t deadline_ns)
{
    const rendezvous_options *o = &r->options;
    int expected = r->counted ? o->world : o->world - 1; /* rank 0 itself may have failed earlier */
    while (r->store && atomic_load(&r->store->joined) < expected && clock_now_ns() < deadline_ns &&
           !(o->canceled && o->canceled(o->context)))
        clock_sleep_ns(SLICE_MS * NS_PER_MS);
}

status rendezvous_open(const rendezvous_options *options, rendezvous **out)
{
    if (options->world < 1 || options->world > JOB_MOST_MEMBERS || options->rank < 0)
        return fail(STATUS_CONFIG, "rendezvous: expected 1 to %d members, got rank %d of %d",
                    JOB_MOST_MEMBERS, options->rank, options->world);
    if (options->config_text && strlen(options->config_text) > RENDEZVOUS_TEXT_MAX)
        return fail(STATUS_INTERNAL, "rendezvous: configuration: expected at most %d bytes, got %zu",
                    RENDEZVOUS_TEXT_MAX, strlen(options->config_text));
    int64_t deadline_ns = clock_now_ns() + options->connect_limit_ns;
    rendezvous *r = calloc(1, sizeof *r);
    if (!r) return fail(STATUS_SYSTEM, "rendezvous: no memory");
    r->options = *options;
    r->token = options->token;
    status result;
    TRY_GOTO(result, rendezvous_address_parse(options->url, &r->endpoints), failed);
    snprintf(r->address, sizeof r->address, "%s", r->endpoints.connect);
    TRY_GOTO(result, take_key(r), failed);
    TRY_GOTO(result, allocate(r), failed);
    TRY_GOTO(result, open_context(r), failed);
    if (options->slot) rank_slot_enter(options->slot, RANK_RENDEZVOUS, clock_now_ns());
    if (options->rank == 0) TRY_GOTO(result, start_store(r), failed);
    TRY_GOTO(result, join_store(r, deadline_ns), failed);
    const char *url = r->store ? r->store->own_url : r->address;
    if (options->exchanges_status)
        TRY_GOTO(result, status_sender_start(options, r->token, r->key, url, r->context, &r->sender), failed);
    TRY_GOTO(result, join(r, deadline_ns), failed);
    r->joined = true;
    *out = r;
    return STATUS_OK;
failed:
    wait_for_the_others(r, deadline_ns);
    rendezvous_close(&r);
    return result;
}

void rendezvous_close(rendezvous **pointer)
{
    rendezvous *r = *pointer;
    if (!r) return;
    status_sender_stop(&r->sender);
    leave_store(r);
    if (r->store) rendezvous_address_withdraw(&r->endpoints, r->token);
    store_stop(&r->store);
    release_blobs(r);
    if (r->own_context) zsocket_context_close(&r->context);
    free(r->members);
    free(r->blobs);
    free(r);
    *pointer = NULL;
}

const rendezvous_member *rendezvous_members(const rendezvous *r)
{
    return r->members;
}

const char *rendezvous_address(const rendezvous *r)
{
    return r->address;
}
