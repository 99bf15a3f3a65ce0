/* One job of `harness run` in virtual time, and what it takes in a few figures: for tables that ask for many
 * jobs (whatif, reproductions). The job is given as the words of a command line; run_config_parse() reads
 * them, and virtual_run_job() runs them. */
#ifndef HARNESS_SIM_VIRTUAL_MEASURE_H
#define HARNESS_SIM_VIRTUAL_MEASURE_H

#include "harness/sim/virtual_run.h"

typedef struct virtual_workload {
    const char *profile; /* name or file; NULL: SIM_DEFAULT_PROFILE */
    const char *policy;  /* "ddp:order=ready", "ps=sync"; NULL: one GPU without communication */
    int gpus;
    char options[320];  /* others of `harness run`, separated by blanks */
    char *const *words; /* [word_count] more of them, borrowed */
    int word_count;
    double efficiency; /* --efficiency; 0: not given */
    int draw;          /* --draw; 0: not given */
    virtual_variant variant;
} virtual_workload;

/* Medians over the measured steps, in ms. */
typedef struct virtual_figures {
    double step_ms;
    double exposed_ms, waiting_ms;
    double forward_ms; /* the slowest rank's, from the begin of the forward pass, buffers shared first, to its
                          end */
    double backward_ms; /* from the begin of the backward pass until gradients are reduced */
    double samples_per_s;
    int64_t most_bytes;     /* of the ranks' peaks */
    int ranks;              /* that were simulated */
    json_t *job, *workload; /* as in the result of `run` */
} virtual_figures;

/* Fills `out`, which holds figures of an earlier call or is zero. STATUS_USAGE, STATUS_CONFIG as `run`. */
status virtual_measure(const virtual_workload *workload, virtual_figures *out);
void virtual_figures_free(virtual_figures *figures);

/* The efficiency with which the workload's step takes `step_ms`, to 0.01 %: a measured step of one GPU
 * anchors all that is computed. STATUS_CONFIG where none does. */
status virtual_fit(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                   double *efficiency);

/* The command line: "harness run --device sim:... --mode ring --policy ddp --gpus 8 ...". */
status virtual_command(const virtual_workload *workload, text_buffer *out);

#endif
