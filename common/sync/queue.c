#include "common/sync/queue.h"

#include <stdlib.h>
#include <string.h>

status sync_queue_init(sync_queue *q, uint32_t capacity, size_t entry_bytes)
{
    uint32_t size = 16;
    while (size < capacity) size *= 2;
    q->entries = calloc(size, entry_bytes);
    if (!q->entries) return fail(STATUS_SYSTEM, "no memory for a queue of %u entries", size);
    q->entry_bytes = entry_bytes;
    q->capacity = size;
    atomic_init(&q->head, 0);
    atomic_init(&q->tail, 0);
    return STATUS_OK;
}

void sync_queue_deinit(sync_queue *q)
{
    free(q->entries);
    q->entries = NULL;
}

static char *entry_at(const sync_queue *q, uint32_t number)
{
    return q->entries + (number & (q->capacity - 1)) * q->entry_bytes;
}

bool sync_queue_push(sync_queue *q, const void *entry)
{
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&q->head, memory_order_acquire) == q->capacity) return false;
    memcpy(entry_at(q, tail), entry, q->entry_bytes);
    atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
    return true;
}

bool sync_queue_pop(sync_queue *q, void *entry)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&q->tail, memory_order_acquire)) return false;
    memcpy(entry, entry_at(q, head), q->entry_bytes);
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
    return true;
}
