/* An interface for the batches of a rank. Batches come from a data set through a loader (batches.h), or
 * from a function of the step (batch_source_open_filled()).
 *
 * A source belongs to one thread, the rank's. A batch depends only on the source's configuration and the
 * step, so a resumed run gets the batches of an uninterrupted run. */
#ifndef COMMON_DATA_BATCH_SOURCE_H
#define COMMON_DATA_BATCH_SOURCE_H

#include "common/base/status.h"
#include "common/data/form.h"

#include <stdbool.h>

/* A batch on loan. form.h gives the shapes for `count` samples. Inputs are float32 (images NHWC) or int32. */
typedef struct batch_view {
    const void *inputs;
    const void *targets;
    int64_t count;
    int64_t targets_counted; /* number of rows that count in the loss, or of elements in a regression */
    int64_t padding;         /* number of samples at the end that repeat other samples, so that all ranks get
                              * equally many */
    int64_t step;            /* step of the run, from 0 */
    int64_t epoch;
    int64_t epoch_step; /* step of the epoch, from 0 */
} batch_view;

typedef struct batch_source batch_source;

typedef struct batch_source_type {
    const char *name;
    status (*next)(batch_source *s, int64_t step, batch_view *out);
    bool (*ready)(batch_source *s, int64_t step);
    void (*give_back)(batch_source *s, const batch_view *b);
    void (*close)(batch_source *s);
} batch_source_type;

struct batch_source {
    const batch_source_type *type;
    data_form form;
    int64_t largest_batch;   /* samples */
    int64_t steps_per_epoch; /* 0 if there are no epochs */
    int64_t buffer_bytes;    /* host memory of all batches */
};

/* Waits for the batch of `step` and lends it until batch_source_return(). Consecutive steps use batches that
 * were prepared ahead of time. Any other step is correct but slower. A batch that cannot be made is an error
 * in every call. */
status batch_source_next(batch_source *s, int64_t step, batch_view *out);
void batch_source_return(batch_source *s, const batch_view *b);

/* Returns true if batch_source_next() would lend the batch of `step` at once. */
bool batch_source_ready(batch_source *s, int64_t step);
/* Implements `ready` for a source that never waits. */
bool batch_source_always_ready(batch_source *s, int64_t step);
/* Implements `give_back` for a source that always lends the same memory. */
void batch_source_ignore_return(batch_source *s, const batch_view *b);

/* Opens a source without epochs. On each request `fill` writes a batch of `samples` samples, always to the
 * same memory, and returns how many targets count. `context` [context_bytes] is copied. Returns
 * STATUS_SYSTEM if memory is short. */
typedef int64_t (*batch_fill)(const void *context, int64_t step, void *inputs, void *targets);
status batch_source_open_filled(const data_form *form, int64_t samples, batch_fill fill, const void *context,
                                size_t context_bytes, batch_source **out);

/* Closes the source and sets the caller's pointer to NULL. Batches on loan become invalid. */
void batch_source_close(batch_source **s);

/* Position in a run, which checkpoints store because a position does not depend on the number of ranks. */
typedef struct batch_position {
    int64_t epoch, epoch_step;
} batch_position;

batch_position batch_position_of_step(const batch_source *s, int64_t step);
int64_t batch_step_of_position(const batch_source *s, batch_position position);

#endif
