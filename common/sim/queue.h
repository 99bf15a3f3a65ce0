/* The event queue: what happens next in virtual time.
 *
 * Time is whole picoseconds since the simulation began. A step of a ring is rounded once, so that thousands
 * of steps stay within nanoseconds of the formula; 63 bits last for 106 days. Engines see nanoseconds,
 * rounded down, and their deadlines are met exactly.
 *
 * Events fire in the order of (time, rank, sequence number): by rank among those of the same instant, and
 * in the order of scheduling among those of one rank. So a run depends on nothing but its inputs.
 *
 * An event is the owner's storage and is in the queue once or not at all. Room for it is taken when it is
 * initialized: scheduling never allocates and never fails. */
#ifndef COMMON_SIM_QUEUE_H
#define COMMON_SIM_QUEUE_H

#include "common/base/status.h"

#include <math.h>
#include <stdbool.h>
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

/* Rates inside the simulation are bytes per picosecond. */
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

/* Ranks count from 0 to SIM_RANK_LIMIT - 1. */
enum { SIM_RANK_LIMIT = 1 << 20, SIM_RANK_LAST = SIM_RANK_LIMIT };

typedef struct sim_event {
    void (*fire)(void *context);
    void *context;
    int32_t rank; /* whose it is; SIM_RANK_LAST: after all others of its instant */
    int32_t slot; /* in the heap; -1: not scheduled */
} sim_event;

typedef struct sim_entry {
    sim_time time;
    uint64_t order; /* rank, then sequence number */
    sim_event *event;
} sim_entry;

typedef struct sim_queue {
    sim_time now; /* of the event that fired last */
    sim_entry *heap;
    int32_t count, capacity, registered;
    uint64_t sequence; /* of the next scheduling */
    int64_t fired;
} sim_queue;

void sim_queue_init(sim_queue *q);
void sim_queue_deinit(sim_queue *q);

/* STATUS_SYSTEM without memory; then deinit is not due. */
status sim_event_init(sim_queue *q, sim_event *e, int rank, void (*fire)(void *context), void *context);
void sim_event_deinit(sim_queue *q, sim_event *e);

/* Schedules the event, or moves it, to `at`, not before the present; SIM_NEVER: takes it out. */
void sim_event_schedule(sim_queue *q, sim_event *e, sim_time at);

static inline bool sim_event_scheduled(const sim_event *e)
{
    return e->slot >= 0;
}

/* When a scheduled event will fire. */
static inline sim_time sim_event_time(const sim_queue *q, const sim_event *e)
{
    return e->slot < 0 ? SIM_NEVER : q->heap[e->slot].time;
}

/* Moves the clock to the next event and fires it; false if there is none. */
bool sim_queue_step(sim_queue *q);

#endif
