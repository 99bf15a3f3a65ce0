/* The result of a run: host, program, configuration and jobs, each put together from what its ranks measured.
 * docs/results.md describes every key, docs/measuring.md every formula. */
#ifndef HARNESS_RUN_RUN_RESULT_H
#define HARNESS_RUN_RUN_RESULT_H

#include "common/nn/stages.h"
#include "harness/run/agreement.h"
#include "harness/run/plan.h"

#ifndef PROGRAM_VERSION
#error "PROGRAM_VERSION comes from CMakeLists.txt"
#endif

enum { RESULT_SCHEMA_VERSION = 5, SWEEP_TABLE_VERSION = 2 }; /* docs/results.md */

/* The outcome of a job: its result and, for the comparison of engines, its parameters. */
typedef struct run_job {
    json_t *result; /* NULL if the job did not get that far */
    float *params;  /* [param_count] in PyTorch's order, or NULL */
    int64_t param_count;
    agreement_file gradients; /* of the first step */
    char *trace;              /* --trace: the events of all ranks, each followed by a comma; or NULL */
    char difference[160];     /* on every rank: between its replicas at the end, as an error's text; or "" */
} run_job;

typedef struct run_result_input {
    const run_config *config;
    const run_plan *plan;
    const run_job *jobs; /* [JOB_COUNT] */
    int argc;
    char *const *argv;    /* without the program's name */
    int64_t started_at_s; /* CLOCK_REALTIME */
} run_result_input;

/* "workload": model, input, classes, parameters, data, batch, optimizer, seed. NULL without memory. */
json_t *run_workload_to_json(const run_config *config, const run_plan *plan);

/* The value in "key   : value" in a file of /proc, or "". Returns `buffer`. */
char *proc_value(const char *path, const char *key, char *buffer, size_t size);

/* STATUS_SYSTEM without memory. */
status run_result_build(const run_result_input *input, json_t **out);

/* Adds "step_time", "phases", "throughput", "traffic", "memory_imbalance", losses and evaluations,
 * which all follow from the figures of the ranks. `ranks` is an array of objects in rank order. */
status job_result_derive(json_t *job, const json_t *ranks);

/* `job` holds the members that describe the job; `ranks` an array of the ranks' objects (record_to_json()
 * and "memory"), in rank order, which becomes part of it. Adds the derived figures, and chooses the timeline
 * of each rank. */
status job_result_finish(json_t *job, json_t *ranks);

/* Adds "step_s", "step_time" and "throughput" of the job, and "phases" of its ranks. */
status job_result_add_times(json_t *job, const json_t *ranks);

/* Adds "evaluations" and "accuracy", and completes "target", where the job has one, with the training time.
 */
void job_result_add_evaluations(json_t *job, const json_t *ranks);

/* Adds "memory_imbalance": of the ranks' peaks, who holds most, when, and by how much more than the others.
 */
void job_result_add_memory(json_t *job, const json_t *ranks);

/* With --stages-on devices: which device row `number` of "ranks" is of: "of_rank" and "stage". */
void job_result_name_device(json_t *row, const run_config *c, int number);

/* Adds "pipeline", of a run with --stages of this model; `ranks` as above. */
status job_result_add_pipeline(json_t *job, const json_t *ranks, const nn_model *m, const run_config *config);

/* Adds "comparison" to the result of a run: speed-up and efficiency of every job against each baseline that
 * ran. `cores` are the processors of the host. */
status job_result_compare(json_t *result, int cores, bool in_turns);

/* Adds "verdict" to the result of a run, or of several: which of ps and ring is faster, with its interval.
 * `in_turns`: the jobs of a single run alternated. STATUS_SYSTEM without memory. */
status run_result_judge(json_t *result, bool in_turns);

/* One result of runs[count] of --repeat, all of the same configuration and whole: the run whose steps take
 * the median time, with "repetitions" of all, and "verdict". *out is a new reference. STATUS_SYSTEM without
 * memory. */
status run_result_repeat(const json_t *runs, json_t **out);

/* Sets "repetitions" of a result from those in `runs`, whole results or the "runs" of one. */
status run_result_summarize(const json_t *runs, json_t *result);

/* Writes the events of all jobs, whole or not at all. STATUS_CANNOT_CREATE, STATUS_IO. */
status trace_file_write(const char *path, const run_config *config, const run_job *jobs);

#endif
