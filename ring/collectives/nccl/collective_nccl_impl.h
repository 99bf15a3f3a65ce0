/* Collectives through NCCL, from inside. For this folder only. */
#ifndef RING_COLLECTIVES_NCCL_COLLECTIVE_NCCL_IMPL_H
#define RING_COLLECTIVES_NCCL_COLLECTIVE_NCCL_IMPL_H

#include "ring/collectives/collective_impl.h"
#include "ring/collectives/nccl/nccl_module.h"

#include <stdatomic.h>

typedef struct nccl_queued {
    collective_call call;
    collective_times times;
} nccl_queued;

typedef struct nccl_world {
    collective_world base;
    const nccl_module *module;
    nccl_comm *comm;
    device_stream *stream; /* borrowed */
    device_memory scratch; /* of barriers */
    struct nccl_group *groups;
    atomic_uint bell;
    unsigned seen;
    int fruitless; /* waits since something was done */
} nccl_world;

typedef struct nccl_group {
    collective_group base;
    struct nccl_group *next;
    nccl_comm *comm;
    device_fence *done; /* call N is done */
    nccl_queued queue[COLLECTIVE_QUEUE];
    uint64_t posted, launched, completed;
    bool enqueuing; /* the communicator still works on call number launched + 1 */
    int64_t since_ns;
    nccl_part *parts; /* [part_capacity] of the call that is enqueued */
    int part_count, part_capacity;
} nccl_group;

/* The parts that NCCL is to run for a call, into g->parts. */
status nccl_make_parts(nccl_group *g, const collective_call *call);

#endif
