/* A server in a process of its own: opens it, joins the job and serves. */
#include "ps/ps.h"

#include "common/sync/engine.h"
#include "ps/handshake.h"
#include "ps/server/server.h"

#include <stdlib.h>

status ps_server_processes(const void *options, const char *policy, int world, int *out)
{
    ps_policy p;
    TRY(ps_policy_resolve(policy, options, world, &p));
    *out = ps_member_count(&p, world) - world;
    return STATUS_OK;
}

struct ps_server_process {
    ps_server_context context;
    const ps_server_context *c;
    ps_policy policy;
    ps_plan *plan;
    ps_member member;
    ps_server *server;
    sync_blob handshake;
    ps_group group;
    char url[PS_URL_MAX];
    net_adapter adapter;
};

static status open_server(ps_server_process *p)
{
    const ps_server_context *c = p->c;
    TRY(ps_policy_resolve(c->policy, c->options, c->world, &p->policy));
    if (c->index < 0 || c->index >= ps_member_count(&p->policy, c->world) - c->world)
        return fail(STATUS_CONFIG, "parameter server: expected an index from 0 to %d, got %d",
                    ps_member_count(&p->policy, c->world) - c->world - 1, c->index);
    if (c->divide != SHARED_DIVIDE_POLICY) p->policy.divide_before = c->divide == SHARED_DIVIDE_BEFORE;
    TRY(ps_plan_make(c->program, c->params, (int)p->policy.servers, p->policy.partition_bytes, &p->plan));
    p->member = (ps_member){.member = c->world + c->index,
                            .world = c->world,
                            .token = c->job_token,
                            .hub = c->hub,
                            .options = c->options,
                            .policy = &p->policy,
                            .servers = p->plan->server_count,
                            .frames = PS_KEY_PIECES,
                            .frame_bytes = ps_plan_largest_frame(p->plan, c->params),
                            .exported = {&c->params->params},
                            .export_count = 2,
                            .device = c->device,
                            .stall_timeout_ns = c->stall_timeout_ns,
                            .adapter = net_link_is_emulated(&c->link) ? &p->adapter : NULL};
    p->adapter.link = c->link;
    ps_server_config config = {.index = c->index,
                               .world = c->world,
                               .policy = &p->policy,
                               .plan = p->plan,
                               .device = c->device,
                               .params = c->params,
                               .optimizer = c->optimizer,
                               .ledger = c->ledger,
                               .threads = (int)((const ps_options *)c->options)->server_threads,
                               .stall_timeout_ns = c->stall_timeout_ns};
    transport_options options;
    const ps_shard *shard = &p->plan->shards[c->index];
    int64_t size = dtype_size(c->params->type);
    ledger_acquire(c->ledger, LEDGER_PARAMETERS, shard->elements * size, (shard->end - shard->begin) * size);
    TRY(ps_server_open(&config, &p->server));
    TRY(ps_transport_options(&p->member, c->index, &options));
    TRY(ps_server_open_port(p->server, &options));
    return ps_listen(&p->member, c->index, ps_server_port(p->server), p->url);
}

status ps_server_process_open(const ps_server_context *context, ps_server_process **out)
{
    *out = NULL;
    ps_server_process *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a parameter server");
    p->context = *context;
    p->c = &p->context;
    status rc = open_server(p);
    if (rc != STATUS_OK) ps_server_process_close(&p);
    *out = p;
    return rc;
}

status ps_server_process_handshake(ps_server_process *p, sync_blob *out)
{
    const ps_server_context *c = p->c;
    ps_handshake_own own;
    TRY(ps_describe_member(&p->member, c->params->params.fd >= 0, p->url, &own));
    free(p->handshake.data);
    p->handshake = (sync_blob){0};
    TRY(ps_handshake_make(&own, c->world, c->policy, &p->policy, c->options, c->params, c->optimizer, &p->handshake));
    *out = p->handshake;
    return STATUS_OK;
}

status ps_server_process_join(ps_server_process *p, const sync_blob *handshakes)
{
    const ps_server_context *c = p->c;
    TRY(ps_join(&p->member, &p->handshake, handshakes, &p->group));
    for (int w = 0; p->group.segments && w < c->world; w++) {
        ps_server_map_worker(p->server, w, ps_group_segment(&p->member, &p->group, w, PS_SEGMENT_PARAMS),
                      ps_group_segment(&p->member, &p->group, w, PS_SEGMENT_GRADS));
    }
    if (!p->policy.server_optimizer) return STATUS_OK;
    const ps_shard *shard = &p->plan->shards[c->index];
    optimizer_begin_shard(c->optimizer, shard->elements, shard->end - shard->begin);
    return STATUS_OK;
}

status ps_server_process_start(ps_server_process *p)
{
    return ps_server_start(p->server);
}

void ps_server_process_close(ps_server_process **pointer)
{
    ps_server_process *p = *pointer;
    if (!p) return;
    ps_server_close(&p->server);
    ps_leave(&p->member, &p->group);
    free(p->handshake.data);
    ps_plan_free(&p->plan);
    free(p);
    *pointer = NULL;
}

status ps_server_main(const ps_server_context *context)
{
    ps_server_process *p = NULL;
    sync_blob mine;
    const sync_blob *handshakes;
    status rc;
    TRY_GOTO(rc, ps_server_process_open(context, &p), out);
    TRY_GOTO(rc, ps_server_process_handshake(p, &mine), out);
    TRY_GOTO(rc, context->exchange(context->exchange_context, mine, &handshakes), out);
    TRY_GOTO(rc, ps_server_process_join(p, handshakes), out);
    rc = ps_server_serve(p->server);
out:
    ps_server_process_close(&p);
    return rc;
}
