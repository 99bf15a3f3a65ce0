#include "common/device/sim/sim_impl.h"

#include <stdlib.h>
#include <string.h>

void sim_add_waiter(sim_actor **list, sim_actor *a)
{
    for (sim_actor *other = *list; other; other = other->next_waiting)
        if (other == a) return;
    a->next_waiting = *list;
    *list = a;
}

void sim_wake_waiters(sim_actor **list, sim_time at)
{
    while (*list) {
        sim_actor *a = *list;
        *list = a->next_waiting;
        a->next_waiting = NULL;
        sim_actor_wake(a, at);
    }
}

status sim_fence_open(device_fence *base)
{
    sim_fence *f = (sim_fence *)base;
    f->history = malloc(FENCE_HISTORY * sizeof *f->history);
    if (!f->history) return fail(STATUS_SYSTEM, "no memory for a fence");
    f->capacity = FENCE_HISTORY;
    return STATUS_OK;
}

void sim_fence_close(device_fence *base)
{
    sim_fence *f = (sim_fence *)base;
    for (sim_stream *s = f->streams; s; s = s->next_waiting) {
        s->waits_on = NULL;
        s->failed = true; /* a closed fence cannot end the wait, so the stream fails */
    }
    free(f->history);
}

sim_time sim_fence_time(const sim_fence *f, uint64_t value)
{
    if (value == 0) return 0;
    for (int i = 0; i < f->reached; i++)
        if (f->history[i].value >= value) return f->history[i].at;
    return SIM_NEVER;
}

void sim_fence_add_stream(sim_fence *f, sim_stream *s)
{
    sim_stream **at = &f->streams;
    while (*at) at = &(*at)->next_waiting;
    *at = s;
    s->waits_on = f;
    s->next_waiting = NULL;
}

void sim_fence_remove_stream(sim_fence *f, sim_stream *s)
{
    sim_stream **at = &f->streams;
    while (*at != s) at = &(*at)->next_waiting;
    *at = s->next_waiting;
    s->waits_on = NULL;
}

/* Resumes streams in the order in which they began to wait. */
static void resume_streams(sim_fence *f, bool failed)
{
    sim_stream *first = f->streams;
    f->streams = NULL;
    while (first) {
        sim_stream *next = first->next_waiting;
        sim_stream_resume(first, failed); /* the stream may wait for the fence again, for a larger value */
        first = next;
    }
}

/* Makes room for one more entry. Drops the oldest entries whose successors the clock has passed. If no
 * memory is left, drops the oldest entry. */
static void make_room(sim_fence *f)
{
    sim_time now = simulation_now(((sim_device *)f->base.device)->simulation);
    int drop = 0;
    if (f->reached < f->capacity) return;
    while (f->reached - drop >= FENCE_HISTORY && f->history[drop + 1].at <= now) drop++;
    struct sim_reached *more =
        drop ? NULL : realloc(f->history, 2 * (size_t)f->capacity * sizeof *f->history);
    if (more) {
        f->history = more;
        f->capacity *= 2;
        return;
    }
    if (!drop) drop = 1;
    f->reached -= drop;
    memmove(f->history, f->history + drop, (size_t)f->reached * sizeof *f->history);
}

static void remember(sim_fence *f, uint64_t value, sim_time at)
{
    for (int i = f->reached - 1; i >= 0 && f->history[i].at > at; i--)
        f->history[i].at = at; /* a fence that has reached a value has also reached all smaller values */
    make_room(f);
    f->history[f->reached].value = value;
    f->history[f->reached++].at = at;
}

static void tell_listeners(sim_device *d, sim_time at)
{
    for (sim_listener *l = d->listeners; l; l = l->next)
        if (l->actor != d->simulation->current) sim_actor_wake(l->actor, at);
}

void sim_fence_reach_at(sim_fence *f, uint64_t value, sim_time at)
{
    if (f->failed || (f->reached && f->history[f->reached - 1].value >= value)) return;
    remember(f, value, at);
    resume_streams(f, false);
    sim_wake_waiters(&f->waiters, at);
    tell_listeners((sim_device *)f->base.device, at);
}

void sim_fence_reach(device_fence *f, uint64_t value)
{
    sim_fence_reach_at((sim_fence *)f, value, sim_actor_of((sim_device *)f->device)->time);
}

/* Returns true if the fence has reached `value` at the actor's time. If not, and if the time at which the
 * fence reaches `value` is known, schedules the current actor to wake at that time. */
bool sim_fence_reached(device_fence *f, uint64_t value)
{
    sim_actor *a = sim_actor_of((sim_device *)f->device);
    sim_time at = sim_fence_time((sim_fence *)f, value);
    if (at <= a->time) return true;
    if (at != SIM_NEVER && a == a->simulation->current) sim_actor_wake(a, at);
    return false;
}

void sim_fence_fail(device_fence *base, const error_record *error)
{
    sim_fence *f = (sim_fence *)base;
    sim_device *d = (sim_device *)base->device;
    if (f->failed) return;
    f->failed = true;
    if (!d->failure) {
        d->failure = malloc(sizeof *d->failure);
        if (d->failure) *d->failure = *error;
    }
    sim_time now = sim_actor_of(d)->time;
    resume_streams(f, true);
    sim_wake_waiters(&f->waiters, now);
    tell_listeners(d, now);
}
