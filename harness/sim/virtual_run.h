/* `harness run --device sim:PROFILE`: the jobs of a run, one after another, in virtual time. */
#ifndef HARNESS_SIM_VIRTUAL_RUN_H
#define HARNESS_SIM_VIRTUAL_RUN_H

#include "harness/run/plan.h"
#include "harness/run/run_result.h"

/* Runs every job that the configuration uses; jobs[ENGINE_COUNT] get their results, which are the caller's.
 * `note` [size] lists what was represented by what. STATUS_CONFIG: more ranks than the profile has GPUs, or what
 * virtual devices cannot do. */
status virtual_run(const run_config *config, const run_plan *plan, run_job *jobs, char *note, size_t size);

/* Where this machine has been calibrated (harness calibrate), and the run was on its CPU, without an emulated
 * link: adds "prediction" to the jobs' results: `profile`, `step_median_ns`, `measured_ns` (the ranks' own
 * median steps, their mean) and `error`, which is prediction over measurement less 1. */
status virtual_predict_jobs(const run_config *config, const run_plan *plan, run_job *jobs);

#endif
