#ifndef HARNESS_LAUNCH_LAUNCH_IMPL_H
#define HARNESS_LAUNCH_LAUNCH_IMPL_H

#include "common/net/key.h"
#include "harness/launch/launch.h"

#include <poll.h>
#include <sys/types.h>

/* Time after which a warning names a rank that makes no progress while other ranks make progress. The time is
 * less than 2 s, so that a pause of 2 s causes the warning, although the run goes on. */
#define STRAGGLER_NS (3 * NS_PER_S / 2)

typedef enum rank_end { END_NOT_YET, END_WELL, END_STOPPED, END_EARLY, END_CODE, END_SIGNAL } rank_end;

typedef struct rank_process {
    pid_t pid;
    int pidfd; /* -1 after the end */
    rank_end end;
    int end_value;       /* exit code or signal */
    bool warned;         /* a warning has named the rank as a straggler */
    bool warned_stopped; /* a warning has named the rank as stopped by a signal */
    int64_t changed_ns;  /* time at which progress was last seen */

    /* State when the launcher last read the job's table. */
    rank_status status;
    bool owes;      /* the rank must make progress */
    bool stopped;   /* a signal has stopped the process */
    int64_t age_ns; /* time since its last progress */
} rank_process;

typedef struct job_run {
    const launch_job *job;
    status_table *table;
    uint64_t token;
    char key[NET_KEY_TEXT];
    char rendezvous[128];
    pid_t group;
    rank_process *ranks; /* [job->world] */
    int alive;
    uint32_t blocks; /* number of blocks granted to the job */
} job_run;

typedef struct launcher {
    launch_options options;
    job_run *jobs;         /* [job_count] */
    status_table **tables; /* [job_count] tables for the view */
    int alive;             /* number of processes of all jobs that have not ended */
    pid_t pid;
    char host[64];
    int signal_fd;
    sigset_t signals, original_mask; /* `signals` are blocked, except in the ranks */
    struct pollfd *polled;           /* [1 + jobs + all ranks] */
    /* Start of the run, and times of the next watch and of the next `progress` call. */
    int64_t begin_ns, watch_ns, progress_ns;
    int64_t oom_kills; /* cgroup_oom_kills() when the run began */
    struct sigaction original_child_action;
    int stop_signal;   /* signal that requested a stop, or 0 */
    int64_t stop_ns;   /* time of this signal */
    bool failing;      /* a rank has failed, and the cause is not known yet */
    int64_t failed_ns; /* time of the first sign of the failure */
    bool ending;       /* SIGTERM has been sent to the ranks */
    bool killed;       /* SIGKILL has been sent */
    int64_t settle_ns; /* time at which the cause is decided */
    int64_t kill_ns;   /* time at which the remaining ranks are killed, or CLOCK_NEVER */
    int turn;          /* job that has the turn, or -1 */
    launch_outcome *outcome;
} launcher;

/* launch_spawn.c */
status launch_spawn_job(launcher *l, job_run *j);
void launch_kill_job(const job_run *j, int signal);
void launch_reap_job(job_run *j); /* kills the rest of the group */

/* launch_cause.c */
/* Finds the cause in the failures recorded and the exit codes known so far, and sets the outcome. */
void launch_find_cause(launcher *l);
/* Returns true if every known failure is the loss of a peer, and a rank of the job is about to end. */
bool launch_awaits_death(const launcher *l);
void launch_blame_stall(launcher *l, int job, int rank, int64_t limit_ns);

/* launch_watch.c */
/* Finds the rank that makes no progress, and names it in the outcome. Called after a rank gave up waiting.
 * Returns false if every rank makes progress. */
bool launch_blame_stalled(launcher *l, int64_t now_ns);
void launch_watch(launcher *l, int64_t now_ns);
/* Returns true if the process is exiting, which may take seconds while the kernel frees the memory of the
 * process on a GPU. */
bool launch_is_dying(const rank_process *p);
void launch_turns_advance(launcher *l);

/* launch.c */
void launch_end_all(launcher *l); /* sends SIGTERM now, SIGKILL later */

#endif
