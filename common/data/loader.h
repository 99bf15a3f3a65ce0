/* A batch source that prepares batches ahead of time on background threads, in a fixed ring of buffers.
 *
 * A batch maker fills a batch; batches.h makes batches of a data set. A thread takes the next step as soon
 * as a buffer is free, and the consumer gets the steps in order. All memory is allocated when the loader
 * opens. Threads without a free buffer sleep, and so does a consumer without a batch. */
#ifndef COMMON_DATA_LOADER_H
#define COMMON_DATA_LOADER_H

#include "common/data/batch_source.h"

enum { LOADER_MAX_THREADS = 4, LOADER_MIN_DEPTH = 2, LOADER_MAX_DEPTH = 4 };

/* Allocates buffers, e.g. in memory from which a device copies fast. */
typedef struct loader_memory {
    void *context;
    status (*allocate)(void *context, size_t bytes, void **out); /* aligned to 64 bytes */
    void (*release)(void *context, void *data);
} loader_memory;

/* Makes batches. The loader copies the maker and closes `context`. */
typedef struct batch_maker {
    void *context;
    data_form form;
    int64_t largest_batch, steps_per_epoch; /* as in batch_source */
    size_t input_bytes, target_bytes;       /* bytes of the largest batch */
    /* Writes inputs and targets of step b->step, and sets count, targets_counted and padding. Several threads
     * call at the same time, each with a different `worker`, counted from 0. */
    status (*make)(void *context, int worker, void *inputs, void *targets, batch_view *b);
    void (*close)(void *context);
    /* Number of threads. If 0, the caller of batch_source_next() makes the batches. */
    int threads;
    int64_t first_step;          /* first step to prepare */
    const loader_memory *memory; /* allocator of the buffers, or NULL for aligned_alloc(); copied */
} batch_maker;

/* Returns the number of buffers for `threads`: one more than threads, but at least 2 and at most 4. */
int loader_depth(int threads);

/* Opens a loader. Fails with STATUS_SYSTEM for lack of memory or threads, and then closes the maker's
 * context. The consumer may hold all but one of the buffers when it requests the next batch. If the consumer
 * holds all buffers, the request fails with STATUS_INTERNAL. */
status loader_open(const batch_maker *maker, batch_source **out);

#endif
