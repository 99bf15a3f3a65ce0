#include "ps/handshake.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/device/sim/device_sim.h"
#include "common/net/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINE "psring parameter server 4"
enum { OWN_LINES = 5, LINE_MAX = 1536 };
_Static_assert(LINE_MAX > 2 * COLLECTIVE_BOOTSTRAP_BYTES + 16, "a line must hold what NCCL needs");
enum { WINDOW = 64, LONGEST_TEXT = 4096 };

/* ---- lines of text ---------------------------------------------------------------------------- */

static void describe_policy(text_buffer *t, const ps_member *m)
{
    const ps_policy *p = m->policy;
    text_append(t, "policy %s\nconsistency %d, staleness %" PRId64 "\n", m->context->policy,
                (int)p->consistency, p->staleness);
    text_append(t, "partition-bytes %" PRId64 "\npriority %d\n", p->partition_bytes, (int)p->priority);
    text_append(t, "servers %" PRId64 ", placement %d\n", p->servers, (int)p->placement);
    text_append(t, "server-optimizer %s\ndivide %s\n", p->server_optimizer ? "on" : "off",
                p->divide_before ? "before" : "after");
    if (p->consistency == PS_DATA_PARALLEL)
        text_append(t, "chunks %" PRId64 " and %" PRId64 ", loss %d\n", p->replicate_bytes, p->reduce_bytes,
                    (int)p->loss);
    text_append(t, "payload %d, transport %d\n", m->options->payload, m->options->transport);
}

static void describe_optimizer(text_buffer *t, const optimizer_options *o)
{
    text_append(t, "optimizer %d, momentum %.17g, dampening %.17g, nesterov %d, weight-decay %.17g\n",
                o->kind, o->momentum, o->dampening, o->nesterov, o->weight_decay);
    text_append(t, "optimizer beta1 %.17g, beta2 %.17g, eps %.17g, clip-norm %.17g\n", o->beta1, o->beta2,
                o->eps, o->clip_norm);
}

static void describe_params(text_buffer *t, const param_set *set)
{
    char shape[64];
    text_append(t, "device %s\n", device_get_info(set->device)->name);
    for (int i = 0; i < set->model->param_count; i++) {
        const nn_param *p = &set->model->params[i];
        text_append(t, "parameter %d: %s %s %s%s\n", i, p->name, shape_format(shape, sizeof shape, p->shape),
                    dtype_name(set->type), set->layouts[i].plain ? "" : ", in the device's layout");
    }
    for (int i = 0; i < set->model->buffer_count; i++)
        text_append(t, "buffer %d: %s %" PRId64 "\n", i, set->model->buffers[i].name,
                    set->model->buffers[i].elements);
}

status ps_handshake_make(const ps_member *m, const ps_handshake_own *own, sync_blob *out)
{
    text_buffer t = {0};
    text_append(&t, FIRST_LINE "\nhost %016" PRIx64 "\nshared %d\nurl %s\nnccl ", own->host, own->shared,
                own->url);
    if (own->has_nccl) collective_bootstrap_write(own->nccl, &t);
    text_append(&t, "\nranks %d\n", m->context->world);
    describe_policy(&t, m);
    describe_optimizer(&t, optimizer_get_options(m->context->optimizer));
    describe_params(&t, m->context->params);
    if (t.out_of_memory) {
        text_free(&t);
        return fail(STATUS_SYSTEM, "no memory for the handshake of parameter servers and ranks");
    }
    *out = (sync_blob){t.data, t.length};
    return STATUS_OK;
}

/* Copies the line that begins at offset `at`, and returns the offset of the next line. */
static size_t read_line(const sync_blob *b, size_t at, char line[LINE_MAX])
{
    const char *text = b->data;
    size_t length = 0;
    while (at < b->bytes && text[at] != '\n') {
        if (length + 1 < LINE_MAX) line[length++] = text[at];
        at++;
    }
    line[length] = '\0';
    return at < b->bytes ? at + 1 : at;
}

/* Reads "nccl 00ff...", or "nccl " if there is no id. */
static bool read_nccl(const char *line, ps_handshake_own *own)
{
    if (strncmp(line, "nccl ", 5) != 0) return false;
    own->has_nccl = line[5] != '\0';
    if (!own->has_nccl) return true;
    return strlen(line + 5) == 2 * COLLECTIVE_BOOTSTRAP_BYTES &&
           collective_bootstrap_read(line + 5, own->nccl);
}

status ps_handshake_read(const sync_blob *handshake, const char *who, ps_handshake_own *own)
{
    char lines[OWN_LINES][LINE_MAX];
    size_t at = 0;
    int shared = 0;
    for (int i = 0; i < OWN_LINES; i++) at = read_line(handshake, at, lines[i]);
    if (strcmp(lines[0], FIRST_LINE) != 0 || sscanf(lines[1], "host %" SCNx64, &own->host) != 1 ||
        sscanf(lines[2], "shared %d", &shared) != 1 || strncmp(lines[3], "url ", 4) != 0 ||
        !read_nccl(lines[4], own))
        return fail(STATUS_PROTOCOL, "%s: expected '" FIRST_LINE "', got '%s'", who, lines[0]);
    own->shared = shared;
    snprintf(own->url, sizeof own->url, "%s", lines[3] + 4);
    return STATUS_OK;
}

/* Returns true if all lines after the first OWN_LINES are equal. */
static bool have_equal_rest(const sync_blob *a, const sync_blob *b)
{
    const char *in_a = a->data, *in_b = b->data, *end_a = in_a + a->bytes, *end_b = in_b + b->bytes;
    for (int i = 0; i < OWN_LINES && in_a && in_b; i++) {
        in_a = memchr(in_a, '\n', (size_t)(end_a - in_a));
        in_b = memchr(in_b, '\n', (size_t)(end_b - in_b));
        if (in_a) in_a++;
        if (in_b) in_b++;
    }
    return in_a && in_b && end_a - in_a == end_b - in_b && memcmp(in_a, in_b, (size_t)(end_a - in_a)) == 0;
}

status ps_handshake_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who)
{
    char a[LINE_MAX], b[LINE_MAX];
    size_t at = 0, there = 0;
    if (have_equal_rest(mine, other)) return STATUS_OK;
    for (int line = 0; at < mine->bytes || there < other->bytes; line++) {
        at = read_line(mine, at, a);
        there = read_line(other, there, b);
        if (line < OWN_LINES || strcmp(a, b) == 0) continue;
        return fail(STATUS_PROTOCOL, "%s and %s do not fit together: found '%s' and '%s'", me, who,
                    *a ? a : "nothing more", *b ? b : "nothing more");
    }
    return STATUS_OK;
}

/* ---- members ---------------------------------------------------------------------------------- */

int ps_member_count(const ps_policy *policy, int world)
{
    return world + (policy->placement == PS_PLACEMENT_OWN ? (int)policy->servers : 0);
}

static int members(const ps_member *m)
{
    return ps_member_count(m->policy, m->context->world);
}

static int segments(const ps_member *m)
{
    return members(m) * m->export_count;
}

static const char *name_member(const ps_member *m, int member, char *text, size_t size)
{
    int world = m->context->world;
    if (member < world)
        snprintf(text, size, "rank %d", member);
    else
        snprintf(text, size, "parameter server %d", member - world);
    return text;
}

/* ---- addresses -------------------------------------------------------------------------------- */

static ps_transport transport_kind(const ps_member *m)
{
    ps_transport asked = (ps_transport)m->options->transport;
    if (asked != PS_TRANSPORT_AUTO) return asked;
    if (m->context->hub) return PS_TRANSPORT_INPROC;
    return m->context->host_address ? PS_TRANSPORT_TCP : PS_TRANSPORT_IPC;
}

status ps_transport_options(ps_member *m, int number, transport_options *out)
{
    const sync_context *c = m->context;
    if (transport_kind(m) == PS_TRANSPORT_INPROC && !c->hub)
        return fail(STATUS_CONFIG,
                    "--transport: expected ipc or tcp where every rank has a process, got inproc");
    int peers = c->world > m->servers ? c->world : m->servers;
    *out = transport_defaults(number, peers, c->job_token,
                              m->frame_bytes > LONGEST_TEXT ? m->frame_bytes : LONGEST_TEXT);
    out->frames = m->frames;
    out->window = WINDOW;
    out->hub = c->hub;
    out->in_sight = m->options->payload != PS_PAYLOAD_ZMQ;
    m->adapter.link = c->link;
    out->adapter = &m->adapter;
    return STATUS_OK;
}

status ps_listen(ps_member *m, int server, ps_port *port)
{
    char asked[PS_URL_MAX];
    const char *address = m->context->host_address;
    bool is_local = strcmp(m->options->interface, "lo") == 0; /* the default */
    ps_transport kind = transport_kind(m);
    if (kind == PS_TRANSPORT_TCP)
        snprintf(asked, sizeof asked, "tcp://%s:*", is_local && address ? address : m->options->interface);
    else
        snprintf(asked, sizeof asked, "%spsring-%016" PRIx64 "-%d",
                 kind == PS_TRANSPORT_INPROC ? "inproc://" : "ipc://@", random_token(), server);
    TRY(transport_listen(port->transport, asked, m->url, PS_URL_MAX));
    for (int w = 0; w < port->peers; w++)
        if (w != port->partner) port->links[w] = w;
    return STATUS_OK;
}

status ps_connect_port(ps_member *m, ps_port *port, int server, const char **url)
{
    char *address = m->urls[server];
    const char *key = net_address_key(address);
    TRY(transport_connect(port->transport, server, address, &port->links[server]));
    /* The key is a secret, so error messages show the address without the key. */
    if (key) address[key - 1 - address] = '\0';
    *url = address;
    return STATUS_OK;
}

/* ---- joining ------------------------------------------------------------------------------ */

/* Reads and compares the handshakes. Sets *one_host to true if all members are on one host, and *shared to
 * true if in addition the arenas of all members can be mapped. */
static status read_handshakes(ps_member *m, const sync_blob *handshakes, bool *one_host, bool *shared)
{
    char me[32], who[32];
    name_member(m, m->context->rank, me, sizeof me);
    bool own_servers = m->policy->placement == PS_PLACEMENT_OWN;
    uint64_t host = 0;
    *one_host = *shared = true;
    for (int i = 0; i < members(m); i++) {
        ps_handshake_own own = {0};
        name_member(m, i, who, sizeof who);
        TRY(ps_handshake_read(&handshakes[i], who, &own));
        TRY(ps_handshake_compare(&m->handshake, me, &handshakes[i], who));
        if (i == 0) host = own.host;
        if (i == 0) memcpy(m->nccl_id, own.nccl, sizeof m->nccl_id);
        *one_host = *one_host && own.host == host;
        *shared = *shared && own.shared;
        int server = own_servers ? i - m->context->world : i;
        if (server < 0 || server >= m->servers) continue;
        if (own.url[0] == '\0')
            return fail(STATUS_PROTOCOL, "%s sent no address of its parameter server", who);
        memcpy(m->urls[server], own.url, sizeof own.url);
    }
    *shared = *shared && *one_host;
    return STATUS_OK;
}

/* Decides whether tensors go through shared memory. `one_host` and `possible` are results of
 * read_handshakes(). */
static status decide_sharing(const ps_member *m, bool one_host, bool possible, bool *shares)
{
    ps_payload payload = (ps_payload)m->options->payload;
    bool paced = net_link_is_emulated(&m->context->link);
    /* In virtual time, a device that computes in host memory needs no segments, so "shm" means the same as
     * "auto". */
    if (payload == PS_PAYLOAD_SHM && sim_device_is_host(m->context->device)) payload = PS_PAYLOAD_AUTO;
    if (payload == PS_PAYLOAD_NCCL && paced)
        return fail(STATUS_CONFIG, "--payload: expected zmq, got nccl: only messages can be paced (--link)");
    if (!one_host && transport_kind(m) != PS_TRANSPORT_TCP)
        return fail(STATUS_CONFIG, "--transport: expected tcp with ranks on several hosts, got %s",
                    m->context->hub ? "inproc" : "ipc");
    if (payload == PS_PAYLOAD_SHM && paced)
        return fail(STATUS_CONFIG,
                    "--payload: expected zmq with --link, got shm: only messages can be paced");
    if (payload == PS_PAYLOAD_SHM && !possible)
        return fail(STATUS_CONFIG, "--payload: expected zmq, got shm: %s",
                    one_host ? "the device's memory cannot be shared" : "ranks run on several hosts");
    /* Between threads shared memory is not needed, because a frame points to the sender's memory. */
    *shares = possible && !paced && (payload == PS_PAYLOAD_AUTO || payload == PS_PAYLOAD_SHM) &&
              (payload == PS_PAYLOAD_SHM || !m->context->hub);
    return STATUS_OK;
}

/* Returns the memory of segment `index`, or the memory of the parameters if the member does not have this
 * segment. */
static shm_segment segment_of(const ps_member *m, int index)
{
    const device_memory *memory = m->exported[index] ? m->exported[index] : m->exported[PS_SEGMENT_PARAMS];
    return (shm_segment){.fd = memory->fd, .data = memory->data, .bytes = (int64_t)memory->bytes};
}

static status exchange_arenas(ps_member *m)
{
    shm_segment own[PS_SEGMENTS];
    for (int i = 0; i < m->export_count; i++) own[i] = segment_of(m, i);
    shm_exchange_options options = {.name = "ps",
                                    .token = m->context->job_token,
                                    .rank = m->context->rank,
                                    .world = members(m),
                                    .own = own,
                                    .count = m->export_count,
                                    .deadline_ns = clock_now_ns() + m->context->stall_timeout_ns,
                                    .canceled = m->context->canceled,
                                    .context = m->context->canceled_context};
    m->segments = calloc((size_t)segments(m), sizeof *m->segments);
    if (!m->segments) return fail(STATUS_SYSTEM, "no memory for the arenas of %d ranks", members(m));
    return shm_exchange(&options, m->segments);
}

status ps_make_handshake(ps_member *m, sync_blob *out)
{
    ps_handshake_own own = {.host = shm_host_id(), .shared = true, .has_nccl = m->nccl};
    memcpy(own.url, m->url, sizeof own.url);
    for (int i = 0; i < m->export_count; i++)
        own.shared = own.shared && (!m->exported[i] || m->exported[i]->fd >= 0);
    if (m->nccl && m->context->rank == 0) TRY(collective_nccl_bootstrap(own.nccl));
    free(m->handshake.data);
    m->handshake = (sync_blob){0};
    TRY(ps_handshake_make(m, &own, &m->handshake));
    *out = m->handshake;
    return STATUS_OK;
}

status ps_join(ps_member *m, const sync_blob *handshakes)
{
    bool one_host, possible, shares = false;
    m->urls = calloc((size_t)m->servers, sizeof *m->urls);
    if (!m->urls) return fail(STATUS_SYSTEM, "no memory for the addresses of %d ranks", m->context->world);
    TRY(read_handshakes(m, handshakes, &one_host, &possible));
    TRY(decide_sharing(m, one_host, possible, &shares));
    return shares && members(m) > 1 ? exchange_arenas(m) : STATUS_OK;
}

void ps_leave(ps_member *m)
{
    for (int i = 0; m->segments && i < segments(m); i++) shm_close(&m->segments[i]);
    free(m->segments);
    free(m->urls);
    free(m->handshake.data);
}

status ps_pin_segments(const ps_member *m, device *d, int first, int end, int stride, bool pin)
{
    for (int i = first; m->segments && i < end; i += stride) {
        const shm_segment *s = &m->segments[i];
        if (!s->data) continue;
        if (pin)
            TRY(device_pin(d, s->data, (size_t)s->bytes));
        else
            device_unpin(d, s->data);
    }
    return STATUS_OK;
}
