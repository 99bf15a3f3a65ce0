/* The progress line of a run, drawn on a terminal from the boards of its jobs. */
#ifndef HARNESS_RUN_PROGRESS_H
#define HARNESS_RUN_PROGRESS_H

#include "harness/launch/launch.h"
#include "harness/run/plan.h"

typedef struct run_progress {
    const run_config *config;
    const run_plan *plan;
    const int *engines; /* of the jobs, in their order */
    bool shown;
} run_progress;

/* Whether there is a terminal to draw on, and nobody asked for quiet. */
bool run_progress_begin(run_progress *p);

/* A launch_options.progress. */
void run_progress_show(void *context, const launch_view *view);

/* Clears the line. */
void run_progress_end(run_progress *p);

#endif
