/* A fiber is an actor whose code blocks while it waits, as a thread does, instead of returning STATUS_AGAIN.
 * The compute threads of virtual ranks are fibers. All fibers of a simulation run in the simulation's only
 * thread, one at a time. Each fiber has a stack and an error record. */
#ifndef COMMON_SIM_FIBER_H
#define COMMON_SIM_FIBER_H

#include "common/sim/simulation.h"

/* Turns an actor into a fiber. `main` runs when the caller wakes the actor for the first time. If `main`
 * fails, the simulation fails. Returns STATUS_SYSTEM if memory is short. */
status sim_fiber_open(sim_actor *a, status (*main)(void *context), void *context);
/* Closes an actor's fiber, if it has one. A fiber that has begun and not ended unwinds first: each of its
 * waits returns STATUS_STOPPED. */
void sim_fiber_close(sim_actor *a);

/* Returns true if the actor is a fiber that is running now. */
bool sim_fiber_runs(const sim_actor *a);

/* Lets other actors run until the actor is woken. Only the fiber's code may call sim_fiber_yield() and
 * sim_fiber_catch_up(). */
status sim_fiber_yield(sim_actor *a);
/* Lets other actors run until the clock has reached the actor's time. */
status sim_fiber_catch_up(sim_actor *a);

#endif
