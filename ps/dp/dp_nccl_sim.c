/* DataParallel's own pattern on NCCL, in virtual time: torch/csrc/cuda/comm.cpp coalesces tensors into chunks, broadcasts
 * each over a ring of all devices, and reduces gradients onto device 0 the same way. */
#include "common/device/sim/device_sim.h"
#include "common/sim/group.h"
#include "ps/dp/dp_impl.h"

#include <stdlib.h>

typedef struct dp_nccl {
    sim_group *group; /* of all ranks */
    device_fence *done;
    int64_t calls, bytes, messages;
} dp_nccl;

static void on_moving(void *context)
{
    (void)context;
}

static void on_finished(void *context)
{
    dp_nccl *n = context;
    device_fence_reach(n->done, (uint64_t)n->calls);
}

/* The group's first member opens it for all. */
static status open_group(dp_engine *e, simulation *s)
{
    int world = context_of(e)->world;
    int *ranks = calloc((size_t)world, sizeof *ranks);
    if (!ranks) return fail(STATUS_SYSTEM, "no memory for a group of %d ranks", world);
    for (int r = 0; r < world; r++) ranks[r] = r;
    status rc = sim_group_open(s, "dataparallel", ranks, world, &e->nccl->group);
    free(ranks);
    return rc;
}

status dp_nccl_open(dp_engine *e)
{
    simulation *s = sim_device_simulation(context_of(e)->device);
    if (!s || !s->config.replicates_by_nccl || context_of(e)->world < 2) return STATUS_OK;
    e->nccl = calloc(1, sizeof *e->nccl);
    if (!e->nccl) return fail(STATUS_SYSTEM, "no memory for an exchange");
    TRY(device_fence_open(context_of(e)->device, &e->nccl->done));
    return open_group(e, s);
}

void dp_nccl_close(dp_engine *e)
{
    if (!e->nccl) return;
    if (e->nccl->group) sim_group_close(&e->nccl->group);
    device_fence_close(&e->nccl->done);
    free(e->nccl);
    e->nccl = NULL;
}

static status run(dp_engine *e, sim_collective kind, int64_t bytes)
{
    const sync_context *c = context_of(e);
    dp_nccl *n = e->nccl;
    sim_group_member told = {.moving = on_moving, .finished = on_finished, .context = n};
    int number;
    n->calls++;
    TRY(anatomy_begin_wait(c->anatomy));
    int64_t begun_ns = device_now_ns(c->device);
    sim_device_spend_launch(c->device);
    TRY(sim_group_join(n->group, c->rank, sim_device_actor(c->device)->time, kind, SIM_RING, (double)bytes, &told));
    TRY(device_stream_wait(c->compute, n->done, (uint64_t)n->calls));
    TRY(anatomy_end_wait(c->anatomy, &number));
    anatomy_add_span(c->anatomy, begun_ns, device_now_ns(c->device));
    n->bytes += (int64_t)sim_group_share(n->group, kind, (double)bytes);
    n->messages += sim_group_messages(n->group, kind);
    return STATUS_OK;
}

status dp_nccl_replicate(dp_engine *e)
{
    int64_t buffers = context_of(e)->params->buffer_bytes;
    for (int k = 0; k < e->replicate.count; k++) TRY(run(e, SIM_BROADCAST, e->replicate.list[k].bytes));
    return buffers > 0 ? run(e, SIM_BROADCAST, buffers) : STATUS_OK;
}

status dp_nccl_reduce(dp_engine *e)
{
    for (int k = 0; k < e->reduce.count; k++) TRY(run(e, SIM_REDUCE, e->reduce.list[k].bytes));
    return STATUS_OK;
}

void dp_nccl_collect(const dp_engine *e, sync_counters *out)
{
    if (!e->nccl) return;
    out->bytes_sent += e->nccl->bytes;
    out->bytes_received += e->nccl->bytes;
    out->messages_sent += e->nccl->messages;
    out->messages_received += e->nccl->messages;
}
