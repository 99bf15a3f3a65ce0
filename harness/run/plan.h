/* What a run is going to do, computed before anything is started: wrong input ends the run with one line, and
 * progress and memory are known in advance. The ledgers are those of trainers on the planning device, step by
 * step.
 * */
#ifndef HARNESS_RUN_PLAN_H
#define HARNESS_RUN_PLAN_H

#include "harness/run/run_options.h"

#include <jansson.h>

typedef struct run_plan {
    dataset *set;
    nn_model *model;
    int64_t total_steps[JOB_COUNT]; /* warm-up included */
    int64_t needed_bytes;           /* all ranks of all jobs */
    int64_t largest_job_bytes;      /* all ranks of one job */
    bool alternate;                 /* jobs fit in memory together and take turns */
    char hardware_note[320];
} run_plan;

/* STATUS_DATA, STATUS_CONFIG: what the configuration cannot run with. */
status run_plan_make(const run_config *config, run_plan *out);
void run_plan_free(run_plan *plan);

/* "jobs" with, for every rank, "memory" as in the result of a run: peaks after the first step, current
 * figures after the last. The caller's. Allocates no tensor. */
status ledger_plan_make(const run_config *config, const run_plan *plan, json_t **out);

/* The ledgers of rank 0 and of `another`, the first rank that differs from it; 0: there is none. */
status ledger_plan_first(const run_config *config, const run_plan *plan, int job, ledger *first,
                         ledger *other, int *another);

/* Adds to the present failure how much more the ranks with a server, or device 0 under `dp`, would hold than
 * the others. Leaves it as it is where all ranks hold the same. `plan`: data set and model. */
void plan_explain_memory(const run_config *config, const run_plan *plan, int job);

#endif
