#include "ps/connect.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/device/sim/device_sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, LONGEST_TEXT = 4096 };

int ps_member_count(const ps_policy *policy, int world)
{
    return world + (policy->placement == PS_PLACEMENT_OWN ? (int)policy->servers : 0);
}

static const char *name_member(const ps_member *m, int member, char *text, size_t size)
{
    if (member < m->world) snprintf(text, size, "rank %d", member);
    else snprintf(text, size, "parameter server %d", member - m->world);
    return text;
}

/* ---- addresses -------------------------------------------------------------------------------- */

static ps_transport transport_kind(const ps_member *m)
{
    ps_transport asked = (ps_transport)m->options->transport;
    if (asked != PS_TRANSPORT_AUTO) return asked;
    return m->hub ? PS_TRANSPORT_INPROC : PS_TRANSPORT_IPC;
}

static int64_t leave_ns(void *context, int peer, int64_t bytes, int64_t now_ns)
{
    (void)peer;
    return net_adapter_send(context, bytes, now_ns);
}

static int64_t come_in_ns(void *context, int peer, int64_t bytes, int64_t now_ns)
{
    (void)peer;
    return net_adapter_receive(context, bytes, now_ns);
}

status ps_transport_options(const ps_member *m, int number, transport_options *out)
{
    if (transport_kind(m) == PS_TRANSPORT_INPROC && !m->hub)
        return fail(STATUS_CONFIG, "--transport: expected ipc or tcp where every rank has a process, got inproc");
    int peers = m->world > m->servers ? m->world : m->servers;
    *out = transport_defaults(number, peers, m->token, m->frame_bytes > LONGEST_TEXT ? m->frame_bytes : LONGEST_TEXT);
    out->frames = m->frames;
    out->window = WINDOW;
    out->hub = m->hub;
    out->in_sight = m->options->payload != PS_PAYLOAD_ZMQ;
    if (m->adapter) out->pacer = (transport_pacer){leave_ns, come_in_ns, m->adapter};
    return STATUS_OK;
}

status ps_listen(const ps_member *m, int server, ps_port *port, char *url)
{
    char asked[PS_URL_MAX];
    switch (transport_kind(m)) {
    case PS_TRANSPORT_TCP: snprintf(asked, sizeof asked, "tcp://%s:*", m->options->interface); break;
    case PS_TRANSPORT_INPROC: snprintf(asked, sizeof asked, "inproc://psring-%016" PRIx64 "-%d", random_token(), server); break;
    default: snprintf(asked, sizeof asked, "ipc://@psring-%016" PRIx64 "-%d", random_token(), server); break;
    }
    TRY(transport_listen(port->transport, asked, url, PS_URL_MAX));
    for (int w = 0; w < port->peers; w++)
        if (w != port->partner) port->links[w] = w;
    return STATUS_OK;
}

/* ---- memory of GPUs --------------------------------------------------------------------------- */

static bool asks_for_peers(const ps_member *m)
{
    return m->options->payload == PS_PAYLOAD_P2P;
}

/* What is nowhere is shown as something that is there. */
static const device_memory *shown(const ps_member *m, int index)
{
    return m->shown[index] ? m->shown[index] : m->shown[PS_SEGMENT_PARAMS];
}

static status refuse_peers(status rc)
{
    if (rc == STATUS_CONFIG) error_context("--payload p2p: take shm or zmq");
    return rc;
}

status ps_describe(const ps_member *m, bool shared, const char *url, ps_offer_own *out)
{
    *out = (ps_offer_own){.host = shm_host_id(), .shared = shared, .url = url};
    if (!asks_for_peers(m)) return STATUS_OK;
    for (int i = 0; i < m->shown_count; i++)
        TRY(refuse_peers(device_share_memory(m->device, shown(m, i), &out->shares[i])));
    out->share_count = m->shown_count;
    return STATUS_OK;
}

status ps_peers_open(const ps_member *m, ps_meeting *meeting)
{
    for (int i = 0; meeting->peers && i < ps_member_count(m->policy, m->world) * m->shown_count; i++) {
        if (i / m->shown_count == m->member || meeting->peers[i].data) continue;
        TRY(refuse_peers(device_peer_open(m->device, &meeting->shares[i], &meeting->peers[i])));
    }
    return STATUS_OK;
}

void ps_peers_close(const ps_member *m, ps_meeting *meeting)
{
    for (int i = 0; meeting->peers && i < ps_member_count(m->policy, m->world) * m->shown_count; i++)
        device_peer_close(m->device, &meeting->peers[i]);
}

/* ---- the meeting ------------------------------------------------------------------------------ */

/* What all members' own lines come to. */
typedef struct circumstances {
    bool one_host, all_shared;
    uint64_t host;
} circumstances;

static status read_offers(const ps_member *m, const sync_blob *mine, const sync_blob *offers, ps_meeting *out,
                          circumstances *all)
{
    char me[32], who[32], url[PS_URL_MAX];
    name_member(m, m->member, me, sizeof me);
    bool own_servers = m->policy->placement == PS_PLACEMENT_OWN;
    *all = (circumstances){.one_host = true, .all_shared = true};
    for (int i = 0; i < ps_member_count(m->policy, m->world); i++) {
        ps_offer_own own = {0};
        name_member(m, i, who, sizeof who);
        TRY(ps_offer_read(&offers[i], who, &own, url, sizeof url));
        TRY(ps_offer_compare(mine, me, &offers[i], who));
        if (out->shares && own.share_count != m->shown_count)
            return fail(STATUS_CONFIG, "--payload: expected shm or zmq, got p2p: %s shares no memory of a GPU", who);
        for (int s = 0; out->shares && s < m->shown_count; s++) out->shares[i * m->shown_count + s] = own.shares[s];
        if (i == 0) all->host = own.host;
        all->one_host = all->one_host && own.host == all->host;
        all->all_shared = all->all_shared && own.shared;
        int server = own_servers ? i - m->world : i;
        if (server < 0 || server >= m->servers) continue;
        if (url[0] == '\0') return fail(STATUS_PROTOCOL, "%s offers no address of its parameter server", who);
        memcpy(out->urls[server], url, sizeof url);
    }
    return STATUS_OK;
}

static status decide_sharing(const ps_member *m, const circumstances *all, bool *shares)
{
    ps_payload payload = (ps_payload)m->options->payload;
    bool possible = all->one_host && all->all_shared;
    if (payload == PS_PAYLOAD_SHM && sim_device_is_host(m->device)) payload = PS_PAYLOAD_AUTO; /* who needs no segments */
    if (payload == PS_PAYLOAD_P2P && (m->adapter || !all->one_host))
        return fail(STATUS_CONFIG, "--payload: expected zmq, got p2p: %s",
                    m->adapter ? "only messages can be paced (--link)" : "ranks run on several hosts");
    if (!all->one_host && transport_kind(m) != PS_TRANSPORT_TCP)
        return fail(STATUS_CONFIG, "--transport: expected tcp with ranks on several hosts, got %s",
                    m->hub ? "inproc" : "ipc");
    if (payload == PS_PAYLOAD_SHM && m->adapter)
        return fail(STATUS_CONFIG, "--payload: expected zmq with --link, got shm: only messages can be paced");
    if (payload == PS_PAYLOAD_SHM && !possible)
        return fail(STATUS_CONFIG, "--payload: expected zmq, got shm: %s",
                    all->one_host ? "the device's memory cannot be shared" : "ranks run on several hosts");
    /* Among threads a frame is the sender's memory already. */
    *shares = possible && !m->adapter && (payload == PS_PAYLOAD_AUTO || payload == PS_PAYLOAD_SHM) && (payload == PS_PAYLOAD_SHM || !m->hub);
    return STATUS_OK;
}

static shm_segment segment_of(const ps_member *m, int index)
{
    const device_memory *memory = shown(m, index);
    return (shm_segment){.fd = memory->fd, .data = memory->data, .bytes = (int64_t)memory->bytes};
}

static status exchange_arenas(const ps_member *m, ps_meeting *out)
{
    int members = ps_member_count(m->policy, m->world);
    shm_segment own[PS_SEGMENTS];
    for (int i = 0; i < m->shown_count; i++) own[i] = segment_of(m, i);
    shm_exchange_options options = {.name = "ps",
                                    .token = m->token,
                                    .rank = m->member,
                                    .world = members,
                                    .own = own,
                                    .count = m->shown_count,
                                    .deadline_ns = clock_now_ns() + m->stall_timeout_ns};
    out->segments = calloc((size_t)(members * m->shown_count), sizeof *out->segments);
    if (!out->segments) return fail(STATUS_SYSTEM, "no memory for the arenas of %d ranks", members);
    return shm_exchange(&options, out->segments);
}

static status open_peer_tables(const ps_member *m, ps_meeting *out)
{
    size_t count = (size_t)(ps_member_count(m->policy, m->world) * m->shown_count);
    if (!asks_for_peers(m)) return STATUS_OK;
    out->shares = calloc(count, sizeof *out->shares);
    out->peers = calloc(count, sizeof *out->peers);
    return out->shares && out->peers ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for what %d ranks show", m->world);
}

status ps_meet(const ps_member *m, const sync_blob *mine, const sync_blob *offers, ps_meeting *out)
{
    *out = (ps_meeting){.urls = calloc((size_t)m->servers, sizeof *out->urls)};
    if (!out->urls) return fail(STATUS_SYSTEM, "no memory for %d addresses", m->servers);
    circumstances all;
    bool shares = false;
    status rc;
    TRY_GOTO(rc, open_peer_tables(m, out), failed);
    TRY_GOTO(rc, read_offers(m, mine, offers, out, &all), failed);
    TRY_GOTO(rc, decide_sharing(m, &all, &shares), failed);
    if (shares && ps_member_count(m->policy, m->world) > 1) TRY_GOTO(rc, exchange_arenas(m, out), failed);
    TRY_GOTO(rc, ps_peers_open(m, out), failed);
    return STATUS_OK;
failed:
    ps_part(m, out);
    return rc;
}

void ps_part(const ps_member *m, ps_meeting *meeting)
{
    for (int i = 0; meeting->segments && i < ps_member_count(m->policy, m->world) * m->shown_count; i++)
        shm_close(&meeting->segments[i]);
    ps_peers_close(m, meeting);
    free(meeting->segments);
    free(meeting->shares);
    free(meeting->peers);
    free(meeting->urls);
    *meeting = (ps_meeting){0};
}

status ps_pin_segments(const ps_meeting *meeting, device *d, int first, int end, int stride, int index, bool pin)
{
    for (int i = first + index; meeting->segments && i < end; i += stride) {
        const shm_segment *s = &meeting->segments[i];
        if (!s->data) continue;
        if (pin) TRY(device_pin(d, s->data, (size_t)s->bytes));
        else device_unpin(d, s->data);
    }
    return STATUS_OK;
}

void *ps_meeting_segment(const ps_member *m, const ps_meeting *meeting, int member, int segment)
{
    int index = member * m->shown_count + segment;
    if (meeting->peers) return meeting->peers[index].data;
    return meeting->segments ? meeting->segments[index].data : NULL;
}
