/* Sharded state: the policies zero1, zero2, zero3 and fsdp.
 *
 * The gradients of a unit form one bucket, which is reduce-scattered when all gradients of the unit are
 * ready. Under zero1 and zero2, parameters are all-gathered after each rank has updated its shards. Under
 * zero3 and fsdp, parameters are sharded, too. Each pass then gathers the parameters of a unit while the unit
 * before it is computed:
 *
 *     forward    compute                  | unit 0   | unit 1              | unit 2    |
 *                communication   gather 0 | gather 1 | gather 2            |
 *     backward   compute                  | unit 2   | unit 1              | unit 0    |
 *                communication   gather 2 | gather 1 | scatter 2, gather 0 | scatter 1 | scatter 0
 */
#include "ring/zero/shards.h"

#include <stdlib.h>
#include <string.h>

/* ---- open ------------------------------------------------------------------------------------- */

static status open_adders(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    for (int u = 0; u < s->unit_count; u++) {
        op_desc op;
        memset(&op, 0, sizeof op); /* Descriptions are compared as bytes, with padding. */
        op.kind = OP_add;
        op.type = set_of(e)->type;
        op.u.elementwise.count = s->units[u].shard;
        TRY(device_prepare(e->base.context.device, &op, NULL, &e->shards.units[u].adder));
    }
    return STATUS_OK;
}

/* For mixed precision, allocates memory for the gradients of one shard in the type of the master weights.
 * Sums over micro-batches and updates use this memory. */
static status open_update(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    int64_t most = 1;
    for (int u = 0; u < s->unit_count; u++)
        if (s->units[u].shard > most) most = s->units[u].shard;
    size_t bytes = (size_t)(most * type_size(e));
    TRY(device_allocate(e->base.context.device, DEVICE_MEMORY_PRIVATE, bytes, &e->shards.update));
    int64_t reserved = (int64_t)e->shards.update.bytes;
    ledger_acquire(e->base.context.ledger, LEDGER_WORKSPACE, reserved, reserved);
    return STATUS_OK;
}

status ring_shards_open(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    if (!s) return STATUS_OK;
    const device_info *info = device_get_info(e->base.context.device);
    bool real = info->real;
    if (s->config.stage == PARAM_SHARD_ALL && e->base.context.program->config.bf16 &&
        (real || !e->settings.mixed))
        return fail(STATUS_CONFIG, "--bf16: expected --mixed-precision %s with %s",
                    real ? "instead" : "as well", e->settings.policy.name);
    if (real && !info->host_addressable && strcmp(e->settings.collective, "nccl") != 0)
        return fail(STATUS_CONFIG, "--collective: expected nccl with %s between GPUs, got %s",
                    e->settings.policy.name, e->settings.collective);
    e->shards.units = calloc((size_t)s->unit_count + 1, sizeof *e->shards.units);
    if (!e->shards.units) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    ring_complete_order(e->base.context.program->ready_order, e->base.context.program->ready_count,
                        ring_params(e), e->compute.order);
    if (e->settings.mixed) TRY(open_update(e));
    bool adds = s->config.stage >= PARAM_SHARD_GRADIENTS && (!e->settings.mixed || adds_f32_shards(e));
    return adds ? open_adders(e) : STATUS_OK;
}

void ring_shards_close(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    for (int u = 0; e->shards.units && u < s->unit_count; u++) device_release(&e->shards.units[u].adder);
    free(e->shards.units);
    int64_t reserved = (int64_t)e->shards.update.bytes;
    device_free(e->base.context.device, &e->shards.reduced);
    if (reserved > 0) ledger_release(e->base.context.ledger, LEDGER_WORKSPACE, reserved, reserved);
    device_free(e->base.context.device, &e->shards.update);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static char *gradients_of(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    bool cut = e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS;
    return sent_element(e, &set_of(e)->grads, cut ? u->gradients : u->whole.offset);
}

/* Returns the address of this rank's part of the unit's reduced gradients. The part stays at its position in
 * the gradients of the unit. If units are sharded by rows, the part is stored after the gradients instead. */
static char *reduced_part(const ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    const param_unit *u = &s->units[unit];
    return gradients_of(e, unit) +
           (s->config.rows ? u->whole.count : s->config.rank * u->shard) * sent_size(e);
}

bool ring_scatters_to_shard(const ring_engine *e)
{
    return e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS && !e->shards.accumulates;
}

int ring_unit_of_bucket(const ring_engine *e, int k)
{
    return shards_of(e)->unit_of[e->schedule.tensors[e->schedule.buckets[k].first]];
}

char *ring_reduced_shard(const ring_engine *e, int unit)
{
    return ring_scatters_to_shard(e) ? sent_element(e, &set_of(e)->grad_shards, shards_of(e)->units[unit].at)
                                     : reduced_part(e, unit);
}

collective_call ring_replicas_call(const ring_engine *e, int k)
{
    int unit = ring_unit_of_bucket(e, k);
    collective_call call = collective_in_place(COLLECTIVE_ALL_REDUCE, set_of(e)->sent,
                                               shards_of(e)->units[unit].shard, ring_reduced_shard(e, unit));
    call.op = ring_means_in_flight(e) ? REDUCE_MEAN : REDUCE_SUM;
    call.tag = k;
    return call;
}

collective_call ring_scatter_call(const ring_engine *e, int k)
{
    const param_shards *s = shards_of(e);
    int unit = ring_unit_of_bucket(e, k);
    const param_unit *u = &s->units[unit];
    return (collective_call){.kind = COLLECTIVE_REDUCE_SCATTER,
                             .op = ring_means_in_flight(e) ? REDUCE_MEAN : REDUCE_SUM,
                             .type = set_of(e)->sent,
                             .tag = k,
                             .count = s->config.ranks * u->shard,
                             .in = {gradients_of(e, unit), u->sent},
                             .out = {.base = ring_reduced_shard(e, unit)}};
}

collective_call ring_gather_call(const ring_engine *e, int index)
{
    const param_shards *s = shards_of(e);
    const param_set *set = set_of(e);
    int unit = index % s->unit_count, to = index / s->unit_count;
    const param_unit *u = &s->units[unit];
    bool cut = s->config.stage == PARAM_SHARD_ALL;
    collective_call call = {.kind = COLLECTIVE_ALL_GATHER,
                            .type = set->sent,
                            .count = s->config.ranks * u->shard,
                            .out.pieces = u->sent};
    if (to == TO_WHOLE && e->settings.mixed) {
        call.type = set->type;
        call.in.base = type_element(e, &set->masters, u->at);
        call.out.base = type_element(e, &set->whole, u->whole.offset);
        return call;
    }
    char *out = !cut             ? sent_element(e, &set->params, u->whole.offset)
                : to == TO_WHOLE ? sent_element(e, &set->whole, u->whole.offset)
                                 : sent_element(e, &set->gathered, u->gathered[to]);
    call.in.base =
        cut ? sent_element(e, &set->params, u->at) : out + s->config.rank * u->shard * sent_size(e);
    call.out.base = out;
    return call;
}
