#include "ps/pipe.h"

#include <stdlib.h>

status ps_pipe_init(ps_pipe *p, uint32_t capacity)
{
    uint32_t size = 16;
    while (size < capacity) size *= 2;
    p->entries = calloc(size, sizeof *p->entries);
    if (!p->entries) return fail(STATUS_SYSTEM, "no memory for a queue of %u messages", size);
    p->capacity = size;
    atomic_init(&p->head, 0);
    atomic_init(&p->tail, 0);
    return STATUS_OK;
}

void ps_pipe_deinit(ps_pipe *p)
{
    free(p->entries);
    p->entries = NULL;
}

bool ps_pipe_put(ps_pipe *p, const message_header *header, message_frame frame)
{
    uint32_t tail = atomic_load_explicit(&p->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&p->head, memory_order_acquire) == p->capacity) return false;
    p->entries[tail & (p->capacity - 1)] = (ps_pipe_entry){*header, frame};
    atomic_store_explicit(&p->tail, tail + 1, memory_order_release);
    return true;
}

const ps_pipe_entry *ps_pipe_peek(const ps_pipe *p)
{
    uint32_t head = atomic_load_explicit(&p->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&p->tail, memory_order_acquire)) return NULL;
    return &p->entries[head & (p->capacity - 1)];
}

void ps_pipe_drop(ps_pipe *p)
{
    uint32_t head = atomic_load_explicit(&p->head, memory_order_relaxed);
    atomic_store_explicit(&p->head, head + 1, memory_order_release);
}
