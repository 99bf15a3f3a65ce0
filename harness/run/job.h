/* The jobs of a run on this host: started, watched, and their results collected.
 *
 * The files of this folder, in the order in which data flow through them:
 *   run_options       command line to run_config; model and data set
 *   run_ranks         ranks, threads and batch of each job; what this host can serve
 *   engines           the table of engines, and what every engine is asked before it opens
 *   plan              what the run is going to do and hold
 *   job               the launcher's side: starts ranks and servers, shows progress, collects results
 *   progress          what stderr shows meanwhile
 *   rank, server      a process of a job: set-up, blocks of steps
 *   rank_result       what a rank has to report, gathered on rank 0
 *   rank_setup        what a rank opens from the configuration: its trainer and its batches
 *   rank_checkpoint   --save and --load
 *   rank_compare      what the ranks have read, and their parameters, compared
 *   rank_trace        --trace: events of a rank, gathered on rank 0
 *   agreement         whether ps and ring reduce the first step to the same gradients
 *   record            what a rank measures
 *   job_result        a job's result from its ranks' records
 *   job_times         times of the job as a whole
 *   run_result        the result of the run
 *   output            files and stdout */
#ifndef HARNESS_RUN_JOB_H
#define HARNESS_RUN_JOB_H

#include "harness/launch/launch.h"
#include "harness/run/plan.h"
#include "harness/run/rank.h"
#include "harness/run/run_result.h"

typedef struct run_jobs {
    run_job jobs[JOB_COUNT]; /* of the jobs that have a result; the caller's, see run_jobs_free */
    bool on_heap;            /* the traces: of jobs in virtual time */
    int exit_code;           /* 0, or what the program is to exit with */
    char cause[1024];        /* why; "": no failure */
} run_jobs;

/* Starts the ranks of all jobs, in turns or one job after the other as the plan says, and waits for them.
 * `argv` are the words of the command line, the program's name first. */
status run_jobs_run(const run_config *config, const run_plan *plan, char *const *argv, run_jobs *out);
void run_jobs_free(run_jobs *jobs);
bool run_jobs_any_result(const run_jobs *jobs);

/* The rank side: hands a job's outcome to the launcher; rank 0 does. */
status run_jobs_deliver(const run_job *job);
/* The file for the gradients of this job's first step; 0: none. */
int run_jobs_gradients_fd(void);
/* The result of a server in its own process. */
status run_jobs_deliver_server(const json_t *server);

#endif
