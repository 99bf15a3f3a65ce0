/* A fiber is an actor whose code blocks while it waits, as the code of a thread does. Other actors return
 * STATUS_AGAIN instead. The compute threads of virtual ranks are fibers. All fibers of a simulation run in
 * the simulation's only thread, one at a time. Each fiber has a stack and an error record. */
#ifndef COMMON_SIM_FIBER_H
#define COMMON_SIM_FIBER_H

#include "common/sim/simulation.h"

/* Turns an actor into a fiber. `main` begins to run when the actor is woken for the first time. If `main`
 * fails, the simulation fails. Returns STATUS_SYSTEM if memory is short. */
status sim_fiber_open(sim_actor *a, status (*main)(void *context), void *context);
/* Closes the fiber of an actor if the actor has one. If the fiber has begun but has not ended, first runs the
 * fiber to its end. Every wait of the fiber then returns STATUS_STOPPED. */
void sim_fiber_close(sim_actor *a);

/* Returns true if the actor is a fiber that is running now. */
bool sim_fiber_runs(const sim_actor *a);

/* Lets other actors run until this actor is woken. Only code that runs in the fiber of `a` may call
 * sim_fiber_yield() and sim_fiber_catch_up(). */
status sim_fiber_yield(sim_actor *a);
/* Lets other actors run until the clock has reached the local time of this actor. */
status sim_fiber_catch_up(sim_actor *a);

#endif
