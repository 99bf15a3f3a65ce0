/* Runs the jobs on this host: starts them, watches them, and collects their results.
 *
 * The files of a run, in the order in which data flow through them (folder/file under harness):
 *   options/run_option_table  options of the command line
 *   options/run_options       command line to run_config; model and data set
 *   options/run_ranks         ranks, threads and batch of each job; limits of this host
 *   options/engines           the table of engines, and figures of an engine before it opens
 *   plan/plan                 steps and memory of the run, computed in advance
 *   launch/job                the launcher's side: starts ranks and servers, gathers results
 *   launch/progress           progress on stderr
 *   launch/node               --nnodes: starts the ranks of one of several hosts
 *   rank/rank, rank/server    a process of a job: set-up, blocks of steps, end
 *   rank/join                 rendezvous, token and handshakes of the ranks
 *   rank/setup                a rank's trainer and batches, opened from the configuration
 *   rank/steps                steps of a rank, which is a process or a virtual rank
 *   rank/checkpoint           --save and --load
 *   rank/compare              comparison of the ranks' inputs, and of their parameters
 *   rank/agreement            whether ps and ring reduce the first step to the same gradients
 *   rank/trace                --trace: events of a rank, gathered on rank 0
 *   result/record             measurements of a rank
 *   rank/rank_calls           begin of each call of NCCL or MPI on the other ranks
 *   rank/rank_result          a rank's results, gathered on rank 0
 *   result/job_result         a job's result from its ranks' records
 *   result/job_times          times of the job as a whole
 *   result/run_result         the result of the run
 *   result/output             files and stdout */
#ifndef HARNESS_LAUNCH_JOB_H
#define HARNESS_LAUNCH_JOB_H

#include "harness/launch/launch.h"
#include "harness/plan/plan.h"
#include "harness/rank/rank.h"
#include "harness/result/run_result.h"

typedef struct run_jobs {
    run_job jobs[JOB_COUNT]; /* results by job; run_jobs_free() frees them */
    bool on_heap;            /* the traces are on the heap, as in virtual time */
    launch_outcome outcome;  /* outcome of the last jobs, zero in virtual time */
} run_jobs;

/* Starts the ranks of all jobs, in turns or one job after the other as the plan says, and waits for them.
 * `argv` has the words of the command line, first the program's name, and ends with NULL. */
status run_jobs_run(const run_config *config, const run_plan *plan, char *const *argv, run_jobs *out);
void run_jobs_free(run_jobs *jobs);
bool run_jobs_any_result(const run_jobs *jobs);

/* Returns the command line of the ranks: the launcher's command line, with the number of ranks per host that
 * the launcher has chosen. The caller frees the result. NULL if out of memory. */
char **run_jobs_command(const run_config *config, char *const *argv, char gpus[32]);

/* ---- node.c ---- */

/* Checks --nnodes and its options. Fails with STATUS_USAGE, with STATUS_PERMISSION if several nodes have no
 * key, and with STATUS_CONFIG if this host has too few GPUs. */
status run_node_check(const run_config *config);
/* Starts the ranks of this host in a run with --nnodes, and waits for them. Rank 0 reports the run. Logs the
 * failure of a rank. */
status run_node(const run_config *config, char *const *argv, int *exit_code);

/* Hands a job's outcome from rank 0 to the launcher. */
status run_jobs_deliver(const run_job *job);
/* Returns the descriptor of the file for the gradients of this job's first step, or 0 if there is none. */
int run_jobs_gradients_fd(void);
/* Hands the memory of a server in a separate process to the launcher. */
status run_jobs_deliver_server(int server, const ledger *memory);

#endif
