/* Where a rank's batches come from, behind one interface: a data set through a loader (batches.h), or
 * tensors that are functions of (seed, name, index).
 *
 * A source belongs to one thread, the rank's. A batch is a pure function of the source's configuration
 * and the step, so a resumed run gets the batches of an uninterrupted one. */
#ifndef COMMON_DATA_BATCH_SOURCE_H
#define COMMON_DATA_BATCH_SOURCE_H

#include "common/base/status.h"
#include "common/data/form.h"

#include <stdbool.h>

/* A batch on loan. Shapes: form.h, with `count` samples. Inputs are float32 (images NHWC) or int32. */
typedef struct batch_view {
    const void *inputs;
    const void *targets;
    int64_t count;
    int64_t targets_counted; /* rows (regression: elements) that count in the loss */
    int64_t padding;         /* samples that repeat others to make ranks equal: the last ones of a rank */
    int64_t step;            /* over the whole run, from 0 */
    int64_t epoch;
    int64_t epoch_step; /* within the epoch */
} batch_view;

typedef struct batch_source batch_source;

typedef struct batch_source_type {
    const char *name;
    status (*next)(batch_source *s, int64_t step, batch_view *out);
    bool (*ready)(batch_source *s, int64_t step);
    void (*give_back)(batch_source *s, const batch_view *b);
    void (*close)(batch_source *s);
} batch_source_type;

/* First member of every implementation. */
struct batch_source {
    const batch_source_type *type;
    data_form form;          /* of the batches */
    int64_t largest_batch;   /* samples */
    int64_t steps_per_epoch; /* 0: no epochs */
    int64_t buffer_bytes;    /* host memory that batches lie in */
};

/* Waits for the batch of `step` and lends it until batch_source_return(). Steps in order come from what
 * was prepared ahead; any other step is correct but slower. A batch that cannot be made is an
 * error in every call. */
status batch_source_next(batch_source *s, int64_t step, batch_view *out);
void batch_source_return(batch_source *s, const batch_view *b);

/* Whether batch_source_next() would lend the batch of `step` at once: it is made, and a buffer more may be on
 * loan. */
bool batch_source_ready(batch_source *s, int64_t step);
/* The same of a source that never waits. */
bool batch_source_always_ready(batch_source *s, int64_t step);
/* Returns a batch to a source that lends all in the same memory. */
void batch_source_ignore_return(batch_source *s, const batch_view *b);

/* A source without epochs whose batches, of `samples` samples each, `fill` writes when they are asked for,
 * always to the same memory; it returns how many targets count. `context` [context_bytes] is copied.
 * STATUS_SYSTEM without memory. */
typedef int64_t (*batch_fill)(const void *context, int64_t step, void *inputs, void *targets);
status batch_source_open_filled(const data_form *form, int64_t samples, batch_fill fill, const void *context,
                                size_t context_bytes, batch_source **out);

/* Everything on loan becomes invalid. Sets the caller's pointer to NULL. */
void batch_source_close(batch_source **s);

/* The position of a run, independent of the number of ranks; checkpoints store it. */
typedef struct batch_position {
    int64_t epoch, epoch_step;
} batch_position;

batch_position batch_position_of_step(const batch_source *s, int64_t step);
int64_t batch_step_of_position(const batch_source *s, batch_position position);

#endif
