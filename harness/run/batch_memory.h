/* Where a rank's batches lie: pages of their own, known one by one, so that the rank's device can pin them. */
#ifndef HARNESS_RUN_BATCH_MEMORY_H
#define HARNESS_RUN_BATCH_MEMORY_H

#include "common/data/loader.h"
#include "harness/train/trainer.h"

typedef struct batch_memory {
    loader_memory loaders; /* for loader_config */
    struct {
        void *data;
        size_t bytes;
    } buffers[TRAINER_MAX_BUFFERS]; /* of two loaders, inputs and targets */
    int count;
} batch_memory;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer knows every buffer of a rank");

/* Empties `m`, which stays where it is until the loaders that take what is returned are closed. */
const loader_memory *batch_memory_init(batch_memory *m);

/* Tells the trainer, which is closed before the loaders are. */
void batch_memory_pin(const batch_memory *m, trainer *t);

#endif
