/* The functions of the engine that the harness calls. The engine has a worker on every rank, and a server
 * on some ranks. */
#include "ps/engine_impl.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/status_table.h"
#include "common/sync/staging.h"
#include "ps/dataparallel/dataparallel.h"

#include <stdlib.h>
#include <string.h>

static ps_engine *engine_of(sync_engine *e)
{
    return (ps_engine *)e;
}

/* ---- requirements on arenas ------------------------------------------------------------- */

/* Returns LEDGER_REPLICAS if ranks compute on copies of the servers' parameters. There are no copies if ranks
 * update parameters themselves. There are also no copies under sync with one rank, because the server then
 * updates the rank's parameters in place. */
static ledger_class class_of_params(const ps_policy *p, int world)
{
    bool theirs = !p->server_optimizer ||
                  (world == 1 && p->placement == PS_PLACEMENT_RANK && p->consistency == PS_SYNC);
    return theirs ? LEDGER_PARAMETERS : LEDGER_REPLICAS;
}

static status ps_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    const ps_options *o = options;
    ps_policy p;
    TRY(ps_policy_resolve(policy, o, world, &p));
    if (p.consistency == PS_DATA_PARALLEL) {
        *out = ps_dp_requirements(o, &p);
        return STATUS_OK;
    }
    device_memory_kind kind = o->payload == PS_PAYLOAD_ZMQ ? DEVICE_MEMORY_PRIVATE : DEVICE_MEMORY_SHARED;
    *out = (sync_requirements){
        .reach = SYNC_REACH_HOST,
        .param_kind = kind,
        .grad_kind = kind,
        .buffer_kind = DEVICE_MEMORY_PRIVATE,
        .param_class = class_of_params(&p, world),
        .shares_buffers = true,
        .replicates = p.consistency == PS_SYNC,
        .keeps_state = p.placement == PS_PLACEMENT_OWN && p.server_optimizer,
        .alike_from = p.placement == PS_PLACEMENT_RANK ? (int)p.servers : 1,
        .optimizer_ranks = p.placement == PS_PLACEMENT_RANK && p.server_optimizer ? (int)p.servers : 0,
        .updates_on_gpu = p.placement == PS_PLACEMENT_RANK && p.server_optimizer,
        .unrecorded = "ranks wait for parameters and push gradients in the middle of a pass"};
    return STATUS_OK;
}

status ps_lead(const void *options, const char *policy, int world, int64_t *out)
{
    ps_policy p;
    TRY(ps_policy_resolve(policy, options, world, &p));
    *out = p.consistency == PS_ASYNC ? JOB_UNBOUNDED : p.staleness;
    return STATUS_OK;
}

/* ---- open and close ---------------------------------------------------------------------------- */

/* If the server in this rank updates the rank's parameters in place, counts its shard of them as
 * LEDGER_PARAMETERS, because the shard is then no replica. */
static void count_owned_params(const ps_engine *e)
{
    const sync_context *c = &e->base.context;
    ledger_class class = class_of_params(&e->policy, c->world);
    if (!e->server || !e->worker || e->policy.consistency != PS_SYNC || class == LEDGER_PARAMETERS) return;
    const ps_shard *shard = &e->plan->shards[e->index];
    int64_t size = dtype_size(c->params->type);
    int64_t buffers = c->rank == 0 ? c->params->buffer_bytes : 0;
    int64_t padded = c->rank == 0 ? c->params->buffer_elements * size : 0;
    int64_t logical = shard->elements * size + buffers,
            reserved = (shard->end - shard->begin) * size + padded;
    ledger_release(c->ledger, class, logical, reserved);
    ledger_acquire(c->ledger, LEDGER_PARAMETERS, logical, reserved);
}

static status open_server(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    const ps_shard *shard = &e->plan->shards[e->index];
    int64_t size = dtype_size(c->params->type);
    bool beside_gpu = e->worker && e->policy.server_optimizer;
    if (!e->worker)
        ledger_acquire(c->ledger, LEDGER_PARAMETERS, shard->elements * size,
                       (shard->end - shard->begin) * size);
    return ps_server_open(
        &(ps_server){.context = c,
                     .policy = &e->policy,
                     .plan = e->plan,
                     .index = e->index,
                     .colocated = e->worker != NULL,
                     .threads = sync_summing_threads(c->device, beside_gpu, (int)e->options->server_threads)},
        &e->server);
}

static status open_worker_port(ps_engine *e, transport_options options)
{
    const ps_plan *plan = e->plan;
    int partner = e->server ? e->index : PS_NO_PEER;
    options.device_memory = true;
    return ps_port_open(&e->worker->shared.port, &options, plan->server_count, 1, partner,
                        (uint32_t)(2 * (e->server ? e->server->count : 0) + 64));
}

static status open_server_port(ps_engine *e, const transport_options *options)
{
    ps_port *port = &e->server->port;
    int world = e->base.context.world, partner = e->worker ? e->index : PS_NO_PEER, keys = e->server->count;
    /* Largest number of held messages. Every worker may have sent a push of every key and a share of a sum.
     * One message contains the buffers, and one is the current message. */
    int held = (keys + 1) * world + 2;
    TRY(ps_port_open(port, options, world, held, partner, (uint32_t)(2 * keys + 64)));
    if (e->worker) {
        port->other = &e->worker->shared.port;
        port->other->other = port;
    }
    return ps_listen(&e->member, e->index, port);
}

static status open_ports(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    e->member.servers = e->plan->server_count;
    e->member.frames = PS_KEY_PIECES;
    e->member.frame_bytes = ps_plan_largest_frame(e->plan, c->params);
    e->member.exported[PS_SEGMENT_PARAMS] = &c->params->params;
    if (e->worker) e->member.exported[PS_SEGMENT_GRADS] = &c->params->grads;
    e->member.export_count = 2;
    transport_options options;
    TRY(ps_transport_options(&e->member, e->index, &options));
    if (e->worker) TRY(open_worker_port(e, options));
    return e->server ? open_server_port(e, &options) : STATUS_OK;
}

static status open_parts(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    const device_info *info = device_get_info(c->device);
    bool own = c->rank >= c->world; /* true for a server in a separate process */
    if (!info->simulated && !info->plans && (!info->host_addressable || !info->real))
        return fail(STATUS_CONFIG,
                    "parameter server: expected a device whose memory the host can read, got %s", info->name);
    if (c->divide != SHARED_DIVIDE_POLICY) e->policy.divide_before = c->divide == SHARED_DIVIDE_BEFORE;
    e->index = own ? c->rank - c->world : c->rank;
    if (own && c->rank >= ps_member_count(&e->policy, c->world))
        return fail(STATUS_CONFIG, "parameter server: expected an index below %d, got %d",
                    ps_member_count(&e->policy, c->world) - c->world, e->index);
    TRY(ps_plan_make(c->program, c->params, (int)e->policy.servers, e->policy.partition_bytes, &e->plan));
    if (!own)
        TRY(ps_worker_open(&(ps_worker){.context = c, .policy = &e->policy, .plan = e->plan}, &e->worker));
    if (own || (e->policy.placement == PS_PLACEMENT_RANK && c->rank < e->policy.servers)) TRY(open_server(e));
    return info->plans ? STATUS_OK : open_ports(e);
}

static status ps_open(const sync_context *context, sync_engine **out)
{
    ps_policy p;
    TRY(ps_policy_resolve(context->policy, context->options, context->world, &p));
    if (p.consistency == PS_DATA_PARALLEL) return ps_dp_open(context, out);
    ps_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for an engine");
    e->base = (sync_engine){.type = &sync_ps, .context = *context};
    e->options = context->options;
    e->policy = p;
    e->member.context = &e->base.context;
    e->member.options = e->options;
    e->member.policy = &e->policy;
    if (context->rank < context->world) sync_hold_gradients(&e->base);
    status rc = open_parts(e);
    if (rc == STATUS_OK) {
        count_owned_params(e);
        *out = &e->base;
    } else {
        e->base.type->close(&e->base);
    }
    return rc;
}

/* Pins or unpins the mapped gradients of other ranks, because a GPU copies from this memory. */
static status pin_gradients(ps_engine *e, bool pin)
{
    const sync_context *c = &e->base.context;
    int each = e->member.export_count;
    if (!e->server || !c->gpu) return STATUS_OK;
    return ps_pin_segments(&e->member, c->gpu->device, PS_SEGMENT_GRADS, c->world * each, each, pin);
}

/* Waits until all ranks in other processes have received the parameters of the last step and have
 * disconnected, at most for 5 s. Virtual ranks end together, so their servers do not wait. */
static void linger(const ps_engine *e)
{
    ps_port *port = &e->server->port;
    int64_t until = clock_now_ns() + 5 * NS_PER_S;
    if (!ps_has_bytes(e->base.context.device)) return;
    while (clock_now_ns() < until && e->server->gone < e->base.context.world - 1 &&
           !ps_port_has_failed(port)) {
        sync_agent_wake(port->agent);
        clock_sleep_ns(NS_PER_MS);
    }
}

static void ps_close(sync_engine *base)
{
    ps_engine *e = engine_of(base);
    if (e->worker) {
        ps_port *port = &e->worker->shared.port;
        bool started = port->agent;
        ps_port_disconnect(port);
        if (e->server && started && !ps_port_has_failed(port)) linger(e);
    }
    ps_server_close(&e->server);
    ps_worker_close(&e->worker);
    pin_gradients(e, false);
    ps_leave(&e->member);
    ps_plan_free(&e->plan);
    if (base->context.rank < base->context.world) sync_drop_gradients(base);
    free(e);
}

/* ---- connect ---------------------------------------------------------------------------------- */

/* Returns the member of an engine under any policy. */
static ps_member *member_of(sync_engine *e)
{
    return e->type == &sync_ps_dp ? &dp_engine_of(e)->member : &engine_of(e)->member;
}

status ps_handshake(sync_engine *base, sync_blob *out)
{
    return ps_make_handshake(member_of(base), out);
}

static void map_workers(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    for (int w = 0; w < c->world; w++) {
        server_worker *worker = &e->server->workers[w];
        worker->params = ps_segment(&e->member, w, PS_SEGMENT_PARAMS);
        worker->grads = ps_segment(&e->member, w, PS_SEGMENT_GRADS);
        if (w == c->rank) {
            worker->params = c->params->params.data;
            worker->grads = c->params->grads.data;
        }
        e->server->port.in_place[w] = worker->params;
    }
}

/* Connects to all servers. Under sync, if servers update parameters, a worker copies parameters from the
 * arena of the server. Otherwise a server writes values into the worker's arenas, or sends frames. */
static status connect_servers(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    bool copies = e->policy.consistency == PS_SYNC && e->policy.server_optimizer, shares = e->member.segments;
    /* Member number of server 0. */
    int first = ps_member_count(&e->policy, c->world) > c->world ? c->world : 0;
    for (int j = 0; j < e->plan->server_count; j++) {
        worker_server *s = &e->worker->agent.servers[j];
        ps_port *port = &e->worker->shared.port;
        bool here = e->server && j == c->rank;
        port->in_place[j] = here || shares;
        s->limited = !port->in_place[j] && !port->lends_frames;
        if (here) continue;
        s->params = copies ? ps_segment(&e->member, first + j, PS_SEGMENT_PARAMS) : NULL;
        TRY(ps_connect_port(&e->member, port, j, &s->url));
    }
    if (c->rank == 0 && e->options->credit_bytes > 0 && shares)
        log_info(
            "--credit-bytes has no effect here: servers read gradients in place, --payload zmq sends them");
    return STATUS_OK;
}

static void begin_shard(const ps_engine *e)
{
    const ps_shard *shard = &e->plan->shards[e->index];
    if (e->policy.server_optimizer)
        optimizer_begin_shard(e->base.context.optimizer, shard->elements, shard->end - shard->begin);
}

/* Joins the other members and starts the agents. If a server has a separate process, ps_server_main() runs
 * the agent of the server, so this function starts that agent only in virtual time. */
static status ps_connect(sync_engine *base, const sync_blob *handshakes)
{
    ps_engine *e = engine_of(base);
    const device_info *info = device_get_info(base->context.device);
    if (info->plans) return STATUS_OK;
    TRY(ps_join(&e->member, handshakes));
    TRY(pin_gradients(e, true));
    if (e->server) map_workers(e);
    if (!e->worker) begin_shard(e);
    if (e->server) e->server->port.ahead_ns = base->context.clock_ahead_ns;
    if (e->worker) e->worker->shared.port.ahead_ns = base->context.clock_ahead_ns;
    if (e->server && (e->worker || info->simulated)) TRY(ps_server_start(e->server));
    if (!e->worker) return STATUS_OK;
    TRY(connect_servers(e));
    return ps_worker_start(e->worker);
}

status ps_server_processes(const void *options, const char *policy, int world, int *out)
{
    ps_policy p;
    TRY(ps_policy_resolve(policy, options, world, &p));
    *out = ps_member_count(&p, world) - world;
    return STATUS_OK;
}

status ps_server_main(const sync_context *context,
                      status (*exchange)(void *exchange_context, sync_blob mine,
                                         const sync_blob **handshakes),
                      void *exchange_context)
{
    sync_engine *e;
    sync_blob mine;
    const sync_blob *handshakes;
    status rc;
    TRY(sync_open(&sync_ps, context, &e));
    TRY_GOTO(rc, sync_handshake(e, &mine), out);
    TRY_GOTO(rc, exchange(exchange_context, mine, &handshakes), out);
    TRY_GOTO(rc, sync_connect(e, handshakes), out);
    rc = ps_server_serve(engine_of(e)->server);
out:
    sync_close(&e);
    return rc;
}

/* ---- the step (worker/step.c has the other functions of a step) ----------------------------------- */

static status ps_reduce(sync_engine *base, const sync_step *step)
{
    ps_engine *e = engine_of(base);
    const sync_context *c = &base->context;
    TRY(ps_worker_finish(e->worker, step));
    if (!step->synchronize) return STATUS_OK;
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    if (!e->policy.server_optimizer)
        optimizer_begin_state(c->optimizer);
    else if (e->server)
        begin_shard(e);
    return STATUS_OK;
}

static const void *ps_reduced_gradients(sync_engine *base, piece_list *owned)
{
    const ps_engine *e = engine_of(base);
    const sync_context *c = &base->context;
    *owned = (piece_list){NULL, 0};
    if (e->policy.consistency == PS_ASYNC) return NULL;
    if (e->server) {
        *owned = e->plan->shards[c->rank].pieces;
        return e->server->averages;
    }
    if (e->policy.server_optimizer || e->policy.placement == PS_PLACEMENT_RANK || c->rank != 0) return NULL;
    *owned = param_set_pieces(c->params, 0, c->params->model->param_count);
    return c->params->grads.data;
}

static void ps_counters(sync_engine *base, sync_counters *out)
{
    const ps_engine *e = engine_of(base);
    const worker_shared *w = &e->worker->shared;
    int64_t by_servers = w->skipped, here = optimizer_skipped(base->context.optimizer);
    *out = (sync_counters){.updates_skipped = by_servers > here ? by_servers : here,
                           .update_aside_ns = w->update_ns,
                           .pushes_overtaken = w->overtaken};
    ps_port_collect(&w->port, out);
    if (!e->server) return;
    out->update_aside_ns += e->server->update_ns;
    ps_port_collect(&e->server->port, out);
}

/* ---- reports ------------------------------------------------------------------------------------ */

bool ps_updates_on_gpu(const sync_engine *e)
{
    if (e->type == &sync_ps_dp) return sync_memory_is_separate(e->context.device);
    const ps_policy *p = &((const ps_engine *)e)->policy;
    return e->context.gpu && p->server_optimizer && p->placement == PS_PLACEMENT_RANK;
}

void ps_read_ways(const sync_engine *e, const char **transport, const char **payload)
{
    const ps_member *m = member_of((sync_engine *)e);
    static const char *const transports[] = {"inproc", "ipc", "tcp"};
    const sync_context *c = m->context;
    bool read_in_place = c->hub && m->options->payload != PS_PAYLOAD_ZMQ && !net_link_is_emulated(&c->link);
    *transport = *payload = NULL;
    if (!m->urls || ps_member_count(m->policy, c->world) == 1) return;
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (strncmp(m->urls[0], transports[i], strlen(transports[i])) == 0) *transport = transports[i];
    if (device_get_info(c->device)->simulated) *transport = "sim";
    if (m->options->payload == PS_PAYLOAD_NCCL)
        *payload = "nccl";
    else
        *payload = m->segments || read_in_place ? "shm" : "zmq";
}

void ps_write_settings(const sync_engine *e, text_buffer *out)
{
    const ps_member *m = member_of((sync_engine *)e);
    ps_policy_write(m->policy, m->options, out);
}

void ps_read_report(sync_engine *e, ps_report *out)
{
    *out = (ps_report){0};
    if (e->type != &sync_ps) return;
    const worker *w = &engine_of(e)->worker->agent;
    *out = w->report;
    out->mean = out->reads > 0 ? w->staleness_total / (double)out->reads : 0;
}

const sync_engine_type sync_ps = {
    .name = "ps",
    .options = &ps_option_table,
    .options_size = sizeof(ps_options),
    .policies = ps_policy_infos,
    .policy_count = PS_POLICY_COUNT,
    .requirements = ps_requirements,
    .open = ps_open,
    .handshake = ps_handshake,
    .connect = ps_connect,
    .close = ps_close,
    .begin_forward = ps_worker_begin_forward,
    .need = ps_worker_need,
    .release = sync_default_param,
    .end_forward = ps_worker_end_forward,
    .ready = ps_worker_ready,
    .reduce = ps_reduce,
    .norm = sync_default_norm,
    .update = sync_default_update,
    .flush = ps_worker_flush,
    .gather_parameters = sync_default_flush,
    .group_sum = ps_worker_group_sum,
    .reduced_gradients = ps_reduced_gradients,
    .end_step = sync_default_end_step,
    .counters = ps_counters,
};
