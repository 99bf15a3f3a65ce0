/* Members of a job as processes, forked before there are threads: they exchange handshakes, meet at barriers,
 * and leave a record of what became of them. */
#ifndef TESTS_PS_PROCESSES_H
#define TESTS_PS_PROCESSES_H

#include "common/sync/engine.h"

#include <stdatomic.h>
#include <sys/types.h>

enum { PROCESSES_MAX = 16, PROCESS_OFFER_MAX = 1 << 18, PROCESS_FIGURES = 4096 };

/* What a member leaves behind, in memory that all share. */
typedef struct process_outcome {
    int wait_status;  /* waitpid()'s, once it has ended */
    int64_t ended_ns; /* when */
    status code;      /* what its function returned; STATUS_COUNT: it did not */
    char message[1024];
    double figures[PROCESS_FIGURES]; /* the function's own */
    size_t handshake_bytes;
    char handshake[PROCESS_OFFER_MAX];
} process_outcome;

typedef struct processes {
    int count;
    atomic_int waiting;
    atomic_uint round;
    pid_t pids[PROCESSES_MAX];
    process_outcome members[];
} processes;

/* What a member does in a test of faults. */
typedef enum process_act {
    ACT_NOTHING,
    ACT_DIE,     /* kill -9 in the middle of a step */
    ACT_FREEZE,  /* SIGSTOP */
    ACT_LEAVE,   /* ends in good order, though others go on */
    ACT_LATE,    /* comes half a second after the others */
    ACT_MISLEAD, /* sends an address where nobody listens */
    ACT_DIFFER,  /* has another configuration */
} process_act;

typedef status (*process_function)(processes *all, int member, void *context);

/* Forks `count` members and waits for all of them; those that live longer than `limit_s` are killed, and
 * the last one where it is stopped. The caller unmaps with processes_free(). NULL where there is no memory.
 */
processes *processes_run(int count, process_function function, void *context, int limit_s);
void processes_free(processes *all);

/* Only while all members live. STATUS_PEER after a minute. */
status processes_barrier(processes *all);
status processes_exchange(processes *all, int member, sync_blob mine, sync_blob handshakes[PROCESSES_MAX]);

#endif
