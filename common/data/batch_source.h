/* A batch source provides the batches of one rank. The batches come from a data set through a loader
 * (batches.h), or from a function that fills the batch of a step (batch_source_open_filled()).
 *
 * Only the compute thread of the rank uses a source. A batch depends only on the configuration of the source
 * and on the step. Therefore a resumed run gets the same batches as an uninterrupted run. */
#ifndef COMMON_DATA_BATCH_SOURCE_H
#define COMMON_DATA_BATCH_SOURCE_H

#include "common/base/status.h"
#include "common/data/form.h"

#include <stdbool.h>

/* A batch that the source lends to its user. form.h describes the shapes for `count` samples. Inputs are
 * float32 (images NHWC) or int32. */
typedef struct batch_view {
    const void *inputs;
    const void *targets;
    int64_t count;
    /* number of rows that count in the loss; if targets are values, the number of target elements */
    int64_t targets_counted;
    /* Number of samples at the end of the batch that repeat other samples. They are added so that all ranks
     * get the same number of samples. */
    int64_t padding;
    int64_t step; /* step of the run, counted from 0 */
    int64_t epoch;
    int64_t epoch_step; /* step of the epoch, counted from 0 */
} batch_view;

typedef struct batch_source batch_source;

typedef struct batch_source_type {
    status (*next)(batch_source *s, int64_t step, batch_view *out);
    bool (*ready)(batch_source *s, int64_t step);
    void (*give_back)(batch_source *s, const batch_view *b);
    void (*close)(batch_source *s);
} batch_source_type;

struct batch_source {
    const batch_source_type *type;
    data_form form;
    int64_t largest_batch;   /* number of samples of the largest batch */
    int64_t steps_per_epoch; /* 0 if there are no epochs */
};

/* Waits for the batch of `step` and lends it until batch_source_return(). If steps are consecutive, the
 * batches have been prepared ahead of time. Any other order of steps works, too, but is slower. If a batch
 * cannot be made, every call for the step of this batch fails. */
status batch_source_next(batch_source *s, int64_t step, batch_view *out);
void batch_source_return(batch_source *s, const batch_view *b);

/* Returns true if batch_source_next() would return the batch of `step` without waiting. */
bool batch_source_ready(batch_source *s, int64_t step);
/* Implements the function `ready` for a source that never waits. */
bool batch_source_always_ready(batch_source *s, int64_t step);
/* Implements the function `give_back` for a source that always lends the same memory. */
void batch_source_ignore_return(batch_source *s, const batch_view *b);

/* Opens a source without epochs. For each requested step, the source calls `fill`, which writes a batch of
 * `samples` samples and returns the number of targets that count in the loss. All batches use the same
 * memory. Copies `context` [context_bytes]. Returns STATUS_SYSTEM if memory is short. */
typedef int64_t (*batch_fill)(const void *context, int64_t step, void *inputs, void *targets);
status batch_source_open_filled(const data_form *form, int64_t samples, batch_fill fill, const void *context,
                                size_t context_bytes, batch_source **out);

/* Closes the source and sets the caller's pointer to NULL. Batches that have not been returned become
 * invalid. */
void batch_source_close(batch_source **s);

/* The position of a step in a run. Checkpoints store epoch and epoch_step, because this position does not
 * depend on the number of ranks. */
typedef struct batch_position {
    int64_t epoch, epoch_step;
} batch_position;

batch_position batch_position_of_step(const batch_source *s, int64_t step);
int64_t batch_step_of_position(const batch_source *s, batch_position position);

#endif
