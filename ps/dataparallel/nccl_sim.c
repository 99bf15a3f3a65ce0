/* The calls of nccl.c in virtual time. All ranks join each call, and the call runs over a ring of all
 * ranks. */
#include "common/device/sim/device_sim.h"
#include "common/sim/group.h"
#include "ps/dataparallel/dataparallel.h"

#include <stdlib.h>

struct dp_nccl_sim {
    sim_group *group;
    device_fence *done;
    int64_t calls;
    int rank;
    /* Time at which the last rank joined the running call, and the number of that rank. */
    anatomy_sent last;
    int64_t bytes, messages; /* Bytes and messages sent so far. This rank has received equally many. */
};

static void on_moving(void *context)
{
    dp_nccl_sim *n = context;
    /* True if no rank joined later than this rank. */
    bool late = n->group->members[n->rank].at == n->group->at;
    n->last.ns = sim_to_ns(simulation_now(n->group->simulation));
    n->last.rank = late ? ANATOMY_NOBODY : n->group->last;
}

static void on_finished(void *context)
{
    dp_nccl_sim *n = context;
    device_fence_reach(n->done, (uint64_t)n->calls);
}

status dp_nccl_sim_open(const dp_engine *e, const int *ranks, dp_nccl_sim **out)
{
    const sync_context *c = context_of(e);
    dp_nccl_sim *n = *out = calloc(1, sizeof *n);
    if (!n) return fail(STATUS_SYSTEM, "no memory for an exchange");
    n->rank = c->rank;
    TRY(device_fence_open(c->device, &n->done));
    return sim_group_open(sim_device_simulation(c->device), "dataparallel", ranks, c->world, &n->group);
}

void dp_nccl_sim_close(dp_nccl_sim **pointer)
{
    dp_nccl_sim *n = *pointer;
    if (!n) return;
    if (n->group) sim_group_close(&n->group);
    device_fence_close(&n->done);
    free(n);
    *pointer = NULL;
}

status dp_nccl_sim_run(const dp_engine *e, collective_kind call, int64_t bytes)
{
    dp_nccl_sim *n = e->virtual_calls;
    const sync_context *c = context_of(e);
    sim_collective kind = call == COLLECTIVE_REDUCE ? SIM_REDUCE : SIM_BROADCAST;
    sim_group_member told = {.moving = on_moving, .finished = on_finished, .context = n};
    int number;
    n->calls++;
    TRY(anatomy_begin_wait(c->anatomy));
    sim_device_spend_launch(c->device);
    TRY(sim_group_join(n->group, c->rank, sim_device_actor(c->device)->time, kind, SIM_RING, (double)bytes,
                       &told));
    TRY(device_stream_wait(c->compute, n->done, (uint64_t)n->calls));
    TRY(anatomy_end_wait(c->anatomy, &number));
    anatomy_name_wait(c->anatomy, number, n->last);
    anatomy_add_span(c->anatomy, n->last.ns, device_now_ns(c->device));
    n->bytes += (int64_t)sim_group_share(n->group, kind, (double)bytes);
    n->messages += sim_group_messages(n->group, kind);
    return STATUS_OK;
}

void dp_nccl_sim_collect(const dp_nccl_sim *n, sync_counters *out)
{
    out->bytes_sent += n->bytes;
    out->bytes_received += n->bytes;
    out->messages_sent += n->messages;
    out->messages_received += n->messages;
}
