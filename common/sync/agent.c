#include "common/sync/agent.h"

#include "common/base/clock.h"
#include "common/device/sim/agent_sim.h"
#include "common/sync/anatomy.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Number of iterations without work after which an agent sleeps. Sleeping and waking up take about 50 us. */
enum { IDLE_ROUNDS = 64 };

struct sync_agent {
    sync_agent_config config;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    atomic_bool failed; /* set to true once, after `error` has been written */
    error_record error;
    int idle_rounds;          /* number of consecutive iterations without work */
    sim_agent *virtual_agent; /* NULL if the device is not virtual */
    sim_agent_ops virtual_ops;
};

static void give_up(sync_agent *agent)
{
    error_copy(&agent->error);
    atomic_store_explicit(&agent->failed, true, memory_order_release);
    agent->config.ops->failed(agent->config.context, &agent->error);
}

/* Runs one iteration of the agent. If the agent has a thread, the thread calls this function. If the agent is
 * inline, this function is the idle function of the device, which the compute thread calls while the compute
 * thread waits for a fence. */
static status progress(void *context, bool *worked)
{
    sync_agent *agent = context;
    const sync_agent_ops *ops = agent->config.ops;
    int64_t deadline = CLOCK_NEVER, begin = clock_now_ns();
    status rc = ops->progress(agent->config.context, begin, &deadline, worked);
    if (rc != STATUS_OK) {
        give_up(agent);
        return rc;
    }
    if (*worked) {
        if (agent->config.inline_progress) anatomy_add_span(agent->config.anatomy, begin, clock_now_ns());
        agent->idle_rounds = 0;
    } else if (++agent->idle_rounds >= IDLE_ROUNDS) {
        ops->wait(agent->config.context, deadline);
        *worked = true;
    }
    return STATUS_OK;
}

static void *run(void *argument)
{
    sync_agent *agent = argument;
    bool worked = false;
    clock_request_short_slices();
    while (!atomic_load_explicit(&agent->stop, memory_order_acquire) && progress(agent, &worked) == STATUS_OK)
        worked = false;
    return NULL;
}

/* Starts the thread with all signals blocked, because another thread handles signals. */
static status start_thread(sync_agent *agent)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&agent->thread, NULL, run, agent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errno) return fail_errno(STATUS_SYSTEM, "no thread for %s", agent->config.name);
    pthread_setname_np(agent->thread, agent->config.name);
    agent->has_thread = true;
    return STATUS_OK;
}

status sync_agent_open(const sync_agent_config *config, sync_agent **out)
{
    *out = NULL;
    sync_agent *agent = calloc(1, sizeof *agent);
    if (!agent) return fail(STATUS_SYSTEM, "no memory for an agent");
    agent->config = *config;
    status rc = STATUS_OK;
    if (sim_device_simulation(config->device)) {
        agent->virtual_ops = (sim_agent_ops){config->ops->progress, config->ops->failed};
        rc = sim_agent_open(config->device, config->name, &agent->virtual_ops, config->context,
                            &agent->virtual_agent);
    } else if (config->inline_progress || device_get_info(config->device)->plans) {
        device_set_idle(config->device, progress, agent);
    } else {
        rc = start_thread(agent);
    }
    if (rc != STATUS_OK) free(agent);
    *out = rc == STATUS_OK ? agent : NULL;
    return rc;
}

void sync_agent_close(sync_agent **pointer)
{
    sync_agent *agent = *pointer;
    if (!agent) return;
    if (agent->virtual_agent) {
        sim_agent_close(&agent->virtual_agent);
    } else if (agent->has_thread) {
        atomic_store_explicit(&agent->stop, true, memory_order_release);
        agent->config.ops->wake(agent->config.context);
        pthread_join(agent->thread, NULL);
    } else {
        device_set_idle(agent->config.device, NULL, NULL);
    }
    free(agent);
    *pointer = NULL;
}

int64_t sync_agent_cpu_ns(const sync_agent *agent)
{
    clockid_t clock;
    if (!agent || !agent->has_thread || pthread_getcpuclockid(agent->thread, &clock) != 0) return 0;
    return clock_cpu_ns(clock);
}

void sync_agent_wake(sync_agent *agent)
{
    bool worked = false;
    if (agent->virtual_agent)
        sim_agent_wake(agent->virtual_agent);
    else if (agent->has_thread)
        agent->config.ops->wake(agent->config.context);
    else if (device_get_info(agent->config.device)->plans)
        progress(agent, &worked); /* On a device that only plans, no thread waits, so the agent runs here. */
}
