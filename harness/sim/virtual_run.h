/* `harness run --device sim:PROFILE`: the jobs of a run, one after another, in virtual time. */
#ifndef HARNESS_SIM_VIRTUAL_RUN_H
#define HARNESS_SIM_VIRTUAL_RUN_H

#include "common/sim/simulation.h"
#include "harness/launch/progress.h"
#include "harness/plan/plan.h"
#include "harness/result/run_result.h"
#include "harness/train/trainer.h"

/* Settings of a virtual run that have no option. All fields are zero in `harness run`. */
typedef struct virtual_variant {
    /* Simulate only one machine, which stands for all, for any number of ranks (virtual_job.h). */
    bool by_symmetry;
    bool unlimited_memory;         /* See simulation.h. */
    bool separate_phases;          /* See trainer.h. */
    bool without_python;           /* Run dp without an interpreter, whatever --dp-host says. */
    bool splits_python;            /* Run dp without an interpreter, too, and add this as "without_python". */
    bool may_be_one_machine;       /* Accept --link even if all ranks are on one machine and use no link. */
    const sim_override *overrides; /* [override_count], borrowed. Applied after --efficiency. */
    int override_count;
    /* Called for each measured step of a rank. May be NULL. */
    void (*step)(void *context, const step_result *result);
    /* Called for each kernel of rank 0's compute stream. May be NULL. */
    void (*kernel)(void *context, const char *what, int64_t begin_ns, int64_t end_ns);
    /* Called when rank 0 has taken its last step. May be NULL. */
    status (*ended)(void *context, trainer *t);
    void *context;
    run_progress *progress; /* Shows the steps of rank 0. May be NULL. */
    bool prints;            /* Prints the lines of --print-steps and --print-shapes. */
    /* Set to the factor by which a step takes longer than the model says: the drawn or overridden value of
     * several_gpus or several_hosts. The result does not contain it. May be NULL. */
    double *error;
} virtual_variant;

/* Runs the job of one engine of the configuration. Sets *job to its result and its trace, both on the heap
 * and owned by the caller. Writes a description of the simulated machines to `note` [size], unless `note` is
 * NULL. Returns STATUS_CONFIG for more ranks than the profile has GPUs, and for options that virtual devices
 * do not support. */
status virtual_run_job(const run_config *config, const run_plan *plan, int engine,
                       const virtual_variant *variant, run_job *job, char *note, size_t size);

/* Runs the model on one GPU and writes its workload (harness/workload/workload.h) to `path`. */
status virtual_record(const run_config *config, const run_plan *plan, const char *path);

/* Runs every job that the configuration uses and sets jobs[ENGINE_COUNT], like virtual_run_job(). */
status virtual_run(const run_config *config, const run_plan *plan, run_job *jobs, char *note, size_t size);

/* Adds "prediction" to the results of a real run, if this machine is calibrated (harness calibrate) and
 * the run was on the CPU without an emulated link. Fields: `profile`, `step_median_s`, `measured_s` (mean
 * over the ranks of their median steps), `error` (prediction over measurement less 1) and `other_binding`
 * (the profile was calibrated with another binding of ranks). */
status virtual_predict_jobs(const run_config *config, const run_plan *plan, run_job *jobs);

#endif
