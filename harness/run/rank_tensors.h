/* Access to the tensors of a run's model, for its checkpoints and its results. A rank has all tensors, on
 * one device or on several, or only the tensors of its stage. */
#ifndef HARNESS_RUN_RANK_TENSORS_H
#define HARNESS_RUN_RANK_TENSORS_H

#include "harness/run/rank.h"

/* All pointers are borrowed. */
typedef struct rank_tensors {
    const rank_checkpoint *checkpoint;
    const checkpoint_subject *subject;        /* subject of the whole model */
    checkpoint_arenas arenas[NN_MOST_STAGES]; /* [count] arenas of this rank's devices */
    int count;
} rank_tensors;

rank_tensors rank_tensors_of(const rank_checkpoint *c, const checkpoint_subject *subject);

/* Returns a sink that takes the tensors of this rank and skips the others. */
checkpoint_sink rank_tensors_sink(rank_tensors *tensors);

/* Returns rank 0's source of all tensors. While rank 0 reads the source, each other rank calls
 * rank_tensors_send(). */
checkpoint_source rank_tensors_source(rank_tensors *tensors);
status rank_tensors_send(rank_tensors *tensors);

/* Copies one tensor to rank 0. All ranks call this function; `values` is NULL on the other ranks. */
status rank_tensors_gather(rank_tensors *tensors, const checkpoint_tensor *t, void *values);

#endif
