/* The result of a whole run: host, program, configuration, jobs. docs/results.md describes every key. */
#ifndef HARNESS_RUN_RUN_RESULT_H
#define HARNESS_RUN_RUN_RESULT_H

#include "harness/run/run_options.h"

#include <jansson.h>

/* What a job left: its result and, for the comparison of engines, its parameters. */
typedef struct run_job {
    json_t *result;      /* NULL if the job did not get that far */
    const float *params; /* [param_count] in PyTorch's order, or NULL */
    int64_t param_count;
    const char *trace; /* events of all ranks (rank_trace.h), or NULL */
    size_t trace_bytes; /* mapped */
} run_job;

typedef struct run_result_input {
    const run_config *config;
    int argc;
    char *const *argv; /* behind the program's name */
    const run_job *jobs; /* [ENGINE_COUNT] */
    const dataset *set;
    const nn_model *model;
    const char *hardware_note;
    int64_t started_at_s; /* CLOCK_REALTIME */
} run_result_input;

/* STATUS_SYSTEM without memory. */
status run_result_build(const run_result_input *input, json_t **out);

/* Whether the results could be written there: before a run that would be for nothing. */
status run_result_probe(const char *path);

/* Writes JSON to a file, whole or not at all, or to stdout for "-". STATUS_CANNOT_CREATE, STATUS_IO. */
status run_result_write(const json_t *result, const char *path);
status run_result_write_text(const char *text, const char *path);

#endif
