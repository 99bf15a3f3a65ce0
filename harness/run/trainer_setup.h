/* What a run's configuration comes to for the trainer of one rank. */
#ifndef HARNESS_RUN_TRAINER_SETUP_H
#define HARNESS_RUN_TRAINER_SETUP_H

#include "harness/run/run_options.h"
#include "harness/train/trainer.h"

/* Everything but where the rank runs: local_rank, job_token, cell and hub are left zero. */
status trainer_setup(const run_config *config, const dataset *set, const nn_model *model, int engine, int rank, int world,
                     trainer_config *out);

#endif
