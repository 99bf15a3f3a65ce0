/* Collectives through Open MPI, from inside. For this folder only. */
#ifndef RING_COLLECTIVES_MPI_COLLECTIVE_MPI_IMPL_H
#define RING_COLLECTIVES_MPI_COLLECTIVE_MPI_IMPL_H

#include "common/base/doorbell.h"
#include "ring/collectives/collective_impl.h"
#include "ring/collectives/mpi/mpi_module.h"
#include "ring/collectives/pieces.h"

#include <stdatomic.h>

enum { PRINT_WORDS = 6 }; /* of a description: kind, op, type, root, tag, count */

typedef struct mpi_queued {
    collective_call call;
    collective_times times;
} mpi_queued;

typedef enum mpi_phase { QUEUE_IDLE, QUEUE_CHECKING, QUEUE_RUNNING } mpi_phase;

typedef struct mpi_group mpi_group;

/* An ordered sequence of calls: the collectives of all, or the sends to, or receives from, one rank. */
typedef struct mpi_queue {
    mpi_group *group;
    bool pair;
    mpi_queued *calls; /* [capacity], by sequence */
    int capacity;
    uint64_t posted, completed;
    void *request;
    char *staging;
    int64_t staging_bytes;
    /* the call in progress */
    mpi_phase phase;
    const collective_call *call;
    int64_t print[PRINT_WORDS], peer_print[PRINT_WORDS]; /* of a pair */
    piece_buffer in, out;
    bool staged;
    int64_t round_at, round_count, round_end, since_ns;
} mpi_queue;

typedef struct mpi_world {
    collective_world base;
    void *library;
    const mpi_module *module;
    mpi_group *groups;
    doorbell bell;
    unsigned seen;
    int fruitless; /* waits since something was done */
} mpi_world;

struct mpi_group {
    collective_group base;
    mpi_group *next;
    void *comm;
    mpi_queue *queues;
    int queue_count;
    int64_t *prints; /* [size + 1][PRINT_WORDS]: of all members, then the own */
    int *counts;     /* [4][size]: counts, places, out_counts, out_places */
};

status mpi_fail(const mpi_world *w, int code, const char *what);

/* mpi_rounds.c */
status mpi_begin_check(mpi_queue *q);
status mpi_end_check(mpi_queue *q);
status mpi_first_round(mpi_queue *q);
status mpi_end_round(mpi_queue *q, bool *more);
status mpi_test(mpi_queue *q, bool *done);

#endif
