/* Starts the ranks of one or several jobs on this host, and makes sure that they end.
 *
 * In the order of a run: processors.c (which processors each rank gets) with cgroup.c (its container's
 * limits), out_of_memory.c (what libraries do without memory), launch.c (the loop and its signals),
 * launch_spawn.c (starts the processes), environment.c (what a started process reads), launch_watch.c (who
 * stalls, whose turn it is), launch_cause.c (which rank failed first, and why). stop_signals.c is for ranks
 * that something else starts, too.
 *
 * A rank is this program again (/proc/self/exe), exec'ed with the same arguments, told who it is by its
 * environment (environment.h). Each job has a process group and a table of its own. Only the launcher
 * listens to the terminal:
 *
 *   SIGINT   all ranks end after the same step, save, and report: exit code 130
 *   SIGTERM  likewise, at the latest after the grace time: 143. SIGHUP: 129, SIGUSR1: 138
 *
 * Signals within 2 s of the first count as one; a later one ends the ranks at once. A signal while a failure
 * is looked into changes nothing: the failure is the cause.
 *
 * A rank that dies, ends with an error, ends with 0 before it is done, or makes no progress for the stall
 * limit, ends the run: one line names it, every other rank of every job is gone within 5 s. When the
 * launcher itself is killed, the kernel kills the ranks (PR_SET_PDEATHSIG). Nothing is left behind: no
 * process, socket, segment or file.
 *
 * Jobs that take turns alternate: see status_table.h. A job holds the turn until all its ranks are parked
 * again or have ended, so that measured blocks never overlap. */
#ifndef HARNESS_LAUNCH_LAUNCH_H
#define HARNESS_LAUNCH_LAUNCH_H

#include "common/net/status_table.h"

#include <sched.h>
#include <signal.h>

typedef struct launch_job {
    const char *name;               /* becomes HARNESS_JOB */
    int world;                      /* ranks, then servers */
    int servers;                    /* of these: they answer the ranks, never park, and owe no progress */
    const char *rendezvous;         /* NULL: an abstract unix socket of a random name */
    const cpu_set_t *processors;    /* [world] that each may run on (processors.h); NULL: not bound */
    const char *const *environment; /* further "NAME=value", NULL-terminated; NULL: none */
} launch_job;

/* What the progress callback sees. Read slots with status_table_read(). */
typedef struct launch_view {
    const launch_job *jobs;
    status_table *const *tables; /* [job_count] */
    int job_count;
    int turn; /* the job whose turn it is; -1: all run, or none does yet */
    int64_t elapsed_ns;
} launch_view;

typedef struct launch_options {
    const launch_job *jobs;
    int job_count;
    char *const *argv;        /* of the ranks, as of this program; NULL-terminated */
    const int *inherited_fds; /* kept open in the ranks */
    int inherited_count;
    bool take_turns;
    int64_t stall_timeout_ns;   /* no progress for so long ends the run */
    int64_t connect_timeout_ns; /* the limit before the first step, if it is longer */
    int64_t grace_ns;           /* after SIGTERM */
    void (*progress)(void *context, const launch_view *view); /* four times a second; NULL: none */
    void *context;
} launch_options;

/* No jobs yet; stall limit 60 s, 30 s of grace. */
launch_options launch_defaults(void);

typedef struct launch_outcome {
    int exit_code;    /* what the program should exit with; 0: every rank ended well */
    int job, rank;    /* where it failed, else -1 */
    char cause[1024]; /* the root cause in one line, "" where there is none */
} launch_outcome;

#define STOP_SIGNALS_NS (2 * NS_PER_S) /* Signals within this time of the first count as one. */

/* Blocks the signals that stop a job for this thread and those that it starts; `before` (or NULL) becomes the
 * mask before. A signal that the process was told to ignore, as by nohup, is not among `out`. */
void stop_signals_block(sigset_t *out, sigset_t *before);
/* In a rank that launch_run() has not started: blocks the signals, and starts a thread that takes them. The
 * first one requests the stop (job_stop_hold()), a later one ends the process. Call it before there are other
 * threads. STATUS_SYSTEM. */
status stop_signals_open(status_table *t);
void stop_signals_close(void);

/* Runs the jobs to their end. Call it on the main thread before others exist: the ranks end when that thread
 * ends. STATUS_OK if the ranks could be started; `out` has how they ended. */
status launch_run(const launch_options *options, launch_outcome *out);

#endif
