/* A fiber: an actor whose code blocks where it must wait, as a thread does, instead of returning
 * STATUS_AGAIN. The compute threads of virtual ranks are fibers. All fibers of a simulation run in its one
 * thread, one at a time; each has a stack and an error record of its own. */
#ifndef COMMON_SIM_FIBER_H
#define COMMON_SIM_FIBER_H

#include "common/sim/simulation.h"

/* `main` runs when the actor is woken for the first time, which is the caller's to do; its failure is the
 * simulation's. STATUS_SYSTEM without memory. */
status sim_fiber_open(sim_actor *a, status (*main)(void *context), void *context);
/* A fiber that has begun and not ended unwinds first: each of its waits returns STATUS_STOPPED. An actor that
 * is no fiber is left alone. */
void sim_fiber_close(sim_actor *a);

/* Whether the actor is a fiber that runs now. */
bool sim_fiber_runs(const sim_actor *a);

/* By the fiber's own code. Others run until the actor is woken; */
status sim_fiber_yield(sim_actor *a);
/* or until the clock has come to the actor's time. */
status sim_fiber_catch_up(sim_actor *a);

#endif
