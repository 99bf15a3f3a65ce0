#include "tests/common/sim/ring_steps.h"

#include <stdlib.h>

/* A member of one ring. It has two flows, since its next chunk may leave while the previous one is still
 * being delivered. */
typedef struct ring_member {
    sim_ring_steps *steps;
    struct ring_member *next;
    sim_flow flows[2];
    sim_route edge;
    sim_time hop; /* Latency of the link to the next member of the ring. */
    int sent;     /* number of chunks that have begun to leave */
    int received;
    bool leaving; /* True while the last of the sent chunks has not completely left. */
} ring_member;

struct sim_ring_steps {
    sim_network *network;
    const sim_rings *rings;
    sim_protocol protocol;
    void (*done)(void *context);
    void *context;
    sim_event begin;
    ring_member *members; /* [count * ranks] */
    int total, unfinished;
    int chunks; /* Number of chunks that each member sends. */
    double chunk_bytes, latency_factor;
};

const char *sim_protocol_name(sim_protocol p)
{
    static const char *const names[] = {[SIM_LL] = "LL", [SIM_LL128] = "LL128", [SIM_SIMPLE] = "Simple"};
    return names[p];
}

sim_time sim_nccl_base(const sim_rings *r, sim_protocol p)
{
    return sim_from_us(sim_profile_at(r->topology->profile, SIM_NCCL_BASE_RING, p));
}

/* Bytes on the wire per byte of payload. */
static double wire_bytes(const sim_rings *r, sim_protocol p)
{
    sim_nccl_cost cost;
    sim_nccl_cost_of(r, SIM_ALL_REDUCE, SIM_RING, p, &cost);
    return r->bus / cost.bus;
}

static int member_count(const sim_rings *r)
{
    return r->count * r->ranks;
}

static bool may_send(const ring_member *m)
{
    return m->sent < m->steps->chunks && !m->leaving && m->received >= m->sent &&
           !sim_flow_busy(&m->flows[m->sent % 2]);
}

static void send_chunk(ring_member *m)
{
    sim_ring_steps *s = m->steps;
    if (!may_send(m)) return;
    sim_flow *flow = &m->flows[m->sent % 2];
    sim_time latency = (sim_time)llround((double)m->hop * s->latency_factor);
    m->sent++;
    m->leaving = true;
    sim_flow_start(flow, 0, m->edge.hops, m->edge.count, s->chunk_bytes, INFINITY, latency);
}

static void on_left(void *context)
{
    ring_member *m = context;
    m->leaving = false;
    send_chunk(m);
}

static void on_arrived(void *context)
{
    ring_member *m = context, *next = m->next;
    sim_ring_steps *s = m->steps;
    if (++next->received == s->chunks && --s->unfinished == 0) {
        s->done(s->context);
        return;
    }
    send_chunk(next);
    send_chunk(m); /* The flow of the chunk is free again. */
}

static void on_begin(void *context)
{
    sim_ring_steps *s = context;
    for (int i = 0; i < s->total; i++) send_chunk(&s->members[i]);
}

static status init_member(sim_ring_steps *s, int ring, int i)
{
    const sim_rings *r = s->rings;
    ring_member *first = &s->members[ring * r->ranks], *m = first + i;
    m->steps = s;
    m->next = first + (i + 1) % r->ranks;
    m->hop = sim_nccl_hop(r, s->protocol, sim_rings_crosses(r, ring, i));
    sim_rings_edge(r, ring, i, &m->edge);
    for (int h = 0; h < m->edge.count; h++) m->edge.hops[h].weight *= wire_bytes(r, s->protocol);
    for (int f = 0; f < 2; f++)
        TRY(sim_flow_init(s->network, &m->flows[f], i, m->edge.count, on_left, on_arrived, m));
    return STATUS_OK;
}

status sim_ring_steps_open(sim_network *network, const sim_rings *rings, sim_protocol protocol,
                           void (*done)(void *context), void *context, sim_ring_steps **out)
{
    *out = NULL;
    sim_ring_steps *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a ring of %d ranks", rings->ranks);
    *s = (sim_ring_steps){.network = network,
                          .rings = rings,
                          .protocol = protocol,
                          .done = done,
                          .context = context,
                          .total = member_count(rings),
                          .chunks = 2 * (rings->ranks - 1)};
    s->members = calloc((size_t)s->total, sizeof *s->members);
    status rc;
    if (!s->members) {
        rc = fail(STATUS_SYSTEM, "no memory for a ring of %d ranks", rings->ranks);
        goto failed;
    }
    TRY_GOTO(rc, sim_event_init(network->queue, &s->begin, 0, on_begin, s), failed);
    for (int i = 0; i < s->total; i++)
        TRY_GOTO(rc, init_member(s, i / rings->ranks, i % rings->ranks), failed);
    *out = s;
    return STATUS_OK;
failed:
    sim_ring_steps_close(&s);
    return rc;
}

void sim_ring_steps_close(sim_ring_steps **steps)
{
    sim_ring_steps *s = *steps;
    if (!s) return;
    for (int i = 0; s->members && i < s->total; i++)
        for (int f = 0; f < 2; f++) sim_flow_deinit(&s->members[i].flows[f]);
    sim_event_deinit(s->network->queue, &s->begin);
    free(s->members);
    free(s);
    *steps = NULL;
}

status sim_ring_steps_start(sim_ring_steps *s, double bytes)
{
    const sim_rings *r = s->rings;
    sim_nccl_cost cost;
    sim_nccl_cost_of(r, SIM_ALL_REDUCE, SIM_RING, s->protocol, &cost);
    if (cost.bandwidth == 0)
        return fail(STATUS_CONFIG, "a ring of %d ranks: expected a protocol of this machine, got %s",
                    r->ranks, sim_protocol_name(s->protocol));
    s->latency_factor = bytes >= cost.plateau_bytes ? cost.plateau : 1;
    s->chunk_bytes = bytes / (double)r->ranks / r->count;
    s->unfinished = s->total;
    for (int i = 0; i < s->total; i++) {
        ring_member *m = &s->members[i];
        m->sent = m->received = 0;
        m->leaving = false;
    }
    sim_time base = (sim_time)llround((double)sim_nccl_base(r, s->protocol) * s->latency_factor);
    sim_event_schedule(s->network->queue, &s->begin, s->network->queue->now + base);
    return STATUS_OK;
}
