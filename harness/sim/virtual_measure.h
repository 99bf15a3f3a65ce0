/* Runs one job of `harness run` in virtual time and returns a few figures, for tables of many jobs
 * (whatif, reproductions). The job is given as the words of a command line, which run_config_parse()
 * reads. */
#ifndef HARNESS_SIM_VIRTUAL_MEASURE_H
#define HARNESS_SIM_VIRTUAL_MEASURE_H

#include "harness/sim/virtual_run.h"

typedef struct virtual_workload {
    const char *profile; /* Name or file. NULL for SIM_DEFAULT_PROFILE. */
    /* Policy, for example "ddp:order=ready" or "ps=sync". NULL for one GPU without communication. */
    const char *policy;
    int gpus;
    char options[320];  /* More options of `harness run`, separated by blanks. */
    char *const *words; /* [word_count]: more options, borrowed. */
    int word_count;
    double efficiency; /* Value of --efficiency. 0 if not given. */
    int draw;          /* Value of --draw. 0 if not given. */
    virtual_variant variant;
} virtual_workload;

/* Numbers of steps of a table's jobs. After two steps buckets have been rebuilt, so later steps are alike. If
 * ranks do not wait for each other, the fast ones first run ahead, until they reach their staleness. */
enum { VIRTUAL_WARMUP = 2, VIRTUAL_STEPS = 3, VIRTUAL_FREE_WARMUP = 20, VIRTUAL_FREE_STEPS = 20 };

/* Times in ms. `step_ms` is the median over the measured steps. `forward_ms` and
 * `backward_ms` are the largest values over ranks and measured steps. `step_ms` and
 * `samples_per_s` contain the factor `error`, the drawn or overridden value of several_gpus or several_hosts.
 * The job does not. */
typedef struct virtual_figures {
    double error;
    double step_ms;
    /* Longest forward pass, including the sharing of buffers before it. */
    double forward_ms;
    /* Longest time from the beginning of the backward pass until gradients are reduced. */
    double backward_ms;
    double samples_per_s;
    int64_t most_bytes; /* Largest peak memory of a rank. */
    json_t *job, *workload;
    char hardware[RUN_NOTE_SIZE]; /* Machines and their network adapters. */
} virtual_figures;

/* Runs the job and sets `out`, which is zero or holds earlier figures. Returns the errors of `harness
 * run`, such as STATUS_USAGE and STATUS_CONFIG. */
status virtual_measure(const virtual_workload *workload, virtual_figures *out);
void virtual_figures_free(virtual_figures *figures);

/* Finds the efficiency at which the step takes `step_ms`, with an error of at most 0.01 %, so that all
 * computed times are relative to a measured step of one GPU. Returns STATUS_CONFIG if no efficiency gives
 * this time. */
status virtual_fit(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                   double *efficiency);

/* The command line of a workload, as words. The caller frees `words`. */
typedef struct command_words {
    char options[320], device[4200], gpus[16], efficiency[32], draw[16];
    char **words; /* [count], then NULL. Words without program and command. */
    int count;
} command_words;
status virtual_words(const virtual_workload *of, command_words *w);

/* Appends the command line: "harness run --device sim:... --mode ring --policy ddp --gpus 8 ...". */
status virtual_command(const virtual_workload *workload, text_buffer *out);

#endif
