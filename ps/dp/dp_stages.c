/* The stages: rounds of the star, each waited for. */
#include "ps/dp/dp_impl.h"

#include "common/base/clock.h"
#include "common/net/board.h"
#include "ps/bytes.h"

#include <string.h>

enum { KEY_INPUTS = DP_PIECE_INPUTS, KEY_TARGETS = DP_PIECE_TARGETS };

static const sync_context *context_of(const dp_engine *e)
{
    return &e->base.context;
}

static bool takes_part(const dp_engine *e)
{
    return dp_mine(e)->samples > 0;
}

/* A tensor of `bytes` at `offset` bytes. */
static dp_region plain_region(dp_engine *e, int peer, int kind, void *base, int64_t offset, int64_t bytes)
{
    piece *p = &e->pieces[peer * DP_PIECES + kind];
    *p = (piece){offset, bytes};
    return (dp_region){base, p, 1, 1};
}

static bool shares(const dp_engine *e)
{
    return e->meeting.segments != NULL;
}

static char *segment_of(const dp_engine *e, int peer, int segment)
{
    return ps_meeting_segment(&e->member, &e->meeting, peer, segment);
}

/* ---- the batch -------------------------------------------------------------------------------- */

status dp_plan_batch(sync_engine *base, const sync_step *step, int64_t batch, sync_batch *out)
{
    dp_engine *e = dp_engine_of(base);
    const sync_context *c = context_of(e);
    dp_lives_begin_step(e);
    e->step = step->index;
    *out = (sync_batch){.load = dp_is_root(e) ? batch * c->world : 0, .train = batch};
    e->sums = 0;
    return STATUS_OK;
}

/* torch.chunk: ceil(batch / n) samples each, the last smaller or absent. */
static dp_part part_of(int64_t samples, int world, int rank)
{
    int64_t chunk = (samples + world - 1) / world, first = chunk * rank;
    if (first > samples) first = samples;
    return (dp_part){.first = first, .samples = samples - first < chunk ? samples - first : chunk};
}

void dp_cut(dp_engine *e)
{
    e->present = 0;
    for (int r = 0; r < context_of(e)->world; r++) {
        e->parts[r] = part_of(e->loaded, context_of(e)->world, r);
        e->present += e->parts[r].samples > 0;
    }
}

static int64_t count_targets(const sync_exchange *x, const dp_part *p, bool exist)
{
    int64_t first = p->first * x->targets_each, count = p->samples * x->targets_each, counted = 0;
    if (x->target_type != DTYPE_I32) return count;
    if (!exist) return x->loaded > 0 ? p->samples * x->targets / x->loaded : 0; /* a share of those that were counted */
    const int32_t *targets = (const int32_t *)x->target->data + first;
    for (int64_t i = 0; i < count; i++) counted += targets[i] != LOSS_IGNORE;
    return counted;
}

static void cut_batch(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    e->loaded = x->loaded;
    dp_cut(e);
    for (int r = 0; r < context_of(e)->world; r++)
        e->parts[r].targets = count_targets(x, &e->parts[r], ps_bytes_exist(context_of(e)->device));
}

/* One memory of the batch from rank 0 to `peer`, or here from rank 0. */
static void add_batch(dp_engine *e, int peer, const dp_part *p, int key, int64_t step)
{
    const sync_exchange *x = context_of(e)->exchange;
    bool inputs = key == KEY_INPUTS;
    const device_memory *memory = inputs ? x->input : x->target;
    int64_t each = inputs ? x->input_bytes : x->target_bytes, at = p->first * each;
    dp_item *item = dp_star_add(e->star, dp_is_root(e) ? DP_SEND : DP_RECEIVE, peer, MESSAGE_INPUTS, step, key);
    item->shared = shares(e);
    item->region = plain_region(e, peer, key, memory->data, dp_is_root(e) ? at : 0, p->samples * each);
    if (dp_is_root(e) || !shares(e)) return;
    item->remote = segment_of(e, 0, inputs ? PS_SEGMENT_INPUT : PS_SEGMENT_TARGET) + at;
}

static void add_parts(dp_engine *e, int peer, const dp_part *p, int64_t step)
{
    if (p->samples == 0) return;
    add_batch(e, peer, p, KEY_INPUTS, step);
    if (!dp_one_loss(e)) add_batch(e, peer, p, KEY_TARGETS, step);
}

static status scatter(dp_engine *e, const sync_step *step)
{
    cut_batch(e);
    dp_star_begin(e->star);
    for (int r = 1; r < context_of(e)->world; r++) {
        dp_item *item = dp_star_add(e->star, DP_SEND, r, MESSAGE_CONTROL, step->index, 0);
        item->header.count = e->parts[r].samples;
        item->header.offset = e->gradient_offset;
        item->header.integers[DP_INT_TARGETS] = e->parts[r].targets;
        item->header.integers[DP_INT_TOTAL] = e->loaded;
        item->header.integers[DP_INT_PRESENT] = e->present;
        add_parts(e, r, &e->parts[r], step->index);
    }
    return dp_star_run(e->star, NULL);
}

static status take_part(dp_engine *e, const sync_step *step)
{
    const sync_context *c = context_of(e);
    dp_part *mine = &e->parts[c->rank];
    dp_star_begin(e->star);
    const dp_item *item = dp_star_add(e->star, DP_RECEIVE, 0, MESSAGE_CONTROL, step->index, 0);
    TRY(dp_star_run(e->star, NULL));
    message_header h = item->header;
    e->loaded = h.integers[DP_INT_TOTAL];
    e->present = (int)h.integers[DP_INT_PRESENT];
    e->gradient_offset = h.offset;
    *mine = part_of(e->loaded, c->world, c->rank);
    mine->targets = h.integers[DP_INT_TARGETS];
    if (h.count != mine->samples || e->loaded > c->exchange->largest * c->world)
        return fail(STATUS_PROTOCOL, "rank 0 gives rank %d %lld samples of a batch of %lld, expected are %lld of at most %lld",
                    c->rank, (long long)h.count, (long long)e->loaded, (long long)mine->samples,
                    (long long)c->exchange->largest * c->world);
    dp_star_begin(e->star);
    add_parts(e, 0, mine, step->index);
    return dp_star_run(e->star, NULL);
}

status dp_scatter_inputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(dp_is_root(e) ? scatter(e, step) : take_part(e, step));
    base->context.exchange->samples = dp_mine(e)->samples;
    base->context.exchange->targets = dp_mine(e)->targets;
    return STATUS_OK;
}

/* ---- parameters and buffers -------------------------------------------------------------------- */

static dp_region chunk_region(const dp_engine *e, const dp_chunk *chunk, void *arena)
{
    const param_set *set = context_of(e)->params;
    return (dp_region){arena, set->pieces + chunk->first, chunk->count, (int64_t)e->element};
}

/* Buffers travel in frames: rank 0 changes its own in the forward pass that begins at once. */
static void add_replica(dp_engine *e, int peer, int64_t step)
{
    const param_set *set = context_of(e)->params;
    dp_direction direction = dp_is_root(e) ? DP_SEND : DP_RECEIVE;
    for (int k = 0; k < e->replicate.count; k++) {
        dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_PARAMETERS, step, k);
        item->region = chunk_region(e, &e->replicate.list[k], set->params.data);
        item->shared = shares(e);
        if (!dp_is_root(e)) item->remote = segment_of(e, 0, PS_SEGMENT_PARAMS);
    }
    if (set->model->buffer_count == 0) return;
    dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_BUFFERS, step, 0);
    item->region = (dp_region){set->buffers.data, set->buffer_pieces, set->model->buffer_count, (int64_t)e->element};
}

static status replicate(dp_engine *e, int64_t step, bool to_all)
{
    dp_star_begin(e->star);
    if (!dp_is_root(e)) {
        if (!to_all && !takes_part(e)) return STATUS_OK;
        dp_lives_replicate(e);
        add_replica(e, 0, step);
    }
    for (int r = 1; dp_is_root(e) && r < context_of(e)->world; r++)
        if (to_all || e->parts[r].samples > 0) add_replica(e, r, step);
    return dp_star_run(e->star, NULL);
}

status dp_begin_forward(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    TRY(replicate(e, step->index, false));
    ps_share_interpreter(base->context.device, e->present); /* a thread a replica */
    return STATUS_OK;
}

status dp_settle(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    return replicate(e, DP_SETTLE + e->settles++, true);
}

/* ---- outputs and loss -------------------------------------------------------------------------- */

/* The slice of a part, in the memory of all outputs or of their gradients. */
static dp_item *add_outputs(dp_engine *e, dp_direction direction, int peer, const dp_part *p, message_kind kind,
                            int64_t step, void *base)
{
    int64_t each = context_of(e)->exchange->output_bytes;
    dp_item *item = dp_star_add(e->star, direction, peer, kind, step, 0);
    item->shared = shares(e);
    item->region = plain_region(e, peer, DP_PIECE_OUTPUTS, base, dp_is_root(e) ? p->first * each : 0, p->samples * each);
    return item;
}

static int64_t output_bytes(const dp_engine *e, int64_t samples)
{
    return samples * context_of(e)->exchange->output_bytes;
}

status dp_place_outputs(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    ps_share_interpreter(base->context.device, 1);
    if (!dp_one_loss(e) || !takes_part(e)) return STATUS_OK;
    dp_lives_gather(e);
    dp_star_begin(e->star);
    if (dp_is_root(e)) {
        ps_move(base->context.device, x->all_outputs, x->output, (size_t)output_bytes(e, dp_mine(e)->samples));
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_RECEIVE, r, &e->parts[r], MESSAGE_OUTPUTS, step->index, x->all_outputs);
    } else {
        dp_item *item = add_outputs(e, DP_SEND, 0, dp_mine(e), MESSAGE_OUTPUTS, step->index, x->output);
        if (shares(e)) item->remote = segment_of(e, 0, PS_SEGMENT_OUTPUTS) + output_bytes(e, dp_mine(e)->first);
    }
    return dp_star_run(e->star, NULL);
}

status dp_loss(sync_engine *base, const sync_step *step, double *normalizer, bool *here)
{
    dp_engine *e = dp_engine_of(base);
    int64_t targets = step->targets;
    if (dp_one_loss(e)) {
        targets = 0;
        for (int r = 0; r < base->context.world; r++) targets += e->parts[r].targets;
    }
    dp_lives_log_softmax(e);
    ledger_enter(base->context.ledger, LEDGER_PHASE_LOSS_GRADIENT);
    dp_lives_loss_gradients(e);
    *normalizer = targets > 0 ? (double)targets : 1.0;
    *here = dp_one_loss(e) ? dp_is_root(e) : takes_part(e);
    return STATUS_OK;
}

status dp_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_exchange *x = base->context.exchange;
    if (!dp_one_loss(e) || !takes_part(e)) return STATUS_OK;
    dp_lives_end_loss(e);
    dp_star_begin(e->star);
    if (dp_is_root(e)) {
        ps_move(base->context.device, x->output_gradient, x->all_gradients, (size_t)output_bytes(e, dp_mine(e)->samples));
        for (int r = 1; r < e->present; r++)
            add_outputs(e, DP_SEND, r, &e->parts[r], MESSAGE_OUTPUT_GRADIENT, step->index, x->all_gradients);
    } else {
        dp_lives_take_gradient(e);
        dp_item *item = add_outputs(e, DP_RECEIVE, 0, dp_mine(e), MESSAGE_OUTPUT_GRADIENT, step->index, x->output_gradient);
        if (shares(e))
            item->remote = segment_of(e, 0, PS_SEGMENT_OUTPUTS) + e->gradient_offset + output_bytes(e, dp_mine(e)->first);
    }
    return dp_star_run(e->star, NULL);
}

/* ---- gradients -------------------------------------------------------------------------------- */

status dp_ready(sync_engine *base, int param)
{
    dp_lives_gradient_ready(dp_engine_of(base), param);
    return STATUS_OK;
}

static status reduce(dp_engine *e, const sync_step *step)
{
    const param_set *set = context_of(e)->params;
    dp_sum sum = {.type = set->type,
                  .own = set->grads.data,
                  .out = dp_lean(e) ? set->grads.data : e->results.data,
                  .keys = e->reduce.count,
                  .present = e->present,
                  .divides = !dp_one_loss(e),
                  .divide_before = e->policy.divide_before};
    dp_star_begin(e->star);
    for (int k = 0; k < e->reduce.count; k++) {
        for (int r = 1; dp_is_root(e) && r < e->present; r++) {
            dp_item *item = dp_star_add(e->star, DP_REDUCE, r, MESSAGE_PUSH, step->index, k);
            item->region = chunk_region(e, &e->reduce.list[k], set->grads.data);
            item->shared = shares(e);
            item->remote = segment_of(e, r, PS_SEGMENT_GRADS);
        }
        if (dp_is_root(e)) continue;
        dp_item *item = dp_star_add(e->star, DP_SEND, 0, MESSAGE_PUSH, step->index, k);
        item->region = chunk_region(e, &e->reduce.list[k], set->grads.data);
        item->shared = shares(e);
    }
    TRY(dp_star_run(e->star, &sum));
    if (dp_is_root(e) && e->present == 1 && !dp_lean(e))
        ps_move(context_of(e)->device, sum.out, sum.own, (size_t)set->arena_elements * e->element); /* nobody to add up with */
    return STATUS_OK;
}

status dp_finish(sync_engine *base, const sync_step *step)
{
    dp_engine *e = dp_engine_of(base);
    const sync_context *c = context_of(e);
    if (!step->synchronize)
        return fail(STATUS_CONFIG, "policy dp: found a batch that only accumulates, allowed is one that ends a step");
    if (takes_part(e)) {
        dp_lives_begin_reduce(e);
        TRY(reduce(e, step));
        dp_lives_reduced(e);
    }
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    dp_lives_end_reduce(e);
    if (!dp_is_root(e)) return STATUS_OK;
    if (e->policy.keep_grads)
        ps_move(c->device, e->kept.data, dp_lean(e) ? c->params->grads.data : e->results.data,
               (size_t)c->params->arena_elements * e->element);
    return sync_update_parameters(base, step, dp_final_gradients(e)->data, &e->norm_scratch, &e->optimizer_ns);
}

/* ---- layers that need other ranks -------------------------------------------------------------- */

static void add_sum(dp_engine *e, dp_direction direction, int peer, int64_t number, double *values, int count, int64_t step)
{
    dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_SUM, step, number);
    item->region = plain_region(e, peer, DP_PIECE_SUMS, values, 0, count * (int64_t)sizeof *values);
}

status dp_group_sum(sync_engine *base, double *values, int count)
{
    dp_engine *e = dp_engine_of(base);
    int64_t number = e->sums++, step = e->step;
    if (e->present < 2) return STATUS_OK;
    dp_star_begin(e->star);
    if (!dp_is_root(e)) {
        add_sum(e, DP_SEND, 0, number, values, count, step);
        TRY(dp_star_run(e->star, NULL));
        dp_star_begin(e->star);
        add_sum(e, DP_RECEIVE, 0, number, values, count, step);
        return dp_star_run(e->star, NULL);
    }
    for (int r = 1; r < e->present; r++)
        add_sum(e, DP_RECEIVE, r, number, e->shares + (int64_t)r * e->largest_sum, count, step);
    TRY(dp_star_run(e->star, NULL));
    bool exist = ps_bytes_exist(context_of(e)->device);
    for (int r = 1; exist && r < e->present; r++)
        for (int i = 0; i < count; i++) values[i] += e->shares[(int64_t)r * e->largest_sum + i];
    dp_star_begin(e->star);
    for (int r = 1; r < e->present; r++) add_sum(e, DP_SEND, r, number, values, count, step);
    return dp_star_run(e->star, NULL);
}
