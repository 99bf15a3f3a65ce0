/* The jobs of a run on this host: started, watched, and their results taken in. */
#ifndef HARNESS_RUN_JOB_H
#define HARNESS_RUN_JOB_H

#include "harness/run/plan.h"
#include "harness/run/rank.h"
#include "harness/run/run_result.h"

typedef struct run_jobs {
    run_job jobs[ENGINE_COUNT]; /* results of the jobs that got that far; the caller's, see run_jobs_free */
    int exit_code;              /* 0, or what the program is to exit with */
    char cause[1024];           /* why, "" where there is nothing to say */
} run_jobs;

/* Starts the ranks of all jobs, in turns or one job after the other as the plan says, and waits for them.
 * `argv` are the words of the command line, the program's name first. */
status run_jobs_run(const run_config *config, const run_plan *plan, char *const *argv, run_jobs *out);
void run_jobs_free(run_jobs *jobs);

/* The rank side: hands a job's outcome to the launcher; rank 0 does. */
status run_jobs_deliver(const rank_outcome *outcome);
/* What a server of its own has to tell. */
status run_jobs_deliver_server(const json_t *server);

#endif
