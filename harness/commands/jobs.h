/* The jobs of one configuration, on this machine or in virtual time: the path of every command that runs
 * `run`'s jobs. */
#ifndef HARNESS_COMMANDS_JOBS_H
#define HARNESS_COMMANDS_JOBS_H

#include "harness/run/job.h"

/* Makes the plan, runs the jobs and waits for them. `words` are the command line that starts a rank:
 * "harness", "run", options, NULL. `jobs` are the caller's, to be freed with run_jobs_free(); a failure of
 * ranks is logged, and in jobs->exit_code. */
status command_run_jobs(const run_config *config, run_plan *plan, char *const *words, run_jobs *jobs);

#endif
