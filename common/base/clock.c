#include "common/base/clock.h"

#include <errno.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_ns(int64_t duration_ns)
{
    struct timespec left = {duration_ns / NS_PER_S, duration_ns % NS_PER_S};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
