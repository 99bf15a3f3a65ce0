/* A queue from one thread to another: one producer, one consumer, no lock, fixed size. Entries are copied. */
#ifndef COMMON_SYNC_QUEUE_H
#define COMMON_SYNC_QUEUE_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct sync_queue {
    char *entries;
    size_t entry_bytes;
    uint32_t capacity;                  /* a power of two */
    _Alignas(64) _Atomic uint32_t head; /* next to be popped; moved by the consumer */
    _Alignas(64) _Atomic uint32_t tail; /* next to be pushed; moved by the producer */
} sync_queue;

/* Room for at least `capacity` entries that have not been popped. */
status sync_queue_init(sync_queue *q, uint32_t capacity, size_t entry_bytes);
void sync_queue_deinit(sync_queue *q);

/* False if the queue is full. */
bool sync_queue_push(sync_queue *q, const void *entry);
/* False if it is empty. */
bool sync_queue_pop(sync_queue *q, void *entry);

/* What an engine's compute thread pushes for its agent. */
typedef struct sync_event {
    int32_t kind;  /* the engine's own */
    int32_t index; /* parameter, bucket, ... */
    int64_t value; /* step, count, ... */
} sync_event;

#endif
