/* A batch source that prepares batches ahead of time, on threads of its own, in a fixed ring of buffers.
 *
 * The maker fills a batch (batches.h: a data set through sampler and transform). The loader assigns
 * steps to threads: a thread takes the next step as soon as a buffer is free, and the consumer gets the
 * steps in order. Everything is allocated when it opens. Threads without a free buffer, and a consumer
 * without a batch, sleep. */
#ifndef COMMON_DATA_LOADER_H
#define COMMON_DATA_LOADER_H

#include "common/data/batch_source.h"

enum { LOADER_MAX_THREADS = 4, LOADER_MIN_DEPTH = 2, LOADER_MAX_DEPTH = 4 };

/* Makes batches. Borrowed by the loader but for `context`, which it closes. */
typedef struct batch_maker {
    void *context;
    data_form form;
    int64_t largest_batch, steps_per_epoch; /* as in batch_source */
    size_t input_bytes, target_bytes;       /* of the largest batch */
    /* Writes inputs and targets of the step that *b names, and sets its count, targets_counted and padding.
     * Called by several threads at once, each with its own `worker` from 0. */
    status (*make)(void *context, int worker, void *inputs, void *targets, batch_view *b);
    void (*close)(void *context);
} batch_maker;

/* Where the buffers come from: memory that a device copies from fast. */
typedef struct loader_memory {
    void *context;
    status (*allocate)(void *context, size_t bytes, void **out); /* aligned to 64 bytes */
    void (*release)(void *context, void *data);
} loader_memory;

typedef struct loader_config {
    int threads;                 /* 0: batches are made by the caller of batch_source_next() */
    int64_t first_step;          /* to prepare */
    const loader_memory *memory; /* copied; NULL: the C library's */
} loader_config;

/* Buffers in the ring of a loader with so many threads: one more than threads, within 2 and 4. */
int loader_depth(int threads);

/* Closes the maker's context if it fails. STATUS_SYSTEM: no memory or no threads. The consumer may hold
 * all but one of the buffers when it requests the next batch; STATUS_INTERNAL if it holds all. */
status loader_open(const loader_config *config, const batch_maker *maker, batch_source **out);

#endif
