/* Saving and loading checkpoints from a rank of a job (docs/checkpoints.md). */
#ifndef HARNESS_RUN_RANK_CHECKPOINT_H
#define HARNESS_RUN_RANK_CHECKPOINT_H

#include "common/checkpoint/checkpoint.h"
#include "common/net/rendezvous.h"
#include "harness/run/run_options.h"
#include "harness/train/trainer.h"

typedef struct rank_checkpoint {
    const run_config *config;
    model_options model; /* resolved */
    option_binding model_binding;
    trainer *trainer;
    rendezvous *rendezvous;
    int rank, world;
    void *states[2]; /* rank 0: host copies of optimizer state that other ranks hold; else NULL */
    int64_t batches_tracked;
} rank_checkpoint;

/* Loads what --load names into parameters, buffers and optimizer state, before the engine connects.
 * *progress is where the run goes on: all zero without --load or where the file is PyTorch's. */
status rank_checkpoint_open(rank_checkpoint *c, checkpoint_progress *progress);
void rank_checkpoint_close(rank_checkpoint *c);

/* Saves the run as it stands behind `steps` steps. All ranks call it, settled; rank 0 writes. */
status rank_checkpoint_save(rank_checkpoint *c, int64_t steps, batch_position next);

#endif
