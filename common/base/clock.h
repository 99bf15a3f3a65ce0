/* Time. Wall-clock code reads clock_now_ns(); engines are handed the time, so that the same
 * code runs on the virtual clock. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define CLOCK_NEVER INT64_MAX /* a deadline that never comes */

/* CLOCK_MONOTONIC in nanoseconds: the same origin in all processes of a machine, unmoved when the
 * date is set. */
int64_t clock_now_ns(void);

/* CLOCK_THREAD_CPUTIME_ID of the calling thread in nanoseconds. */
int64_t clock_thread_cpu_ns(void);

void clock_sleep_ns(int64_t duration_ns);

#endif
