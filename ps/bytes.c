#include "ps/bytes.h"

#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

#include <string.h>

bool ps_bytes_exist(const device *d)
{
    return device_get_info(d)->real;
}

void ps_move(device *d, void *to, const void *from, size_t bytes)
{
    simulation *s = sim_device_simulation(d);
    if (ps_bytes_exist(d)) memcpy(to, from, bytes);
    else if (s) sim_actor_spend(sim_device_actor(d), sim_price_copy(s->profile, (double)bytes));
}

void ps_spend_pass(device *d, double bytes, int threads)
{
    simulation *s = sim_device_simulation(d);
    if (!s) return;
    double rate =
        sim_profile_get(s->profile, SIM_MEMORY_BANDWIDTH) * sim_profile_at(s->profile, SIM_ELEMENTWISE, 1);
    sim_time duration =
        threads ? sim_price_sum(s->profile, bytes, threads) : sim_duration(bytes, rate * SIM_GB_PER_S);
    sim_actor_spend(sim_device_actor(d), duration);
}

void ps_share_interpreter(device *d, int threads)
{
    if (sim_device_simulation(d)) sim_device_share_interpreter(d, threads);
}
