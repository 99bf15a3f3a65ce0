#include "common/sim/simulation.h"

static void on_wake(void *context)
{
    sim_actor *a = context;
    simulation *s = a->simulation;
    a->time = sim_later(a->time, s->queue.now);
    a->woken = true;
    a->waits_for = NULL;
    if (!a->run || s->failure != STATUS_OK) return;
    s->current = a;
    status rc = a->run(a->context);
    s->current = NULL;
    if (rc != STATUS_OK && rc != STATUS_AGAIN) s->failure = rc;
}

status sim_actor_open(simulation *s, sim_actor *a, int rank, const char *name)
{
    *a = (sim_actor){.simulation = NULL, .name = name, .rank = rank, .woken = true};
    TRY(sim_event_init(&s->queue, &a->event, rank, on_wake, a));
    a->simulation = s;
    a->time = s->queue.now;
    a->next = s->actors;
    if (s->actors) s->actors->previous = a;
    s->actors = a;
    return STATUS_OK;
}

void sim_actor_close(sim_actor *a)
{
    simulation *s = a->simulation;
    if (!s) return;
    sim_event_deinit(&s->queue, &a->event);
    if (a->next) a->next->previous = a->previous;
    if (a->previous)
        a->previous->next = a->next;
    else
        s->actors = a->next;
    *a = (sim_actor){0};
}

void sim_actor_set_run(sim_actor *a, status (*run)(void *context), void *context)
{
    a->run = run;
    a->context = context;
}

void sim_actor_wake(sim_actor *a, sim_time at)
{
    sim_queue *q = &a->simulation->queue;
    at = sim_later(at, a->time);
    if (at < sim_event_time(q, &a->event)) sim_event_schedule(q, &a->event, at);
}
