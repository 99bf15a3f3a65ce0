/* The engine as the harness uses it: a worker on every rank, a server on some. */
#include "ps/engine_impl.h"

#include "common/net/status_table.h"
#include "common/sync/staging.h"
#include "ps/dp/dp.h"

#include <stdlib.h>

static const sync_engine_type planning_engine;

static ps_engine *engine_of(sync_engine *e)
{
    return (ps_engine *)e;
}

/* ---- requirements on arenas ------------------------------------------------------------- */

/* Ranks compute on copies of what the servers own, unless they update it themselves. */
static ledger_class class_of_params(const ps_policy *p, int world)
{
    bool theirs = !p->server_optimizer || (world == 1 && p->placement == PS_PLACEMENT_RANK && p->consistency == PS_SYNC);
    return theirs ? LEDGER_PARAMETERS : LEDGER_REPLICAS;
}

static status ps_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    const ps_options *o = options;
    ps_policy p;
    TRY(ps_policy_resolve(policy, o, world, &p));
    if (p.consistency == PS_DATA_PARALLEL) return ps_dp_requirements(options, policy, world, out);
    device_memory_kind kind = o->payload == PS_PAYLOAD_ZMQ ? DEVICE_MEMORY_PRIVATE : DEVICE_MEMORY_SHARED;
    *out = (sync_requirements){.reach = o->payload == PS_PAYLOAD_P2P ? SYNC_REACH_DEVICE : SYNC_REACH_HOST,
                               .param_kind = kind,
                               .grad_kind = kind,
                               .buffer_kind = DEVICE_MEMORY_PRIVATE,
                               .param_class = class_of_params(&p, world),
                               .shares_buffers = true,
                               .alike_from = p.placement == PS_PLACEMENT_RANK ? (int)p.servers : 1,
                               .updaters = p.placement == PS_PLACEMENT_RANK && p.server_optimizer ? (int)p.servers : 0,
                               .updates_in_front = p.placement == PS_PLACEMENT_RANK && p.server_optimizer,
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

/* ---- open and close ------------------------------------------------------------------------------------- */

/* A server works in its rank's parameters: the shard is no copy. */
static void count_owned_params(const ps_engine *e)
{
    const sync_context *c = &e->base.context;
    ledger_class class = class_of_params(&e->policy, c->world);
    if (!e->server || e->policy.consistency != PS_SYNC || class == LEDGER_PARAMETERS) return;
    const ps_shard *shard = &e->plan->shards[c->rank];
    int64_t size = dtype_size(c->params->type);
    int64_t buffers = c->rank == 0 ? c->params->buffer_bytes : 0;
    int64_t padded = c->rank == 0 ? c->params->buffer_elements * size : 0;
    int64_t logical = shard->elements * size + buffers, reserved = (shard->end - shard->begin) * size + padded;
    ledger_release(c->ledger, class, logical, reserved);
    ledger_acquire(c->ledger, LEDGER_PARAMETERS, logical, reserved);
}

/* Tensors stay in memory of GPUs. */
static bool works_among_gpus(const ps_engine *e)
{
    return e->options->payload == PS_PAYLOAD_P2P && sync_memory_is_separate(e->base.context.device);
}

static status open_parts(ps_engine *e)
{
    const sync_context *c = &e->base.context;
    const device_info *info = device_get_info(c->device);
    bool peers = works_among_gpus(e);
    if (!info->simulated && !info->plans && !peers && (!info->host_addressable || !info->real))
        return fail(STATUS_CONFIG, "parameter server: expected a device whose memory the host can read, got %s",
                    info->name);
    TRY(ps_policy_resolve(c->policy, e->options, c->world, &e->policy));
    if (c->divide != SHARED_DIVIDE_POLICY) e->policy.divide_before = c->divide == SHARED_DIVIDE_BEFORE;
    TRY(ps_plan_make(c->program, c->params, (int)e->policy.servers, e->policy.partition_bytes, &e->plan));
    bool colocated = e->policy.placement == PS_PLACEMENT_RANK && c->rank < e->policy.servers;
    ps_worker_config worker = {.context = c, .policy = &e->policy, .plan = e->plan, .colocated = colocated, .peers = peers};
    TRY(ps_worker_open(&worker, &e->worker));
    if (!colocated) return STATUS_OK;
    ps_server_config server = {.index = c->rank,
                               .world = c->world,
                               .policy = &e->policy,
                               .plan = e->plan,
                               .device = c->device,
                               .params = c->params,
                               .front = peers ? c : e->policy.server_optimizer ? c->front : NULL,
                               .peers = peers,
                               .optimizer = c->optimizer,
                               .ledger = c->ledger,
                               .colocated = true,
                               .threads = (int)e->options->server_threads,
                               .stall_timeout_ns = c->stall_timeout_ns,
                               .trace = c->trace};
    return ps_server_open(&server, &e->server);
}

static status ps_open(const sync_context *context, sync_engine **out)
{
    *out = NULL;
    ps_policy p;
    TRY(ps_policy_resolve(context->policy, context->options, context->world, &p));
    if (p.consistency == PS_DATA_PARALLEL) return ps_dp_open(context, out);
    ps_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for an engine");
    bool plans = device_get_info(context->device)->plans;
    e->base = (sync_engine){.type = plans ? &planning_engine : &sync_ps, .context = *context};
    e->options = context->options;
    sync_hold_gradients(&e->base);
    status rc = open_parts(e);
    if (rc == STATUS_OK && !plans) rc = ps_engine_open_ports(e);
    if (rc == STATUS_OK) {
        count_owned_params(e);
        *out = &e->base;
    } else {
        e->base.type->close(&e->base);
    }
    return rc;
}

/* Servers stay connected for ranks that have not received the last step's parameters yet. */
#define LINGER_NS (5 * NS_PER_S)

static void ps_close(sync_engine *base)
{
    ps_engine *e = engine_of(base);
    if (e->worker) ps_worker_leave(e->worker);
    if (e->server && e->connected && !ps_port_has_failed(ps_worker_port(e->worker))) ps_server_linger(e->server, LINGER_NS);
    bool pinned = e->server && base->context.front;
    ps_server_close(&e->server);
    ps_worker_close(&e->worker);
    if (pinned) ps_engine_pin_gradients(e, false);
    ps_leave(&e->member, &e->group);
    free(e->handshake.data);
    ps_plan_free(&e->plan);
    sync_drop_gradients(base);
    free(e);
}

/* ---- stages ----------------------------------------------------------------------------------- */

static status ps_begin_forward(sync_engine *e, const sync_step *step)
{
    return ps_worker_begin_forward(engine_of(e)->worker, step);
}

static status ps_need(sync_engine *e, int param)
{
    return ps_worker_need(engine_of(e)->worker, param);
}

static status ps_place_outputs(sync_engine *e, const sync_step *step)
{
    return ps_worker_end_forward(engine_of(e)->worker, step);
}

static status ps_ready(sync_engine *e, int param)
{
    return ps_worker_ready(engine_of(e)->worker, param);
}

static void count_optimizer_state(const ps_engine *e)
{
    const sync_context *c = &e->base.context;
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    if (!e->policy.server_optimizer) {
        optimizer_begin_state(c->optimizer);
    } else if (e->server) {
        const ps_shard *shard = &e->plan->shards[c->rank];
        optimizer_begin_shard(c->optimizer, shard->elements, shard->end - shard->begin);
    }
}

static status ps_finish(sync_engine *base, const sync_step *step)
{
    ps_engine *e = engine_of(base);
    TRY(ps_worker_finish(e->worker, step));
    if (step->synchronize) count_optimizer_state(e);
    return STATUS_OK;
}

static status ps_flush(sync_engine *e)
{
    return ps_worker_flush(engine_of(e)->worker);
}

static status ps_group_sum(sync_engine *e, double *values, int count)
{
    return e->context.world == 1 ? STATUS_OK : ps_worker_group_sum(engine_of(e)->worker, values, count);
}

static const void *ps_reduced_gradients(sync_engine *base, piece_list *owned)
{
    const ps_engine *e = engine_of(base);
    const sync_context *c = &base->context;
    *owned = (piece_list){NULL, 0};
    if (e->policy.consistency == PS_ASYNC) return NULL;
    if (e->server) {
        *owned = e->plan->shards[c->rank].pieces;
        return ps_server_averages(e->server);
    }
    if (e->policy.server_optimizer || e->policy.placement == PS_PLACEMENT_RANK || c->rank != 0) return NULL;
    *owned = param_set_pieces(c->params, 0, c->params->model->param_count);
    return c->params->grads.data;
}

static void ps_counters(sync_engine *base, sync_counters *out)
{
    ps_engine *e = engine_of(base);
    *out = (sync_counters){.updates_skipped = ps_worker_updates_skipped(e->worker)};
    ps_worker_collect_times(e->worker, out);
    ps_port_collect(ps_worker_port(e->worker), out);
    if (!e->server) return;
    int64_t update_ns = ps_server_collect_update_ns(e->server);
    out->optimizer_ns += update_ns;
    out->optimizer_aside_ns += update_ns;
    ps_port_collect(ps_server_port(e->server), out);
}

bool ps_updates_on_gpu(const sync_engine *e)
{
    if (e->type == &sync_ps_dp) return sync_memory_is_separate(e->context.device);
    const ps_policy *p = &((const ps_engine *)e)->policy;
    if (works_among_gpus((const ps_engine *)e)) return true;
    return e->context.front && p->server_optimizer && p->placement == PS_PLACEMENT_RANK;
}

void ps_read_report(sync_engine *e, ps_report *out)
{
    *out = (ps_report){0};
    if (e->type == &sync_ps) ps_worker_report(engine_of(e)->worker, out);
}

const sync_engine_type sync_ps = {
    .name = "ps",
    .options = &ps_option_table,
    .options_size = sizeof(ps_options),
    .policies = ps_policy_infos,
    .policy_count = PS_POLICY_COUNT,
    .requirements = ps_requirements,
    .open = ps_open,
    .handshake = ps_engine_handshake,
    .connect = ps_engine_connect,
    .close = ps_close,
    .plan_batch = sync_default_plan_batch,
    .scatter_inputs = sync_default_stage,
    .begin_forward = ps_begin_forward,
    .need = ps_need,
    .place_outputs = ps_place_outputs,
    .loss = sync_default_loss,
    .scatter_output_gradient = sync_default_stage,
    .ready = ps_ready,
    .finish = ps_finish,
    .flush = ps_flush,
    .group_sum = ps_group_sum,
    .reduced_gradients = ps_reduced_gradients,
    .counters = ps_counters,
};

/* ---- memory is planned ------------------------------------------------------------------------- */

/* Nothing runs: worker and server are opened for what they count in the ledger, without ports and peers. */
static status plan_handshake(sync_engine *e, sync_blob *out)
{
    (void)e;
    *out = (sync_blob){0};
    return STATUS_OK;
}

static status plan_connect(sync_engine *e, const sync_blob *handshakes)
{
    (void)e, (void)handshakes;
    return STATUS_OK;
}

static status plan_finish(sync_engine *e, const sync_step *step)
{
    if (step->synchronize) count_optimizer_state((ps_engine *)e);
    return STATUS_OK;
}

static status plan_group_sum(sync_engine *e, double *values, int count)
{
    (void)e, (void)values, (void)count;
    return STATUS_OK;
}

static const void *plan_reduced_gradients(sync_engine *e, piece_list *owned)
{
    (void)e;
    *owned = (piece_list){NULL, 0};
    return NULL;
}

static void plan_counters(sync_engine *e, sync_counters *out)
{
    (void)e;
    *out = (sync_counters){0};
}

static const sync_engine_type planning_engine = {
    .name = "ps",
    .close = ps_close,
    .handshake = plan_handshake,
    .connect = plan_connect,
    .plan_batch = sync_default_plan_batch,
    .scatter_inputs = sync_default_stage,
    .begin_forward = sync_default_stage,
    .need = sync_default_param,
    .place_outputs = sync_default_stage,
    .loss = sync_default_loss,
    .scatter_output_gradient = sync_default_stage,
    .ready = sync_default_param,
    .finish = plan_finish,
    .flush = sync_default_flush,
    .group_sum = plan_group_sum,
    .reduced_gradients = plan_reduced_gradients,
    .counters = plan_counters,
};
