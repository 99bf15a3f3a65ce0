/* Shared by launch*.c. */
#ifndef HARNESS_LAUNCH_LAUNCH_IMPL_H
#define HARNESS_LAUNCH_LAUNCH_IMPL_H

#include "common/net/key.h"
#include "harness/launch/launch.h"

#include <poll.h>
#include <sys/types.h>

/* No progress for so long while the others have some is a warning; a pause of 2 s, which a run survives, is
 * named. */
#define STRAGGLER_NS (3 * NS_PER_S / 2)

/* How a process ended. */
typedef enum rank_end { END_NOT_YET, END_WELL, END_STOPPED, END_EARLY, END_CODE, END_SIGNAL } rank_end;

/* A rank at one look of the watch. */
typedef struct sight {
    rank_status status;
    bool owes;      /* progress is due */
    bool stopped;   /* the process is stopped by a signal */
    int64_t age_ns; /* since its last progress */
} sight;

typedef struct rank_process {
    pid_t pid;
    int pidfd; /* -1: ended */
    rank_end end;
    int end_value;     /* exit code or signal */
    uint64_t progress; /* as last seen */
    rank_slot_state state;
    int64_t changed_ns; /* when that was seen to change */
    bool warned;        /* as a straggler */
    sight sight;        /* the last one */
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
    uint32_t blocks; /* granted */
} job_run;

typedef struct launcher {
    launch_options options;
    job_run *jobs;         /* [job_count] */
    status_table **tables; /* [job_count], for the view */
    int alive;             /* of all jobs */
    pid_t pid;
    char host[64];
    int signal_fd;
    sigset_t original_mask;
    struct pollfd *polled;                   /* [1 + jobs + all ranks] */
    int64_t begin_ns, watch_ns, progress_ns; /* the latter two: when next due */
    int64_t oom_kills;                       /* as the run began */
    struct sigaction original_child_action;
    int stop_signal;   /* 0: no stop was asked for */
    int64_t stop_ns;   /* when it came */
    bool failing;      /* a rank has failed: the cause is being looked for */
    int64_t failed_ns; /* since then */
    bool ending;       /* ranks have been told to end */
    bool killed;       /* with SIGKILL */
    int64_t settle_ns; /* when the cause is decided */
    int64_t kill_ns;   /* when surviving ranks are killed; CLOCK_NEVER: not at all */
    int turn;          /* job, -1: none */
    launch_outcome *outcome;
} launcher;

/* launch_spawn.c */
status launch_spawn_job(launcher *l, job_run *j);
void launch_kill_job(const job_run *j, int signal);
void launch_reap_job(job_run *j); /* kills what is left of the group */

/* launch_cause.c: what ended the run. */
/* Looks at all that is known now; true once the outcome names the first cause. */
bool launch_find_cause(launcher *l);
/* Ranks have only lost a peer so far, and one that has not said why is about to be gone. */
bool launch_awaits_death(const launcher *l);
void launch_blame_stall(launcher *l, int job, int rank, int64_t limit_ns);

/* launch_watch.c: which ranks make no progress. */
/* Some rank gave up waiting for another: true once the outcome names the one without progress. */
bool launch_blame_stalled(launcher *l, int64_t now_ns);
void launch_watch(launcher *l, int64_t now_ns);
/* The process is on its way out: the kernel takes seconds to free what it held of a GPU. */
bool launch_is_dying(const rank_process *p);

/* launch_watch.c: whose turn it is. */
void launch_turns_advance(launcher *l);
/* The rank must make progress: it is alive and not parked while another job has the turn. */
bool launch_owes_progress(const launcher *l, int job, int rank, const rank_status *s);

/* launch.c */
void launch_end_all(launcher *l); /* SIGTERM now, SIGKILL later */

#endif
