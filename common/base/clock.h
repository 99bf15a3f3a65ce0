/* Time, and the time slices of the calling thread. Code that uses the wall clock calls clock_now_ns().
 * Engines receive the time as an argument, so the same code runs in virtual time. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define CLOCK_NEVER INT64_MAX /* deadline that never passes */

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. All processes of a machine read the same clock, and
 * setting the date does not change this clock. */
int64_t clock_now_ns(void);

/* Returns the processor time in nanoseconds that `clock` measures, for example CLOCK_THREAD_CPUTIME_ID. */
int64_t clock_cpu_ns(clockid_t clock);

void clock_sleep_ns(int64_t duration_ns);

/* Requests the shortest time slices for the calling thread. Threads that need little processor time call this
 * function, so that they do not wait for threads that compute. When the thread wakes, the kernel runs it at
 * once. The thread's share of the processor stays the same. Needs no privilege. Has no effect before Linux
 * 6.12 (sched(7), sched_setattr(2); Stoica and Abdel-Wahab, "Earliest eligible virtual deadline first",
 * 1995). */
void clock_request_short_slices(void);

#endif
