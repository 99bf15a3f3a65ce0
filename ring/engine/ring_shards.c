/* Sharded state: zero1, zero2, zero3, fsdp. Gradients of a unit are reduce-scattered when all are ready (they are
 * its bucket), each rank updates its shards, and parameters are all-gathered: after the update, or, where
 * they are cut themselves, before each pass uses them, one unit ahead:
 *
 *     forward    compute         | unit 0 | unit 1 | unit 2 |
 *                all-gather    0 | 1      | 2      |
 *     backward   compute                  | unit 2 | unit 1 | unit 0 |
 *                communication          2 | gather 1, scatter 2 | gather 0, scatter 1 | scatter 0
 */
#include "ring/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

static param_set *set_of(const ring_engine *e)
{
    return e->base.context.params;
}

static const param_shards *shards_of(const ring_engine *e)
{
    return set_of(e)->shards;
}

/* Of an element that is sent: with mixed precision not of those that are updated, which are `wide`. */
static int size_of(const ring_engine *e)
{
    return dtype_size(set_of(e)->sent);
}

static int wide_size(const ring_engine *e)
{
    return dtype_size(set_of(e)->type);
}

static bool is_mixed(const ring_engine *e)
{
    return e->settings.mixed;
}

static char *element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * size_of(e);
}

static char *wide_element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * wide_size(e);
}

/* ---- open ------------------------------------------------------------------------------------- */

static status open_adders(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    for (int u = 0; u < s->unit_count; u++) {
        op_desc op;
        memset(&op, 0, sizeof op); /* padding included: descriptions are compared as bytes */
        op.kind = OP_add;
        op.type = set_of(e)->type;
        op.u.elementwise.count = s->units[u].shard;
        TRY(device_prepare(e->base.context.device, &op, NULL, &e->shards.units[u].adder));
    }
    return STATUS_OK;
}

static void count_update(ring_engine *e, void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    int64_t bytes = (int64_t)e->shards.update.bytes;
    if (bytes > 0) change(e->base.context.ledger, LEDGER_WORKSPACE, bytes, bytes);
}

/* Mixed precision: a shard's gradients as the masters' type, while they are updated. */
static status open_update(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    int64_t most = 1;
    for (int u = 0; u < s->unit_count; u++)
        if (s->units[u].shard > most) most = s->units[u].shard;
    size_t bytes = (size_t)(most * wide_size(e));
    TRY(device_allocate(e->base.context.device, DEVICE_MEMORY_PRIVATE, bytes, &e->shards.update));
    count_update(e, ledger_acquire);
    return STATUS_OK;
}

status ring_shards_open(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    if (!s) return STATUS_OK;
    const device_info *info = device_get_info(e->base.context.device);
    if (s->config.stage == PARAM_SHARD_ALL && e->base.context.program->config.bf16 && (info->real || !is_mixed(e)))
        return fail(STATUS_CONFIG, "--bf16: expected a policy that keeps whole parameters, got %s",
                    e->settings.policy->name);
    if (info->real && !info->host_addressable && strcmp(e->settings.collective, "nccl") != 0)
        return fail(STATUS_CONFIG, "--collective: expected nccl with %s between GPUs, got %s",
                    e->settings.policy->name, e->settings.collective);
    e->shards.units = calloc((size_t)s->unit_count + 1, sizeof *e->shards.units);
    if (!e->shards.units) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    ring_complete_order(e->base.context.program->ready_order, e->base.context.program->ready_count,
                        ring_params(e), e->compute.order);
    if (is_mixed(e)) return open_update(e);
    return s->config.stage >= PARAM_SHARD_GRADIENTS ? open_adders(e) : STATUS_OK;
}

void ring_shards_close(ring_engine *e)
{
    const param_shards *s = shards_of(e);
    for (int u = 0; e->shards.units && u < s->unit_count; u++) device_release(&e->shards.units[u].adder);
    free(e->shards.units);
    device_free(e->base.context.device, &e->shards.reduced);
    count_update(e, ledger_release);
    device_free(e->base.context.device, &e->shards.update);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static char *gradients_of(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    bool cut = e->settings.sharding >= PARAM_SHARD_GRADIENTS;
    return element(e, &set_of(e)->grads, cut ? u->gradients : u->whole.offset);
}

/* Where this rank's part of a unit's gradients is reduced to, in their place. */
static char *reduced_part(const ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    const param_unit *u = &s->units[unit];
    return gradients_of(e, unit) + (s->config.rows ? u->whole.count : s->config.rank * u->shard) * size_of(e);
}

/* The first micro-batch of a step writes the shard; later ones are added to it. */
static bool scatters_to_shard(const ring_engine *e)
{
    return e->settings.sharding >= PARAM_SHARD_GRADIENTS && !e->shards.accumulates;
}

static int unit_of_bucket(const ring_engine *e, int k)
{
    return shards_of(e)->unit_of[e->schedule.tensors[e->schedule.buckets[k].first]];
}

static char *reduced_shard(const ring_engine *e, int unit)
{
    return scatters_to_shard(e) ? element(e, &set_of(e)->grad_shards, shards_of(e)->units[unit].at) : reduced_part(e, unit);
}

static reduce_op op_of(const ring_engine *e)
{
    return ring_means_in_flight(e) ? REDUCE_MEAN : REDUCE_SUM;
}

collective_call ring_replicas_call(const ring_engine *e, int k)
{
    int unit = unit_of_bucket(e, k);
    collective_buffer shard = {.base = reduced_shard(e, unit)};
    return (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                             .op = op_of(e),
                             .type = set_of(e)->sent,
                             .tag = k,
                             .count = shards_of(e)->units[unit].shard,
                             .in = shard,
                             .out = shard};
}

collective_call ring_scatter_call(const ring_engine *e, int k)
{
    const param_shards *s = shards_of(e);
    int unit = unit_of_bucket(e, k);
    const param_unit *u = &s->units[unit];
    return (collective_call){.kind = COLLECTIVE_REDUCE_SCATTER,
                             .op = op_of(e),
                             .type = set_of(e)->sent,
                             .tag = k,
                             .count = s->config.ranks * u->shard,
                             .in = {gradients_of(e, unit), u->sent},
                             .out = {.base = reduced_shard(e, unit)}};
}

/* Where a job of kind GATHER puts a unit: its index is that of the unit plus one of these times the number of
 * units. */
enum { TO_FORWARD, TO_BACKWARD, TO_WHOLE };

collective_call ring_gather_call(const ring_engine *e, int index)
{
    const param_shards *s = shards_of(e);
    const param_set *set = set_of(e);
    int unit = index % s->unit_count, to = index / s->unit_count;
    const param_unit *u = &s->units[unit];
    bool cut = s->config.stage == PARAM_SHARD_ALL;
    if (to == TO_WHOLE && is_mixed(e))
        return (collective_call){.kind = COLLECTIVE_ALL_GATHER,
                                 .type = set->type,
                                 .count = s->config.ranks * u->shard,
                                 .in = {.base = wide_element(e, &set->masters, u->at)},
                                 .out = {wide_element(e, &set->whole, u->whole.offset), u->sent}};
    char *out = !cut             ? element(e, &set->params, u->whole.offset)
                : to == TO_WHOLE ? element(e, &set->whole, u->whole.offset)
                                 : element(e, &set->gathered, u->gathered[to]);
    char *in = cut ? element(e, &set->params, u->at) : out + s->config.rank * u->shard * size_of(e);
    return (collective_call){.kind = COLLECTIVE_ALL_GATHER,
                             .type = set->sent,
                             .count = s->config.ranks * u->shard,
                             .in = {.base = in},
                             .out = {out, u->sent}};
}

/* ---- parameters ------------------------------------------------------------------------------- */

static void count_gathered(ring_engine *e, int unit,
                           void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    const param_unit *u = &shards_of(e)->units[unit];
    int64_t size = shards_of(e)->config.stage == PARAM_SHARD_ALL ? size_of(e) : 0;
    if (is_mixed(e)) size += wide_size(e);
    change(e->base.context.ledger, LEDGER_GATHERED, u->elements * size, u->whole.count * size);
}

static void count_gradients(ring_engine *e, int unit,
                            void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    const param_unit *u = &shards_of(e)->units[unit];
    int64_t size = shards_of(e)->config.stage >= PARAM_SHARD_GRADIENTS ? size_of(e) : 0;
    if (is_mixed(e)) size += wide_size(e);
    change(e->base.context.ledger, LEDGER_BUCKETS, u->elements * size, param_gradients_place(shards_of(e), unit) * size);
}

/* Posts the all-gather of the unit at `position` of the present pass, unless there is none or it is there. */
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

/* A pass begins. */
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

/* Elements of any two types, in stream order. */
static status copy_elements(ring_engine *e, void *to, dtype to_type, const void *from, dtype from_type, int64_t count)
{
    device_range range = {to, from, count};
    return device_pack(e->base.context.compute, &range, 1, to_type, from_type, 1);
}

/* This rank's shard of the parameters as they are sent. */
static char *own_params(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    bool cut = e->settings.sharding == PARAM_SHARD_ALL;
    return element(e, &set_of(e)->params, cut ? u->at : param_shard_of(shards_of(e), unit).offset);
}

/* Mixed precision: masters to bfloat16. */
static status round_unit(ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    const param_set *set = set_of(e);
    return copy_elements(e, own_params(e, unit), set->sent, wide_element(e, &set->masters, u->at), set->type, u->shard);
}

/* Mixed precision: a unit that a pass begins to use, as operations read it. */
static status widen_unit(ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    const param_set *set = set_of(e);
    int64_t place = u->gathered[e->shards.pass];
    bool cut = e->settings.sharding == PARAM_SHARD_ALL;
    char *from = cut ? element(e, &set->gathered, place) : element(e, &set->params, u->whole.offset);
    if (!cut) count_gathered(e, unit, ledger_acquire);
    return copy_elements(e, wide_element(e, &set->wide, place), set->type, from, set->sent, u->whole.count);
}

/* Every rank has the whole parameters again: gathered in the order of the next forward pass, which waits unit
 * by unit. */
static status gather_updated(ring_engine *e)
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

/* Masters have been drawn or loaded. */
static status begin_mixed(ring_engine *e, const sync_step *step)
{
    if (!step->synchronize)
        return ring_give_up(e, fail(STATUS_CONFIG, "--accumulate: expected 1 with --mixed-precision: sums of micro-batches "
                                                   "would be rounded to bfloat16"));
    for (int u = 0; u < shards_of(e)->unit_count && !e->compute.started; u++) TRY(round_unit(e, u));
    return e->compute.started ? STATUS_OK : gather_updated(e);
}

status ring_shards_begin_forward(ring_engine *e, const sync_step *step)
{
    if (!shards_of(e)) return STATUS_OK;
    if (is_mixed(e)) TRY(begin_mixed(e, step));
    return begin_pass(e, PARAM_FORWARD);
}

status ring_place_outputs(sync_engine *base, const sync_step *step)
{
    ring_engine *e = ring_of(base);
    (void)step;
    return shards_of(e) ? begin_pass(e, PARAM_BACKWARD) : STATUS_OK;
}

static status await_gather(ring_engine *e, ring_unit *u)
{
    if (u->gather == 0) return STATUS_OK;
    TRY(ring_await(e, u->gather, 0));
    u->gather = 0;
    return STATUS_OK;
}

static bool overlap(const param_shards *s, int v, int w)
{
    const param_unit *a = &s->units[v], *b = &s->units[w];
    return a->gradients < b->gradients + param_gradients_place(s, w) &&
           b->gradients < a->gradients + param_gradients_place(s, v);
}

/* The place of a unit's gradients is free when those that were there have been reduced. */
static status free_gradients(ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    for (int v = 0; v < s->unit_count; v++)
        while (v != unit && e->shards.units[v].reducing && overlap(s, v, unit))
            TRY(ring_await_bucket(e));
    return STATUS_OK;
}

/* Before a pass first uses a unit. */
static status begin_unit(ring_engine *e, int unit)
{
    const param_shards *s = shards_of(e);
    ring_unit *u = &e->shards.units[unit];
    int position = s->units[unit].position[e->shards.pass];
    if (s->config.stage == PARAM_SHARD_ALL) {
        TRY(gather(e, position)); /* posted by the unit before it */
        TRY(gather(e, position + 1));
    }
    TRY(await_gather(e, u));
    if (is_mixed(e) && !u->present) TRY(widen_unit(e, unit));
    u->present = param_shards_place_params(&s->config);
    if (e->shards.pass == PARAM_FORWARD || !param_shards_place_gradients(&s->config)) return STATUS_OK;
    TRY(free_gradients(e, unit));
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
    bool stays = e->shards.pass == PARAM_FORWARD && s->config.keeps && s->units[s->unit_of[param]].uses[PARAM_BACKWARD] > 0;
    if (--u->left > 0 || !u->present || stays) return STATUS_OK;
    u->present = false;
    count_gathered(e, s->unit_of[param], ledger_release);
    return STATUS_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

void ring_scatter_posted(ring_engine *e, int k)
{
    e->shards.units[unit_of_bucket(e, k)].reducing = true;
}

status ring_scatter_done(ring_engine *e, int k)
{
    int unit = unit_of_bucket(e, k);
    const param_unit *u = &shards_of(e)->units[unit];
    e->shards.units[unit].reducing = false;
    if (!param_shards_place_gradients(&shards_of(e)->config)) return STATUS_OK;
    count_gradients(e, unit, ledger_release);
    if (is_mixed(e) || scatters_to_shard(e)) return STATUS_OK;
    char *sum = element(e, &set_of(e)->grad_shards, u->at);
    void *operands[OP_MAX_OPERANDS] = {[ADD_A] = sum,
                                       [ADD_B] = reduced_part(e, unit),
                                       [ADD_Y] = sum};
    return device_launch(e->base.context.compute, e->shards.units[unit].adder, operands, &(op_scalars){0},
                         NULL);
}

/* ---- the update ------------------------------------------------------------------------------- */

/* This rank's shards of a unit, as arenas of shards: of reduced gradients, of parameters. */
static char *as_shards(const ring_engine *e, const device_memory *memory, bool cut, int unit)
{
    return element(e, memory,
                   cut ? 0 : param_shard_of(shards_of(e), unit).offset - shards_of(e)->units[unit].at);
}

static char *gradient_shards(const ring_engine *e, int unit)
{
    bool cut = e->settings.sharding >= PARAM_SHARD_GRADIENTS;
    return as_shards(e, cut ? &set_of(e)->grad_shards : &set_of(e)->grads, cut, unit);
}

/* The same as updates read them. */
static status update_gradients(ring_engine *e, int unit, char **out)
{
    const param_unit *u = &shards_of(e)->units[unit];
    *out = gradient_shards(e, unit);
    if (!is_mixed(e)) return STATUS_OK;
    char *from = *out + u->at * size_of(e);
    *out = (char *)e->shards.update.data - u->at * wide_size(e);
    return copy_elements(e, e->shards.update.data, set_of(e)->type, from, set_of(e)->sent, u->shard);
}

static piece_list pieces_of(const ring_engine *e, int unit)
{
    const param_unit *u = &shards_of(e)->units[unit];
    return (piece_list){shards_of(e)->pieces + u->first, u->count};
}

/* The squared norm of the average: of this rank's shards, then of all. */
static status sum_squares(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    e->compute.norm_scratch = 0;
    for (int u = 0; u < shards_of(e)->unit_count; u++) {
        char *grads;
        if (pieces_of(e, u).count == 0) continue;
        TRY(update_gradients(e, u, &grads));
        TRY(optimizer_sum_squares(c->optimizer, c->compute, grads, pieces_of(e, u), &e->compute.norm_scratch));
    }
    if (e->stream)
        return device_upload(c->compute, e->memory.group, &e->compute.norm_scratch, DTYPE_F64, DTYPE_F64, 1);
    *e->memory.group = e->compute.norm_scratch;
    return STATUS_OK;
}

static status read_norm(ring_engine *e)
{
    if (!e->stream) {
        e->compute.norm_scratch = *e->memory.group;
        return STATUS_OK;
    }
    TRY(device_download(e->base.context.compute, &e->compute.norm_scratch, e->memory.group, DTYPE_F64,
                        DTYPE_F64, 1));
    return device_stream_synchronize(e->base.context.compute);
}

static status update_unit(ring_engine *e, const sync_step *step, int unit, double scale)
{
    const sync_context *c = &e->base.context;
    bool cut = e->settings.sharding == PARAM_SHARD_ALL;
    char *grads, *params = is_mixed(e) ? set_of(e)->masters.data : as_shards(e, &set_of(e)->params, cut, unit);
    if (pieces_of(e, unit).count == 0) return STATUS_OK;
    TRY(update_gradients(e, unit, &grads));
    TRY(optimizer_update(c->optimizer, c->compute, params, grads, pieces_of(e, unit), step->index - step->skipped,
                         step->learning_rate, scale));
    return is_mixed(e) ? round_unit(e, unit) : STATUS_OK;
}

static status await_gathers(ring_engine *e)
{
    for (int u = 0; u < shards_of(e)->unit_count; u++) TRY(await_gather(e, &e->shards.units[u]));
    return STATUS_OK;
}

status ring_update_shards(ring_engine *e, const sync_step *step)
{
    double scale = 1.0;
    bool skipped = false;
    if (!e->shards.updating) {
        TRY(await_gathers(e)); /* of what the forward pass did not use */
        TRY(sync_begin_update(&e->base, step));
        if (sync_update_needs_norm(&e->base)) TRY(sum_squares(e));
    }
    e->shards.updating = true;
    if (sync_update_needs_norm(&e->base)) {
        TRY(ring_run_job(e, RING_JOB_NORM, 1));
        TRY(read_norm(e));
        TRY(sync_scale_update(&e->base, step, e->compute.norm_scratch, &scale, &skipped));
    }
    e->shards.updating = false;
    for (int u = 0; u < shards_of(e)->unit_count && !skipped; u++) TRY(update_unit(e, step, u, scale));
    status rc = sync_end_update(&e->base, step, skipped);
    return rc == STATUS_OK ? gather_updated(e)
                           : ring_give_up(e, rc); /* peers have other shards, and see nothing */
}

/* ---- between steps ---------------------------------------------------------------------------- */

static void count_whole(ring_engine *e,
                        void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    change(e->base.context.ledger, LEDGER_GATHERED, set_of(e)->logical_bytes, set_of(e)->arena_elements * wide_size(e));
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

status ring_flush_shards(ring_engine *e)
{
    if (!shards_of(e)) return STATUS_OK;
    return await_gathers(e);
}

void ring_drop_whole(ring_engine *e)
{
    if (!e->shards.holds) return;
    param_set_drop_whole(set_of(e));
    count_whole(e, ledger_release);
    e->shards.holds = false;
    e->shards.held = 0;
}

/* Where gradients are cut or bfloat16, shards in an arena of their own, laid out like the parameters: only verification
 * asks for it. */
const void *ring_reduced_shards(ring_engine *e, piece_list *owned)
{
    const param_shards *s = shards_of(e);
    const sync_context *c = &e->base.context;
    *owned = (piece_list){s->own, s->piece_count};
    bool cut = e->settings.sharding >= PARAM_SHARD_GRADIENTS;
    if (!cut && !is_mixed(e)) return set_of(e)->grads.data;
    device_memory *out = &e->shards.reduced;
    size_t bytes = (size_t)set_of(e)->arena_elements * (size_t)wide_size(e);
    status rc = out->bytes > 0 ? STATUS_OK : device_allocate(c->device, DEVICE_MEMORY_PRIVATE, bytes, out);
    for (int i = 0; i < s->piece_count && rc == STATUS_OK; i++)
        rc = device_convert(c->compute, wide_element(e, out, s->own[i].offset), set_of(e)->type,
                            cut ? element(e, &set_of(e)->grad_shards, s->pieces[i].offset)
                                : element(e, &set_of(e)->grads, s->own[i].offset),
                            set_of(e)->sent, s->own[i].count, 1);
    return rc == STATUS_OK ? out->data : NULL;
}
