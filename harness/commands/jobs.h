/* Runs the jobs of a configuration, on this machine or in virtual time, for all commands. */
#ifndef HARNESS_COMMANDS_JOBS_H
#define HARNESS_COMMANDS_JOBS_H

#include "harness/run/job.h"

/* Makes the plan and runs the jobs --repeat times. *out is a new reference to the result of the run, or of
 * all complete runs; NULL if no job has a result. Writes the file of --trace. `words` are the command line
 * that starts a rank: "harness", "run", options, NULL. Logs a failure of ranks and sets *exit_code to the
 * exit code of the program, else to 0. */
status command_run_repeated(run_config *config, run_plan *plan, char *const *words, json_t **out,
                            int *exit_code);

#endif
