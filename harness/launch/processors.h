/* The processors that this process may use, as the cores that they belong to.
 *
 * The allowed processors are those of sched_getaffinity(2): the part of the container's or batch job's set
 * (cpuset) that nobody has taken away. Which of them are the hardware threads of one core comes from /sys. */
#ifndef HARNESS_LAUNCH_PROCESSORS_H
#define HARNESS_LAUNCH_PROCESSORS_H

#include "common/base/status.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct processors {
    cpu_set_t allowed;
    int count;        /* of allowed processors */
    cpu_set_t *cores; /* [core_count] their allowed processors, socket by socket, in each by number: neighbors
                         are near */
    int core_count;
    double limit;    /* processors' worth of time that the container has (cgroup's cpu.max); 0: no limit */
    bool restricted; /* somebody has bound this process: it may use less than its container's set */
} processors;

/* `root` is "" but in tests: the folder in which the files of control groups lie, "/sys" and "/proc".
 * `allowed`: NULL, or what to take instead of this process's own. STATUS_SYSTEM where the
 * kernel has more processors than cpu_set_t holds, or there is no memory. */
status processors_open(const char *root, const cpu_set_t *allowed, processors *out);
void processors_close(processors *p);

/* Processors, and cores, that this process can keep busy: those that it may use, but no more than its control
 * groups give time for; at least 1. The first reads no topology. */
int processors_usable(void);
int processors_cores(const processors *p);

/* "0,2-3" as the kernel writes lists, cut to `size`, of which 64 is enough for most. Returns `buffer`. */
char *processors_format(const cpu_set_t *set, char *buffer, size_t size);

/* Of the calling thread, as processors_format has it; "" where the kernel does not say. */
char *processors_own(char *buffer, size_t size);

/* Binding: which processors a rank may run on, with all its threads.
 *
 * `none` leaves it to the kernel. `core` gives every rank cores of its own, as mpirun --bind-to core does: as
 * many as it has compute threads, with all their hardware threads, socket by socket. Where there are fewer
 * cores than threads of all ranks, hardware threads of a core count; where these are too few, too, ranks go
 * round: rank r of one thread is on core r mod cores. Where a container's share of time (cpu.max) is less
 * than its processors, as many cores take part as it can keep at work: more would be throttled.
 *
 * Whoever starts ranks and binds them itself (mpirun, srun, torchrun --numa-binding, taskset) is left to it.
 */

typedef enum bind_mode { BIND_NONE, BIND_CORE } bind_mode;
extern const char *const bind_names[]; /* of bind_mode, NULL-terminated */

/* How a rank came to its processors. */
typedef enum bound_by { BOUND_BY_NONE, BOUND_BY_HARNESS, BOUND_BY_STARTER } bound_by;
extern const char *const bound_names[]; /* "none", "core", "starter" */

/* Who shares the machine: ranks, then servers, each with `threads` that compute. */
typedef struct bind_group {
    int members, threads;
} bind_group;

/* The processors of member 0 <= member < g.members: never empty, always allowed. */
void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out);

/* For every member of a group that this process starts: sets[g.members], or NULL under BIND_NONE. The
 * caller's, to be freed. */
status bind_plan(bind_mode mode, bind_group g, cpu_set_t **sets);

/* Binds this process, one of a group that something else has started, unless that has bound it. Before it has
 * other threads. `local_rank` may be beyond the group. */
status bind_self(bind_mode mode, bind_group g, int local_rank, bound_by *out);

#endif
