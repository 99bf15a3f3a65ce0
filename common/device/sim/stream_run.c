/* Runs a stream as the clock advances.
 *
 * The end of a kernel is computed once, and again only if the speed of the device changes. The kernel is
 * popped when the clock has passed its end. Each stream has one event. The event is scheduled for the next
 * command that affects other streams or hosts (a signal, a wait, a copy), or for the time at which the stream
 * is empty if a host waits for this time. */
#include "common/device/sim/sim_impl.h"

#include <assert.h>
#include <stdlib.h>

static sim_command *command_at(const sim_stream *s, uint32_t index)
{
    return &s->commands[(s->head + index) & (s->capacity - 1)];
}

/* ---- speed ------------------------------------------------------------------------------------ */

static double rate_of(const sim_stream *s, const sim_command *c)
{
    const sim_device *d = sim_device_of(s);
    bool slowed = s->base.role == DEVICE_STREAM_COMPUTE && d->communicating && !d->synchronous;
    return slowed ? sim_price_rate(d->load, c->parts) : 1;
}

static sim_time duration_of(int64_t work, double rate)
{
    return rate == 1 ? work : sim_duration((double)work, rate);
}

static sim_time later_by(sim_time at, sim_time duration)
{
    return duration == SIM_NEVER || at == SIM_NEVER ? SIM_NEVER : at + duration;
}

/* ---- commands --------------------------------------------------------------------------------- */

static void pop(sim_stream *s)
{
    s->head++;
    s->count--;
    s->started = s->copied = false;
}

/* run_kernel(), run_wait() and run_copy() run the head, which may begin at `start`, and return true if
 * the head is done. */
static bool run_kernel(sim_stream *s, const sim_command *c, sim_time start, sim_time now)
{
    double rate = rate_of(s, c);
    if (!s->started) {
        s->started = true;
        s->since = s->begun = start;
        s->remaining = c->value;
    }
    sim_time end = later_by(s->since, duration_of(s->remaining, rate));
    if (end <= now) {
        s->slowed += end - s->since - s->remaining;
        s->at = end;
        sim_record(sim_device_of(s), s->base.role, c->what, s->begun, end);
        return true;
    }
    int64_t progress = rate == 1 ? now - s->since : (int64_t)llround((double)(now - s->since) * rate);
    s->remaining -= progress;
    s->slowed += now - s->since - progress;
    s->since = now;
    return false;
}

void sim_stream_pass(sim_stream *s, sim_time start, sim_time reached)
{
    s->at = sim_later(start, reached);
    if (s->at > start) sim_record(sim_device_of(s), s->base.role, SIM_WAIT, start, s->at);
}

static bool run_wait(sim_stream *s, const sim_command *c, sim_time start)
{
    sim_fence *f = c->object;
    sim_time reached = sim_fence_time(f, (uint64_t)c->value);
    if (f->failed && reached == SIM_NEVER) {
        s->failed = true;
        return false;
    }
    if (reached == SIM_NEVER) {
        sim_fence_add_stream(f, s);
        return false;
    }
    sim_stream_pass(s, start, reached);
    return true;
}

/* Returns true if a copy engine runs the copies of this stream at the same time as the kernels of compute
 * streams. */
static bool copies_beside(const sim_stream *s)
{
    return s->base.role == DEVICE_STREAM_COPY;
}

static sim_load copy_load(const sim_stream *s)
{
    const sim_device *d = sim_device_of(s);
    return sim_price_copy_engine(d->simulation->profile, d->copy_rate);
}

static bool run_copy(sim_stream *s, const sim_command *c, sim_time start)
{
    const sim_route *route = c->object;
    if (!s->started) {
        s->started = true;
        s->at = s->begun = start;
        if (copies_beside(s)) sim_device_begin_communication(s->base.device, copy_load(s));
        sim_flow_start(&s->flow, start, route->hops, route->count, (double)c->value, INFINITY,
                       route->latency);
    }
    if (!s->copied) return false;
    s->at = sim_queue_of(sim_device_of(s))->now;
    sim_record(sim_device_of(s), s->base.role, "copy", s->begun, s->at);
    return true;
}

static bool run_head(sim_stream *s, sim_time now)
{
    const sim_command *c = command_at(s, 0);
    sim_time start = sim_later(s->at, c->enqueued);
    if (c->kind == COMMAND_WAIT) return run_wait(s, c, start);
    if (start > now) return false;
    switch (c->kind) {
    case COMMAND_KERNEL:
        return run_kernel(s, c, start, now);
    case COMMAND_MARK:
        s->marks[c->slot] = (struct sim_mark){sim_to_ns(start), sim_to_ns(s->slowed)};
        s->at = start;
        return true;
    case COMMAND_SIGNAL:
        s->at = start;
        sim_fence_reach_at(c->object, (uint64_t)c->value, start);
        return true;
    default:
        return run_copy(s, c, start);
    }
}

/* ---- looking ahead ---------------------------------------------------------------------------- */

/* Returns the time at which the stream must be examined next if nothing changes. */
static sim_time next_moment(const sim_stream *s)
{
    sim_time at = s->at;
    if (s->waits_on) return SIM_NEVER;
    for (uint32_t i = 0; i < s->count; i++) {
        const sim_command *c = command_at(s, i);
        bool started = i == 0 && s->started;
        at = sim_later(at, c->enqueued);
        switch (c->kind) {
        case COMMAND_MARK:
            break;
        case COMMAND_KERNEL:
            at = started ? later_by(s->since, duration_of(s->remaining, rate_of(s, c)))
                         : later_by(at, duration_of(c->value, rate_of(s, c)));
            if (at == SIM_NEVER) return SIM_NEVER;
            break;
        default:
            return started ? SIM_NEVER : at;
        }
    }
    return s->waiters ? at : SIM_NEVER;
}

void sim_stream_advance(void *context)
{
    sim_stream *s = context;
    sim_queue *q = sim_queue_of(sim_device_of(s));
    if (s->advancing) return;
    s->advancing = true;
    while (s->count && !s->failed && !s->waits_on && run_head(s, q->now)) pop(s);
    s->advancing = false;
    if (s->waiters && (s->count == 0 || s->failed)) sim_wake_waiters(&s->waiters, sim_later(s->at, q->now));
    sim_time next = s->failed ? SIM_NEVER : next_moment(s);
    if (next != sim_event_time(q, &s->event)) sim_event_schedule(q, &s->event, next);
}

void sim_stream_copied(void *context)
{
    sim_stream *s = context;
    assert(s->count && s->started);
    if (copies_beside(s)) sim_device_end_communication(s->base.device, copy_load(s));
    s->copied = true;
    sim_stream_advance(s);
}

void sim_stream_resume(sim_stream *s, bool failed)
{
    s->waits_on = NULL;
    s->failed = s->failed || failed;
    sim_stream_advance(s);
}

/* ---- the host's side -------------------------------------------------------------------------- */

static status grow(sim_stream *s)
{
    enum { FIRST_CAPACITY = 64 };
    uint32_t capacity = s->capacity ? s->capacity * 2 : FIRST_CAPACITY;
    sim_command *commands = malloc(capacity * sizeof *commands);
    if (!commands) return fail(STATUS_SYSTEM, "no memory for %u commands of a stream", capacity);
    for (uint32_t i = 0; i < s->count; i++) commands[i] = *command_at(s, i);
    free(s->commands);
    s->commands = commands;
    s->capacity = capacity;
    s->head = 0;
    return STATUS_OK;
}

/* Returns true if a new command need not be examined now. Kernels and marks never need to be examined at
 * once. Any other command can be examined later if the stream will advance for an earlier command. */
static bool may_sleep(const sim_stream *s, command_kind kind)
{
    if (kind == COMMAND_KERNEL || kind == COMMAND_MARK) return true;
    return sim_event_scheduled(&s->event) || s->waits_on || s->advancing;
}

status sim_stream_push(sim_stream *s, sim_command command)
{
    if (s->count == s->capacity) TRY(grow(s));
    *command_at(s, s->count) = command;
    s->count++;
    if (!may_sleep(s, command.kind)) sim_stream_advance(s);
    return STATUS_OK;
}
