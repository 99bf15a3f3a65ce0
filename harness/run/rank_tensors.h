/* The tensors of a run's model for its checkpoints and its results: a rank has all of them, on one device or
 * on several, or those of its stage. */
#ifndef HARNESS_RUN_RANK_TENSORS_H
#define HARNESS_RUN_RANK_TENSORS_H

#include "harness/run/rank.h"

/* Everything is borrowed. */
typedef struct rank_tensors {
    const rank_checkpoint *checkpoint;
    const checkpoint_subject *subject;        /* of the whole model */
    checkpoint_arenas arenas[NN_MOST_STAGES]; /* [count] of this rank's devices */
    int count;
} rank_tensors;

rank_tensors rank_tensors_of(const rank_checkpoint *c, const checkpoint_subject *subject);

/* Takes those of this rank, and skips the others. */
checkpoint_sink rank_tensors_sink(rank_tensors *tensors);

/* Rank 0's source of all tensors. Each other rank calls rank_tensors_send() meanwhile. */
checkpoint_source rank_tensors_source(rank_tensors *tensors);
status rank_tensors_send(rank_tensors *tensors);

/* One tensor to rank 0; `values` is NULL on the others. All ranks call it. */
status rank_tensors_gather(rank_tensors *tensors, const checkpoint_tensor *t, void *values);

#endif
