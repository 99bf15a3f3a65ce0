/* An engine's agent on the virtual device: an actor that calls the engine's progress().
 *
 * The agent runs when an actor has posted work and calls sim_agent_wake() (at the time of this actor), when a
 * fence of the agent's device advances, and at the deadline that progress() returned. In each run, the agent
 * calls progress() until no work is left. Launches in progress(), and calls of sim_actor_spend() on
 * sim_device_actor(), advance only the agent's time.
 *
 * A compute thread that posts events may be far ahead of the clock. Therefore an engine signals a fence in
 * stream order with every event that it posts. The agent processes the event when device_fence_reached()
 * returns true; the event's data are then complete, too. */
#ifndef COMMON_DEVICE_SIM_AGENT_SIM_H
#define COMMON_DEVICE_SIM_AGENT_SIM_H

#include "common/device/sim/device_sim.h"

/* Functions of an engine, as in sync_agent_ops. If progress() fails, the agent calls failed(), which ends all
 * waits of other threads. The agent then never calls progress() again. */
typedef struct sim_agent_ops {
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*failed)(void *context, const error_record *error);
} sim_agent_ops;

typedef struct sim_agent sim_agent;

/* Opens an agent. The agent first runs at the current time of the caller. `name` is not copied. */
status sim_agent_open(device *d, const char *name, const sim_agent_ops *ops, void *context, sim_agent **out);
void sim_agent_close(sim_agent **agent);

/* Wakes the agent after the current actor has posted work. */
void sim_agent_wake(sim_agent *agent);

#endif
