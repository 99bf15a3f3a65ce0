/* An engine's agent on the virtual device: an actor that calls the engine's progress().
 *
 * It runs when something was posted (sim_agent_wake, at the time of whoever posts), when a fence of its
 * device moves, and when a deadline that progress() gave has come; then it calls progress() until nothing is
 * left to do. Time that progress() spends (a launch, sim_actor_spend on its actor) moves the agent's own
 * time, and what it does then carries that time.
 *
 * What an agent is told of comes from a compute thread that may be far ahead of the clock. So an event
 * without a fence is not to be acted upon before its time: an engine signals a fence in stream order with
 * every event that it posts, and its agent takes the event when device_fence_reached() says so, which also
 * is when the data are there. */
#ifndef COMMON_DEVICE_SIM_AGENT_SIM_H
#define COMMON_DEVICE_SIM_AGENT_SIM_H

#include "common/device/sim/device_sim.h"

/* As sync_agent_ops: `failed` ends what others wait for; then progress() is not called any more. */
typedef struct sim_agent_ops {
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*failed)(void *context, const error_record *error);
} sim_agent_ops;

typedef struct sim_agent sim_agent;

/* `name` is not copied. It runs for the first time at the present of the one who opens it. */
status sim_agent_open(device *d, const char *name, const sim_agent_ops *ops, void *context, sim_agent **out);
void sim_agent_close(sim_agent **agent);

/* Something was posted, by whoever acts now. */
void sim_agent_wake(sim_agent *agent);

/* The agent's thread: to spend its time, and to have others wake it. */
sim_actor *sim_agent_actor(sim_agent *agent);

/* The failure of progress(); STATUS_OK if there was none. Adopted into the caller's record. */
status sim_agent_error(const sim_agent *agent);

#endif
