/* Runs the members of a job as processes, forked before there are threads. The members exchange handshakes,
 * wait at barriers, and record their outcomes in shared memory. */
#ifndef TESTS_PS_PROCESSES_H
#define TESTS_PS_PROCESSES_H

#include "common/sync/engine.h"

#include <stdatomic.h>
#include <sys/types.h>

enum { PROCESSES_MAX = 16, PROCESS_OFFER_MAX = 1 << 18, PROCESS_FIGURES = 4096 };

/* Outcome of a member, in memory that all members share. */
typedef struct process_outcome {
    int wait_status;  /* the wait status of waitpid(), set when the member has ended */
    int64_t ended_ns; /* 0 while the member runs */
    status code;      /* the result of the function, or STATUS_COUNT if the function did not return */
    char message[1024];
    double figures[PROCESS_FIGURES]; /* values that the function may set */
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

/* The fault of a member. */
typedef enum process_act {
    ACT_NOTHING,
    ACT_DIE,     /* dies by SIGKILL in the middle of a step */
    ACT_FREEZE,  /* is stopped by SIGSTOP */
    ACT_LEAVE,   /* ends normally, before the other members */
    ACT_LATE,    /* starts half a second late */
    ACT_MISLEAD, /* sends a handshake that names an address without a listener */
    ACT_DIFFER,  /* has another configuration */
} process_act;

typedef status (*process_function)(processes *all, int member, void *context);

/* Forks `count` members and waits until all have ended. Kills members that run longer than `limit_s`. Also
 * kills the last running member if it is stopped. Returns NULL if there is no memory. The caller frees the
 * result with processes_free(). */
processes *processes_run(int count, process_function function, void *context, int limit_s);
void processes_free(processes *all);

/* Wait for all members, which must be running. Return STATUS_PEER after a minute. */
status processes_barrier(processes *all);
status processes_exchange(processes *all, int member, sync_blob mine, sync_blob handshakes[PROCESSES_MAX]);

#endif
