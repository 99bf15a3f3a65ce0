/* A batch source that prepares batches ahead of time on background threads, in a fixed number of buffers.
 *
 * A batch maker fills a batch with samples. The batch maker of batches.h reads the samples from a data set.
 * When a buffer is free, a thread begins to make the batch of the next step. The consumer gets the batches in
 * order. All memory is allocated when the loader is opened. Threads sleep while there is no free buffer, and
 * the consumer sleeps while its batch is not ready. */
#ifndef COMMON_DATA_LOADER_H
#define COMMON_DATA_LOADER_H

#include "common/data/batch_source.h"

enum { LOADER_MAX_THREADS = 4, LOADER_MIN_DEPTH = 2, LOADER_MAX_DEPTH = 4 };

/* An allocator of buffers. For example, it allocates pinned memory, from which a device copies fast. */
typedef struct loader_memory {
    void *context;
    status (*allocate)(void *context, size_t bytes, void **out); /* aligned to 64 bytes */
    void (*release)(void *context, void *data);
} loader_memory;

/* The functions and parameters with which a loader makes batches. The loader copies this struct, and calls
 * `close` when the loader is closed. */
typedef struct batch_maker {
    void *context;
    data_form form;
    int64_t largest_batch, steps_per_epoch; /* as in batch_source */
    /* size of the inputs and of the targets of the largest batch, in bytes */
    size_t input_bytes, target_bytes;
    /* Writes the inputs and targets of step b->step, and sets count, targets_counted and padding of `b`.
     * Several threads call this function at the same time. Each thread passes a different number `worker`,
     * counted from 0. */
    status (*make)(void *context, int worker, void *inputs, void *targets, batch_view *b);
    void (*close)(void *context);
    /* Number of threads. If it is 0, batch_source_next() makes the batch in the calling thread. */
    int threads;
    int64_t first_step; /* first step to prepare */
    /* allocator of the buffers, which the loader copies, or NULL for aligned_alloc() */
    const loader_memory *memory;
} batch_maker;

/* Returns the number of buffers for `threads` threads, which is threads + 1, but at least 2 and at most 4. */
int loader_depth(int threads);

/* Opens a loader. If there is not enough memory, or no thread can be started, closes the context of the maker
 * and fails with STATUS_SYSTEM. If the consumer requests a batch while it holds all buffers, the request
 * fails with STATUS_INTERNAL. */
status loader_open(const batch_maker *maker, batch_source **out);

#endif
