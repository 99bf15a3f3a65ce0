/* The event queue orders events in virtual time.
 *
 * Time is an integer number of picoseconds since the simulation began. The time of each ring step is rounded
 * once, so the time of thousands of steps differs from the exact time by at most a few nanoseconds. 63 bits
 * are enough for 106 days. Engines read the time in nanoseconds, rounded down. Engines set deadlines in
 * nanoseconds, and a deadline passes exactly at its time.
 *
 * Events fire in the order of (time, rank, sequence number). Events of the same time fire in the order of
 * their ranks, and events of the same rank in the order in which they were scheduled. A run therefore depends
 * only on its inputs.
 *
 * The owner of an event stores the event. An event is in the queue at most once. sim_event_init() reserves
 * room in the queue, so scheduling an event never allocates and never fails. */
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

/* Returns the time that `amount` takes at `rate`, rounded up, or SIM_NEVER if the rate is 0. */
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

/* Ranks are numbered from 0 to SIM_RANK_LIMIT - 1. */
enum { SIM_RANK_LIMIT = 1 << 20, SIM_RANK_LAST = SIM_RANK_LIMIT };

typedef struct sim_event {
    void (*fire)(void *context);
    void *context;
    /* rank of the event, or SIM_RANK_LAST if it fires after all other events of the same time */
    int32_t rank;
    int32_t slot; /* index in the heap, or -1 if the event is not scheduled */
} sim_event;

typedef struct sim_entry {
    sim_time time;
    uint64_t order; /* rank in the high bits, sequence number in the low bits */
    sim_event *event;
} sim_entry;

typedef struct sim_queue {
    sim_time now; /* time of the event that fired last */
    sim_entry *heap;
    int32_t count, capacity, registered;
    uint64_t sequence;
    int64_t fired;
} sim_queue;

/* Frees the memory of the queue. A queue of zeros is an empty queue. */
void sim_queue_deinit(sim_queue *q);

/* Returns STATUS_SYSTEM if memory is short. After a failure the event needs no sim_event_deinit(). */
status sim_event_init(sim_queue *q, sim_event *e, int rank, void (*fire)(void *context), void *context);
void sim_event_deinit(sim_queue *q, sim_event *e);

/* Schedules an event for time `at`, or for the current time if `at` has passed. If the event is scheduled,
 * moves it. If `at` is SIM_NEVER, removes the event from the queue. */
void sim_event_schedule(sim_queue *q, sim_event *e, sim_time at);

static inline bool sim_event_scheduled(const sim_event *e)
{
    return e->slot >= 0;
}

/* Returns the time at which the event fires, or SIM_NEVER if it is not scheduled. */
static inline sim_time sim_event_time(const sim_queue *q, const sim_event *e)
{
    return e->slot < 0 ? SIM_NEVER : q->heap[e->slot].time;
}

/* Moves the clock to the next event and fires it. Returns false if there is no event. */
bool sim_queue_step(sim_queue *q);

#endif
