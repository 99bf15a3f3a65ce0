/* `harness run --device sim:PROFILE`: the jobs of a run, one after another, in virtual time. */
#ifndef HARNESS_SIM_VIRTUAL_RUN_H
#define HARNESS_SIM_VIRTUAL_RUN_H

#include "common/sim/simulation.h"
#include "harness/run/plan.h"
#include "harness/run/progress.h"
#include "harness/run/run_result.h"
#include "harness/train/trainer.h"

/* What no option of `run` says; zero: as `run` does. */
typedef struct virtual_variant {
    bool by_symmetry;        /* ranks of one machine stand for all, however many there are (virtual_job.h) */
    bool unlimited_memory;   /* simulation.h */
    bool separate_phases;    /* trainer.h */
    bool may_be_one_machine; /* --link is no error where it has no effect */
    const sim_override *overrides; /* [override_count], borrowed; applied after --efficiency */
    int override_count;
    void (*step)(void *context, const step_result *result); /* of each rank's measured steps; or NULL */
    void *context;
    run_progress *progress; /* shows rank 0's steps; or NULL */
} virtual_variant;

enum { VIRTUAL_VARIANT_OVERRIDES = 32 }; /* at most */

/* Runs the job of one engine that the configuration uses; *job gets its result, as in the result of `run`,
 * and its trace: both are the caller's, on the heap. `note` [size] lists what was represented by what.
 * STATUS_CONFIG: more ranks than the profile has GPUs, or what virtual devices cannot do. */
status virtual_run_job(const run_config *config, const run_plan *plan, int engine,
                       const virtual_variant *variant, run_job *job, char *note, size_t size);

/* Runs every job that the configuration uses; jobs[ENGINE_COUNT] get their results, which are the caller's.
 * The rest is as above. */
status virtual_run(const run_config *config, const run_plan *plan, run_job *jobs, char *note, size_t size);

/* Where this machine has been calibrated (harness calibrate), and the run was on its CPU, without an emulated
 * link: adds "prediction" to the jobs' results: `profile`, `step_median_ns`, `measured_ns` (the ranks' own
 * median steps, their mean) and `error`, which is prediction over measurement less 1. */
status virtual_predict_jobs(const run_config *config, const run_plan *plan, run_job *jobs);

#endif
