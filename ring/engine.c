#include "ring/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_library(const ring_settings *s, const char *name)
{
    return strcmp(s->collective, name) == 0;
}

static status ring_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    ring_settings s;
    *out = (sync_requirements){0};
    TRY(ring_settings_resolve(options, SHARED_DIVIDE_AFTER, policy, &s));
    /* Every library except MPI writes sums directly to the arena of gradients. */
    bool automatic = is_library(&s, "auto"), shared = s.options.bucket_view || !is_library(&s, "mpi");
    out->grad_kind = shared ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE;
    out->buffer_kind = DEVICE_MEMORY_SHARED;
    if (is_library(&s, "nccl") || (automatic && s.algorithm == COLLECTIVE_ALGORITHM_LIBRARY))
        out->reach = SYNC_REACH_DEVICE;
    else if (automatic && collective_has_algorithm("nccl", s.algorithm))
        out->reach = SYNC_REACH_EITHER;
    if (s.algorithm == COLLECTIVE_ALGORITHM_TREE || s.algorithm == COLLECTIVE_ALGORITHM_HIERARCHICAL)
        out->virtual_only = "--algorithm: expected --device sim:PROFILE with tree and hierarchical, which "
                            "are only modeled; real devices have ring, two-shot, tuned and library";
    out->shares_buffers = s.policy.broadcast_buffers;
    out->replicates = s.policy.sharding == PARAM_SHARD_NONE && s.options.join == RING_JOIN_NONE &&
                      s.options.hook == RING_HOOK_NONE;
    if (s.options.join != RING_JOIN_NONE)
        out->unrecorded = "--join makes the divisor of gradients depend on the ranks that have data";
    if (ring_hook_has_function(s.options.hook)) {
        if (out->reach == SYNC_REACH_DEVICE)
            return fail(STATUS_CONFIG, "--comm-hook: %s works in host memory, not with --collective nccl",
                        ring_hooks[s.options.hook].name);
        out->reach = SYNC_REACH_HOST;
    }
    if (s.policy.sharding != PARAM_SHARD_NONE) {
        if (s.group > 0 && world % s.group != 0)
            return fail(STATUS_CONFIG, "--group: expected a divisor of %d ranks, got %d", world, s.group);
        out->shards = (param_shards_config){.stage = s.policy.sharding,
                                            .ranks = s.group > 0 ? s.group : world,
                                            .keeps = s.keeps,
                                            .mixed = s.mixed,
                                            .rows = s.policy.rows};
        out->alike_from = out->shards.ranks - 1; /* The last ranks may have smaller shards. */
        out->each_pass =
            param_shards_place_params(&out->shards) || param_shards_place_gradients(&out->shards);
        out->param_kind = DEVICE_MEMORY_SHARED;
        out->reach = SYNC_REACH_DEVICE;
        out->unrecorded = "parameters are gathered during the forward pass";
    }
    if (s.options.hook == RING_HOOK_POWERSGD)
        out->unrecorded = "PowerSGD starts at a later step, and divides differently";
    return STATUS_OK;
}

status ring_check_ranks(const void *options, const char *policy, int world)
{
    ring_settings s;
    TRY(ring_settings_resolve(options, SHARED_DIVIDE_AFTER, policy, &s));
    if (world <= COLLECTIVE_MOST_SHARED_RANKS || strcmp(s.collective, "mpi") == 0) return STATUS_OK;
    return fail(STATUS_CONFIG,
                "--gpus: expected at most %d ranks with collectives over shared memory, got %d: take "
                "--collective mpi",
                COLLECTIVE_MOST_SHARED_RANKS, world);
}

/* ---- open ------------------------------------------------------------------------------------- */

static status allocate(ring_engine *e)
{
    size_t params = (size_t)ring_params(e) + 1;
    e->tensors = calloc(params, sizeof *e->tensors);
    e->buckets = calloc(params, sizeof *e->buckets);
    e->params = calloc(params, sizeof *e->params);
    e->pieces = calloc(params, sizeof *e->pieces);
    e->compute.order = calloc(params, sizeof *e->compute.order);
    e->compute.ranges = calloc(params, sizeof *e->compute.ranges);
    if (!e->tensors || !e->buckets || !e->params || !e->pieces || !e->compute.order || !e->compute.ranges)
        return fail(STATUS_SYSTEM, "no memory for the ring engine");
    return bucket_schedule_open((int)params - 1, &e->schedule);
}

static void describe_tensors(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    for (int i = 0; i < set->model->param_count; i++) {
        int unit = set->shards ? set->shards->unit_of[i] : 0;
        e->tensors[i] = (bucket_tensor){set->model->params[i].elements, set->type, unit};
        e->compute.order[i] = i;
    }
}

/* Adds the persistent buckets and the state of PowerSGD to the ledger, or removes them. */
static void enter_ledger(ring_engine *e, ring_ledger_change *change)
{
    ledger *l = e->base.context.ledger;
    const ring_memory *m = &e->memory;
    int64_t logical = e->base.context.params->logical_bytes / dtype_size(e->base.context.params->type) *
                      dtype_size(e->wire);
    if (e->settings.policy.lifetime == RING_BUCKETS_PERSIST && !e->settings.options.bucket_view)
        change(l, LEDGER_BUCKETS, logical, m->bucket_bytes);
    if (e->settings.options.hook == RING_HOOK_POWERSGD) {
        int64_t factors = m->factor_count * (int64_t)sizeof(float);
        change(l, LEDGER_BUCKETS, factors, factors);
        change(l, LEDGER_WORKSPACE, logical, m->bucket_bytes);
    }
}

static void ring_close(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    process_group_stop(e->calls);
    if (e->replicas) collective_group_close(&e->shard_group);
    collective_group_close(&e->replicas);
    collective_group_close(&e->group);
    collective_close(&e->world);
    collective_group_close(&e->host_group);
    collective_close(&e->host_world);
    process_group_close(&e->calls);
    ring_powersgd_close(e);
    ring_drop_whole(e);
    ring_shards_close(e);
    if (e->memory.control) { /* ring_memory_open() has succeeded. */
        enter_ledger(e, ledger_release);
        sync_drop_gradients(base);
    }
    ring_memory_close(e);
    bucket_schedule_close(&e->schedule);
    text_free(&e->handshake);
    free(e->tensors);
    free(e->buckets);
    free(e->params);
    free(e->pieces);
    free(e->compute.order);
    free(e->compute.ranges);
    free(e);
}

/* Chooses the library and the algorithm. `auto` means NCCL if the engine works on GPU memory. It means shm if
 * the engine works on host memory, which may be a staging buffer of a GPU. */
static status choose_library(ring_engine *e)
{
    const device_info *info = device_get_info(e->base.context.device);
    ring_settings *s = &e->settings;
    /* On a virtual processor, ranks share host memory. */
    bool processor = info->simulated && !info->copy_engine;
    if (processor && s->algorithm == COLLECTIVE_ALGORITHM_AUTO) s->algorithm = COLLECTIVE_ALGORITHM_RING;
    if (info->simulated)
        s->collective = "sim";
    else if (info->plans)
        s->collective = "plan";
    else if (is_library(s, "auto"))
        s->collective = info->host_addressable ? "shm" : "nccl";
    return collective_choose_algorithm(s->collective, s->algorithm, &s->algorithm);
}

/* On a GPU, checks that NCCL can be used. If the library is `auto` and NCCL cannot be used, returns
 * STATUS_UNAVAILABLE, and the caller opens the engine on host memory instead. */
static status check_nccl(ring_engine *e)
{
    device *d = e->base.context.device;
    if (!device_get_info(d)->real || device_get_info(d)->host_addressable) return STATUS_OK;
    char why[192];
    bool paced = net_link_is_emulated(&e->base.context.link);
    if (paced && is_library(&e->settings, "auto"))
        return fail(STATUS_UNAVAILABLE, "collectives nccl: what NCCL sends cannot be paced");
    if (paced)
        return fail(STATUS_CONFIG,
                    "--link: expected --collective shm, got %s: what NCCL sends cannot be paced",
                    e->settings.collective);
    if (is_library(&e->settings, "auto") && !collective_nccl_found(why, sizeof why))
        return fail(STATUS_UNAVAILABLE, "collectives nccl: %s", why);
    e->base.enqueues = e->base.context.params->shards == NULL;
    return STATUS_OK;
}

static status ring_open(const sync_context *context, sync_engine **out)
{
    *out = NULL;
    ring_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    e->base = (sync_engine){.type = &sync_ring, .context = *context, .updates = true};
    e->memory.shared.fd = e->powersgd.errors.fd = -1;
    e->compute.active = context->world;
    e->compute.period_begins = true;
    status rc;
    TRY_GOTO(rc, ring_settings_resolve(context->options, context->divide, context->policy, &e->settings),
             failed);
    if (ring_hook_has_function(e->settings.options.hook) && device_get_info(context->device)->simulated) {
        rc = fail(STATUS_CONFIG, "--comm-hook: %s is not modeled in virtual time",
                  ring_hooks[e->settings.options.hook].name);
        goto failed;
    }
    if (e->settings.options.collective_table)
        TRY_GOTO(rc, collective_tuning_load(e->settings.options.collective_table, context->world, &e->tuning),
                 failed);
    e->wire = ring_wire_type(&e->settings, context->params->type);
    e->compute.recording = e->settings.policy.rebuilds;
    TRY_GOTO(rc, allocate(e), failed);
    TRY_GOTO(rc, check_nccl(e), failed);
    TRY_GOTO(rc, ring_open_process_group(e), failed);
    TRY_GOTO(rc, choose_library(e), failed);
    TRY_GOTO(rc, ring_memory_open(e), failed);
    sync_hold_gradients(&e->base);
    enter_ledger(e, ledger_acquire);
    describe_tensors(e);
    TRY_GOTO(rc, ring_shards_open(e), failed);
    TRY_GOTO(rc, ring_powersgd_open(e), failed);
    TRY_GOTO(rc, ring_use_plan(e, &e->settings.policy.first), failed);
    TRY_GOTO(rc, ring_make_handshake(e), failed);
    *out = &e->base;
    return STATUS_OK;
failed:
    ring_close(&e->base);
    return rc;
}

/* ---- connect ---------------------------------------------------------------------------------- */

static status ring_handshake(sync_engine *base, sync_blob *out)
{
    ring_engine *e = ring_of(base);
    *out = (sync_blob){e->handshake.data, e->handshake.length};
    return STATUS_OK;
}

static void add_window(const device_memory *memory, collective_window *windows, int *count)
{
    if (memory->data && memory->fd >= 0)
        windows[(*count)++] = (collective_window){memory->data, (int64_t)memory->bytes, memory->fd};
}

/* Opens collectives in host memory, for values that only the host reads. NCCL would move these values through
 * the GPU. */
static status open_between_hosts(ring_engine *e, const collective_config *config)
{
    collective_config own = *config;
    own.name = "ring-hosts";
    own.window_count = 0;
    own.algorithm = COLLECTIVE_ALGORITHM_TWO_SHOT;
    TRY(collective_open("shm", &own, &e->host_world));
    return collective_group_open(e->host_world, "hosts", NULL, own.world, &e->host_group);
}

/* Opens the group of the `count` ranks `first`, `first` + `step`, `first` + 2 `step`, ... */
static status open_group(ring_engine *e, const char *what, int first, int step, int count,
                         collective_group **out)
{
    char name[32];
    int *ranks = calloc((size_t)count, sizeof *ranks);
    if (!ranks) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    for (int i = 0; i < count; i++) ranks[i] = first + i * step;
    snprintf(name, sizeof name, "%s %d", what, first);
    status rc = collective_group_open(e->world, name, ranks, count, out);
    free(ranks);
    return rc;
}

/* Opens `shard_group`, a group of consecutive ranks over which the state is sharded, and `replicas`, a group
 * of ranks that have the same shards. */
static status open_shard_groups(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    int each = e->settings.group;
    if (each == 0 || each == c->world) {
        e->shard_group = e->group;
        return STATUS_OK;
    }
    TRY(open_group(e, "replicas", c->rank % each, each, c->world / each, &e->replicas));
    return open_group(e, "shards", c->rank - c->rank % each, 1, each, &e->shard_group);
}

static status open_collectives(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    collective_window windows[COLLECTIVE_MAX_WINDOWS];
    int count = 0;
    add_window(&e->memory.shared, windows, &count);
    add_window(&c->params->grads, windows, &count);
    if (e->settings.policy.sharding != PARAM_SHARD_NONE) add_window(&c->params->params, windows, &count);
    add_window(&c->params->gathered, windows, &count);
    if (e->settings.group > 0) add_window(&c->params->grad_shards, windows, &count);
    if (c->params->model->buffer_count > 0) add_window(&c->params->buffers, windows, &count);
    collective_config config = process_group_collectives(c, "ring");
    config.windows = windows;
    config.window_count = count;
    config.bootstrap = e->stream ? e->bootstrap : NULL;
    config.algorithm = e->settings.algorithm;
    config.tuning = e->settings.options.collective_table ? &e->tuning : NULL;
    TRY(collective_open(e->settings.collective, &config, &e->world));
    TRY(collective_group_open(e->world, "data", NULL, c->world, &e->group));
    TRY(open_shard_groups(e));
    return e->stream && e->settings.options.join != RING_JOIN_NONE ? open_between_hosts(e, &config)
                                                                   : STATUS_OK;
}

static status ring_connect(sync_engine *base, const sync_blob *handshakes)
{
    ring_engine *e = ring_of(base);
    TRY(ring_compare_handshakes(e, handshakes));
    if (e->stream) TRY(ring_take_bootstrap(e, &handshakes[0]));
    TRY(open_collectives(e));
    if (e->stream || is_library(&e->settings, "mpi"))
        anatomy_keep_steps(base->context.anatomy, ANATOMY_KEPT_BYTES);
    return process_group_start(e->calls, e->world);
}

/* ---- figures ---------------------------------------------------------------------------------- */

const ring_settings *ring_get_settings(const sync_engine *base)
{
    return &((const ring_engine *)base)->settings;
}

/* Returns a lower bound for the time of half of an all-reduce, that is, of a reduce-scatter or an all-gather.
 * (n-1)/n of the bytes pass through every rank's adapter. A ring takes n-1 steps, and other algorithms take
 * at least one step. */
static int64_t half_bound_ns(const ring_engine *e, int n, int64_t bytes)
{
    const net_link *link = &e->base.context.link;
    bool ring = e->settings.algorithm == COLLECTIVE_ALGORITHM_RING;
    if (n == 1) return 0;
    if (e->settings.algorithm == COLLECTIVE_ALGORITHM_TUNED)
        ring = collective_tuning_choose(&e->tuning, n, bytes) == COLLECTIVE_ALGORITHM_RING;
    return (ring ? n - 1 : 1) * link->latency_ns + net_link_occupied_ns(link, (n - 1) * bytes / n);
}

/* Sharded gradients are reduce-scattered in a group, and their shards are all-reduced between groups. */
int64_t ring_link_bound_ns(const sync_engine *base, int64_t bytes)
{
    const ring_engine *e = (const ring_engine *)base;
    int n = base->context.world, each = e->settings.group > 0 ? e->settings.group : n;
    if (n == 1 || !net_link_is_emulated(&base->context.link)) return 0;
    if (e->settings.policy.sharding == PARAM_SHARD_NONE) return 2 * half_bound_ns(e, n, bytes);
    return half_bound_ns(e, each, bytes) + 2 * half_bound_ns(e, n / each, bytes / each);
}

const sync_engine_type sync_ring = {
    .name = "ring",
    .options = &ring_option_table,
    .options_size = sizeof(ring_options),
    .policies = ring_policy_infos,
    .policy_count = RING_POLICIES,
    .requirements = ring_requirements,
    .open = ring_open,
    .handshake = ring_handshake,
    .connect = ring_connect,
    .close = ring_close,
    .begin_forward = ring_begin_forward,
    .need = ring_need,
    .release = ring_release,
    .end_forward = ring_end_forward,
    .ready = ring_ready,
    .reduce = ring_reduce,
    .norm = ring_norm,
    .update = ring_update,
    .flush = ring_flush,
    .gather_parameters = ring_gather_parameters,
    .group_sum = ring_group_sum,
    .reduced_gradients = ring_reduced_gradients,
    .end_step = ring_end_step,
    .counters = ring_counters,
};
