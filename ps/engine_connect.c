/* The engine's set-up: ports, handshakes, arenas in sight, agents. */
#include "ps/engine_impl.h"

#include <stdlib.h>

status ps_engine_open_ports(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    e->adapter.link = c->link;
    e->member = (ps_member){.member = c->rank,
                            .world = c->world,
                            .token = c->job_token,
                            .hub = c->hub,
                            .options = e->options,
                            .policy = &e->policy,
                            .servers = e->plan->server_count,
                            .frames = PS_KEY_PIECES,
                            .frame_bytes = ps_plan_largest_frame(e->plan, c->params),
                            .exported = {&c->params->params, &c->params->grads},
                            .export_count = 2,
                            .device = c->device,
                            .stall_timeout_ns = c->stall_timeout_ns,
                            .adapter = net_link_is_emulated(&c->link) ? &e->adapter : NULL};
    transport_options options;
    TRY(ps_transport_options(&e->member, c->rank, &options));
    options.device_memory = true;
    TRY(ps_worker_open_port(e->worker, &options));
    if (!e->server) return STATUS_OK;
    options.device_memory = false; /* servers work in the host's memory */
    TRY(ps_server_open_port(e->server, &options));
    ps_port *server = ps_server_port(e->server), *worker = ps_worker_port(e->worker);
    server->other = worker;
    worker->other = server;
    return ps_listen(&e->member, c->rank, server, e->url);
}

status ps_engine_handshake(sync_engine *base, sync_blob *out)
{
    ps_engine *e = (ps_engine *)base;
    const sync_context *c = &base->context;
    ps_handshake_own own;
    TRY(ps_describe_member(&e->member, c->params->params.fd >= 0 && c->params->grads.fd >= 0, e->url, &own));
    free(e->handshake.data);
    e->handshake = (sync_blob){0};
    TRY(ps_handshake_make(&own, c->world, c->policy, &e->policy, e->options, c->params, c->optimizer, &e->handshake));
    *out = e->handshake;
    return STATUS_OK;
}

/* Whether this worker copies parameters out of the server's arena; else what it gets is put in place, or
 * comes in frames. */
static bool copies_from_servers(const ps_engine *e)
{
    return e->policy.consistency == PS_SYNC && e->policy.server_optimizer;
}

static void map_workers(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    for (int w = 0; w < c->world; w++) {
        void *params = ps_group_segment(&e->member, &e->group, w, PS_SEGMENT_PARAMS);
        void *grads = ps_group_segment(&e->member, &e->group, w, PS_SEGMENT_GRADS);
        if (w == c->rank) ps_server_map_worker(e->server, w, c->params->params.data, c->params->grads.data);
        else if (params) ps_server_map_worker(e->server, w, params, grads);
    }
}

static status connect_servers(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    bool own = e->policy.placement == PS_PLACEMENT_OWN;
    for (int j = 0; j < e->plan->server_count; j++) {
        if (e->server && j == c->rank) {
            ps_worker_map_server(e->worker, j, NULL, true);
            continue;
        }
        TRY(ps_worker_connect(e->worker, j, e->group.urls[j]));
        if (!e->group.segments && !e->group.peers) continue;
        int member = own ? c->world + j : j;
        const void *params = ps_group_segment(&e->member, &e->group, member, PS_SEGMENT_PARAMS);
        ps_worker_map_server(e->worker, j, copies_from_servers(e) ? params : NULL, true);
    }
    return STATUS_OK;
}

status ps_engine_pin_gradients(ps_engine *e, bool pin)
{
    const sync_context *c = &e->base.context;
    return ps_pin_segments(&e->group, c->front->device, 0, c->world * e->member.export_count, e->member.export_count,
                           PS_SEGMENT_GRADS, pin);
}

status ps_engine_connect(sync_engine *base, const sync_blob *handshakes)
{
    ps_engine *e = (ps_engine *)base;
    TRY(ps_join(&e->member, &e->handshake, handshakes, &e->group));
    if (e->server && base->context.front) TRY(ps_engine_pin_gradients(e, true));
    if (e->server) {
        map_workers(e);
        TRY(ps_server_start(e->server));
    }
    TRY(connect_servers(e));
    TRY(ps_worker_start(e->worker));
    e->connected = true;
    return STATUS_OK;
}
