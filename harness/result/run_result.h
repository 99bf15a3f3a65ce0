/* Builds the result of a run: host, program, configuration and jobs. The result of a job is computed from the
 * measurements of its ranks. docs/results.md describes every key, docs/measuring.md every formula. */
#ifndef HARNESS_RESULT_RUN_RESULT_H
#define HARNESS_RESULT_RUN_RESULT_H

#include "harness/plan/plan.h"
#include "harness/rank/agreement.h"

#ifndef PROGRAM_VERSION
#error "PROGRAM_VERSION comes from CMakeLists.txt"
#endif

/* docs/results.md describes them. */
enum {
    RESULT_SCHEMA_VERSION = 6,
    REPRODUCTION_SCHEMA_VERSION = 5,
    BENCH_SCHEMA_VERSION = 5,
    SWEEP_TABLE_VERSION = 2
};

/* Outcome of a job: its result and, for the comparison of engines, its parameters. */
typedef struct run_job {
    json_t *result; /* NULL if the job ended before it had a result */
    float *params;  /* [param_count] in PyTorch's order, or NULL */
    int64_t param_count;
    sync_blob gradients; /* gradients of the first step */
    char *trace;         /* events of all ranks, each followed by a comma, or NULL without --trace */
    /* The error with which the run ends after it has reported. Every rank records that replicas differ at the
     * end, and rank 0 that the last checkpoint could not be written. */
    error_record late;
} run_job;

/* Returns "workload": model, input, classes, parameters, data, batch, optimizer, seed. Returns NULL if out
 * of memory. */
json_t *run_workload_to_json(const run_config *config, const run_plan *plan);

/* Finds the line "key : value" in a file of /proc, and copies the value to `buffer`. Copies "" if the file
 * does not have this line. Returns `buffer`. */
char *proc_value(const char *path, const char *key, char *buffer, size_t size);

/* Builds the result from jobs[JOB_COUNT]. `words` are the command line without the program's name, and end
 * with NULL. `started_at_s` is a time of CLOCK_REALTIME. *out is a new reference. Returns STATUS_SYSTEM if
 * out of memory. */
status run_result_build(const run_config *config, const run_plan *plan, const run_job *jobs,
                        char *const *words, int64_t started_at_s, json_t **out);

/* Computes "step_time", "phases", "throughput", "traffic", "memory_imbalance", losses and evaluations from
 * the figures of the ranks. `ranks` is an array of objects in rank order. */
status job_result_derive(json_t *job, const json_t *ranks);

/* Adds all figures that are derived from the ranks to a job, and keeps one step in the timeline of each rank.
 * `ranks` is an array of the ranks' objects (record_to_json() and "memory") in rank order, which becomes part
 * of the job. */
status job_result_finish(json_t *job, json_t *ranks);

/* Computes "step_s", "stretches", "step_time", "throughput" and "phases" of the job from the steps of the
 * ranks. */
status job_result_add_times(json_t *job, const json_t *ranks);

/* Adds "evaluations" and "accuracy". Adds the training time to "target" if the job has one. */
void job_result_add_evaluations(json_t *job, const json_t *ranks);

/* Adds "memory_imbalance": the rank with the largest peak, the phase of this peak, and how much the peak
 * exceeds the mean and the smallest peak. */
void job_result_add_memory(json_t *job, const json_t *ranks);

/* Adds "pipeline" to a job whose model `m` is split into stages. `ranks` is an array of objects in rank
 * order. */
status job_result_add_pipeline(json_t *job, const json_t *ranks, const nn_model *m, const run_config *config);

/* Adds "comparison" to the result of a run: speed-up and efficiency of every job against each baseline that
 * ran. `cores` is the number of processors of the host. `in_turns` says whether the jobs alternated. */
void job_result_compare(json_t *result, int cores, bool in_turns);

/* Adds "verdict" to the result of one run or of several runs. The verdict says which of ps and ring is
 * faster, and gives the interval of the factor between the rates. `in_turns` says whether the jobs of a
 * single run alternated. Returns STATUS_SYSTEM if out of memory. */
status run_result_judge(json_t *result, bool in_turns);

/* Combines the complete runs of --repeat in one result: the run whose steps take the median time, with
 * "repetitions" of all runs, and "verdict". All runs have the same configuration. *out is a new reference.
 * Returns STATUS_SYSTEM if out of memory. */
status run_result_repeat(const json_t *runs, json_t **out);

/* Sets "repetitions" of a result. `runs` is an array of whole results, or the "runs" of one result. */
status run_result_summarize(const json_t *runs, json_t *result);

/* Writes the events of all jobs to the file of --trace, whole or not at all. Returns STATUS_CANNOT_CREATE or
 * STATUS_IO. */
status trace_file_write(const run_config *config, const run_job *jobs);

#endif
