/* The file of --trace: the time lines of all ranks of all jobs, for ui.perfetto.dev or chrome://tracing. */
#ifndef HARNESS_RUN_TRACE_FILE_H
#define HARNESS_RUN_TRACE_FILE_H

#include "harness/run/run_result.h"

/* Writes what the jobs left, whole or not at all. STATUS_CANNOT_CREATE, STATUS_IO. */
status trace_file_write(const char *path, const run_config *config, const run_job *jobs);

#endif
