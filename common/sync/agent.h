/* An agent drives the state machine of an engine. The agent calls progress() with the current time.
 * progress() never blocks, and returns whether it did any work and when it must be called again. Between
 * these calls the agent sleeps. Only the compute thread may block. The device and the options determine what
 * calls progress():
 *
 *   on a CPU or GPU      a communication thread per rank
 *   inline               the compute thread, while it waits for a fence; for small models on a CPU
 *   on a virtual device  events of the simulation (common/device/sim/agent_sim.h)
 *   if the device plans  the compute thread, when it wakes the agent */
#ifndef COMMON_SYNC_AGENT_H
#define COMMON_SYNC_AGENT_H

#include "common/device/device.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sync_agent sync_agent;

/* Functions of an engine. Any thread may call wake(); only the agent calls the other functions. */
typedef struct sync_agent_ops {
    /* Does everything that can be done at `now_ns`. Sets *worked to true if anything was done. Sets
     * *deadline_ns to the time by which progress() must be called again. Leaves *deadline_ns at CLOCK_NEVER
     * if no call is needed before a message arrives or wake() is called. */
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    /* Sleeps until something may have happened, at most until the deadline. */
    void (*wait)(void *context, int64_t deadline_ns);
    /* Makes wait() return. */
    void (*wake)(void *context);
    /* Ends all waits for this engine, because progress() has failed. The agent does not call progress()
     * again. */
    void (*failed)(void *context, const error_record *error);
} sync_agent_ops;

typedef struct sync_agent_config {
    const sync_agent_ops *ops;
    void *context;
    device *device;   /* device whose idle function runs an inline agent */
    const char *name; /* name of the thread, at most 15 characters */
    /* true for an inline agent. An inline agent has no thread: the compute thread calls progress() while
     * the compute thread waits. */
    bool inline_progress;
    struct anatomy *anatomy; /* anatomy in which an inline agent records its work as communication, or NULL */
} sync_agent_config;

/* Opens an agent. If the agent has a thread, the thread begins to run at once. */
status sync_agent_open(const sync_agent_config *config, sync_agent **out);

/* Waits until a running progress() has returned, and ends the agent's thread. */
void sync_agent_close(sync_agent **agent);

/* Returns the processor time of the agent's thread in ns, or 0 if there is no thread. Any thread may call
 * this function. */
int64_t sync_agent_cpu_ns(const sync_agent *agent);

/* Makes the agent call progress() soon, because work has been posted. Any thread may call this function. */
void sync_agent_wake(sync_agent *agent);

#endif
