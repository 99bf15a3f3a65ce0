/* Internals of NCCL's collectives, for this folder.
 *
 *   collective_nccl.c   runs a call as NCCL operations, which the rank's compute thread enqueues
 *   nccl_world.c        makes and ends communicators in separate threads, with a time limit
 *   nccl_watchdog.c     a thread that watches the calls in flight; nobody waits for this thread
 *
 * The first thread that notices a failure ends the world. The failure is recorded, so that no wait for the
 * GPU succeeds any more. After that the failure is published, the communicators are aborted with a time
 * limit, and the process ends. */
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
    device_memory scratch; /* Buffer that the all-reduce of a barrier uses. */
    device_stream *stream; /* Stream on which calls are enqueued, or NULL before the first call. */
    int64_t anchored_ns;   /* Time at which the stream's clock was last read. */

    pthread_mutex_t lock;
    /* `lock` protects the fields from here to `failure`. It also protects the numbers and the unfinished
     * calls in base.enqueued. */
    /* The world's communicator, then the communicators of smaller groups. */
    nccl_comm *comms[NCCL_MOST_GROUPS];
    int comm_count;
    /* Whether the compute thread is inside NCCL with call number base.enqueued.posted + 1. */
    bool entered;
    int64_t entered_ns;
    bool ended; /* True if NCCL must not be called any more. */
    bool stopping;
    error_record failure;

    atomic_bool failed; /* Set once, after `failure` has been written. */
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
/* Starts a thread with all signals blocked, because another thread handles signals. */
bool nccl_start_thread(void *(*run)(void *argument), void *argument, pthread_t *out);
/* Returns STATUS_OK, or the error that ended the world. May be called from any thread. */
status nccl_check(nccl_world *w);
/* Records a failure. Returns false if a failure has already been recorded. May be called from any thread. */
bool nccl_fail(nccl_world *w, const error_record *why);
/* Ends the world after a failure. Called by the watchdog. Does not return if collective_config.lost is
 * set. */
void nccl_end(nccl_world *w, const error_record *why);
/* Makes the communicator of the world, or splits `parent` unless it is NULL. If NCCL does not return in time,
 * the function fails with STATUS_PEER, or ends the process if collective_config.lost is set. */
status nccl_comm_make(nccl_world *w, nccl_comm *parent, int color, int key, nccl_comm **out);
/* Closes the communicators. Aborts the communicators first if calls are in flight or the world failed. */
void nccl_comms_close(nccl_world *w);

/* nccl_watchdog.c */
status nccl_watchdog_open(nccl_world *w);
void nccl_watchdog_close(nccl_world *w);

#endif
