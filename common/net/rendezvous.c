/* Connects a rank to the store, and disconnects it. */
#include "common/net/rendezvous_impl.h"

#include "common/base/random.h"
#include "common/base/text.h"
#include "common/net/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SLICE_MS = 50, /* time between two calls of canceled() */
    FLUSH_MS = 200,
    LOOKUP_NS = 200000000, /* time between two reads of the address file of file:// */
    QUEUE = 8,
};

static status send_hello(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    const rendezvous_packet hello = {
        .kind = RENDEZVOUS_HELLO,
        .protocol = RENDEZVOUS_PROTOCOL,
        .program = o->program,
        .token = r->token,
        .config_hash = o->config_hash,
        .config_text = o->config_text,
        .rank = o->rank,
        .world = o->world,
        .host = r->own.host,
        .pid = (uint32_t)r->own.pid,
        .code = o->failure ? o->failure->code : STATUS_OK,
        .text = o->failure ? o->failure->message : NULL,
    };
    return rendezvous_send(r, &hello, NULL);
}

static void disconnect(rendezvous *r, int flush_ms)
{
    zsocket_close(&r->socket, flush_ms);
    r->connected = r->lost = r->hello_due = r->denied = false;
    r->hang_ups = 0;
}

static status connect_to(rendezvous *r, const char *url)
{
    const zsocket_options options = {
        .type = ZMQ_DEALER,
        .frame_bytes = RENDEZVOUS_BLOB_MAX,
        .queue = QUEUE + r->options.world,
        .peer_timeout_ns = RENDEZVOUS_PEER_TIMEOUT_NS,
        .token = random_token(), /* Distinguishes two processes that claim the same rank. */
        .rank = r->options.rank,
        .key = r->key,
    };
    r->connected = r->hello_due = zsocket_is_inproc(url);
    return zsocket_open(r->context, &options, url, NULL, 0, &r->socket);
}

/* Reads the address from the file of file://. If the address has changed, connects to the new address. */
static status follow_file(rendezvous *r, int64_t *lookup_ns)
{
    char address[ADDRESS_TEXT], key[NET_KEY_TEXT];
    uint64_t token;
    if (!r->endpoints.path[0] || r->options.rank == 0 || clock_now_ns() < *lookup_ns) return STATUS_OK;
    *lookup_ns = clock_now_ns() + LOOKUP_NS;
    if (!rendezvous_address_lookup(r->endpoints.path, address, &token, key)) return STATUS_OK;
    /* The file belongs to an earlier job. */
    if (r->options.token && token != r->options.token) return STATUS_OK;
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
    rendezvous_read_events(r);
    /* The address in a file may belong to an earlier job. */
    if (r->denied && !r->endpoints.path[0]) return denied(r);
    /* A connection that is lost before the store has accepted the hello is not an error, because the socket
     * reconnects by itself. */
    r->lost = false;
    if (r->hello_due) {
        status sent = send_hello(r);
        if (sent != STATUS_OK && sent != STATUS_AGAIN) return sent;
        r->hello_due = sent == STATUS_AGAIN;
    }
    status got = rendezvous_receive(r, &packet);
    if (got != STATUS_OK) return got == STATUS_AGAIN ? STATUS_OK : got;
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
        TRY(rendezvous_wait_briefly(r));
    }
}

static void leave_store(rendezvous *r)
{
    rendezvous_packet packet;
    if (!r->socket.zmq) return;
    rendezvous_read_events(r);
    while (!r->left && rendezvous_receive(r, &packet) == STATUS_OK) r->left = packet.kind == RENDEZVOUS_BYE;
    bool there = r->connected && !r->lost && !r->left; /* A lost store gets no goodbye. */
    if (there) rendezvous_send(r, &(rendezvous_packet){.kind = RENDEZVOUS_BYE}, NULL);
    disconnect(r, there ? FLUSH_MS : 0);
}

/* Exchanges the host names and process ids of all ranks. If ranks are missing, fails with an error message
 * that names these ranks. */
static status join(rendezvous *r, int64_t deadline_ns)
{
    size_t world = (size_t)r->options.world;
    rendezvous_blob *blobs = calloc(world, sizeof *blobs);
    if (!blobs) return fail(STATUS_SYSTEM, "rendezvous: no memory");
    status result = rendezvous_allgather(r, "join", &r->own, sizeof r->own, deadline_ns, blobs);
    for (size_t i = 0; i < world && result == STATUS_OK; i++) {
        if (blobs[i].bytes == sizeof r->own)
            memcpy(&r->members[i], blobs[i].data, sizeof r->own);
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

/* Copies the key of the job from the options. The key distinguishes ranks of the job from other processes, so
 * ranks that are threads of one process need no key. */
static status take_key(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (zsocket_is_inproc(r->endpoints.listen)) return STATUS_OK;
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
    if (!zsocket_is_inproc(r->endpoints.listen)) {
        r->own_context = true;
        return zsocket_context_open(&r->context);
    }
    if (!o->hub) return fail(STATUS_INTERNAL, "rendezvous: %s needs a hub", o->url);
    r->context = transport_hub_context(o->hub);
    return STATUS_OK;
}

static status start_store(rendezvous *r)
{
    if (r->endpoints.path[0] && r->token == 0) r->token = random_token();
    if (r->endpoints.path[0] && !r->key[0]) TRY(net_key_draw(r->key));
    TRY(store_start(r, &r->store));
    rendezvous_address_reachable(r, r->store->address);
    return rendezvous_address_publish(r);
}

/* Waits for ranks that have not joined yet, so that these ranks receive the error of the job too. */
static void wait_for_the_others(const rendezvous *r, int64_t deadline_ns)
{
    const rendezvous_options *o = &r->options;
    int expected = r->counted ? o->world : o->world - 1; /* Rank 0 may have failed before it sent a hello. */
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
    if (!options->program) r->options.program = "";
    if (!options->config_text) r->options.config_text = "";
    r->token = options->token;
    r->own = (rendezvous_member){.pid = getpid(), .host_id = shm_host_id()};
    gethostname(r->own.host, sizeof r->own.host - 1);
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
    if (options->exchanges_status) TRY_GOTO(result, status_sender_start(r, url, &r->sender), failed);
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
    if (r->store) rendezvous_address_withdraw(r);
    store_stop(&r->store);
    rendezvous_release_blobs(r);
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
