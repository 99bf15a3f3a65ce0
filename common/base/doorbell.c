#include "common/base/doorbell.h"

#include "common/base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Processes may share the futex word, so the system call must not set FUTEX_PRIVATE_FLAG. */
void doorbell_sleep(doorbell *bell, unsigned seen, int64_t deadline_ns)
{
    struct timespec until = {deadline_ns / NS_PER_S, deadline_ns % NS_PER_S};
    syscall(SYS_futex, &bell->rings, FUTEX_WAIT_BITSET, seen, deadline_ns == CLOCK_NEVER ? NULL : &until,
            NULL, FUTEX_BITSET_MATCH_ANY);
}

void doorbell_ring(doorbell *bell)
{
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_seq_cst);
    if (doorbell_has_sleepers(bell)) syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
