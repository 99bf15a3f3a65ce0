#include "common/device/sim/sim_impl.h"
#include "common/sim/fiber.h"

#include <stdlib.h>
#include <string.h>

status sim_stream_open(device_stream *base)
{
    sim_stream *s = (sim_stream *)base;
    sim_device *d = sim_device_of(s);
    int rank = d->base.config.rank;
    s->next = d->streams;
    d->streams = s;
    s->at = simulation_now(d->simulation);
    int hops = d->up.count > d->down.count ? d->up.count : d->down.count;
    /* Routes to another GPU of the process are longer. */
    if (d->simulation->config.per_process > 1) hops = SIM_ROUTE_MAX;
    TRY(sim_event_init(sim_queue_of(d), &s->event, rank, sim_stream_advance, s));
    TRY(sim_flow_init(&d->simulation->network, &s->flow, rank, hops, NULL, sim_stream_copied, s));
    s->flow.what = "copy";
    return STATUS_OK;
}

void sim_stream_close(device_stream *base)
{
    sim_stream *s = (sim_stream *)base, **at = &sim_device_of(s)->streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    if (s->waits_on) sim_fence_remove_stream(s->waits_on, s);
    sim_flow_deinit(&s->flow);
    sim_event_deinit(sim_queue_of(sim_device_of(s)), &s->event);
    free(s->commands);
    free(s->marks);
}

/* Spends the host time of a launch, and returns the time at which the command is enqueued. */
static sim_time submit(sim_device *d)
{
    sim_actor *a = sim_actor_of(d);
    sim_actor_spend(a, d->launch);
    return a->time;
}

/* ---- cores shared by compute threads and agents, on a machine that computes on its CPU ------------ */

/* Makes the compute thread work on its core. While a collective moves data, the agent of its rank uses a
 * share of the core. The compute thread also loses a share of the time that an agent spends with
 * sim_actor_spend() (sim_actor.lost). */
static status core_work(sim_device *d, sim_time duration)
{
    sim_actor *a = &d->host;
    double left = (double)duration;
    TRY(sim_fiber_catch_up(a));
    status rc = STATUS_OK;
    d->at_work = true;
    while (left >= 1 && rc == STATUS_OK) {
        double rate = d->communicating ? 1 - d->host_share : 1;
        sim_time since = a->time, takes = sim_duration(left, rate);
        a->waits_for = "its core";
        if (takes != SIM_NEVER) sim_actor_wake(a, since + takes);
        rc = sim_fiber_yield(a);
        left += (double)a->lost - (double)(a->time - since) * rate;
        a->lost = 0;
    }
    d->at_work = false;
    return rc;
}

void sim_core_changed(sim_device *d)
{
    if (d->at_work) sim_actor_wake(&d->host, simulation_now(d->simulation));
}

/* Runs an operation on the host, on a device with synchronous launches. */
static status work(sim_stream *s, sim_time duration)
{
    sim_device *d = sim_device_of(s);
    sim_actor *a = sim_actor_of(d);
    if (d->hides_launches) duration = sim_later(0, duration - d->launch);
    if (a == &d->host && d->host_share > 0 && sim_fiber_runs(a)) {
        sim_time begin = a->time;
        TRY(core_work(d, duration));
        s->slowed += a->time - begin - duration;
    } else {
        sim_actor_spend(a, duration);
        if (sim_fiber_runs(a)) TRY(sim_fiber_catch_up(a));
    }
    s->at = a->time;
    return STATUS_OK;
}

status sim_launch(device_stream *base, device_kernel *base_kernel, void *const *operands,
                  const op_scalars *scalars, void *workspace)
{
    const sim_kernel *kernel = (const sim_kernel *)base_kernel;
    sim_stream *s = (sim_stream *)base;
    sim_device *d = sim_device_of(s);
    if (s->failed) return sim_device_failed(d);
    sim_time at = submit(d), duration = sim_kernel_time(d, kernel, scalars);
    const char *what = op_name(kernel->base.op.kind);
    if (!d->synchronous)
        return sim_stream_push(s, (sim_command){.kind = COMMAND_KERNEL,
                                                .what = what,
                                                .enqueued = at,
                                                .value = duration,
                                                .parts = kernel->parts});
    TRY(work(s, duration));
    sim_time begun = d->hides_launches ? at - d->launch : at;
    /* True if the launch takes longer than the kernel, and hides it. */
    bool hidden = d->hides_launches && duration < d->launch;
    sim_record(d, s->base.role, what, begun, hidden ? begun + duration : s->at);
    return STATUS_OK;
}

/* Launches a pass that reads and writes each element once. */
static status pack_range(device_stream *s, int64_t count)
{
    device_kernel *kernel;
    op_desc op;
    memset(&op, 0, sizeof op); /* clears the padding, too, because operations are compared as bytes */
    op.kind = OP_divide;
    op.type = DTYPE_F32;
    op.u.elementwise.count = count;
    TRY(sim_prepare(s->device, &op, NULL, &kernel));
    return sim_launch(s, kernel, NULL, NULL, NULL);
}

status sim_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                double divisor)
{
    (void)to_type, (void)from_type, (void)divisor;
    for (int i = 0; i < count; i++) TRY(pack_range(s, ranges[i].count));
    return STATUS_OK;
}

/* An addition takes as long as a pass that divides. */
status sim_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count)
{
    return pack_range(s, count);
}

static status copy(sim_stream *s, sim_route *route, dtype type, int64_t count)
{
    sim_device *d = sim_device_of(s);
    if (s->failed) return sim_device_failed(d);
    int64_t bytes = count * dtype_size(type);
    sim_time at = submit(d);
    if (!d->synchronous)
        return sim_stream_push(
            s, (sim_command){.kind = COMMAND_COPY, .enqueued = at, .value = bytes, .object = route});
    sim_time duration = route->latency + sim_duration((double)bytes, d->copy_rate);
    sim_time begun = at;
    if (d->hides_launches && s->base.role == DEVICE_STREAM_COPY) {
        begun = sim_later(s->at, at);
        s->at = begun + duration;
    } else {
        TRY(work(s, duration));
    }
    sim_record(d, s->base.role, "copy", begun, s->at);
    return STATUS_OK;
}

status sim_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count)
{
    return copy((sim_stream *)s, &((sim_device *)s->device)->up, type, count);
}

status sim_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                    int64_t count)
{
    memset(host, 0, (size_t)count * (size_t)dtype_size(host_type));
    return copy((sim_stream *)s, &((sim_device *)s->device)->down, type, count);
}

static sim_peer *find_peer(sim_device *d, const device *from)
{
    simulation *s = d->simulation;
    for (sim_peer *p = d->peers; p; p = p->next)
        if (p->from == from) return p;
    sim_peer *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (sim_peer){.next = d->peers, .from = from};
    sim_topology_route(s->topology, simulation_gpu(s, from->config.rank),
                       simulation_gpu(s, d->base.config.rank), &p->route);
    return d->peers = p;
}

status sim_copy_from(device_stream *s, const device *from, dtype type, int64_t count)
{
    sim_peer *peer = find_peer((sim_device *)s->device, from);
    if (!peer) return fail(STATUS_SYSTEM, "no memory for the route between two GPUs");
    return copy((sim_stream *)s, &peer->route, type, count);
}

status sim_stream_signal(device_stream *base, device_fence *f, uint64_t value)
{
    sim_stream *s = (sim_stream *)base;
    sim_device *d = sim_device_of(s);
    if (s->failed) return sim_device_failed(d);
    sim_time now = sim_actor_of(d)->time;
    if (s->count)
        return sim_stream_push(
            s, (sim_command){.kind = COMMAND_SIGNAL, .enqueued = now, .value = (int64_t)value, .object = f});
    s->at = sim_later(s->at, now);
    sim_fence_reach_at((sim_fence *)f, value, s->at);
    return STATUS_OK;
}

/* Blocks the host until the fence is reached, on a device with synchronous launches. */
static status block_for(sim_device *d, sim_fence *f, uint64_t value)
{
    sim_actor *a = sim_actor_of(d);
    sim_time reached = sim_fence_time(f, value);
    if (reached == SIM_NEVER && f->failed) return sim_device_failed(d);
    if (reached == SIM_NEVER) {
        sim_add_waiter(&f->waiters, a);
        return sim_actor_block(a, "a fence");
    }
    a->time = sim_later(a->time, reached);
    return STATUS_OK;
}

status sim_stream_wait(device_stream *base, device_fence *fence, uint64_t value)
{
    sim_stream *s = (sim_stream *)base;
    sim_device *d = sim_device_of(s);
    sim_fence *f = (sim_fence *)fence;
    if (s->failed) return sim_device_failed(d);
    if (d->synchronous && s->base.role == DEVICE_STREAM_COPY && sim_fence_time(f, value) != SIM_NEVER) {
        s->at = sim_later(s->at, sim_fence_time(f, value)); /* the copy engine waits instead of the host */
        return STATUS_OK;
    }
    if (d->synchronous) {
        status rc = block_for(d, f, value);
        while (rc == STATUS_AGAIN && sim_fiber_runs(sim_actor_of(d))) {
            TRY(sim_fiber_yield(sim_actor_of(d)));
            sim_actor_of(d)->lost = 0; /* time lost during a wait does not count */
            rc = block_for(d, f, value);
        }
        return rc;
    }
    sim_time now = sim_actor_of(d)->time, reached = sim_fence_time(f, value);
    if (s->count || reached == SIM_NEVER)
        return sim_stream_push(
            s, (sim_command){.kind = COMMAND_WAIT, .enqueued = now, .value = (int64_t)value, .object = f});
    sim_stream_pass(s, sim_later(s->at, now), reached);
    return STATUS_OK;
}

status sim_stream_synchronize(device_stream *base)
{
    sim_stream *s = (sim_stream *)base;
    sim_device *d = sim_device_of(s);
    sim_actor *a = sim_actor_of(d);
    for (;;) {
        sim_stream_advance(s);
        if (s->failed) return sim_device_failed(d);
        if (s->count == 0) break;
        sim_add_waiter(&s->waiters, a);
        /* Schedules the event at which the stream is empty, because a host now waits for it. */
        sim_stream_advance(s);
        status rc =
            sim_actor_block(a, s->waits_on ? "its stream, which waits for a fence" : "its stream to drain");
        if (!sim_fiber_runs(a)) return rc;
        TRY(sim_fiber_yield(a));
    }
    a->time = sim_later(a->time, s->at);
    sim_actor_spend(a, d->synchronize);
    return STATUS_OK;
}

static status make_room(sim_stream *s, int slot)
{
    if (slot < s->mark_capacity) return STATUS_OK;
    int capacity = s->mark_capacity ? s->mark_capacity : 8;
    while (capacity <= slot) capacity *= 2;
    struct sim_mark *marks = realloc(s->marks, (size_t)capacity * sizeof *marks);
    if (!marks) return fail(STATUS_SYSTEM, "no memory for %d marks", capacity);
    memset(marks + s->mark_capacity, 0, (size_t)(capacity - s->mark_capacity) * sizeof *marks);
    s->marks = marks;
    s->mark_capacity = capacity;
    return STATUS_OK;
}

status sim_mark(device_stream *base, int slot)
{
    sim_stream *s = (sim_stream *)base;
    sim_time now = sim_actor_of(sim_device_of(s))->time;
    TRY(make_room(s, slot));
    if (s->count)
        return sim_stream_push(s, (sim_command){.kind = COMMAND_MARK, .slot = slot, .enqueued = now});
    s->at = sim_later(s->at, now);
    s->marks[slot] = (struct sim_mark){sim_to_ns(s->at), sim_to_ns(s->slowed)};
    return STATUS_OK;
}

int64_t sim_mark_ns(device_stream *base, int slot)
{
    sim_stream *s = (sim_stream *)base;
    return slot < s->mark_capacity ? s->marks[slot].at_ns : 0;
}

int64_t sim_mark_slowed_ns(device_stream *base, int slot)
{
    const sim_stream *s = (const sim_stream *)base;
    return slot < s->mark_capacity ? s->marks[slot].slowed_ns : 0;
}
