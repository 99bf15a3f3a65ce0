/* Computes the steps and the memory of a run before anything is started. Wrong input therefore ends the run
 * before it starts, with one error message. The memory ledgers come from trainers that take two steps on the
 * planning device. */
#ifndef HARNESS_PLAN_PLAN_H
#define HARNESS_PLAN_PLAN_H

#include "harness/options/run_options.h"

#include <jansson.h>

/* Room for a description of the hardware, and of virtual machines that are composed from options. */
enum { RUN_NOTE_SIZE = 6 << 10 };

typedef struct run_plan {
    dataset *set;
    nn_model *model;
    int64_t total_steps[JOB_COUNT]; /* steps of each job, including warm-up steps */
    int64_t largest_job_bytes;      /* bytes that all ranks of the largest job need */
    bool alternate;                 /* true if all jobs fit in memory together, so that they can take turns */
    char hardware_note[RUN_NOTE_SIZE];
} run_plan;

/* Makes the plan. Returns STATUS_DATA or STATUS_CONFIG if the configuration cannot run. */
status run_plan_make(const run_config *config, run_plan *out);
void run_plan_free(run_plan *plan);

/* Plans the memory of every rank. *out is a new reference to the workload and its "jobs", whose ranks have
 * "memory" as in the result of a run. The peaks do not include the first step. Allocates no tensor. */
status ledger_plan_make(const run_config *config, const run_plan *plan, json_t **out);

/* Rank 0 may need more memory than other ranks, because it has a server or is device 0 under `dp`. Appends to
 * the message of the current error how much more memory rank 0 needs than the first rank that differs. Does
 * nothing if rank 0 does not need more. Reads only the data set and the model of `plan`. */
void plan_explain_memory(const run_config *config, const run_plan *plan, int job);

#endif
