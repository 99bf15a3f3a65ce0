/* An engine's agent on the virtual device: an actor that calls the engine's progress().
 *
 * It runs after something was posted (sim_agent_wake, at the time of the poster), when a fence of its device
 * moves, and at a deadline that progress() returned; it then calls progress() until no work is left. Time
 * that progress() spends (a launch, sim_actor_spend on its actor) advances the agent's own time.
 *
 * Events come from a compute thread that may be far ahead of the clock. An engine therefore signals a fence
 * in stream order with every event that it posts, and its agent processes the event when
 * device_fence_reached() is true; the data are there then, too. */
#ifndef COMMON_DEVICE_SIM_AGENT_SIM_H
#define COMMON_DEVICE_SIM_AGENT_SIM_H

#include "common/device/sim/device_sim.h"

/* As sync_agent_ops: `failed` ends all waits of others; progress() is not called after it. */
typedef struct sim_agent_ops {
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*failed)(void *context, const error_record *error);
} sim_agent_ops;

typedef struct sim_agent sim_agent;

/* `name` is not copied. The agent first runs at the current time of its opener. */
status sim_agent_open(device *d, const char *name, const sim_agent_ops *ops, void *context, sim_agent **out);
void sim_agent_close(sim_agent **agent);

/* Something was posted by the current actor. */
void sim_agent_wake(sim_agent *agent);

/* The agent's thread: to spend its time, and to wake it. */
sim_actor *sim_agent_actor(sim_agent *agent);

/* The failure of progress(), copied into the caller's record; STATUS_OK if there was none. */
status sim_agent_error(const sim_agent *agent);

#endif
