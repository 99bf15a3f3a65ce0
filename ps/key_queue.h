/* Keys that wait for something, in order of priority: a binary heap of fixed capacity. */
#ifndef PS_KEY_QUEUE_H
#define PS_KEY_QUEUE_H

#include "ps/policy.h"

#include <stdint.h>

typedef struct ps_key_queue {
    struct ps_queued {
        int64_t rank; /* smaller goes first */
        int key;
    } *heap;
    int count, capacity;
    ps_priority priority;
    int64_t posted; /* numbers of arrival, for first in, first out */
} ps_key_queue;

status ps_key_queue_init(ps_key_queue *q, int capacity, ps_priority priority);
void ps_key_queue_deinit(ps_key_queue *q);

/* The queue holds every key at most once, so it is never full. */
void ps_key_queue_put(ps_key_queue *q, int key);
/* The first; the queue must not be empty. */
int ps_key_queue_first(const ps_key_queue *q);
void ps_key_queue_drop(ps_key_queue *q);

#endif
