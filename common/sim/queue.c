#include "common/sim/queue.h"

#include <assert.h>
#include <stdlib.h>

/* The heap has four children per node, so it is flatter than a binary heap, and siblings share cache
 * lines. */
enum { CHILDREN = 4, SEQUENCE_BITS = 43 };

void sim_queue_deinit(sim_queue *q)
{
    free(q->heap);
    *q = (sim_queue){0};
}

status sim_event_init(sim_queue *q, sim_event *e, int rank, void (*fire)(void *context), void *context)
{
    assert(rank >= 0 && rank <= SIM_RANK_LAST);
    if (q->registered == q->capacity) {
        int32_t capacity = q->capacity ? q->capacity * 2 : 64;
        sim_entry *heap = realloc(q->heap, (size_t)capacity * sizeof *heap);
        if (!heap) return fail(STATUS_SYSTEM, "no memory for %d events", capacity);
        q->heap = heap;
        q->capacity = capacity;
    }
    q->registered++;
    *e = (sim_event){.fire = fire, .context = context, .rank = rank, .slot = -1};
    return STATUS_OK;
}

static bool before(const sim_entry *a, const sim_entry *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void put(sim_queue *q, int32_t slot, sim_entry entry)
{
    q->heap[slot] = entry;
    entry.event->slot = slot;
}

static void sift_up(sim_queue *q, int32_t slot, sim_entry entry)
{
    while (slot > 0) {
        int32_t parent = (slot - 1) / CHILDREN;
        if (!before(&entry, &q->heap[parent])) break;
        put(q, slot, q->heap[parent]);
        slot = parent;
    }
    put(q, slot, entry);
}

static void sift_down(sim_queue *q, int32_t slot, sim_entry entry)
{
    for (;;) {
        int32_t first = slot * CHILDREN + 1, least = first;
        if (first >= q->count) break;
        int32_t end = first + CHILDREN < q->count ? first + CHILDREN : q->count;
        for (int32_t child = first + 1; child < end; child++)
            if (before(&q->heap[child], &q->heap[least])) least = child;
        if (!before(&q->heap[least], &entry)) break;
        put(q, slot, q->heap[least]);
        slot = least;
    }
    put(q, slot, entry);
}

static void take_out(sim_queue *q, int32_t slot)
{
    q->heap[slot].event->slot = -1;
    sim_entry last = q->heap[--q->count];
    if (slot == q->count) return;
    if (slot > 0 && before(&last, &q->heap[(slot - 1) / CHILDREN]))
        sift_up(q, slot, last);
    else
        sift_down(q, slot, last);
}

void sim_event_deinit(sim_queue *q, sim_event *e)
{
    if (!e->fire) return;
    if (e->slot >= 0) take_out(q, e->slot);
    q->registered--;
    *e = (sim_event){.slot = -1};
}

void sim_event_schedule(sim_queue *q, sim_event *e, sim_time at)
{
    if (at == SIM_NEVER) {
        if (e->slot >= 0) take_out(q, e->slot);
        return;
    }
    sim_entry entry = {.time = sim_later(at, q->now),
                       .order = (uint64_t)e->rank << SEQUENCE_BITS | q->sequence++,
                       .event = e};
    assert(e->slot >= 0 || q->count < q->capacity);
    int32_t slot = e->slot >= 0 ? e->slot : q->count++;
    if (slot > 0 && before(&entry, &q->heap[(slot - 1) / CHILDREN]))
        sift_up(q, slot, entry);
    else
        /* A new entry is the last of the heap, so sift_down() leaves it in its slot. */
        sift_down(q, slot, entry);
}

bool sim_queue_step(sim_queue *q)
{
    if (q->count == 0) return false;
    sim_entry first = q->heap[0];
    take_out(q, 0);
    q->now = first.time;
    q->fired++;
    first.event->fire(first.event->context);
    return true;
}
