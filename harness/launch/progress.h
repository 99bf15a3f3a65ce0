/* Shows the progress of a run on stderr, on real devices or in virtual time. A terminal shows a line per job.
 * Elsewhere a line is written every 10 s. */
#ifndef HARNESS_LAUNCH_PROGRESS_H
#define HARNESS_LAUNCH_PROGRESS_H

#include "harness/launch/launch.h"
#include "harness/plan/plan.h"

/* Progress of a job. The times and the loss are NaN if unknown. */
typedef struct job_view {
    const char *name;
    int64_t steps, total; /* steps done by the slowest rank, and steps of the job */
    double left_s, loss, samples_per_s;
} job_view;

typedef struct run_progress {
    const run_config *config;
    const run_plan *plan;
    const int *numbers; /* [job_count] numbers of the jobs (engines.h) */
    bool is_terminal;
    int lines;
    /* Times since the launch at which progress was last read and a line was last written. In virtual time
     * both times are readings of the clock. */
    int64_t seen_ns, written_ns;
    int64_t began_ns;          /* start of the last job in virtual time */
    job_view begun[JOB_COUNT]; /* jobs in virtual time, which run one after the other */
    int begun_count;
    int64_t active_ns[JOB_COUNT]; /* time that the job has trained since step `first` */
    int64_t first[JOB_COUNT]; /* number of steps done when the launcher first read a number above 0; 0 until
                                 then */
} run_progress;

run_progress run_progress_begin(const run_config *config, const run_plan *plan, const int *numbers);

/* Shows the progress of all jobs. Serves as launch_options.progress, with the run_progress as `context`. */
void run_progress_show(void *context, const launch_view *view);

/* Shows the progress of a job in virtual time when its rank 0 has ended `steps` of its measured steps, the
 * last in `step_s` seconds. The first call for a job has `steps` = 0, and announces that the job begins. */
void run_progress_show_virtual(run_progress *p, int job, int64_t steps, int64_t total, double step_s);

/* Removes the lines from the terminal. */
void run_progress_end(run_progress *p);

/* Formats the line of a job in at most `columns` columns: name, bar, steps, time left, loss, samples/s.
 * Returns `buffer`. */
char *run_progress_line(char *buffer, size_t size, int columns, const job_view *v);

#endif
