/* A job on virtual devices. All ranks run in this thread; the event queue drives their trainers. Train
 * loop, models and engines are the same as in a real run.
 *
 * Files, in the order in which data flow through them (calibrate.h lists the files of calibrations):
 *   virtual_run.c        the jobs of `harness run`, and predictions of real runs
 *   whatif.c             a workload on many numbers of GPUs
 *   virtual_measure.c    a workload in a few figures
 *   virtual_job.c        the ranks and servers of a job
 *   virtual_source.c     batches
 *   virtual_trace.c      time lines */
#ifndef HARNESS_SIM_VIRTUAL_JOB_H
#define HARNESS_SIM_VIRTUAL_JOB_H

#include "common/data/batches.h"
#include "common/data/dataset.h"
#include "common/sim/simulation.h"
#include "harness/run/rank.h"

/* Pointers are borrowed. */
typedef struct virtual_job_config {
    simulation_config machine; /* Profile, ranks and overrides. */
    /* Model, engine, policy, optimizer and steps of every rank. virtual_job_run() sets the other fields. */
    trainer_config trainer;
    const dataset *set;
    const data_options *data; /* Batch size, sampler and drop_last. */
    int loader_workers;       /* Workers of each process. 0 if batches take no time. */
    /* Simulate only one machine if all machines do the same. */
    bool by_symmetry;
    int64_t warmup; /* Steps that are not reported. */
    /* Stages of the model. If more than 1, the ranks are a pipeline or replicas of one. If
     * machine.per_process is equal to `stages`, the stages are on devices of one process. */
    int stages;
    int schedule; /* pipeline_schedule */
} virtual_job_config;

/* Callbacks. Each may be NULL. A failure ends the job. */
typedef struct virtual_job_observer {
    void *context;
    /* Called when all ranks are set up and nothing has run. */
    status (*opened)(void *context, simulation *s);
    /* Called before a rank is opened. Returns the time line of the rank, or NULL. If processes drive several
     * devices, trace() and the callbacks below are called for each device. */
    rank_trace *(*trace)(void *context, int rank);
    /* Called before the first reported step. */
    void (*measures)(void *context, int rank, trainer *t);
    void (*step)(void *context, int rank, trainer *t, const step_result *result);
    /* Called when the rank has done all steps and flushed its engine. */
    status (*finished)(void *context, int rank, trainer *t);
    /* Called after all ranks, for every server in a separate process, with the server's memory. */
    status (*served)(void *context, int server, const ledger *l);
} virtual_job_observer;

/* Number of ranks above which only one machine is simulated, if all machines do the same. */
enum { VIRTUAL_JOB_ALL_RANKS = 1024 };

/* Runs the job to its end. Simulates only the ranks of one machine, which stand for all machines, if
 * by_symmetry is set or above VIRTUAL_JOB_ALL_RANKS ranks. Simulates all ranks if the engine is not ring, if
 * the run has a pipeline, jitter or slow ranks, or if machines have different numbers of ranks. */
status virtual_job_run(const virtual_job_config *config, const virtual_job_observer *observer);

#endif
