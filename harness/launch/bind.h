/* Binding: which processors a rank may run on, all its threads together.
 *
 * `none` leaves it to the kernel. `core` gives every rank cores of its own, as mpirun --bind-to core does: as many as it
 * has compute threads, with all their hardware threads, socket by socket. Where there are fewer cores than threads of
 * all ranks, hardware threads of a core count; where these are too few, too, ranks go round: rank r of one thread is on
 * core r mod cores. Where a container's share of time (cpu.max) is less than its processors, as many cores take part as
 * it can keep at work: more would be throttled.
 *
 * Whoever starts ranks and binds them itself (mpirun, srun, torchrun --numa-binding, taskset) is left to it. */
#ifndef HARNESS_LAUNCH_BIND_H
#define HARNESS_LAUNCH_BIND_H

#include "harness/launch/processors.h"

typedef enum bind_mode { BIND_NONE, BIND_CORE } bind_mode;
extern const char *const bind_names[]; /* of bind_mode, NULL-terminated */

/* How a rank came to its processors. */
typedef enum bound_by { BOUND_BY_NONE, BOUND_BY_HARNESS, BOUND_BY_STARTER } bound_by;
extern const char *const bound_names[]; /* "none", "core", "starter" */

/* Who shares the machine: ranks, and servers behind them, each with `threads` that compute. */
typedef struct bind_group {
    int members, threads;
} bind_group;

/* The processors of member 0 <= member < g.members: never empty, always allowed. */
void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out);

/* For every member of a group that this process starts: sets[g.members], or NULL under BIND_NONE. The caller's, to be
 * freed. */
status bind_plan(bind_mode mode, bind_group g, cpu_set_t **sets);

/* Binds this process, one of a group that something else has started, unless that has bound it. Before it has other
 * threads. `local_rank` may be beyond the group. */
status bind_self(bind_mode mode, bind_group g, int local_rank, bound_by *out);

#endif
