/* The functions of a step, which the compute thread calls. */
#include "common/reduce/reduce.h"
#include "ring/engine_impl.h"

#include <inttypes.h>

/* ---- gradients and their places in buckets ---------------------------------------------------- */

static char *gradient(const ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    const device_memory *grads = param_set_is_mixed(set) ? &set->f32_grads : &set->grads;
    return (char *)grads->data + set->grads_placed[param].offset * dtype_size(set->type);
}

/* Returns the address at which a gradient is reduced. Under mixed precision, this is the address of a
 * bfloat16 copy. */
static char *reduced_gradient(const ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    if (!param_set_is_mixed(set)) return gradient(e, param);
    const piece *places =
        e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS ? set->grads_placed : set->pieces;
    return (char *)set->grads.data + places[param].offset * dtype_size(set->sent);
}

static char *packed(const ring_engine *e, int param)
{
    return ring_bucket_data(e, e->schedule.bucket_of[param]) + e->params[param].offset * dtype_size(e->wire);
}

bool ring_means_in_flight(const ring_engine *e)
{
    const ring_settings *s = &e->settings;
    return !s->policy.divide_before && s->predivide == 1 && s->options.join != RING_JOIN_ACTIVE;
}

bool ring_copies_back_in_flight(const ring_engine *e)
{
    const ring_settings *s = &e->settings;
    bool divides_later = !s->policy.divide_before && !ring_means_in_flight(e);
    return !s->options.bucket_view && s->options.hook == RING_HOOK_NONE &&
           e->wire == e->base.context.params->type && !divides_later && e->memory.reaches_gradients;
}

static double divisor_before(const ring_engine *e)
{
    if (ring_powersgd_active(e, e->compute.step.index)) return 1; /* The hook computes the mean. */
    return e->settings.policy.divide_before ? e->compute.active : e->settings.predivide;
}

static double divisor_after(const ring_engine *e)
{
    if (ring_powersgd_active(e, e->compute.step.index)) /* The hook takes the mean over all ranks. */
        return (double)e->compute.active / e->base.context.world;
    if (e->settings.policy.divide_before || ring_means_in_flight(e)) return 1;
    return e->compute.active / e->settings.predivide;
}

/* Converts between a gradient in the device's layout and the sent values in PyTorch's layout. */
static status convert_plain(ring_engine *e, int param, void *grad, void *sent, bool packs, double divisor)
{
    const param_set *set = e->base.context.params;
    const device_layout *layout = &set->layouts[param];
    int64_t count = set->pieces[param].count;
    device *d = e->base.context.device;
    void *plain = e->powersgd.scratch;
    if (packs) TRY(device_layout_unpack(d, layout, grad, plain));
    if (packs)
        reduce_convert(e->wire, sent, set->type, plain, count, divisor);
    else
        reduce_convert(set->type, plain, e->wire, sent, count, divisor);
    return packs ? STATUS_OK : device_layout_pack(d, layout, plain, grad);
}

/* If `packs` is true, copies gradients from their arena to the memory in which they are reduced. If `packs`
 * is false, copies reduced gradients back to the arena. Divides the copies by `divisor`. */
static status convert(ring_engine *e, const int *params, int count, bool packs, double divisor)
{
    const param_set *set = e->base.context.params;
    int ranges = 0;
    for (int i = 0; i < count; i++) {
        char *grad = gradient(e, params[i]),
             *sent = e->settings.options.bucket_view ? reduced_gradient(e, params[i]) : packed(e, params[i]);
        if (e->powersgd.plain_layout && !set->layouts[params[i]].plain)
            TRY(convert_plain(e, params[i], grad, sent, packs, divisor));
        else
            e->compute.ranges[ranges++] =
                (device_range){packs ? sent : grad, packs ? grad : sent, set->pieces[params[i]].count};
    }
    return device_pack(e->base.context.compute, e->compute.ranges, ranges, packs ? e->wire : set->type,
                       packs ? set->type : e->wire, divisor);
}

static status ring_pack(ring_engine *e, const int *params, int count)
{
    double divisor = divisor_before(e);
    if (e->settings.options.bucket_view && divisor == 1 && !e->settings.mixed) return STATUS_OK;
    return convert(e, params, count, true, divisor);
}

static status ring_unpack(ring_engine *e, int k)
{
    const bucket *b = &e->schedule.buckets[k];
    double divisor = divisor_after(e);
    if (ring_copies_back_in_flight(e) || (e->settings.options.bucket_view && divisor == 1)) return STATUS_OK;
    return convert(e, e->schedule.tensors + b->first, b->count, false, divisor);
}

/* ---- buckets ---------------------------------------------------------------------------------- */

/* Returns true if gradients are packed after the backward pass, into a buffer that is freed when the results
 * have been copied back. */
static bool flattens_late(const ring_engine *e)
{
    return e->plan->launch == RING_AFTER_BACKWARD && e->settings.policy.lifetime == RING_BUCKETS_PASS;
}

static bool packs_whole_buckets(const ring_engine *e)
{
    return e->packs_whole_buckets && !flattens_late(e);
}

static bool bucket_passes(const ring_engine *e)
{
    return e->settings.policy.lifetime == RING_BUCKETS_PASS && !e->settings.options.bucket_view;
}

static status pack_bucket(ring_engine *e, int k)
{
    const bucket *b = &e->schedule.buckets[k];
    return ring_pack(e, e->schedule.tensors + b->first, b->count);
}

static int64_t wire_bytes(const ring_engine *e, int k)
{
    return e->schedule.buckets[k].elements * dtype_size(e->wire);
}

static status launch(ring_engine *e, int k)
{
    ring_bucket *b = &e->buckets[k];
    if (bucket_passes(e))
        ledger_acquire(e->base.context.ledger, LEDGER_BUCKETS, wire_bytes(e, k), b->reserved);
    if (flattens_late(e)) TRY(pack_bucket(e, k));
    int64_t id = ++e->compute.record_count;
    *ring_record(e, id) = (ring_bucket_record){.id = id,
                                               .step = e->compute.step.index,
                                               .bucket = k,
                                               .bytes = wire_bytes(e, k),
                                               .ready_ns = b->ready_ns};
    if (e->settings.policy.sharding == PARAM_SHARD_NONE)
        return ring_post(e, RING_JOB_BUCKET, k, id, &b->work);
    e->shards.units[ring_unit_of_bucket(e, k)].reducing = true;
    TRY(ring_post(e, RING_JOB_SCATTER, k, e->replicas ? 0 : id, &b->work));
    return e->replicas ? ring_post(e, RING_JOB_REPLICAS, k, id, &b->work) : STATUS_OK;
}

static status launch_ready(ring_engine *e)
{
    for (int k; (k = bucket_take_complete(&e->schedule)) != BUCKET_NONE;) TRY(launch(e, k));
    return STATUS_OK;
}

static status mark_ready(ring_engine *e, int param)
{
    e->params[param].ready = true;
    if (!flattens_late(e) && !packs_whole_buckets(e)) TRY(ring_pack(e, &param, 1));
    if (bucket_gradient_ready(&e->schedule, param)) {
        int k = e->schedule.bucket_of[param];
        if (packs_whole_buckets(e)) TRY(pack_bucket(e, k));
        e->buckets[k].ready_ns = device_now_ns(e->base.context.device);
    }
    return e->plan->launch == RING_WHEN_READY ? launch_ready(e) : STATUS_OK;
}

/* Marks a gradient as ready although this micro-batch does not compute it. Sets the gradient to zero unless
 * an earlier micro-batch of the step has computed it. */
static status mark_without_gradient(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    size_t bytes = (size_t)(set->pieces[param].count * dtype_size(set->type));
    if (!e->params[param].seen) TRY(device_clear(e->base.context.compute, gradient(e, param), bytes));
    return mark_ready(e, param);
}

static status graph_changed(ring_engine *e, int param, const char *what)
{
    return process_group_give_up(e->calls,
                                 fail(STATUS_CONFIG, "parameter '%s' %s in step %" PRId64 " of rank %d",
                                      e->base.context.params->model->params[param].name, what,
                                      e->compute.step.index, e->base.context.rank));
}

/* ---- before the forward pass ------------------------------------------------------------------ */

static void reset_step(ring_engine *e)
{
    bucket_begin_step(&e->schedule);
    for (int i = 0; i < ring_params(e); i++) {
        e->params[i].ready = false;
        if (e->compute.period_begins) e->params[i].seen = false;
    }
}

/* Checks that the order from rank 0 contains every parameter once, and copies this order to compute.order. */
static status read_order(ring_engine *e)
{
    int params = ring_params(e);
    /* `ready` marks the parameters that have been found. reset_step() clears it. */
    for (int i = 0; i < params; i++) e->params[i].ready = false;
    for (int i = 0; i < params; i++) {
        int param = e->memory.order[i];
        if (param < 0 || param >= params || e->params[param].ready)
            return process_group_give_up(e->calls,
                                         fail(STATUS_PROTOCOL,
                                              "rank 0's order of gradients: found parameter %d at index "
                                              "%d of %d",
                                              param, i, params));
        e->params[param].ready = true;
        e->compute.order[i] = param;
    }
    return STATUS_OK;
}

/* Sends rank 0's order of readiness to all ranks, and rebuilds the buckets in this order. */
static status rebuild(ring_engine *e)
{
    for (int i = 0; i < ring_params(e); i++) e->memory.order[i] = e->compute.order[i];
    TRY(ring_send_values(e, e->memory.sent_order, e->memory.order, DTYPE_I32, ring_params(e)));
    TRY(ring_run_job(e, RING_JOB_ORDER, 0));
    TRY(ring_receive_values(e, e->memory.order, e->memory.sent_order, DTYPE_I32, ring_params(e)));
    TRY(read_order(e));
    TRY(ring_use_plan(e, &e->settings.policy.later));
    e->compute.rebuild = e->compute.warm = false;
    reset_step(e);
    return STATUS_OK;
}

static status exchange_activity(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    e->memory.activity[c->rank] = e->compute.has_data;
    TRY(ring_gather_activity(e));
    e->compute.active = 0;
    e->compute.root = -1;
    for (int r = 0; r < c->world; r++) {
        if (!e->memory.activity[r]) continue;
        if (e->compute.root < 0) e->compute.root = r;
        e->compute.active++;
    }
    if (e->compute.root < 0) e->compute.root = 0;
    if (e->settings.options.join != RING_JOIN_ACTIVE || e->compute.active == 0) e->compute.active = c->world;
    return STATUS_OK;
}

static status share_buffers(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    device_stream *s = e->base.context.compute;
    piece_list all = {set->buffer_pieces, set->model->buffer_count};
    /* On a virtual GPU device_flatten() takes the time to copy the buffers into one tensor, and back. */
    TRY(device_flatten(s, set->type, piece_list_elements(all)));
    TRY(ring_run_job(e, RING_JOB_BUFFERS, e->compute.root));
    for (int i = 0; i < all.count; i++) TRY(device_flatten(s, set->type, all.pieces[i].count));
    return STATUS_OK;
}

status ring_begin_forward(sync_engine *base, const sync_step *step)
{
    ring_engine *e = ring_of(base);
    if (step->samples == 0 && e->settings.options.join == RING_JOIN_NONE)
        return process_group_give_up(e->calls, fail(STATUS_CONFIG,
                                                    "rank %d has no data in step %" PRId64
                                                    ": --join lets a rank take part without data",
                                                    base->context.rank, step->index));
    e->compute.step = *step;
    e->shards.accumulates = !e->compute.period_begins;
    ring_drop_whole(e);
    e->compute.has_data = (e->compute.has_data && !e->compute.period_begins) || step->samples > 0;
    reset_step(e);
    /* If parameters or master weights are sharded, no broadcast is needed, because the ranks hold different
     * parts of the same values. */
    if (!e->compute.started && base->context.world > 1 && !param_set_gathers(base->context.params)) {
        param_set_forget_bf16_copy(base->context.params);
        TRY(ring_run_job(e, RING_JOB_PARAMETERS, 0));
    }
    if (e->compute.rebuild) TRY(rebuild(e));
    TRY(ring_warm_up(e));
    if (e->settings.options.join != RING_JOIN_NONE) TRY(exchange_activity(e));
    bool shares = e->settings.policy.broadcast_buffers || !e->compute.started;
    if (ring_has_buffers(e) && e->compute.period_begins && shares) TRY(share_buffers(e));
    TRY(ring_shards_begin_forward(e));
    e->compute.started = true;
    e->compute.period_begins = false;
    bool knows_unused = step->synchronize && e->compute.first_done && e->settings.options.static_graph;
    for (int i = 0; knows_unused && i < ring_params(e); i++)
        if (e->params[i].unused) TRY(mark_without_gradient(e, i));
    return STATUS_OK;
}

/* ---- ready ------------------------------------------------------------------------------------ */

/* Returns true if this micro-batch reduces gradients. Sharded gradients are reduced in every micro-batch. The
 * mean of a mean and of new gradients is the mean of their sums, so other gradients may be reduced in every
 * micro-batch, too. */
static bool reduces(const ring_engine *e)
{
    return e->compute.step.synchronize || e->settings.options.each_micro_batch ||
           e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS;
}

status ring_ready(sync_engine *base, int param)
{
    ring_engine *e = ring_of(base);
    e->params[param].seen = true;
    if (!reduces(e)) return STATUS_OK;
    if (e->params[param].ready)
        return graph_changed(e, param,
                             e->params[param].unused
                                 ? "has a gradient, though the graph is static and the first "
                                   "step had none,"
                                 : "became ready twice");
    if (e->compute.recording && e->compute.step.synchronize)
        e->compute.order[e->compute.order_count++] = param;
    return mark_ready(e, param);
}

/* ---- finish ----------------------------------------------------------------------------------- */

static status mark_missing(ring_engine *e)
{
    bool first_of_static = e->settings.options.static_graph && !e->compute.first_done;
    bool may_miss = e->settings.options.find_unused || first_of_static || e->compute.step.samples == 0;
    for (int i = 0; i < ring_params(e); i++) {
        if (e->params[i].ready) continue;
        if (!may_miss)
            return graph_changed(e, i, "never became ready (see --find-unused-parameters, --static-graph)");
        if (first_of_static) e->params[i].unused = !e->params[i].seen;
        TRY(mark_without_gradient(e, i));
    }
    return STATUS_OK;
}

status ring_await_bucket(ring_engine *e)
{
    int k = e->schedule.next_wait;
    /* Under a `serial` policy, a bucket is launched only here, directly before the wait for it. */
    if (e->schedule.next_launch == k) TRY(launch(e, bucket_take_complete(&e->schedule)));
    TRY(process_group_wait(e->calls, e->buckets[k].work, e->base.context.anatomy));
    TRY(e->settings.policy.sharding != PARAM_SHARD_NONE ? ring_scatter_done(e, k) : ring_unpack(e, k));
    if (bucket_passes(e))
        ledger_release(e->base.context.ledger, LEDGER_BUCKETS, wire_bytes(e, k), e->buckets[k].reserved);
    e->schedule.next_wait++;
    return STATUS_OK;
}

status ring_reduce(sync_engine *base, const sync_step *step)
{
    ring_engine *e = ring_of(base);
    if (!reduces(e)) return STATUS_OK;
    TRY(mark_missing(e));
    if (!e->settings.policy.serial) TRY(launch_ready(e));
    /* While a bucket is copied back, the next bucket is still being reduced. */
    while (e->schedule.next_wait < e->schedule.count) TRY(ring_await_bucket(e));
    if (!step->synchronize) return STATUS_OK;
    if (e->compute.recording) {
        ring_complete_order(e->compute.order, e->compute.order_count, ring_params(e), e->compute.order);
        e->compute.recording = false;
        e->compute.rebuild = true;
    }
    e->compute.first_done = e->compute.period_begins = true;
    /* If the forward pass did not use a unit, its all-gather has not been waited for. */
    return e->settings.policy.sharding ? ring_await_gathers(e) : STATUS_OK;
}

status ring_update(sync_engine *base, const sync_step *step, double scale, bool skipped)
{
    return ring_of(base)->settings.policy.sharding ? ring_update_shards(base, step, scale, skipped)
                                                   : sync_default_update(base, step, scale, skipped);
}

/* ---- between steps ---------------------------------------------------------------------------- */

status ring_flush(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    TRY(ring_await_gathers(e));
    return ring_has_buffers(e) ? ring_run_job(e, RING_JOB_BUFFERS, e->compute.root) : STATUS_OK;
}

status ring_group_sum(sync_engine *base, double *values, int count)
{
    ring_engine *e = ring_of(base);
    if (base->context.world == 1) return STATUS_OK;
    if (count > e->memory.group_capacity)
        return fail(STATUS_INTERNAL, "a sum over the ranks of %d values; %d were announced", count,
                    e->memory.group_capacity);
    device_stream *s = base->context.compute;
    TRY(device_convert(s, e->memory.group, DTYPE_F64, values, DTYPE_F64, count, 1));
    TRY(ring_run_job(e, RING_JOB_GROUP_SUM, count));
    return device_convert(s, values, DTYPE_F64, e->memory.group, DTYPE_F64, count, 1);
}
