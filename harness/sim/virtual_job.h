/* A job on virtual devices: all ranks in this thread, their trainers driven by the event queue. The train
 * loop, the models and the engines are those of a real run.
 *
 * The files in the order in which data flow through them (calibrate.h lists those of calibrations):
 *   virtual_run.c        the jobs of `harness run`, and predictions of real runs
 *   whatif.c             a workload on many numbers of GPUs
 *   virtual_measure.c    what a workload takes, in a few figures
 *   virtual_job.c        the ranks and servers of a job
 *   virtual_source.c     their batches
 *   virtual_trace.c      their time lines */
#ifndef HARNESS_SIM_VIRTUAL_JOB_H
#define HARNESS_SIM_VIRTUAL_JOB_H

#include "common/data/batches.h"
#include "common/data/dataset.h"
#include "common/sim/simulation.h"
#include "harness/run/rank.h"

/* Everything is borrowed. */
typedef struct virtual_job_config {
    simulation_config machine; /* profile, ranks, what is overridden */
    trainer_config trainer; /* of every rank: model, engine, policy, optimizer, steps; the rest is set here */
    const dataset *set;
    const data_options *data; /* batch, sampler, drop_last */
    int loader_workers;       /* of each process of the job; 0: batches are there at once */
    bool by_symmetry;         /* ranks of one machine stand for all where nothing makes them differ */
    int64_t warmup;           /* steps that are not reported */
    int stages;   /* above 1: the model is cut, and the ranks are a pipeline, or replicas of one; where
                   * machine.per_process is as many, they are devices, which their process drives */
    int schedule; /* pipeline_schedule */
} virtual_job_config;

/* Callbacks. Any slot may be NULL; a failure ends the job. */
typedef struct virtual_job_observer {
    void *context;
    /* All ranks are set up, nothing has run. */
    status (*opened)(void *context, simulation *s);
    /* Here and below, where processes drive several devices: each of these. Before a rank is opened: its time
     * line, or NULL. */
    rank_trace *(*trace)(void *context, int rank);
    /* Before the first reported step. */
    void (*measures)(void *context, int rank, trainer *t);
    void (*step)(void *context, int rank, trainer *t, const step_result *result);
    /* The rank has done all its steps and settled. */
    status (*finished)(void *context, int rank, trainer *t);
    /* After all ranks, for every server in its own process: what it holds. */
    status (*served)(void *context, int server, const ledger *l);
} virtual_job_observer;

/* Above so many ranks that are alike, those of one machine stand for all. */
enum { VIRTUAL_JOB_ALL_RANKS = 1024 };

/* Runs to the end. Above VIRTUAL_JOB_ALL_RANKS ranks, symmetry is taken where it holds: under the ring
 * engine, without jitter, with machines that are full. Then machine.present ranks are simulated. */
status virtual_job_run(const virtual_job_config *config, const virtual_job_observer *observer);

#endif
