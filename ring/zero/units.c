/* Units of sharded state in a pass. The parameters of a unit are gathered one unit ahead, and released after
 * their last use. The gradients of a unit occupy memory until they have been reduced. shards.c shows the
 * order. */
#include "ring/zero/shards.h"

/* ---- parameters ------------------------------------------------------------------------------- */

static void count_gathered(ring_engine *e, int unit, ring_ledger_change *change)
{
    const param_unit *u = &shards_of(e)->units[unit];
    int64_t size = shards_of(e)->config.stage == PARAM_SHARD_ALL ? sent_size(e) : 0;
    if (e->settings.mixed) size += type_size(e);
    change(e->base.context.ledger, LEDGER_GATHERED, u->elements * size, u->whole.count * size);
}

static void count_gradients(ring_engine *e, int unit, ring_ledger_change *change)
{
    const param_unit *u = &shards_of(e)->units[unit];
    int64_t size = shards_of(e)->config.stage >= PARAM_SHARD_GRADIENTS ? sent_size(e) : 0;
    if (e->settings.mixed) size += type_size(e);
    change(e->base.context.ledger, LEDGER_BUCKETS, u->elements * size,
           param_gradients_place(shards_of(e), unit) * size);
}

/* Posts the all-gather of the unit at `position` in the order of the current pass. Does nothing if there is
 * no unit at `position`, or if its all-gather has been posted. */
static status gather(ring_engine *e, int position)
{
    const param_shards *s = shards_of(e);
    int pass = e->shards.pass;
    if (position >= s->order_count[pass]) return STATUS_OK;
    int unit = s->order[pass][position];
    ring_unit *u = &e->shards.units[unit];
    if (u->present || u->gather > 0) return STATUS_OK;
    TRY(ring_post(e, RING_JOB_GATHER, unit + pass * s->unit_count, 0, &u->gather));
    count_gathered(e, unit, ledger_acquire);
    return STATUS_OK;
}

static status begin_pass(ring_engine *e, int pass)
{
    const param_shards *s = shards_of(e);
    e->shards.pass = pass;
    for (int u = 0; u < s->unit_count; u++) {
        e->shards.units[u].left = s->units[u].uses[pass];
        e->shards.units[u].begun = false;
    }
    return s->config.stage == PARAM_SHARD_ALL ? gather(e, 0) : STATUS_OK;
}

status ring_copy_elements(ring_engine *e, void *to, dtype to_type, const void *from, dtype from_type,
                          int64_t count)
{
    device_range range = {to, from, count};
    return device_pack(e->base.context.compute, &range, 1, to_type, from_type, 1);
}

/* Returns the address of this rank's shard of a unit in `params`. */
static char *own_params(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    bool cut = e->settings.policy.sharding == PARAM_SHARD_ALL;
    return sent_element(e, &set_of(e)->params, cut ? u->at : param_shard_of(shards_of(e), unit).offset);
}

status ring_round_unit(ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    const param_set *set = set_of(e);
    return ring_copy_elements(e, own_params(e, unit), set->sent, type_element(e, &set->masters, u->at),
                              set->type, u->shard);
}

/* For mixed precision, converts the parameters of a unit to the type that operations read. Called before a
 * pass uses the unit. */
static status widen_unit(ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    const param_set *set = set_of(e);
    int64_t place = u->gathered[e->shards.pass];
    bool cut = e->settings.policy.sharding == PARAM_SHARD_ALL;
    char *from =
        cut ? sent_element(e, &set->gathered, place) : sent_element(e, &set->params, u->whole.offset);
    if (!cut) count_gathered(e, unit, ledger_acquire);
    return ring_copy_elements(e, type_element(e, &set->f32_params, place), set->type, from, set->sent,
                              u->whole.count);
}

status ring_gather_updated(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    if (s->config.stage == PARAM_SHARD_ALL) return STATUS_OK;
    param_set_forget_bf16_copy(set_of(e));
    for (int i = 0; i < s->order_count[PARAM_FORWARD]; i++) {
        int unit = s->order[PARAM_FORWARD][i];
        TRY(ring_post(e, RING_JOB_GATHER, unit, 0, &e->shards.units[unit].gather));
    }
    return STATUS_OK;
}

status ring_shards_begin_forward(ring_engine *e)
{
    if (!shards_of(e)) return STATUS_OK;
    /* Before the first step the masters have been initialized or loaded. */
    bool new_masters = e->settings.mixed && !e->compute.started;
    for (int u = 0; new_masters && u < shards_of(e)->unit_count; u++) TRY(ring_round_unit(e, u));
    if (new_masters) TRY(ring_gather_updated(e));
    return begin_pass(e, PARAM_FORWARD);
}

status ring_end_forward(sync_engine *base, const sync_step *step)
{
    ring_engine *e = ring_of(base);
    (void)step;
    return shards_of(e) ? begin_pass(e, PARAM_BACKWARD) : STATUS_OK;
}

static status await_gather(ring_engine *e, ring_unit *u)
{
    if (u->gather == 0) return STATUS_OK;
    TRY(process_group_wait(e->calls, u->gather, e->base.context.anatomy));
    u->gather = 0;
    return STATUS_OK;
}

status ring_await_gathers(ring_engine *e)
{
    for (int u = 0; shards_of(e) && u < shards_of(e)->unit_count; u++)
        TRY(await_gather(e, &e->shards.units[u]));
    return STATUS_OK;
}

static bool overlap(const param_shards *s, int v, int w)
{
    const param_unit *a = &s->units[v], *b = &s->units[w];
    return a->gradients < b->gradients + param_gradients_place(s, w) &&
           b->gradients < a->gradients + param_gradients_place(s, v);
}

/* Units may share memory for gradients. Waits until no reduction of another unit uses the memory of this
 * unit's gradients. */
static status await_gradient_place(ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    for (int v = 0; v < s->unit_count; v++)
        while (v != unit && e->shards.units[v].reducing && overlap(s, v, unit)) TRY(ring_await_bucket(e));
    return STATUS_OK;
}

static status begin_unit(ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    ring_unit *u = &e->shards.units[unit];
    int position = s->units[unit].position[e->shards.pass];
    if (s->config.stage == PARAM_SHARD_ALL) {
        TRY(gather(e, position)); /* Usually this all-gather was posted when the preceding unit began. */
        TRY(gather(e, position + 1));
    }
    TRY(await_gather(e, u));
    if (e->settings.mixed && !u->present) TRY(widen_unit(e, unit));
    u->present = param_shards_place_params(&s->config);
    if (e->shards.pass == PARAM_FORWARD || !param_shards_place_gradients(&s->config)) return STATUS_OK;
    TRY(await_gradient_place(e, unit));
    count_gradients(e, unit, ledger_acquire);
    return STATUS_OK;
}

status ring_need(sync_engine *base, int param)
{
    ring_engine *e = ring_of(base);
    const param_shards *s = shards_of(e);
    if (!s || e->shards.units[s->unit_of[param]].begun) return STATUS_OK;
    TRY(begin_unit(e, s->unit_of[param]));
    e->shards.units[s->unit_of[param]].begun = true;
    return STATUS_OK;
}

status ring_release(sync_engine *base, int param)
{
    ring_engine *e = ring_of(base);
    const param_shards *s = shards_of(e);
    ring_unit *u = &e->shards.units[s->unit_of[param]];
    bool stays = e->shards.pass == PARAM_FORWARD && s->config.keeps &&
                 s->units[s->unit_of[param]].uses[PARAM_BACKWARD] > 0;
    if (--u->left > 0 || !u->present || stays) return STATUS_OK;
    u->present = false;
    count_gathered(e, s->unit_of[param], ledger_release);
    return STATUS_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

static status add_to(ring_engine *e, int unit, void *sum, void *shard)
{
    void *operands[OP_MAX_OPERANDS] = {[ADD_A] = sum, [ADD_B] = shard, [ADD_Y] = sum};
    return device_launch(e->base.context.compute, e->shards.units[unit].adder, operands, &(op_scalars){0},
                         NULL);
}

/* For mixed precision, adds the shard of a micro-batch to the sum, which has the type of the master
 * weights. */
static status add_f32(ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    const param_set *set = set_of(e);
    char *sum = type_element(e, &set->f32_shards, u->at),
         *to = ring_scatters_to_shard(e) ? sum : e->shards.update.data;
    TRY(ring_copy_elements(e, to, set->type, ring_reduced_shard(e, unit), set->sent, u->shard));
    return to == sum ? STATUS_OK : add_to(e, unit, sum, to);
}

status ring_scatter_done(ring_engine *e, int k)
{
    int unit = ring_unit_of_bucket(e, k);
    const param_unit *u = &shards_of(e)->units[unit];
    e->shards.units[unit].reducing = false;
    if (!param_shards_place_gradients(&shards_of(e)->config)) return STATUS_OK;
    count_gradients(e, unit, ledger_release);
    if (e->settings.mixed) return adds_f32_shards(e) ? add_f32(e, unit) : STATUS_OK;
    if (ring_scatters_to_shard(e)) return STATUS_OK;
    return add_to(e, unit, sent_element(e, &set_of(e)->grad_shards, u->at), ring_reduced_shard(e, unit));
}
