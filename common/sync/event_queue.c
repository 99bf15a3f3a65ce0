#include "common/sync/event_queue.h"

#include <stdlib.h>

status event_queue_init(event_queue *q, uint32_t capacity)
{
    uint32_t size = 16;
    while (size < capacity) size *= 2;
    q->events = calloc(size, sizeof *q->events);
    if (!q->events) return fail(STATUS_SYSTEM, "no memory for a queue of %u events", size);
    q->capacity = size;
    atomic_init(&q->head, 0);
    atomic_init(&q->tail, 0);
    return STATUS_OK;
}

void event_queue_deinit(event_queue *q)
{
    free(q->events);
    q->events = NULL;
}

bool event_queue_post(event_queue *q, sync_event event)
{
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&q->head, memory_order_acquire) == q->capacity) return false;
    q->events[tail & (q->capacity - 1)] = event;
    atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
    return true;
}

bool event_queue_pop(event_queue *q, sync_event *out)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&q->tail, memory_order_acquire)) return false;
    *out = q->events[head & (q->capacity - 1)];
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
    return true;
}
