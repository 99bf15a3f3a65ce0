/* Access to the tensors of a run's model, for its checkpoints and its results. A rank has all tensors, on
 * one device or on several, or only the tensors of its stage. */
#ifndef HARNESS_RUN_RANK_TENSORS_H
#define HARNESS_RUN_RANK_TENSORS_H

#include "harness/run/rank_state.h"

typedef struct rank_tensors {
    const rank_state *rank;                   /* borrowed */
    checkpoint_subject subject;               /* the whole model */
    checkpoint_arenas arenas[NN_MOST_STAGES]; /* [device_count] arenas of this rank's devices */
} rank_tensors;

rank_tensors rank_tensors_of(const rank_state *s);

/* Writes a tensor to this rank's devices that have the tensor (checkpoint_sink). */
status rank_tensors_write(void *tensors, const checkpoint_tensor *t, dtype type, const void *values);

/* Copies a tensor to rank 0 (checkpoint_source). All ranks call this function for the same tensors; `values`
 * is NULL on the other ranks. While rank 0 saves, each other rank calls rank_tensors_send(). */
status rank_tensors_gather(void *tensors, const checkpoint_tensor *t, void *values);
status rank_tensors_send(rank_tensors *tensors);

#endif
