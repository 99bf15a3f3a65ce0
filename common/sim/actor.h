/* An actor is a virtual host thread: a rank's compute thread, an agent, a server. It has a time of its own,
 * to which it has come by what it did, and it may be ahead of the clock: a launch costs it host time and
 * nothing else, so it runs on until it must wait for something that the clock has not reached.
 *
 * The event queue wakes an actor: its time moves to the clock's, and `run` is called, which does what can be
 * done now. Where it must wait it says so with sim_actor_block, has itself woken by whatever it waits for,
 * and returns STATUS_AGAIN. What an actor does while it is ahead of the clock carries its own time; whoever
 * it tells must be woken at that time (sim_actor_wake with sim_actor_now), not at the clock's. */
#ifndef COMMON_SIM_ACTOR_H
#define COMMON_SIM_ACTOR_H

#include "common/sim/queue.h"

#include <assert.h>

struct simulation;

typedef struct sim_actor {
    struct simulation *simulation;
    sim_event event;
    sim_time time;         /* that it has come to */
    const char *name;      /* "compute", for messages; not copied */
    const char *waits_for; /* NULL: for nothing */
    int rank;
    bool woken;                   /* since it blocked last */
    status (*run)(void *context); /* NULL: whoever drives it looks at `woken` */
    void *context;
    struct sim_fiber *fiber; /* fiber.h; NULL: none */
    struct sim_actor *core;    /* the compute thread on whose core it works; NULL: has one of its own */
    double core_share;         /* of its work, which that thread loses */
    sim_time lost;             /* a compute thread: to such actors, since it looked last */
    struct sim_actor *next, *previous; /* all actors of the simulation */
    struct sim_actor *next_waiting;    /* on the same stream or fence */
} sim_actor;

status sim_actor_open(struct simulation *simulation, sim_actor *a, int rank, const char *name);
/* Zeroed storage is left alone. */
void sim_actor_close(sim_actor *a);

/* What the actor does when it is woken; it may be set or changed while the actor sleeps. */
void sim_actor_set_run(sim_actor *a, status (*run)(void *context), void *context);

/* Has it woken at `at`, or at its own time where that is later; the earliest of several calls counts. */
void sim_actor_wake(sim_actor *a, sim_time at);

/* It works for so long. */
static inline void sim_actor_spend(sim_actor *a, sim_time duration)
{
    a->time += duration;
    if (a->core) a->core->lost += (sim_time)((double)duration * a->core_share);
}

/* It must wait, for `what` ("synchronize"; not copied). Returns STATUS_AGAIN. */
static inline status sim_actor_block(sim_actor *a, const char *what)
{
    assert(a->simulation); /* the clock itself cannot wait */
    a->waits_for = what;
    a->woken = false;
    return STATUS_AGAIN;
}

#endif
