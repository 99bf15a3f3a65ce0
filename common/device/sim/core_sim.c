/* Cores of a machine that computes on its CPU: a compute thread shares them with agents. */
#include "common/device/sim/sim_impl.h"
#include "common/sim/fiber.h"

/* While a collective moves data, its rank's agent works and the compute thread gets the rest of the core; time that
 * agents spend themselves is taken from the compute thread in one piece. */
static double rate_of(const sim_device *d)
{
    return d->communicating ? 1 - d->host_share : 1;
}

void sim_core_work(sim_device *d, sim_time duration)
{
    sim_actor *a = &d->host;
    double left = (double)duration;
    sim_fiber_catch_up(a);
    d->at_work = true;
    while (left >= 1) {
        double rate = rate_of(d);
        sim_time since = a->time, takes = sim_duration(left, rate);
        a->waits_for = "its core";
        if (takes != SIM_NEVER) sim_actor_wake(a, since + takes);
        sim_fiber_yield(a);
        left += (double)a->lost - (double)(a->time - since) * rate;
        a->lost = 0;
    }
    d->at_work = false;
}

void sim_core_changed(sim_device *d)
{
    if (d->at_work) sim_actor_wake(&d->host, simulation_now(d->simulation));
}
