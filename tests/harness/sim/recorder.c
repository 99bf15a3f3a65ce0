#include "tests/harness/sim/recorder.h"

#include "common/collectives/collective.h"
#include "ps/port.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PORTS_MOST = 256 };

static struct {
    pthread_mutex_t lock;
    bool on;
    recorded list[RECORDER_MOST], sorted[RECORDER_MOST];
    int count;
    struct {
        const ps_port *port;
        int rank, server;
    } ports[PORTS_MOST];
    int port_count;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add(recorded r)
{
    pthread_mutex_lock(&recorder.lock);
    if (recorder.on && recorder.count < RECORDER_MOST) recorder.list[recorder.count++] = r;
    pthread_mutex_unlock(&recorder.lock);
}

void recorder_start(void)
{
    pthread_mutex_lock(&recorder.lock);
    recorder.on = true;
    recorder.count = recorder.port_count = 0;
    pthread_mutex_unlock(&recorder.lock);
}

static int64_t compare(const recorded *a, const recorded *b)
{
    if (a->kind != b->kind) return (int)a->kind - (int)b->kind;
    if (a->rank != b->rank) return a->rank - b->rank;
    if (a->server != b->server) return a->server - b->server;
    if (a->peer != b->peer) return a->peer - b->peer;
    return a->kind == RECORDED_MESSAGE ? a->what - b->what : 0;
}

/* Sorts with a stable algorithm, insertion into runs, since qsort is not stable. */
const recorded *recorder_stop(int *count)
{
    pthread_mutex_lock(&recorder.lock);
    recorder.on = false;
    *count = recorder.count;
    int filled = 0;
    bool taken[RECORDER_MOST] = {false};
    for (int i = 0; i < recorder.count; i++) {
        if (taken[i]) continue;
        for (int j = i; j < recorder.count; j++) {
            if (taken[j] || compare(&recorder.list[i], &recorder.list[j]) != 0) continue;
            taken[j] = true;
            recorder.sorted[filled++] = recorder.list[j];
        }
    }
    /* Sorts the records into order. Each record is moved before those that are greater. */
    for (int i = 1; i < filled; i++) {
        recorded r = recorder.sorted[i];
        int at = i;
        for (; at > 0 && compare(&recorder.sorted[at - 1], &r) > 0; at--)
            recorder.sorted[at] = recorder.sorted[at - 1];
        recorder.sorted[at] = r;
    }
    pthread_mutex_unlock(&recorder.lock);
    return recorder.sorted;
}

/* ---- what is listened to ---------------------------------------------------------------------- */

status __real_collective_post(collective_group *group, const collective_call *call, collective_ticket *out);
status __wrap_collective_post(collective_group *group, const collective_call *call, collective_ticket *out);
status __real_ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                           uint32_t capacity);
status __wrap_ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                           uint32_t capacity);
status __real_ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                           int count, transport_ticket *ticket, int64_t payload);
status __wrap_ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                           int count, transport_ticket *ticket, int64_t payload);

status __wrap_collective_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    TRY(__real_collective_post(group, call, out));
    add((recorded){.kind = RECORDED_CALL,
                   .rank = collective_group_rank(group),
                   .peer = -1,
                   .what = (int)call->kind,
                   .step_or_tag = call->tag,
                   .key_or_root = call->root,
                   .bytes = call->count * dtype_size(call->type)});
    return STATUS_OK;
}

status __wrap_ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                           uint32_t capacity)
{
    pthread_mutex_lock(&recorder.lock);
    int at = recorder.port_count < PORTS_MOST ? recorder.port_count++ : 0;
    recorder.ports[at].port = p;
    recorder.ports[at].rank = options->rank;
    recorder.ports[at].server = !options->device_memory;
    pthread_mutex_unlock(&recorder.lock);
    return __real_ps_port_open(p, options, peers, held, partner, capacity);
}

status __wrap_ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                           int count, transport_ticket *ticket, int64_t payload)
{
    recorded r = {.kind = RECORDED_MESSAGE,
                  .rank = -1,
                  .peer = peer,
                  .what = (int)header->kind,
                  .step_or_tag = header->step,
                  .key_or_root = header->key,
                  .bytes = payload};
    TRY(__real_ps_port_send(p, peer, header, frames, count, ticket, payload));
    for (int i = 0; i < recorder.port_count; i++)
        if (recorder.ports[i].port == p) r.rank = recorder.ports[i].rank, r.server = recorder.ports[i].server;
    add(r);
    return STATUS_OK;
}
