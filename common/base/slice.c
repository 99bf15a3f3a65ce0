#include "common/base/slice.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SHORTEST_NS = 100000 };

/* The kernel's struct sched_attr of its first version; the C library has none. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} attributes;

void slice_ask_for_short(void)
{
    attributes a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0U) != 0) return;
    a.runtime_ns = SHORTEST_NS;
    (void)syscall(SYS_sched_setattr, 0, &a, 0U);
}
