/* Runs the jobs of a configuration, on this machine or in virtual time, for all commands. Reads the options
 * of `harness run` that follow the options of another command. */
#ifndef HARNESS_COMMANDS_JOBS_H
#define HARNESS_COMMANDS_JOBS_H

#include "harness/commands/commands.h"
#include "harness/launch/job.h"

/* Makes the plan and runs the jobs --repeat times. *out is a new reference to the result of the run, or of
 * all complete runs. *out is NULL if no job has a result. Writes the file of --trace. `words` are the command
 * line that starts a rank: "harness", "run", options, NULL. If ranks fail, logs the failure and sets
 * *exit_code to the exit code with which the program must end. If no rank fails, sets *exit_code to 0. */
status command_run_repeated(run_config *config, run_plan *plan, char *const *words, json_t **out,
                            int *exit_code);

/* Builds the result of jobs that have run, and writes the file of --trace. `words` are the options of the
 * command line, then NULL. *out is a new reference. If the trace cannot be written, builds the result and
 * then returns the error. */
status command_build_result(const run_config *config, const run_plan *plan, const run_job *jobs,
                            char *const *words, int64_t started_at_s, json_t **out);

/* Moves the command's options from the line to line->bindings[0]. The line then has only the options of
 * `harness run`, which are parsed into `checked`. */
status command_read_run_words(command_line *line, run_config *checked);

/* Parses the options of the line, followed by the policy, its engine, the device and, unless `gpus` is NULL,
 * the number of ranks of one job, into `out`. */
status command_parse_job(const command_line *line, const char *policy, const char *device, const char *gpus,
                         run_config *out);

/* Refuses the options of `harness run` in `names`, which ends with NULL. */
status command_refuse_options(const run_config *c, const char *const *names, const char *with);
/* Refuses an option of an engine that no policy of the table uses, since it would have no effect. */
status command_refuse_unused(const run_config *c, const bool uses[ENGINE_COUNT]);

#endif
