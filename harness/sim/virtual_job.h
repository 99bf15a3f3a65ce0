/* A job on virtual devices. All ranks run in this thread; the event queue drives them. Steps, train loop,
 * models and engines are the same as in a real run.
 *
 * Files, in the order in which data flow through them (calibrate.h lists the files of calibrations):
 *   virtual_run.c        the jobs of `harness run`, and predictions of real runs
 *   estimate.c           the time that a real run will take
 *   whatif.c             a workload on many numbers of GPUs
 *   whatif_why.c         its causes
 *   whatif_text.c        its tables
 *   next.c               the setting that shortens a step most
 *   virtual_measure.c    a workload in a few figures
 *   virtual_job.c        the ranks and servers of a job
 *   virtual_machines.c   its machines
 *   virtual_record.c     records a workload (--workload-out)
 *   virtual_source.c     batches
 *   virtual_host.c       time of the hosts
 *   virtual_trace.c      time lines */
#ifndef HARNESS_SIM_VIRTUAL_JOB_H
#define HARNESS_SIM_VIRTUAL_JOB_H

#include "harness/sim/virtual_run.h"

/* Pointers are borrowed. */
typedef struct virtual_job_config {
    const run_config *run;
    const run_plan *plan; /* data set and model */
    int engine;
    const char *profile;
    const virtual_variant *variant;
    int64_t warmup, steps; /* number of steps that are not reported, and number of reported steps */
    bool traced;           /* true to record the time line of --trace and of the results */
} virtual_job_config;

/* Opens the simulation of the job's machines, also for a plan of the job. `devices` counts the devices of all
 * ranks, and `needs` are the requirements of the engine. Returns STATUS_CONFIG if the machines cannot run the
 * job, and the errors of simulation_open(). After an error the caller closes *out. */
status virtual_machines_open(const virtual_job_config *config, int devices, const sync_requirements *needs,
                             simulation **out);

/* Number of ranks above which only one machine is simulated, if all machines do the same. */
enum { VIRTUAL_JOB_ALL_RANKS = 1024 };

/* Runs the job to its end. Sets *out to its result and its trace, both on the heap and owned by the caller.
 * Writes a description of the simulated machines to `note` [size], unless `note` is NULL.
 *
 * If variant->by_symmetry is set, or if there are more than VIRTUAL_JOB_ALL_RANKS ranks, simulates only the
 * ranks of one machine, which stand for all machines. Always simulates all ranks if the engine is not ring,
 * if the run has a pipeline, jitter or slow ranks, or if machines have different numbers of ranks. */
status virtual_job_run(const virtual_job_config *config, run_job *out, char *note, size_t size);

#endif
