/* Virtual time: whole picoseconds since the simulation began. A step of a ring is rounded once, so that
 * thousands of steps stay within nanoseconds of the formula; 63 bits last for 106 days. Engines see
 * nanoseconds, rounded down, and their deadlines are met exactly. */
#ifndef COMMON_SIM_TIME_H
#define COMMON_SIM_TIME_H

#include <math.h>
#include <stdint.h>

typedef int64_t sim_time;

#define SIM_NEVER INT64_MAX
#define SIM_NS INT64_C(1000)
#define SIM_US INT64_C(1000000)
#define SIM_MS INT64_C(1000000000)
#define SIM_S INT64_C(1000000000000)

static inline int64_t sim_to_ns(sim_time t)
{
    return t / SIM_NS;
}

static inline sim_time sim_from_ns(int64_t ns)
{
    return ns > SIM_NEVER / SIM_NS ? SIM_NEVER : ns * SIM_NS;
}

static inline sim_time sim_from_us(double us)
{
    return (sim_time)llround(us * (double)SIM_US);
}

static inline double sim_to_ms(sim_time t)
{
    return (double)t / (double)SIM_MS;
}

/* Rates inside the simulation are bytes a picosecond. */
#define SIM_GB_PER_S 1e-3

/* The time that `amount` takes at `rate`, rounded up; SIM_NEVER at rate 0. */
static inline sim_time sim_duration(double amount, double rate)
{
    if (amount <= 0) return 0;
    double t = ceil(amount / rate);
    return t < 9e18 ? (sim_time)t : SIM_NEVER;
}

static inline sim_time sim_later(sim_time a, sim_time b)
{
    return a > b ? a : b;
}

#endif
