#include "common/device/sim/agent_sim.h"

#include "common/base/clock.h"
#include "common/device/sim/sim_impl.h"

#include <stdlib.h>

struct sim_agent {
    sim_actor actor;
    sim_listener listener;
    device *device;
    const sim_agent_ops *ops;
    void *context;
    sim_time wake_time;
    sim_time asleep; /* time at which the agent went to sleep; SIM_NEVER before its first run */
    bool failed;
    error_record error;
};

static status give_up(sim_agent *agent)
{
    agent->failed = true;
    error_copy(&agent->error);
    error_clear(); /* the threads that wait for the agent report the error */
    agent->ops->failed(agent->context, &agent->error);
    return STATUS_OK;
}

/* Suspends the agent until the clock reaches the agent's time. The agent has worked ahead of the clock, and
 * must not miss events that arrive in the meantime. */
static status go_on_later(sim_agent *agent)
{
    agent->asleep = agent->actor.time; /* no time is charged for a wake-up */
    sim_actor_wake(&agent->actor, agent->actor.time);
    return STATUS_OK;
}

static status run(void *context)
{
    sim_agent *agent = context;
    int64_t deadline = CLOCK_NEVER;
    bool worked = !agent->failed;
    /* A thread that has slept spends the time of a context switch. */
    if (agent->actor.time > agent->asleep) sim_actor_spend(&agent->actor, agent->wake_time);
    while (worked) {
        if (agent->actor.time > simulation_now(agent->actor.simulation)) return go_on_later(agent);
        worked = false;
        deadline = CLOCK_NEVER;
        int64_t now = sim_to_ns(agent->actor.time);
        if (agent->ops->progress(agent->context, now, &deadline, &worked) != STATUS_OK) return give_up(agent);
    }
    /* If the deadline is not in the future, the agent wakes one nanosecond later, so that time advances. */
    sim_time next =
        sim_to_ns(agent->actor.time) >= deadline ? agent->actor.time + SIM_NS : sim_from_ns(deadline);
    if (deadline != CLOCK_NEVER) sim_actor_wake(&agent->actor, next);
    agent->asleep = agent->actor.time;
    return STATUS_OK;
}

status sim_agent_open(device *d, const char *name, const sim_agent_ops *ops, void *context, sim_agent **out)
{
    *out = NULL;
    sim_agent *agent = calloc(1, sizeof *agent);
    if (!agent) return fail(STATUS_SYSTEM, "no memory for an agent");
    *agent = (sim_agent){.device = d, .ops = ops, .context = context, .asleep = SIM_NEVER};
    agent->wake_time = sim_from_us(sim_profile_get(sim_device_simulation(d)->profile, SIM_WAKE_TIME));
    status rc = sim_actor_open(sim_device_simulation(d), &agent->actor, d->config.rank, name);
    if (rc != STATUS_OK) {
        free(agent);
        return rc;
    }
    sim_device *virtual = (sim_device *)d;
    agent->actor.core = virtual->host_share > 0 ? virtual->core : NULL;
    agent->actor.core_share = virtual->host_share;
    sim_actor_set_run(&agent->actor, run, agent);
    agent->listener.actor = &agent->actor;
    sim_device_listen(d, &agent->listener);
    sim_agent_wake(agent);
    *out = agent;
    return STATUS_OK;
}

void sim_agent_close(sim_agent **pointer)
{
    sim_agent *agent = *pointer;
    if (!agent) return;
    sim_device_leave(agent->device, &agent->listener);
    sim_actor_close(&agent->actor);
    free(agent);
    *pointer = NULL;
}

void sim_agent_wake(sim_agent *agent)
{
    sim_actor_wake(&agent->actor, sim_device_actor(agent->device)->time);
}
