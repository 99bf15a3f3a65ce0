/* The results of a job: what its ranks measured, put together. docs/results.md describes every key,
 * docs/measuring.md every formula. */
#ifndef HARNESS_RUN_JOB_RESULT_H
#define HARNESS_RUN_JOB_RESULT_H

#include "common/base/status.h"

#include <jansson.h>

/* `job` holds the members that describe the job; `ranks` an array of the ranks' objects (record_to_json()
 * and "memory"), in rank order, which becomes part of it. Adds "step_time", "phases", "throughput",
 * "traffic", "memory", "loss". */
status job_result_finish(json_t *job, json_t *ranks);

/* Adds "memory_imbalance": of the ranks' peaks, who holds most, when, and by how much more than the others. */
void job_result_add_memory(json_t *job, const json_t *ranks);

/* Adds to the result of a whole run, beside its "jobs", "comparison": speed-up and efficiency of every
 * job against `none`, where that ran. `cores` are the processors of the host. */
status job_result_compare(json_t *result, int cores);

#endif
