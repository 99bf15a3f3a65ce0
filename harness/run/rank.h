/* A process of a job: a rank (set-up, blocks of steps, evaluation, results), or a parameter server in its own
 * process. */
#ifndef HARNESS_RUN_RANK_H
#define HARNESS_RUN_RANK_H

#include "common/net/status_table.h"
#include "common/net/rendezvous.h"
#include "harness/run/run_options.h"

#include <jansson.h>

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

/* Rank 0's share of the outcome. */
typedef struct rank_outcome {
    json_t *job;    /* rank 0: the job's result (run_result.h); NULL elsewhere. The caller's */
    float *params;  /* rank 0: all parameters in PyTorch's order at the end; NULL elsewhere. The caller's */
    int64_t param_count;
    char *trace;    /* rank 0, with --trace: see rank_trace.h. The caller's */
    bool stopped;   /* ended early on request */
} rank_outcome;

/* Opens the job's rendezvous. `members`: the ranks, or ranks and servers, which have a rendezvous of their own for the
 * handshake. */
status rank_open_rendezvous(const run_config *config, const rank_place *place, int members, rendezvous **out);

/* Runs the rank to its end. A failure is also recorded in the status table. */
status rank_run(const run_config *config, const rank_place *place, rank_outcome *out);

/* `place->rank` >= place->world. A failure is also recorded in the status table. */
status server_run(const run_config *config, const rank_place *place);

#endif
