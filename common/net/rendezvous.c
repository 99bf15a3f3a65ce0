/* The side of the ranks: joining, and calling the store. */
#include "common/net/rendezvous_impl.h"
#include "common/net/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define GRACE_NS (2 * NS_PER_S) /* the store itself reports a deadline; behind this it is taken for dead */

static status wait_result(rendezvous *r, const char *what, int64_t deadline_ns)
{
    rendezvous_packet packet;
    for (;;) {
        rendezvous_notice(r);
        status result = rendezvous_read(r, &packet);
        if (result == STATUS_OK && packet.kind == RENDEZVOUS_RESULT && packet.sequence == r->sequence)
            return STATUS_OK;
        if (result == STATUS_OK && packet.kind == RENDEZVOUS_FAILED)
            return fail(packet.code, "%s", packet.text);
        if (result == STATUS_OK) {
            r->left = r->left || packet.kind == RENDEZVOUS_BYE;
            continue;
        }
        if (result != STATUS_AGAIN) return result;
        if (r->lost || r->left)
            return fail(STATUS_PEER, "rendezvous at %s, %s: rank 0 %s", r->address, what,
                        r->left ? "has left" : "is lost");
        if (clock_now_ns() >= deadline_ns)
            return fail(STATUS_PEER, "rendezvous at %s, %s: rank 0 does not answer", r->address, what);
        TRY(rendezvous_sleep(r));
    }
}

static status call(rendezvous *r, rendezvous_operation operation, const char *tag, int root, const void *data,
                   size_t bytes, int64_t deadline_ns)
{
    char what[128];
    snprintf(what, sizeof what, "%s '%s'", rendezvous_operation_name(operation), tag);
    if (strlen(tag) >= STORE_TAG_BYTES || bytes > RENDEZVOUS_BLOB_MAX)
        return fail(STATUS_INTERNAL, "rendezvous: %s with %zu bytes, allowed are %d", what, bytes,
                    RENDEZVOUS_BLOB_MAX);
    if (r->options.slot) rank_slot_enter(r->options.slot, RANK_RENDEZVOUS, clock_now_ns());
    int64_t left = deadline_ns - clock_now_ns();
    rendezvous_packet packet = {.kind = RENDEZVOUS_CALL,
                                .sequence = r->sequence,
                                .operation = operation,
                                .tag = tag,
                                .root = root,
                                .timeout_ms = left > 0 ? (left + NS_PER_MS - 1) / NS_PER_MS : 0};
    status sent = rendezvous_send(r, &packet, data, bytes, true);
    if (sent != STATUS_OK && sent != STATUS_AGAIN) return sent; /* AGAIN: the loss is about to be read */
    TRY(wait_result(r, what, deadline_ns < CLOCK_NEVER - GRACE_NS ? deadline_ns + GRACE_NS : CLOCK_NEVER));
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
    memcpy(values, zmq_msg_data(&r->blobs[0]), bytes);
    return STATUS_OK;
}

/* Everybody learns who everybody is; whoever does not come is named. */
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
    r->arena = aligned_alloc(16, RENDEZVOUS_ARENA_BYTES);
    r->packet = malloc(RENDEZVOUS_PACKET_CAP);
    if (!r->members || !r->blobs || !r->arena || !r->packet)
        return fail(STATUS_SYSTEM, "rendezvous: no memory for %zu ranks", world);
    return STATUS_OK;
}

/* Nobody can tell ranks from strangers without a secret; threads of one process need none. */
static status take_key(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (rendezvous_place_is_inproc(&r->place)) return STATUS_OK;
    if (o->key && !net_key_is_valid(o->key))
        return fail(STATUS_PERMISSION, "rendezvous: expected a key of %d hexadecimal digits", NET_KEY_TEXT - 1);
    if (!o->key && !r->place.path[0])
        return fail(STATUS_PERMISSION,
                    "rendezvous %s: the ranks need a secret that they share: export HARNESS_KEY=$(openssl rand -hex 32)",
                    o->url);
    snprintf(r->key, sizeof r->key, "%s", o->key ? o->key : "");
    return STATUS_OK;
}

static status open_context(rendezvous *r)
{
    const rendezvous_options *o = &r->options;
    if (!rendezvous_place_is_inproc(&r->place)) {
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
    if (r->place.path[0] && r->token == 0 &&
        getrandom(&r->token, sizeof r->token, 0) != (ssize_t)sizeof r->token)
        return fail_errno(STATUS_SYSTEM, "rendezvous: no random number");
    if (r->place.path[0] && !r->key[0]) TRY(net_key_draw(r->key));
    TRY(store_start(o, &r->place, r->token, r->key[0] ? r->key : NULL, r->context, &r->store));
    rendezvous_place_reachable(&r->place, store_address(r->store), o->host, r->address);
    return rendezvous_place_publish(&r->place, r->address, r->token, r->key);
}

status rendezvous_open(const rendezvous_options *options, rendezvous **out)
{
    if (options->world < 1 || options->world > JOB_MOST_MEMBERS || options->rank < 0)
        return fail(STATUS_CONFIG, "rendezvous: expected 1 to %d members, got rank %d of %d", JOB_MOST_MEMBERS,
                    options->rank, options->world);
    if (options->config_text && strlen(options->config_text) > RENDEZVOUS_TEXT_MAX)
        return fail(STATUS_INTERNAL, "rendezvous: a configuration of %zu bytes, allowed are %d",
                    strlen(options->config_text), RENDEZVOUS_TEXT_MAX);
    int64_t deadline_ns = clock_now_ns() + options->connect_limit_ns;
    rendezvous *r = calloc(1, sizeof *r);
    if (!r) return fail(STATUS_SYSTEM, "rendezvous: no memory");
    r->options = *options;
    r->token = options->token;
    status result;
    TRY_GOTO(result, rendezvous_place_of(options->url, &r->place), failed);
    snprintf(r->address, sizeof r->address, "%s", r->place.connect);
    TRY_GOTO(result, take_key(r), failed);
    TRY_GOTO(result, allocate(r), failed);
    TRY_GOTO(result, open_context(r), failed);
    if (options->slot) rank_slot_enter(options->slot, RANK_RENDEZVOUS, clock_now_ns());
    if (options->rank == 0) TRY_GOTO(result, start_store(r), failed);
    TRY_GOTO(result, rendezvous_reach(r, deadline_ns), failed);
    TRY_GOTO(result, join(r, deadline_ns), failed);
    r->joined = true;
    *out = r;
    return STATUS_OK;
failed:
    rendezvous_close(&r);
    return result;
}

void rendezvous_close(rendezvous **pointer)
{
    rendezvous *r = *pointer;
    if (!r) return;
    rendezvous_leave(r);
    if (r->store) rendezvous_place_withdraw(&r->place, r->token);
    store_stop(&r->store);
    rendezvous_forget_blobs(r);
    if (r->own_context) zsocket_context_close(&r->context);
    free(r->members);
    free(r->blobs);
    free(r->arena);
    free(r->packet);
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

uint64_t rendezvous_token(const rendezvous *r)
{
    return r->token;
}
