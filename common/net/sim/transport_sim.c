#include "common/net/sim/transport_sim.h"

#include "common/net/transport_impl.h"
#include "common/sim/price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Functions that implement an interface rarely need all parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

typedef struct sim_transport sim_transport;
typedef struct sim_message sim_message;

typedef struct sim_hub {
    transport_hub base;
    simulation *simulation;
    sim_transport *transports;
    sim_message *spare, *all;
    bool stopped;
} sim_hub;

struct sim_message {
    sim_message *next, *next_of_all;
    sim_hub *hub;
    sim_transport *to;
    int link; /* number of the link in the receiver's transport */
    sim_flow flow;
    sim_time handed_over;
    double bytes;
    message_header header;
    transport_ticket *ticket;
    message_frame *frames; /* [capacity] */
    int capacity;
};

/* One direction of a connection. Messages leave one after another. */
typedef struct sim_way {
    sim_transport *to;
    int link;          /* number of the link in transport `to` */
    sim_hop_use *hops; /* [hop_count] */
    int hop_count;
    sim_time latency;
    /* queue of messages that have not left; the bytes of the first message are leaving */
    sim_message *first, *last;
    int on_the_way; /* number of messages that have been sent but not received yet */
} sim_way;

struct sim_transport {
    transport base;
    sim_hub *hub;
    sim_transport *next;
    char url[128];
    /* agent that receives messages from this transport, or NULL before the agent's first receive */
    sim_actor *owner;
    sim_way *ways; /* [2 * peers] */
    sim_message *inbox, *inbox_last;
    /* true if the last send found no room, so that the owner must be woken when there is room */
    bool refused;
};

/* ---- hub -------------------------------------------------------------------------------------- */

status transport_sim_hub_open(simulation *s, transport_hub **out)
{
    sim_hub *hub = calloc(1, sizeof *hub);
    if (!hub) return fail(STATUS_SYSTEM, "no memory for virtual messages");
    hub->base.type = &transport_sim;
    hub->simulation = s;
    *out = &hub->base;
    return STATUS_OK;
}

void transport_sim_hub_stop(transport_hub *hub)
{
    ((sim_hub *)hub)->stopped = true;
}

static void hub_close(transport_hub *base)
{
    sim_hub *hub = (sim_hub *)base;
    while (hub->all) {
        sim_message *m = hub->all;
        hub->all = m->next_of_all;
        sim_flow_deinit(&m->flow);
        free(m->frames);
        free(m);
    }
    free(hub);
}

/* ---- waking ----------------------------------------------------------------------------------- */

static sim_time present(const sim_hub *hub)
{
    const sim_actor *a = hub->simulation->current;
    return a ? a->time : simulation_now(hub->simulation);
}

static void wake(transport *base)
{
    sim_transport *t = (sim_transport *)base;
    if (t->owner && !t->hub->stopped) sim_actor_wake(t->owner, present(t->hub));
}

static status wait_for_nothing(transport *t, int64_t deadline_ns)
{
    return STATUS_OK;
}

/* ---- a message on its way --------------------------------------------------------------------- */

static sim_way *way_of(const sim_message *m)
{
    /* The receiver's way to the sender contains the number of the link in the sender's transport. */
    sim_way *back = &m->to->ways[m->link];
    return &back->to->ways[back->link];
}

static void leave_next(sim_way *w)
{
    sim_message *m = w->first;
    if (m) sim_flow_start(&m->flow, m->handed_over, w->hops, w->hop_count, m->bytes, INFINITY, w->latency);
}

/* Called when the last byte of a message has left. Releases the frames of the sender, as a real transport
 * does. */
static void on_left(void *context)
{
    sim_message *m = context;
    for (int i = 0; m->ticket && i < m->header.frames; i++) transport_frame_released(m->ticket);
    m->ticket = NULL;
    sim_way *w = way_of(m);
    w->first = m->next;
    if (!w->first) w->last = NULL;
    m->next = NULL;
    leave_next(w);
}

static void on_arrived(void *context)
{
    sim_message *m = context;
    sim_transport *t = m->to;
    if (t->inbox_last)
        t->inbox_last->next = m;
    else
        t->inbox = m;
    t->inbox_last = m;
    wake(&t->base);
}

static void put_back(sim_message *m)
{
    m->next = m->hub->spare;
    m->hub->spare = m;
}

/* Takes a message whose flow has room for the route of the way. */
static status take_message(sim_hub *hub, const sim_way *w, sim_message **out)
{
    sim_message *m = hub->spare;
    if (m) {
        hub->spare = m->next;
    } else {
        m = calloc(1, sizeof *m);
        if (!m) return fail(STATUS_SYSTEM, "no memory for a virtual message");
        m->hub = hub;
        m->next_of_all = hub->all;
        hub->all = m;
    }
    m->next = NULL;
    *out = m;
    if (m->flow.network && m->flow.hop_capacity >= w->hop_count) return STATUS_OK;
    sim_flow_deinit(&m->flow);
    status rc = sim_flow_init(&hub->simulation->network, &m->flow, 0, w->hop_count, on_left, on_arrived, m);
    m->flow.what = "message";
    if (rc != STATUS_OK) put_back(m);
    return rc;
}

static status copy_frames(sim_message *m, const message_frame *frames, int count)
{
    m->bytes = 0;
    if (count > m->capacity) {
        free(m->frames);
        m->capacity = 0;
        m->frames = malloc((size_t)count * sizeof *frames);
        if (!m->frames) return fail(STATUS_SYSTEM, "no memory for a virtual message");
        m->capacity = count;
    }
    for (int i = 0; i < count; i++) {
        m->frames[i] = frames[i];
        m->bytes += (double)frames[i].bytes;
    }
    return STATUS_OK;
}

/* Returns the host of an agent. Hosts are assigned to separate servers round robin, because there may be more
 * servers than ranks. */
static sim_place host_of(const sim_transport *t)
{
    const simulation *s = t->hub->simulation;
    return simulation_host(s, t->base.options.rank % s->config.world);
}

/* Returns the number of bytes that a message moves. If ranks compute on the CPU of one machine and read each
 * other's tensors, a message between these ranks moves no bytes. */
static double bytes_moved(const sim_hub *hub, const sim_transport *t, const sim_message *m)
{
    const simulation *s = hub->simulation;
    bool on_host = sim_profile_get(s->profile, SIM_SYNCHRONOUS) > 0;
    bool same = host_of(t).machine == host_of(m->to).machine;
    return on_host && same && t->base.options.in_sight ? 0 : m->bytes;
}

/* Advances the agent's local time by the cost of a message. */
static void spend(sim_hub *hub, const sim_way *w, const sim_transport *t, double bytes)
{
    sim_actor *a = hub->simulation->current;
    bool hides = sim_profile_get(hub->simulation->profile, SIM_SYNCHRONOUS) > 0 && !t->base.options.in_sight;
    bool copies = hides || host_of(t).machine != host_of(w->to).machine;
    if (a) sim_actor_spend(a, sim_price_message(hub->simulation->profile, copies ? bytes : 0));
}

static status room(transport *base, int link)
{
    sim_transport *t = (sim_transport *)base;
    const sim_way *w = &t->ways[link];
    if (w->to && w->on_the_way < t->base.options.window) return STATUS_OK;
    t->refused = true;
    return STATUS_AGAIN;
}

static status send(transport *base, int link, const message_header *header, const message_frame *frames,
                   int count, transport_ticket *ticket)
{
    sim_transport *t = (sim_transport *)base;
    sim_way *w = &t->ways[link];
    sim_message *m = NULL;
    TRY(take_message(t->hub, w, &m));
    m->to = w->to;
    m->link = w->link;
    m->header = *header;
    m->ticket = count > 0 ? ticket : NULL;
    status rc = copy_frames(m, frames, count);
    if (rc != STATUS_OK) {
        put_back(m);
        return rc;
    }
    m->bytes = bytes_moved(t->hub, t, m);
    spend(t->hub, w, t, m->bytes);
    m->handed_over = present(t->hub);
    w->on_the_way++;
    if (w->last) w->last->next = m;
    w->last = m;
    if (!w->first) {
        w->first = m;
        leave_next(w);
    }
    return STATUS_OK;
}

static status receive(transport *base, transport_message *out)
{
    sim_transport *t = (sim_transport *)base;
    if (t->hub->simulation->current) t->owner = t->hub->simulation->current;
    sim_message *m = t->inbox;
    if (!m) return STATUS_AGAIN;
    t->inbox = m->next;
    if (!t->inbox) t->inbox_last = NULL;
    m->next = NULL;
    sim_way *w = way_of(m);
    w->on_the_way--;
    sim_transport *sender = t->ways[m->link].to;
    if (sender->refused) {
        sender->refused = false;
        wake(&sender->base);
    }
    spend(t->hub, &t->ways[m->link], t, m->bytes);
    *out = (transport_message){.header = m->header, .link = m->link, .frames = m->frames, .slot = m};
    return STATUS_OK;
}

static void release(transport *base, transport_message *message)
{
    put_back(message->slot);
}

static status reserve(transport *t, int messages)
{
    return STATUS_OK;
}

/* ---- connections ------------------------------------------------------------------------------ */

static status open_transport(const transport_options *options, transport **out)
{
    sim_transport *t = calloc(1, sizeof *t);
    if (!t) return fail(STATUS_SYSTEM, "no memory for virtual messages");
    t->ways = calloc(2 * (size_t)options->peers, sizeof *t->ways);
    if (!t->ways) {
        free(t);
        return fail(STATUS_SYSTEM, "no memory for the links of %d virtual peers", options->peers);
    }
    t->hub = (sim_hub *)options->hub;
    t->next = t->hub->transports;
    t->hub->transports = t;
    *out = &t->base;
    return STATUS_OK;
}

/* Closes a transport. The hub keeps the messages of the transport, and does not deliver messages in
 * flight. */
static void close_transport(transport *base, int64_t flush_ns)
{
    sim_transport *t = (sim_transport *)base, **at = &t->hub->transports;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    for (int i = 0; i < 2 * t->base.options.peers; i++) {
        sim_way *w = &t->ways[i];
        if (w->to) w->to->ways[w->link].to = NULL;
        free(w->hops);
    }
    free(t->ways);
    transport_free(base);
}

static status listen_at(transport *base, const char *url, char *bound, size_t size)
{
    sim_transport *t = (sim_transport *)base;
    snprintf(t->url, sizeof t->url, "%s", url);
    if (bound) snprintf(bound, size, "%s", url);
    return STATUS_OK;
}

static sim_place place_of(const sim_transport *t)
{
    const simulation *s = t->hub->simulation;
    return t->base.options.device_memory ? simulation_gpu(s, t->base.options.rank) : host_of(t);
}

static status join(sim_transport *from, int link, sim_transport *to, int there)
{
    sim_way *w = &from->ways[link];
    sim_route route;
    sim_topology_route(from->hub->simulation->topology, place_of(from), place_of(to), &route);
    sim_hop_use *hops = realloc(w->hops, (size_t)(route.count + 1) * sizeof *hops);
    if (!hops) return fail(STATUS_SYSTEM, "no memory for a virtual route");
    memcpy(hops, route.hops, (size_t)route.count * sizeof *hops);
    w->hops = hops;
    w->hop_count = route.count;
    w->latency = route.latency;
    w->to = to;
    w->link = there;
    return STATUS_OK;
}

static status connect_to(transport *base, int link, const char *url)
{
    sim_transport *t = (sim_transport *)base, *server = t->hub->transports;
    while (server && strcmp(server->url, url) != 0) server = server->next;
    if (!server) return fail(STATUS_UNAVAILABLE, "nobody listens at %s", url);
    TRY(join(t, link, server, t->base.options.rank));
    return join(server, t->base.options.rank, t, link);
}

static bool up(const transport *base, int link)
{
    const sim_transport *t = (const sim_transport *)base;
    return !t->hub->stopped && t->ways[link].to;
}

const transport_type transport_sim = {
    .bytes_do_not_exist = true,
    .hub_close = hub_close,
    .open = open_transport,
    .close = close_transport,
    .listen = listen_at,
    .connect = connect_to,
    .up = up,
    .room = room,
    .send = send,
    .receive = receive,
    .release = release,
    .reserve = reserve,
    .wait = wait_for_nothing,
    .wake = wake,
};
