/* A lock-free queue of fixed size, with one producer thread and one consumer thread. Entries are copied. */
#ifndef COMMON_SYNC_QUEUE_H
#define COMMON_SYNC_QUEUE_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct sync_queue {
    char *entries;
    size_t entry_bytes;
    uint32_t capacity;                  /* number of entries, a power of two */
    _Alignas(64) _Atomic uint32_t head; /* number of the next entry to pop; only the consumer writes it */
    _Alignas(64) _Atomic uint32_t tail; /* number of the next entry to push; only the producer writes it */
} sync_queue;

/* Allocates a queue with room for at least `capacity` entries. */
status sync_queue_init(sync_queue *q, uint32_t capacity, size_t entry_bytes);
void sync_queue_deinit(sync_queue *q);

/* Adds an entry. Returns false if the queue is full. */
bool sync_queue_push(sync_queue *q, const void *entry);
/* Removes the oldest entry and copies it to *entry. Returns false if the queue is empty. */
bool sync_queue_pop(sync_queue *q, void *entry);

/* A message from an engine's compute thread to the engine's agent. */
typedef struct sync_event {
    int32_t kind;  /* defined by the engine */
    int32_t index; /* index of a parameter, of a bucket, ... */
    int64_t value; /* a step, a count, ... */
} sync_event;

#endif
