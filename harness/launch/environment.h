/* Reads the environment of a rank's process: who started it, its rank and its job, and where the other
 * ranks are. A process is started in one of three ways:
 *
 *   by launch_run()      HARNESS_* and the table of the job are inherited
 *   by a job manager     torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_*) or srun
 *                        (SLURM_*), together with a rendezvous, usually env://. The launcher of a node of
 *                        --nnodes sets the variables of torchrun and HARNESS_JOB
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
    int local_world;    /* ranks of the job on this host if known, else world */
    bool several_hosts; /* whether a job manager started ranks on other hosts, too */
    int processors; /* processors available to all local ranks together if launch_run() bound them, else 0 */
    char job[32];   /* name of the job, for example "ring"; "" unless launch_run() started the process */
    uint64_t token; /* token of the job; under a job manager, derived from the manager's name for the job */
    char key[NET_KEY_TEXT]; /* key that admits processes to the job (common/net/key.h), or "" */
    /* HARNESS_KEY of the user, which admits workers to a remote stage, or "". */
    char stage_key[NET_KEY_TEXT];
    char rendezvous[256]; /* "env://" under a job manager, "" if started by hand */
    /* Status table of the job. Under a job manager the table contains only this process. NULL if started by
     * hand. */
    status_table *table;
    rank_slot *slot; /* slot of this rank; NULL if started by hand */
} launch_environment;

/* Returns true if launch_run() started the process. May be called before launch_environment_open(). */
bool launch_environment_is_rank(void);

/* Returns true if the launcher of a node of --nnodes started the process. */
bool launch_environment_is_of_node(void);

/* Returns true if torchrun, mpirun or srun started this process and others. A shell in a batch job of Slurm
 * does not count: only srun sets SLURM_STEP_NUM_TASKS. */
bool launch_environment_is_started(void);

/* Sets HARNESS_KEY to the content of the file HARNESS_KEY_FILE, unless HARNESS_KEY is set. Fails with
 * STATUS_PERMISSION if other users can read the file, and with STATUS_CONFIG if it cannot be read or holds no
 * key. */
status launch_environment_read_key_file(void);

/* Reads the environment, attaches the table and marks the rank's slot as begun. Reads the variables of a
 * resource manager only if `manager` is true, because a shell in a batch job has these variables, too.
 * Under srun, sets MASTER_ADDR to the first host of the job step, and MASTER_PORT to a port that depends on
 * the number of the job, unless they are set.
 * Removes the HARNESS_* variables, so that a process that the rank starts is not taken for the rank.
 * Returns STATUS_CONFIG for a missing or malformed variable; the message names it. */
status launch_environment_open(bool manager, launch_environment *out);
void launch_environment_close(launch_environment *e);

/* Marks the rank's slot as finished, or records the failure `rc`. Clears the error of a rank that
 * launch_run() started, because the launcher prints it. */
void launch_environment_end_rank(const launch_environment *e, status rc);

/* Reads a key, such as HARNESS_KEY, and removes it from the environment. Leaves `out` unchanged if the
 * variable is not set. Returns STATUS_CONFIG if the key is malformed. */
status launch_environment_key(const char *name, char out[NET_KEY_TEXT]);

/* Sets *world to the number of ranks of the job, and *local_world to the number of the job's ranks on this
 * host, from a job manager's variables. Sets both to 0 if the variables are not set. */
void launch_environment_count(int *world, int *local_world);

#endif
