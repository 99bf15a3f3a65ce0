/* The jobs of one configuration, on this machine or in virtual time: the path of every command that runs
 * `run`'s jobs. */
#ifndef HARNESS_COMMANDS_JOBS_H
#define HARNESS_COMMANDS_JOBS_H

#include "harness/run/job.h"

/* Makes the plan, runs the jobs --repeat times, one run after the other, and waits for them: *out is the
 * result of the run or of all whole runs, a new reference, or NULL where no job has one. Writes the file of
 * --trace. `words` are the command line that starts a rank: "harness", "run", options, NULL. A failure of
 * ranks is logged; *exit_code: 0, or what the program is to exit with. */
status command_run_repeated(run_config *config, run_plan *plan, char *const *words, json_t **out,
                            int *exit_code);

#endif
