/* What the store tells its members. */
#include "common/net/rendezvous_store_impl.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

char *store_name(const store *s, int rank, char *buffer, size_t size)
{
    const store_member *m = &s->members[rank];
    snprintf(buffer, size, "rank %d (%s, process %" PRIu32 ")", rank, m->host, m->pid);
    return buffer;
}

void store_ignore(store *s, const char *what)
{
    int64_t count = ++s->strangers;
    if ((count & (count - 1)) == 0)
        log_warn("rendezvous at %s: ignored %s (%" PRId64 " so far)", s->address, what, count);
}

void store_send(store *s, const store_identity *to, const rendezvous_packet *packet, store_member *first,
                int count)
{
    size_t bytes = rendezvous_pack(packet, s->packet, RENDEZVOUS_PACKET_CAP);
    int more = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    if (zmq_send(s->router, to->bytes, sizeof to->bytes, more) < 0) return; /* gone: noticed by a probe */
    zmq_send(s->router, s->packet, bytes, count > 0 ? more : ZMQ_DONTWAIT);
    for (int i = 0; i < count; i++) {
        zmq_msg_t copy;
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, &first[i].blob); /* shares the content */
        if (zmq_msg_send(&copy, s->router, i + 1 < count ? more : ZMQ_DONTWAIT) < 0) zmq_msg_close(&copy);
    }
}

void store_forget_blobs(store *s)
{
    for (int r = 0; r < s->world; r++) {
        store_member *m = &s->members[r];
        if (!m->called) continue;
        zmq_msg_close(&m->blob);
        m->called = false;
    }
    s->call.callers = 0;
}

void store_fail(store *s, status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    s->failed = code;
    store_forget_blobs(s);
    const rendezvous_packet packet = {.kind = RENDEZVOUS_FAILED, .code = code, .text = s->failure};
    for (int r = 0; r < s->world; r++) {
        const store_member *m = &s->members[r];
        if (m->joined && !m->ended && !m->lost) store_send(s, &m->identity, &packet, NULL, 0);
    }
}

void store_lost(store *s, int rank)
{
    char name[128];
    store_member *m = &s->members[rank];
    if (m->lost || m->ended) return;
    m->lost = true;
    store_name(s, rank, name, sizeof name);
    if (s->failed != STATUS_OK) return;
    if (s->call.callers > 0)
        store_fail(s, STATUS_PEER, "%s was lost during rendezvous, %s '%s'", name,
                   rendezvous_operation_name(s->call.operation), s->call.tag);
    else
        store_fail(s, STATUS_PEER, "%s was lost", name);
}
