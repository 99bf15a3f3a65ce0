/* The agent drives an engine's state machine: it hands over the time, learns whether anything was done
 * and by when it must be called again, and sleeps in between. On a CPU that is a communication thread a
 * rank, or, for small models, the compute thread itself while it waits for a fence (on a device that plans:
 * when it wakes the agent); on the virtual device the event queue (common/device/sim/agent_sim.h). Compute
 * may block its thread; the agent never blocks in progress(). */
#ifndef COMMON_SYNC_AGENT_H
#define COMMON_SYNC_AGENT_H

#include "common/device/device.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sync_agent sync_agent;

/* What is driven. Any thread may call wake(); the others are called by the agent alone. */
typedef struct sync_agent_ops {
    /* Does what can be done now. *deadline_ns: when it must be called again even if nothing happens
     * (CLOCK_NEVER: not at all). *worked: whether anything was done. */
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    /* Sleeps until something may have happened or the deadline has come. */
    void (*wait)(void *context, int64_t deadline_ns);
    void (*wake)(void *context);
    /* progress() failed; nothing will be progressed any more. Ends what others wait for. */
    void (*failed)(void *context, const error_record *error);
} sync_agent_ops;

typedef struct sync_agent_config {
    const sync_agent_ops *ops;
    void *context;
    device *device;          /* whose idle function an inline agent becomes */
    const char *name;        /* of the thread, at most 15 characters */
    bool inline_progress;    /* no thread: the waiting compute thread progresses */
    struct anatomy *anatomy; /* where what it does inline is recorded as communication; or NULL */
} sync_agent_config;

/* A thread agent begins to run at once. */
status sync_agent_open(const sync_agent_config *config, sync_agent **out);

/* Ends the thread at the next return of progress(). */
void sync_agent_close(sync_agent **agent);

/* Processor time of its thread so far, ns; 0: it has none. Any thread. */
int64_t sync_agent_cpu_ns(const sync_agent *agent);

/* Something was posted: progress() is to be called soon. Any thread. */
void sync_agent_wake(sync_agent *agent);

#endif
