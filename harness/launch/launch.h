/* Starts the ranks of one or several jobs on this host, and makes sure that they end.
 *
 * The files, in the order of a run: processors.c (processors of each rank), cgroup.c (limits of the
 * container), out_of_memory.c (libraries that run out of memory), launch.c (the loop and its signals),
 * launch_spawn.c (starts the processes), environment.c (the environment of a started process), launch_watch.c
 * (ranks that stall, and turns of jobs), launch_cause.c (the rank that failed first, and why). stop_signals.c
 * handles the signals that stop a job, also in ranks that mpirun, srun or torchrun started.
 *
 * A rank is this program (/proc/self/exe) with the same arguments. The environment names the rank
 * (environment.h). Each job has a process group and a table. Only the launcher listens to the terminal:
 *
 *   SIGINT   all ranks end after the same step, save, and report: exit code 130
 *   SIGTERM  the same, but ranks that have not ended after the grace time are killed: exit code 143.
 *            SIGHUP and SIGUSR1 have the same effect: exit codes 129 and 138
 *
 * Signals within 2 s of the first count as one. A later signal ends the ranks at once. After a failure the
 * launcher ignores signals, so that the exit code shows the failure.
 *
 * The run ends if a rank dies, ends with an error, ends with 0 too early, or makes no progress for the stall
 * limit. One line names this rank. All other ranks of all jobs end within 5 s. If the launcher itself is
 * killed, the kernel kills the ranks (PR_SET_PDEATHSIG). No process, socket, segment or file remains.
 *
 * Jobs that take turns alternate (status_table.h). A job holds the turn until all its ranks are parked
 * again or have ended, so that measured blocks never overlap. */
#ifndef HARNESS_LAUNCH_LAUNCH_H
#define HARNESS_LAUNCH_LAUNCH_H

#include "common/net/status_table.h"

#include <sched.h>
#include <signal.h>

typedef struct launch_job {
    const char *name; /* HARNESS_JOB of the ranks */
    int world;        /* ranks, then servers */
    int servers;      /* number of servers in `world`; servers answer the ranks, never park, and need not make
                         progress; a stopped one is named if the ranks make none */
    const cpu_set_t *processors; /* [world] processors of each process (processors.h), or NULL if not bound */
    const char *const *environment; /* further "NAME=value", ends with NULL; may be NULL */
} launch_job;

/* Progress of the jobs, for the callback. Slots are read with status_table_read(). */
typedef struct launch_view {
    const launch_job *jobs;
    status_table *const *tables; /* [job_count] */
    int job_count;
    int turn; /* job that has the turn; -1 if all jobs run at once, or none has begun */
    int64_t elapsed_ns;
} launch_view;

/* Place of this host in a job whose ranks run on several hosts, each with a launcher. The
 * ranks find the variables of torchrun in their environment, meet at env://, take signals and report
 * failures.
 * The launcher passes signals on, names a rank that dies or that a signal has stopped for the stall limit,
 * and ends its ranks when one has failed. */
typedef struct launch_node {
    int first_rank, world;
    const char *address; /* host of rank 0 */
    int port;
} launch_node;

typedef struct launch_options {
    const launch_job *jobs;
    int job_count;
    char *const *argv; /* command line of the ranks, ends with NULL */
    bool take_turns;
    const char *unit;           /* "call" if the ranks stop between calls, NULL if between steps */
    const launch_node *node;    /* NULL if all ranks of the jobs run on this host */
    int64_t stall_timeout_ns;   /* time without progress after which the run ends */
    int64_t connect_timeout_ns; /* lower bound of the stall limit before the first step */
    int64_t grace_ns;           /* time to end after SIGTERM, or 0 for 30 s */
    void (*progress)(void *context, const launch_view *view); /* called four times per second, or NULL */
    void *context;
} launch_options;

typedef struct launch_outcome {
    int exit_code;    /* exit code of the program; 0 if every rank ended well */
    int job, rank;    /* job and rank that failed, or -1 */
    char cause[1024]; /* root cause in one line, or "" */
} launch_outcome;

#define STOP_SIGNALS_NS (2 * NS_PER_S) /* signals within this time of the first count as one */

/* Blocks the signals that stop a job, in this thread and in threads that it starts. `before` receives the
 * previous mask, or is NULL. `out` receives the blocked signals, without those signals that the process
 * ignores (nohup), or is NULL. */
void stop_signals_block(sigset_t *out, sigset_t *before);
/* Returns a blocked signal that has arrived and that nothing has taken, or 0. */
int stop_signals_pending(void);
/* Blocks the signals and starts a thread that takes them, in a rank that launch_run() has not started. The
 * first signal requests the stop (job_stop_hold()), a later one ends the process. Must be called before
 * there are other threads. Returns STATUS_SYSTEM on failure. */
status stop_signals_open(status_table *t);
void stop_signals_close(void);

/* Returns the state letter and the flags of a process from /proc/PID/stat, or 0 if the process is gone. */
char launch_process_state(pid_t pid, unsigned *flags);

/* Runs the jobs to their end. Must be called on the main thread before there are other threads, because the
 * ranks end when the calling thread ends. Returns STATUS_OK if the ranks could be started. `out` receives how
 * the ranks ended. */
status launch_run(const launch_options *options, launch_outcome *out);
/* Runs the jobs, logs the cause of a failure, and sets *exit_code to the exit code of the program. */
status launch_run_and_log(const launch_options *options, int *exit_code);

#endif
