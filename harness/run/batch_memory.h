/* Where a rank's batches lie: pages of their own, known one by one, so that the rank's device can pin them. */
#ifndef HARNESS_RUN_BATCH_MEMORY_H
#define HARNESS_RUN_BATCH_MEMORY_H

#include "common/data/loader.h"
#include "harness/train/trainer.h"

typedef struct batch_memory {
    struct {
        void *data;
        size_t bytes;
    } buffers[TRAINER_MAX_BUFFERS]; /* of two loaders, inputs and targets */
    int count;
} batch_memory;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer knows every buffer of a rank");

/* For loaders; `m` stays until they are closed. */
loader_memory batch_memory_for(batch_memory *m);

/* Tells the trainer, which is closed before the loaders are. */
void batch_memory_pin(const batch_memory *m, trainer *t);

#endif
