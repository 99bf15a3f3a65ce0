/* Events from a rank's compute thread to its agent: one writer, one reader, no lock, fixed size. */
#ifndef COMMON_SYNC_EVENT_QUEUE_H
#define COMMON_SYNC_EVENT_QUEUE_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct sync_event {
    int32_t kind;  /* the engine's own */
    int32_t index; /* parameter, bucket, ... */
    int64_t value; /* step, count, ... */
} sync_event;

typedef struct event_queue {
    sync_event *events;
    uint32_t capacity; /* a power of two */
    _Alignas(64) _Atomic uint32_t head; /* next to be read; moved by the reader */
    _Alignas(64) _Atomic uint32_t tail; /* next to be written; moved by the writer */
} event_queue;

/* Room for at least `capacity` events that were not read yet. */
status event_queue_init(event_queue *q, uint32_t capacity);
void event_queue_deinit(event_queue *q);

/* False if it is full: the engine sized it too small, our own mistake. */
bool event_queue_post(event_queue *q, sync_event event);
bool event_queue_pop(event_queue *q, sync_event *out);

#endif
