/* The collective calls, one after the other. */
#include "common/net/rendezvous_store_impl.h"

#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void begin(store_call *c, int rank, const rendezvous_packet *call)
{
    c->first = rank;
    c->operation = call->operation;
    c->root = call->root;
    snprintf(c->tag, sizeof c->tag, "%s", call->tag);
}

/* Whether the rank makes the call that the others make; fails the store where it does not. */
static bool agrees(store *s, int rank, const rendezvous_packet *call, size_t bytes)
{
    const store_call *c = &s->call;
    if (call->operation != c->operation || strcmp(call->tag, c->tag) != 0 || call->root != c->root) {
        store_fail(s, STATUS_PROTOCOL,
                   "rendezvous: rank %d calls %s '%s' (root %d), rank %d calls %s '%s' (root %d)", rank,
                   rendezvous_operation_name(call->operation), call->tag, call->root, c->first,
                   rendezvous_operation_name(c->operation), c->tag, c->root);
        return false;
    }
    size_t first = c->callers ? zmq_msg_size(&s->members[c->first].blob) : bytes;
    if (call->operation == RENDEZVOUS_SUM && (bytes != first || bytes % sizeof(double) != 0)) {
        store_fail(s, STATUS_PROTOCOL, "rendezvous: sum '%s': rank %d has %zu bytes, rank %d has %zu", c->tag,
                   rank, bytes, c->first, first);
        return false;
    }
    return true;
}

/* Adds in rank order, into the blob of rank 0. */
static void add_up(store *s)
{
    size_t bytes = zmq_msg_size(&s->members[0].blob);
    for (size_t at = 0; at < bytes; at += sizeof(double)) {
        double sum = 0, term;
        for (int r = 0; r < s->world; r++) {
            memcpy(&term, (const char *)zmq_msg_data(&s->members[r].blob) + at, sizeof term);
            sum = r == 0 ? term : sum + term;
        }
        memcpy((char *)zmq_msg_data(&s->members[0].blob) + at, &sum, sizeof sum);
    }
}

static void complete(store *s)
{
    const store_call *c = &s->call;
    int first = 0, count = 0;
    if (c->operation == RENDEZVOUS_ALLGATHER) {
        count = s->world;
    } else if (c->operation == RENDEZVOUS_BROADCAST) {
        first = c->root;
        count = 1;
    } else if (c->operation == RENDEZVOUS_SUM) {
        add_up(s);
        count = 1;
    }
    const rendezvous_packet result = {.kind = RENDEZVOUS_RESULT, .sequence = c->sequence, .blobs = count};
    for (int r = 0; r < s->world; r++)
        store_send(s, &s->members[r].identity, &result, &s->members[first], count);
    store_forget_blobs(s);
    s->call.sequence++;
}

/* A rank that has left can take part in no call any more. */
static bool somebody_left(store *s)
{
    char name[128];
    for (int r = 0; r < s->world; r++) {
        if (!s->members[r].ended) continue;
        store_fail(s, STATUS_PEER, "rendezvous: %s '%s': %s has left",
                   rendezvous_operation_name(s->call.operation), s->call.tag,
                   store_name(s, r, name, sizeof name));
        return true;
    }
    return false;
}

void store_take_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob)
{
    store_member *m = &s->members[rank];
    store_call *c = &s->call;
    if (s->failed != STATUS_OK) return; /* the rank has been told */
    if (call->sequence != c->sequence || m->called || call->root < 0 || call->root >= s->world) {
        store_fail(s, STATUS_PROTOCOL, "rendezvous: rank %d makes call %" PRIu64 ", due is call %" PRIu64,
                   rank, call->sequence, c->sequence);
        return;
    }
    if (c->callers == 0) begin(c, rank, call);
    if (!agrees(s, rank, call, zmq_msg_size(blob)) || somebody_left(s)) return;
    zmq_msg_init(&m->blob);
    zmq_msg_move(&m->blob, blob);
    m->called = true;
    m->deadline_ns = clock_now_ns() + call->timeout_ms * NS_PER_MS;
    if (++c->callers == s->world) complete(s);
}

int64_t store_next_deadline(const store *s)
{
    int64_t next = CLOCK_NEVER;
    for (int r = 0; r < s->world && s->failed == STATUS_OK; r++)
        if (s->members[r].called && s->members[r].deadline_ns < next) next = s->members[r].deadline_ns;
    return next;
}

void store_check_deadline(store *s, int64_t now_ns)
{
    if (now_ns < store_next_deadline(s)) return;
    text_buffer missing = {0};
    int count = 0;
    for (int r = 0; r < s->world; r++)
        if (!s->members[r].called) text_append(&missing, "%s%d", count++ ? ", " : "", r);
    store_fail(s, STATUS_PEER, "rendezvous at %s: %s '%s': in time no call from rank%s %s", s->address,
               rendezvous_operation_name(s->call.operation), s->call.tag, count == 1 ? "" : "s",
               missing.data ? missing.data : "?");
    text_free(&missing);
}
