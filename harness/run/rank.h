/* A process of a job: a rank (set-up, blocks of steps, evaluation, results), or a parameter server in its own
 * process. */
#ifndef HARNESS_RUN_RANK_H
#define HARNESS_RUN_RANK_H

#include "common/net/rendezvous.h"
#include "common/net/status_table.h"
#include "harness/run/run_result.h"

/* A rank's place in its job, from the launcher or whatever else started it. */
typedef struct rank_place {
    int engine; /* ENGINE_... */
    int rank, world, local_rank;
    int servers; /* in their own processes, numbered after the ranks */
    uint64_t token;
    const char *key;        /* of the job; NULL: none */
    const char *rendezvous; /* URL */
    status_table *table;
} rank_place;

/* Opens the job's rendezvous. `members`: the ranks, or ranks and servers, which have a rendezvous of their own for the
 * handshake. */
status rank_open_rendezvous(const run_config *config, const rank_place *place, int members, rendezvous **out);

/* Runs the rank to its end. *out: on rank 0 the job's outcome, the caller's to free; elsewhere nothing. *stopped: it
 * ended early on request. A failure is also recorded in the status table. */
status rank_run(const run_config *config, const rank_place *place, run_job *out, bool *stopped);

/* `place->rank` >= place->world. A failure is also recorded in the status table. */
status server_run(const run_config *config, const rank_place *place);

#endif
