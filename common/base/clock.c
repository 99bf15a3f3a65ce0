#include "common/base/clock.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t clock_now_ns(void)
{
    return clock_cpu_ns(CLOCK_MONOTONIC);
}

int64_t clock_cpu_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

void clock_sleep_ns(int64_t duration_ns)
{
    struct timespec left = {duration_ns / NS_PER_S, duration_ns % NS_PER_S};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* ---- time slices ------------------------------------------------------------------------------ */

enum { SHORTEST_NS = 100000 };

/* The first version of the kernel's struct sched_attr, which the C library lacks. */
typedef struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} sched_attributes;

void clock_request_short_slices(void)
{
    sched_attributes a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0U) != 0) return;
    a.runtime_ns = SHORTEST_NS;
    (void)syscall(SYS_sched_setattr, 0, &a, 0U);
}
