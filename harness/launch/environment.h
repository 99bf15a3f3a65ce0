/* What a rank's process knows about itself: who started it, which rank of which job it is, where the
 * others are. Three ways to be started:
 *
 *   by launch_run()      HARNESS_* and the table of the job are inherited
 *   by a job manager     torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_*) or srun
 *                        (SLURM_*), together with a rendezvous that the user names, as a rule env://
 *   by hand              none of these */
#ifndef HARNESS_LAUNCH_ENVIRONMENT_H
#define HARNESS_LAUNCH_ENVIRONMENT_H

#include "common/base/status.h"
#include "common/net/key.h"
#include "common/net/status_table.h"

typedef enum launch_origin { LAUNCH_BY_HAND, LAUNCH_BY_HARNESS, LAUNCH_BY_MANAGER } launch_origin;

typedef struct launch_environment {
    launch_origin origin;
    int rank, world, local_rank;
    int local_world; /* ranks of the job on this host, as far as is known: else world */
    int processors;  /* that they share, where launch_run() bound each to its part (processors.h); else 0 */
    char job[32];    /* "ring"; "" unless the harness started it */
    uint64_t token;  /* of the job: the harness's, or derived from what the manager calls it */
    char key[NET_KEY_TEXT]; /* that admits processes to the job (common/net/key.h); "": none */
    char
        stage_key[NET_KEY_TEXT]; /* the user's HARNESS_KEY, that admits workers to a remote stage; "": none */
    char rendezvous[256];        /* "env://" under a manager, "" by hand */
    status_table *table;         /* the job's, or one of this process alone; NULL by hand */
    rank_slot *slot;             /* of this rank; NULL by hand */
} launch_environment;

/* Was the process started by launch_run()? Does not look further; for the first lines of main. */
bool launch_environment_is_rank(void);

/* Finds out, attaches the table and marks the rank's slot as begun. A manager's variables count only where
 * `manager` allows it: a shell inside a batch job has them too. STATUS_CONFIG names what is missing or
 * malformed. The HARNESS_* variables are removed, so that a process which the rank starts is not taken for
 * the rank. */
status launch_environment_open(bool manager, launch_environment *out);
void launch_environment_close(launch_environment *e);

/* HARNESS_KEY of a process that was started by hand; "": not set. */
status launch_environment_key(char out[NET_KEY_TEXT]);

/* Ranks of the job, of all hosts and of this one, that a manager's variables name; 0 without them. */
void launch_environment_count(int *world, int *local_world);

#endif
