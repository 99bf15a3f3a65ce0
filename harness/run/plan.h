/* What a run is going to do, worked out before anything is started: so that wrong input ends it with one
 * line, and so that progress and memory can be foretold. */
#ifndef HARNESS_RUN_PLAN_H
#define HARNESS_RUN_PLAN_H

#include "harness/run/run_options.h"

typedef struct run_plan {
    dataset *set;
    nn_model *model;
    int64_t total_steps[ENGINE_COUNT]; /* warm-up included */
    int64_t rank_bytes;                /* what a rank will occupy, roughly */
    int64_t needed_bytes;              /* all ranks of all jobs */
    int64_t largest_job_bytes;         /* all ranks of one job */
    bool alternate;                    /* jobs fit in memory together and take turns */
    char hardware_note[192];
} run_plan;

/* STATUS_DATA, STATUS_CONFIG: what the configuration cannot run with. */
status run_plan_make(const run_config *config, run_plan *out);
void run_plan_free(run_plan *plan);

#endif
