/* What a run shows on stderr while its ranks train, on real devices or in virtual time: a line per job on a
 * terminal, elsewhere one line every 10 s. */
#ifndef HARNESS_RUN_PROGRESS_H
#define HARNESS_RUN_PROGRESS_H

#include "harness/launch/launch.h"
#include "harness/run/plan.h"

/* What is seen of a job. */
typedef struct job_view {
    const char *name;
    int64_t steps, total; /* of its slowest rank */
    double left_s, loss, samples_per_s;
} job_view;

typedef struct run_progress {
    const run_config *config;
    const run_plan *plan;
    const int *numbers; /* [job_count] of the jobs, in their order (engines.h) */
    bool is_terminal;
    int lines;                   /* on the terminal */
    int64_t seen_ns, written_ns; /* times of the last look and of the last line, since the launch; in virtual
                                    time of the clock */
    int64_t began_ns;            /* in virtual time: the last job */
    job_view begun[JOB_COUNT];   /* in virtual time, where jobs run one after the other */
    int begun_count;
    int64_t active_ns[JOB_COUNT]; /* in which the job trained after its first step that was seen */
    int64_t first[JOB_COUNT];     /* that step */
} run_progress;

run_progress run_progress_begin(const run_config *config, const run_plan *plan, const int *numbers);

/* As launch_options.progress; `context` is the run_progress. */
void run_progress_show(void *context, const launch_view *view);

/* The same of a job in virtual time, when its rank 0 has ended `steps` of its measured steps; with 0 the job
 * begins. */
void run_progress_show_virtual(run_progress *p, const char *name, int64_t steps, int64_t total,
                               double samples_per_s);

/* Removes the lines from the terminal. */
void run_progress_end(run_progress *p);

/* One job's line, of at most `columns` columns: name, bar, steps, time left, loss, samples/s. `left_s`,
 * `loss` and `samples_per_s` are NaN where they are not known. Returns `buffer`. */
char *run_progress_line(char *buffer, size_t size, int columns, const char *name, int64_t steps,
                        int64_t total, double left_s, double loss, double samples_per_s);

#endif
