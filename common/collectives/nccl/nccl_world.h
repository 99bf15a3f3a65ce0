/* The inside of NCCL's collectives, for this folder.
 *
 *   collective_nccl.c   a call as operations of NCCL, enqueued by the rank's compute thread
 *   nccl_world.c        communicators: made and ended by threads of their own, under a time limit
 *   nccl_watchdog.c     the thread that watches what is in flight; nobody waits for it
 *
 * A failure, wherever it is noticed first, ends the world once and in this order: it is recorded, so that no
 * wait for the GPU succeeds any more; it is published; the communicators are aborted, with a time limit; the
 * process ends. */
#ifndef COMMON_COLLECTIVES_NCCL_NCCL_WORLD_H
#define COMMON_COLLECTIVES_NCCL_NCCL_WORLD_H

#include "common/collectives/collective_impl.h"
#include "common/collectives/nccl/nccl_module.h"

#include <pthread.h>
#include <stdatomic.h>

enum { NCCL_MOST_GROUPS = 8 };

typedef struct nccl_world {
    collective_world base;
    const nccl_module *module;
    device_memory scratch; /* of barriers */
    device_stream *stream; /* of the calls; NULL: none yet */
    int64_t anchored_ns;   /* when its clock was read last */

    pthread_mutex_t lock;
    pthread_cond_t woken;
    /* Under the lock: base.enqueued (its numbers, and calls that are not completed), comms, and */
    nccl_comm *comms[NCCL_MOST_GROUPS]; /* of the world, then of groups that are part of it */
    int comm_count;
    bool entered; /* the compute thread is in a call of NCCL, number base.enqueued.posted + 1 */
    int64_t entered_ns;
    bool ended; /* nothing may call NCCL any more */
    bool stopping;
    error_record failure;

    atomic_bool failed; /* set once, after `failure` */
    pthread_t watchdog;
    bool has_watchdog;
} nccl_world;

typedef struct nccl_group {
    collective_group base;
    nccl_comm *comm;
} nccl_group;

static inline int nccl_begin_mark(uint64_t number)
{
    return 2 + 2 * (int)(number % COLLECTIVE_ENQUEUED);
}

static inline int nccl_end_mark(uint64_t number)
{
    return nccl_begin_mark(number) + 1;
}

/* nccl_world.c */
/* STATUS_OK, or the failure. Any thread. */
status nccl_check(nccl_world *w);
/* Records a failure; false: there is one. Any thread. */
bool nccl_fail(nccl_world *w, const error_record *why);
/* The whole end, by the watchdog. With collective_config.lost it does not return. */
void nccl_end(nccl_world *w, const error_record *why);
/* Makes the communicator of the world, or splits `parent`. Where NCCL does not return in time the process
 * ends, if it may. */
status nccl_comm_make(nccl_world *w, nccl_comm *parent, int color, int key, nccl_comm **out);
/* False: the abort did not return in time. */
bool nccl_comms_abort(nccl_world *w);
/* Closes the communicators; those with calls in flight, or after a failure, are aborted first. */
void nccl_comms_close(nccl_world *w);

/* nccl_watchdog.c */
status nccl_watchdog_open(nccl_world *w);
void nccl_watchdog_close(nccl_world *w);

#endif
