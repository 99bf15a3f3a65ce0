/* The processors that this process may use, as the cores that they belong to.
 *
 * The allowed processors are those of sched_getaffinity(2): the part of the container's or batch job's set (cpuset) that nobody has
 * taken away. Siblings, the hardware threads of one core, come from topology/thread_siblings_list of Linux's
 * Documentation/admin-guide/cputopology.rst; where that cannot be read every processor is a core. */
#ifndef HARNESS_LAUNCH_PROCESSORS_H
#define HARNESS_LAUNCH_PROCESSORS_H

#include "common/base/status.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct processor_core {
    int package, first;   /* socket; lowest allowed processor */
    cpu_set_t processors; /* allowed ones */
} processor_core;

typedef struct processors {
    cpu_set_t allowed;
    int count;             /* of allowed processors */
    processor_core *cores; /* [core_count], socket by socket, in each by number: neighbors are near */
    int core_count;
    double limit;     /* processors' worth of time that the container has (cgroup's cpu.max); 0: no limit */
    bool restricted;  /* somebody has bound this process: it may use less than its container's set */
} processors;

/* `root` is "" but in tests: the folder in which "/sys" and "/proc" lie. `allowed`: NULL, or what to take instead of
 * this process's own. STATUS_SYSTEM where the kernel has more processors than cpu_set_t holds, or there is no memory. */
status processors_open(const char *root, const cpu_set_t *allowed, processors *out);
void processors_close(processors *p);

/* "0,2-3" of the kernel's lists; format cuts to `size`, of which 64 is enough for most. Parse: false on anything else. */
bool processors_parse(const char *text, cpu_set_t *out);
char *processors_format(const cpu_set_t *set, char *buffer, size_t size);

/* Of the calling thread, as processors_format has it; "" where the kernel does not say. */
char *processors_own(char *buffer, size_t size);

#endif
