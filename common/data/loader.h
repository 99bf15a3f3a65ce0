/* A batch source that prepares batches ahead of time on background threads, in a fixed number of buffers.
 *
 * A batch maker fills a batch. The batch maker of batches.h fills batches from a data set. When a buffer is
 * free, a thread begins the batch of the next step, and the consumer gets the batches in order. All memory is
 * allocated when the loader is opened. Threads sleep while there is no free buffer, and the consumer sleeps
 * while its batch is not ready. */
#ifndef COMMON_DATA_LOADER_H
#define COMMON_DATA_LOADER_H

#include "common/data/batch_source.h"

enum { LOADER_MAX_THREADS = 4, LOADER_MIN_DEPTH = 2, LOADER_MAX_DEPTH = 4 };

/* An allocator of buffers, for example in memory from which a device copies fast. */
typedef struct loader_memory {
    void *context;
    status (*allocate)(void *context, size_t bytes, void **out); /* aligned to 64 bytes */
    void (*release)(void *context, void *data);
} loader_memory;

/* The functions and parameters with which a loader makes batches. The loader copies the maker, and closes
 * `context` at the end. */
typedef struct batch_maker {
    void *context;
    data_form form;
    int64_t largest_batch, steps_per_epoch; /* as in batch_source */
    size_t input_bytes, target_bytes;       /* bytes of the largest batch */
    /* Writes the inputs and targets of step b->step, and sets count, targets_counted and padding of `b`.
     * Several threads call this function at the same time, each with a different `worker`, counted from 0. */
    status (*make)(void *context, int worker, void *inputs, void *targets, batch_view *b);
    void (*close)(void *context);
    /* Number of threads. If 0, the caller of batch_source_next() makes the batches. */
    int threads;
    int64_t first_step;          /* first step to prepare */
    const loader_memory *memory; /* allocator of the buffers, or NULL for aligned_alloc(); copied */
} batch_maker;

/* Returns the number of buffers for `threads` threads, which is threads + 1, but at least 2 and at most 4. */
int loader_depth(int threads);

/* Opens a loader. If there is not enough memory, or no thread can be started, closes the context of the maker
 * and fails with STATUS_SYSTEM. When the consumer requests a batch, it may still hold all buffers except one.
 * If the consumer holds all buffers, the request fails with STATUS_INTERNAL. */
status loader_open(const batch_maker *maker, batch_source **out);

#endif
