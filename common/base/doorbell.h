/* A doorbell lets a thread sleep until another thread or process has made a condition true. A doorbell works
 * in shared memory and needs no clean-up. A doorbell whose bytes are all zero is ready for use.
 *
 *     unsigned seen = doorbell_enter(&bell);                        the other side
 *     if (!condition) doorbell_sleep(&bell, seen, CLOCK_NEVER);         makes the condition true
 *     doorbell_leave(&bell);                                            doorbell_ring(&bell);
 *
 * If the doorbell is rung between doorbell_enter() and doorbell_sleep(), doorbell_sleep() returns at once. */
#ifndef COMMON_BASE_DOORBELL_H
#define COMMON_BASE_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct doorbell {
    atomic_uint rings;    /* number of calls of doorbell_ring() so far; also the futex word */
    atomic_uint sleepers; /* number of threads between doorbell_enter() and doorbell_leave() */
} doorbell;

static inline unsigned doorbell_rings(const doorbell *bell)
{
    return atomic_load_explicit(&bell->rings, memory_order_seq_cst);
}

/* Returns true if a thread may be sleeping. If the result is false, every thread that calls doorbell_enter()
 * later sees all writes that the calling thread has made so far. */
static inline bool doorbell_has_sleepers(const doorbell *bell)
{
    return atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 0;
}

static inline unsigned doorbell_enter(doorbell *bell)
{
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    return doorbell_rings(bell);
}

static inline void doorbell_leave(doorbell *bell)
{
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
}

/* Sleeps until the doorbell has been rung more than `seen` times, or until `deadline_ns`. CLOCK_NEVER means
 * no deadline. May return early. */
void doorbell_sleep(doorbell *bell, unsigned seen, int64_t deadline_ns);

void doorbell_ring(doorbell *bell);

#endif
