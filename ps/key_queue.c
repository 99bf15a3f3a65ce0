#include "ps/key_queue.h"

#include <assert.h>
#include <stdlib.h>

typedef struct ps_queued queued;

status ps_key_queue_init(ps_key_queue *q, int capacity, ps_priority priority)
{
    *q = (ps_key_queue){.capacity = capacity, .priority = priority};
    q->heap = calloc((size_t)capacity + 1, sizeof *q->heap);
    return q->heap ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a queue of %d keys", capacity);
}

void ps_key_queue_deinit(ps_key_queue *q)
{
    free(q->heap);
    q->heap = NULL;
}

void ps_key_queue_put(ps_key_queue *q, int key)
{
    assert(q->count < q->capacity);
    queued added = {q->priority == PS_PRIORITY_FIFO ? q->posted++ : key, key};
    int at = q->count++;
    for (int up; at > 0 && q->heap[up = (at - 1) / 2].rank > added.rank; at = up) q->heap[at] = q->heap[up];
    q->heap[at] = added;
}

int ps_key_queue_first(const ps_key_queue *q)
{
    assert(q->count > 0);
    return q->heap[0].key;
}

void ps_key_queue_drop(ps_key_queue *q)
{
    assert(q->count > 0);
    queued last = q->heap[--q->count];
    int at = 0;
    for (int down; (down = 2 * at + 1) < q->count; at = down) {
        if (down + 1 < q->count && q->heap[down + 1].rank < q->heap[down].rank) down++;
        if (q->heap[down].rank >= last.rank) break;
        q->heap[at] = q->heap[down];
    }
    q->heap[at] = last;
}
