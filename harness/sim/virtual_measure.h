/* What a workload takes on virtual devices, in a few figures: for reproductions and what-if tables. */
#ifndef HARNESS_SIM_VIRTUAL_MEASURE_H
#define HARNESS_SIM_VIRTUAL_MEASURE_H

#include "common/memory/ledger.h"
#include "harness/run/run_options.h"
#include "harness/sim/virtual_job.h"
#include "models/models.h"
#include "ps/ps.h"

typedef struct virtual_workload {
    simulation_config machine; /* profile, world, ... */
    model_options model;
    int64_t batch; /* samples per rank */
    optimizer_options optimizer;
    const char *policy;                 /* NULL: one GPU without an engine */
    const char *const *engine_settings; /* "name=value" of the engine's options; NULL ends; may be NULL */
    bool separate_phases;               /* trainer.h */
    bool by_symmetry;                   /* virtual_job.h */
    int64_t steps;                      /* the last is measured; 0: 3, so that buckets have been rebuilt */
} virtual_workload;

enum { VIRTUAL_LEDGERS = 64 }; /* of the first ranks that are kept */

/* Of the last step, in ms, the slowest rank's. Times of phases include waits within them. */
typedef struct virtual_figures {
    double step_ms;
    double forward_ms;  /* from the begin of the forward pass, buffers shared first, to its end */
    double backward_ms; /* from the begin of the backward pass until gradients are reduced */
    double exposed_ms;  /* compute waited for communication */
    int64_t most_bytes, least_bytes;   /* peaks of the ranks' ledgers */
    int64_t bytes_sent;                /* per step, of the busiest rank */
    int64_t all_bytes_sent;            /* from the start, of rank 0 */
    bool has_dp;
    ps_dp_sizes dp;                  /* under policy dp: sizes of the last step's phases */
    int ranks;                       /* that were simulated */
    ledger ledgers[VIRTUAL_LEDGERS]; /* [ranks, at most] after the last step */
} virtual_figures;

/* `out` is large: not for the stack of a loop. */
status virtual_measure(const virtual_workload *workload, virtual_figures *out);

#endif
