/* What a rank opens from the run's configuration: its trainer, and its batches in pages that its device can pin. */
#ifndef HARNESS_RUN_RANK_SETUP_H
#define HARNESS_RUN_RANK_SETUP_H

#include "common/data/loader.h"
#include "harness/run/rank.h"
#include "harness/run/run_options.h"
#include "harness/train/trainer.h"

/* Everything but where the rank runs: local_rank, job_token, slot and hub are left zero. */
status trainer_setup(const run_config *config, const dataset *set, const nn_model *model, int engine, int rank, int world,
                     trainer_config *out);

typedef struct rank_batches {
    batch_source *training, *evaluation; /* NULL: nothing to evaluate */
    loader_memory loaders;               /* where their buffers come from */
    struct {
        void *data;
        size_t bytes;
    } buffers[TRAINER_MAX_BUFFERS]; /* of two loaders, inputs and targets */
    int buffer_count;
} rank_batches;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer can pin every buffer of a rank");

/* `out` stays where it is until it is closed, also where this fails. */
status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set, const nn_model *model,
                         rank_batches *out);

/* Pins the buffers for the trainer's device; the trainer must be closed before the batches. */
void rank_batches_pin(const rank_batches *b, trainer *t);

void rank_batches_close(rank_batches *b);

#endif
