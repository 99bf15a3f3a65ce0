/* Finds the processors that this process may use, and the cores that they belong to.
 *
 * sched_getaffinity(2) returns the allowed processors: the set (cpuset) of the container or batch job, or the
 * part of this set to which the process was bound. /sys says which processors are the hardware threads of one
 * core. */
#ifndef HARNESS_LAUNCH_PROCESSORS_H
#define HARNESS_LAUNCH_PROCESSORS_H

#include "common/base/status.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct processors {
    cpu_set_t allowed;
    int count; /* allowed processors */
    /* Allowed processors of each core [core_count], ordered by socket and number, so that consecutive cores
     * are close to each other. */
    cpu_set_t *cores;
    int core_count;
    double limit;    /* container's limit on processor time, as a number of processors (cpu.max), or 0 */
    bool restricted; /* the process is bound to a part of its container's set */
} processors;

/* Reads the processors. `root` is "" or, in tests, the folder that has "/sys" and "/proc". `allowed`, if it
 * is not NULL, replaces the allowed processors of this process. Returns STATUS_SYSTEM if the kernel has more
 * processors than cpu_set_t holds, or if out of memory. */
status processors_open(const char *root, const cpu_set_t *allowed, processors *out);
void processors_close(processors *p);

/* Return how many processors, or cores, this process can keep busy: the number of allowed ones or, if it is
 * smaller, the number that the control groups' limit on processor time allows, but at least 1.
 * processors_usable() reads no topology. */
int processors_usable(void);
int processors_cores(const processors *p);

/* Formats a set as the kernel writes lists, "0,2-3", cut to `size`. 64 bytes are enough for most sets.
 * Returns `buffer`. */
char *processors_format(const cpu_set_t *set, char *buffer, size_t size);

/* Formats the processors of the calling thread as "0,2-3", or "" if the kernel does not report the
 * processors. */
char *processors_own(char *buffer, size_t size);

/* A point in time; the time for which the processors that this process may use have been busy; and the
 * processor time of this process and of the children for which it has waited. */
typedef struct processor_time {
    double wall_s, busy_s, own_s;
} processor_time;
processor_time processors_time(void);

/* Returns how many of these processors other programs have kept busy since `begin`, as the mean. Returns NaN
 * if the kernel does not say it, or if a control group limits this process to fewer processors. */
double processors_of_others(const processor_time *begin);

/* Binding: the processors on which a rank may run, with all its threads.
 *
 * `none` leaves the choice to the kernel. `core` gives every rank different cores, as mpirun --bind-to core
 * does. Each compute thread gets one core with all its hardware threads, socket by socket. If the ranks have
 * more threads than there are cores, hardware threads count as cores. If the ranks have more threads than
 * there are hardware threads, ranks share cores: rank r with one thread is on core r mod cores. If the time
 * limit of a container (cpu.max) is below its number of processors, ranks use only as many cores as the limit
 * can keep busy. On more cores, the kernel would throttle the ranks.
 *
 * If the program that starts the ranks binds them (mpirun, srun, torchrun --numa-binding, taskset), this
 * binding stays. */

typedef enum bind_mode { BIND_NONE, BIND_CORE } bind_mode;
extern const char *const bind_names[]; /* names of bind_mode, NULL-terminated */

/* Who bound a rank to its processors. */
typedef enum bound_by { BOUND_BY_NONE, BOUND_BY_HARNESS, BOUND_BY_STARTER } bound_by;
extern const char *const bound_names[]; /* "none", "core", "starter" */

/* Processes that share the machine: ranks, then servers, each with `threads` compute threads. */
typedef struct bind_group {
    int members, threads;
} bind_group;

/* Chooses the processors of member 0 <= member < g.members. The set is never empty, and all of its processors
 * are allowed. */
void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out);

/* Chooses the processors of every member of a group that this process starts. *sets is [g.members], which
 * the caller frees, or NULL under BIND_NONE. */
status bind_plan(bind_mode mode, bind_group g, cpu_set_t **sets);

/* Binds this process to the processors of member `local_rank` of the group, which another program (mpirun,
 * srun, torchrun) has started. Does not bind a process that the other program has already bound. Must be
 * called before there are other threads. `local_rank` may be larger than the group. */
status bind_self(bind_mode mode, bind_group g, int local_rank, bound_by *out);

#endif
