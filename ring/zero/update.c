/* Updates this rank's shards of the state, and gathers whole parameters between steps. */
#include "ring/zero/shards.h"

/* ---- the update ------------------------------------------------------------------------------- */

/* Returns a base address for a unit in `memory`. `memory` is an arena of shards if `cut` is true, else an
 * arena of unsharded tensors. In both cases, the address of an element of this rank's shard is the base
 * address plus the offset that the element has in an arena of shards. */
static char *as_shards(const ring_engine *e, const device_memory *memory, bool cut, int unit)
{
    return sent_element(e, memory,
                        cut ? 0 : param_shard_of(shards_of(e), unit).offset - shards_of(e)->units[unit].at);
}

/* Sets *out to the base address of the gradients that the update reads. Under mixed precision, the update
 * needs gradients in the type of the master weights. Therefore the shard is converted, unless the sum over
 * micro-batches already has this type. */
static status update_gradients(ring_engine *e, int unit, char **out)
{
    const param_unit *u = &shards_of(e)->units[unit];
    bool cut = e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS;
    *out = adds_f32_shards(e) ? set_of(e)->f32_shards.data
                              : as_shards(e, cut ? &set_of(e)->grad_shards : &set_of(e)->grads, cut, unit);
    if (!e->settings.mixed || adds_f32_shards(e)) return STATUS_OK;
    char *from = *out + u->at * sent_size(e);
    *out = (char *)e->shards.update.data - u->at * type_size(e);
    return ring_copy_elements(e, e->shards.update.data, set_of(e)->type, from, set_of(e)->sent, u->shard);
}

static piece_list pieces_of(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    return (piece_list){shards_of(e)->pieces + u->first, u->count};
}

/* Sums the squares of the gradients in this rank's shards. Then an all-reduce in the shard group adds up the
 * sums of its ranks. */
status ring_norm(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    const sync_context *c = &base->context;
    if (!shards_of(e)) return sync_default_norm(base);
    for (int u = 0; u < shards_of(e)->unit_count; u++) {
        char *grads;
        if (pieces_of(e, u).count == 0) continue;
        TRY(update_gradients(e, u, &grads));
        TRY(optimizer_sum_squares(c->optimizer, c->compute, grads, pieces_of(e, u), &base->square_norm));
    }
    *e->memory.norm = base->square_norm;
    TRY(ring_send_values(e, e->memory.group, e->memory.norm, DTYPE_F64, 1));
    TRY(ring_run_job(e, RING_JOB_NORM, 1));
    TRY(ring_receive_values(e, e->memory.norm, e->memory.group, DTYPE_F64, 1));
    base->square_norm = *e->memory.norm;
    return STATUS_OK;
}

static status update_unit(ring_engine *e, const sync_step *step, int unit, double scale)
{
    const sync_context *c = &e->base.context;
    bool cut = e->settings.policy.sharding == PARAM_SHARD_ALL;
    char *grads,
        *params = e->settings.mixed ? set_of(e)->masters.data : as_shards(e, &set_of(e)->params, cut, unit);
    if (pieces_of(e, unit).count == 0) return STATUS_OK;
    TRY(update_gradients(e, unit, &grads));
    TRY(optimizer_update(c->optimizer, c->compute, params, grads, pieces_of(e, unit),
                         step->index - step->skipped, step->learning_rate, scale));
    return e->settings.mixed ? ring_round_unit(e, unit) : STATUS_OK;
}

status ring_update_shards(sync_engine *base, const sync_step *step, double scale, bool skipped)
{
    ring_engine *e = ring_of(base);
    for (int u = 0; u < shards_of(e)->unit_count && !skipped; u++) TRY(update_unit(e, step, u, scale));
    status rc = sync_end_update(base, step, skipped);
    /* Peers update other shards, so they would not notice the failure without process_group_give_up(). */
    return rc == STATUS_OK ? ring_gather_updated(e) : process_group_give_up(e->calls, rc);
}

/* ---- between steps ---------------------------------------------------------------------------- */

static void count_whole(ring_engine *e, ring_ledger_change *change)
{
    change(e->base.context.ledger, LEDGER_GATHERED, set_of(e)->logical_bytes,
           set_of(e)->arena_elements * type_size(e));
}

status ring_gather_parameters(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    const param_shards *s = shards_of(e);
    if (!param_set_gathers(set_of(e)) || e->shards.held == s->unit_count) return STATUS_OK;
    if (e->shards.held == 0 && !e->shards.holds) {
        TRY(param_set_hold_whole(set_of(e)));
        count_whole(e, ledger_acquire);
        e->shards.holds = true;
    }
    for (; e->shards.held < s->unit_count; e->shards.held++)
        TRY(ring_run_job(e, RING_JOB_GATHER, e->shards.held + TO_WHOLE * s->unit_count));
    return STATUS_OK;
}

void ring_drop_whole(ring_engine *e)
{
    if (!e->shards.holds) return;
    param_set_drop_whole(set_of(e));
    count_whole(e, ledger_release);
    e->shards.holds = false;
    e->shards.held = 0;
}

/* If gradients are sharded or bfloat16, copies this rank's reduced shards to an arena with the layout of the
 * parameters. The arena is allocated on the first call, because only verification needs the arena. Returns
 * NULL after an error. */
const void *ring_reduced_gradients(sync_engine *base, piece_list *owned)
{
    ring_engine *e = ring_of(base);
    const param_shards *s = shards_of(e);
    const sync_context *c = &base->context;
    *owned = param_set_pieces(set_of(e), 0, ring_params(e));
    if (!s) return set_of(e)->grads.data;
    *owned = (piece_list){s->own, s->piece_count};
    bool cut = e->settings.policy.sharding >= PARAM_SHARD_GRADIENTS;
    if (!cut && !e->settings.mixed) return set_of(e)->grads.data;
    device_memory *out = &e->shards.reduced;
    size_t bytes = (size_t)set_of(e)->arena_elements * (size_t)type_size(e);
    status rc = out->bytes > 0 ? STATUS_OK : device_allocate(c->device, DEVICE_MEMORY_PRIVATE, bytes, out);
    for (int i = 0; i < s->piece_count && rc == STATUS_OK; i++) {
        const char *from = adds_f32_shards(e) ? type_element(e, &set_of(e)->f32_shards, s->pieces[i].offset)
                           : cut              ? sent_element(e, &set_of(e)->grad_shards, s->pieces[i].offset)
                                              : sent_element(e, &set_of(e)->grads, s->own[i].offset);
        rc = device_convert(c->compute, type_element(e, out, s->own[i].offset), set_of(e)->type, from,
                            adds_f32_shards(e) ? set_of(e)->type : set_of(e)->sent, s->own[i].count, 1);
    }
    return rc == STATUS_OK ? out->data : NULL;
}
