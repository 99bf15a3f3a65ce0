/* Computes the steps and the memory of a run before anything is started. Wrong input therefore ends the
 * run early, with one line. The memory ledgers come from trainers that take two steps on the planning
 * device. */
#ifndef HARNESS_PLAN_PLAN_H
#define HARNESS_PLAN_PLAN_H

#include "harness/options/run_options.h"

#include <jansson.h>

typedef struct run_plan {
    dataset *set;
    nn_model *model;
    int64_t total_steps[JOB_COUNT]; /* steps, including warm-up */
    int64_t largest_job_bytes;      /* bytes of all ranks of one job */
    bool alternate;                 /* jobs fit in memory together and take turns */
    char hardware_note[320];
} run_plan;

/* Makes the plan. Returns STATUS_DATA or STATUS_CONFIG if the configuration cannot run. */
status run_plan_make(const run_config *config, run_plan *out);
void run_plan_free(run_plan *plan);

/* Plans the memory of every rank. *out is a new reference to "jobs" with "memory" as in the result of a
 * run: peaks after the first step, current figures after the last. Allocates no tensor. */
status ledger_plan_make(const run_config *config, const run_plan *plan, json_t **out);

/* Rank 0 may need more memory than other ranks, because it has a server or is device 0 under `dp`. Adds the
 * difference between rank 0 and the first rank that differs to the message of the present error. Does nothing
 * if rank 0 does not need more. `plan` needs only the data set and the model. */
void plan_explain_memory(const run_config *config, const run_plan *plan, int job);

#endif
