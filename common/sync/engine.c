#include "common/sync/engine.h"

#include "common/trace/trace.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "common/sync/staged.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

/* Functions that implement an interface rarely need all parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static const char *const divide_names[] = {"policy", "before", "after", NULL};

static const option option_list[] = {
    {"divide", OPTION_CHOICE, offsetof(shared_options, divide), .initial = "policy", .choices = divide_names,
     .level = OPTION_RARE, .help = "divide gradients by the number of ranks before or after they are summed"},
    {"stall-timeout", OPTION_DURATION, offsetof(shared_options, stall_timeout_ns), .argument = "TIME",
     .level = OPTION_RARE, .initial = "60s", .low = 1e6,
     .help = "how long ranks wait for a rank without progress; until step 0, at least --connect-timeout"},
    {"link", OPTION_TEXT, offsetof(shared_options, link), .argument = "RATE,LATENCY",
     .help = "emulate a slower network between the ranks, as in 10Gbit/s,50us; sim: of each network adapter"},
    {"slow", OPTION_TEXT, offsetof(shared_options, slow), .argument = "RANK:FACTOR,...",
     .help = "stretch the computation of these ranks"},
};
const option_table shared_option_table = {"Synchronization", option_list,
                                          sizeof option_list / sizeof option_list[0]};

status sync_default_call(sync_engine *e, const sync_step *step)
{
    return STATUS_OK;
}

status sync_default_param(sync_engine *e, int param)
{
    return STATUS_OK;
}

status sync_default_flush(sync_engine *e)
{
    return STATUS_OK;
}

void sync_default_end_step(sync_engine *e)
{
}

/* ---- calls (staged.c copies the data if the engine works on a staged copy) ------------------------- */

/* Returns the compute stream that is the lane (anatomy.h). If the engine works on a staged copy, the lane
 * is the compute stream of the GPU, else the compute stream of the engine. */
static device_stream *lane_of(const sync_context *c)
{
    return c->gpu ? c->gpu->compute : c->compute;
}

status sync_open(const sync_engine_type *type, const sync_context *context, sync_engine **out)
{
    sync_context own = *context;
    *out = NULL;
    if (own.compute)
        TRY(anatomy_open(lane_of(&own), own.trace, own.params->model->param_count, own.micro_batches,
                         own.job_world ? own.job_world : own.world, &own.anatomy));
    status rc = type->open(&own, out);
    if (rc != STATUS_OK) anatomy_close(&own.anatomy);
    return rc;
}

status sync_handshake(sync_engine *e, sync_blob *out)
{
    *out = (sync_blob){NULL, 0};
    return e->type->handshake(e, out);
}

status sync_connect(sync_engine *e, const sync_blob *handshakes)
{
    if (e->staged) TRY(sync_staged_connect(e->staged));
    return e->type->connect(e, handshakes);
}

void sync_close(sync_engine **e)
{
    if (!*e) return;
    struct sync_staged *staged = (*e)->staged;
    anatomy *a = (*e)->context.anatomy;
    if (staged) sync_staged_stop(staged);
    (*e)->type->close(*e);
    if (staged) sync_staged_close(staged);
    anatomy_close(&a);
    *e = NULL;
}

status sync_begin_forward(sync_engine *e, const sync_step *step)
{
    TRY(e->type->begin_forward(e, step));
    return e->staged ? sync_staged_begin_forward(e->staged, step) : STATUS_OK;
}

status sync_need(sync_engine *e, int param)
{
    TRY(e->type->need(e, param));
    return e->staged ? sync_staged_need(e->staged, param) : STATUS_OK;
}

status sync_end_forward(sync_engine *e, const sync_step *step)
{
    return e->staged ? sync_staged_end_forward(e->staged, step) : e->type->end_forward(e, step);
}

status sync_ready(sync_engine *e, int param)
{
    return e->staged ? sync_staged_ready(e->staged, param) : e->type->ready(e, param);
}

status sync_reduce(sync_engine *e, const sync_step *step)
{
    if (e->staged) TRY(sync_staged_reduce(e->staged));
    return e->type->reduce(e, step);
}

status sync_flush(sync_engine *e)
{
    TRY(e->type->flush(e));
    return e->staged ? sync_staged_flush(e->staged) : STATUS_OK;
}

status sync_gather_parameters(sync_engine *e)
{
    return e->type->gather_parameters(e);
}

status sync_group_sum(sync_engine *e, double *values, int count)
{
    return e->staged ? sync_staged_group_sum(e->staged, values, count) : e->type->group_sum(e, values, count);
}

const void *sync_reduced_gradients(sync_engine *e, piece_list *owned)
{
    const void *arena = e->type->reduced_gradients(e, owned);
    if (!arena) owned->count = 0;
    return arena;
}

void sync_end_step(sync_engine *e, anatomy_span step, const anatomy_phase *phases, int phase_count,
                   anatomy_figures *out)
{
    e->type->end_step(e);
    anatomy_end_step(e->context.anatomy, step, phases, phase_count, out);
}

void sync_read_counters(sync_engine *e, sync_counters *out)
{
    e->type->counters(e, out);
}

/* ---- gradients in the ledger ------------------------------------------------------------------ */

static void count_gradients(sync_engine *e,
                            void (*change)(ledger *l, ledger_class c, int64_t logical, int64_t reserved))
{
    const param_set *set = e->context.params;
    bool cut = param_set_sharding(set) >= PARAM_SHARD_GRADIENTS;
    int64_t size = dtype_size(set->sent), elements = cut ? set->shards->elements : set->arena_elements;
    int64_t logical = cut ? set->shards->own_elements : set->model->parameter_elements;
    if (set->shards && set->shards->config.accumulates) size += dtype_size(set->type);
    change(e->context.ledger, LEDGER_GRADIENTS, logical * size, elements * size);
}

void sync_hold_gradients(sync_engine *e)
{
    count_gradients(e, ledger_acquire);
}

void sync_drop_gradients(sync_engine *e)
{
    count_gradients(e, ledger_release);
}

/* ---- gradients that are not finite ------------------------------------------------------------ */

static piece common_part(piece a, piece b)
{
    int64_t begin = greatest(a.offset, b.offset), end = least(a.offset + a.count, b.offset + b.count);
    return (piece){begin, greatest(0, end - begin)};
}

status sync_find_nonfinite(optimizer *o, device_stream *s, const param_set *set, const void *grads,
                           piece_list pieces, const char **name)
{
    *name = NULL;
    for (int p = 0; p < set->model->param_count; p++) {
        double sum = 0;
        for (int i = 0; i < pieces.count; i++) {
            piece part = common_part(set->pieces[p], pieces.pieces[i]);
            if (part.count > 0) TRY(optimizer_sum_squares(o, s, grads, (piece_list){&part, 1}, &sum));
        }
        if (isfinite(sum)) continue;
        *name = set->model->params[p].name;
        return STATUS_OK;
    }
    return STATUS_OK;
}

status sync_report_nonfinite(optimizer *o, int64_t step, int rank, const char *name)
{
    char who[32] = "";
    if (rank == SYNC_AVERAGE) snprintf(who, sizeof who, "average over the ranks: ");
    if (rank >= 0) snprintf(who, sizeof who, "rank %d: ", rank);
    if (!name) name = "a parameter";
    if (optimizer_get_options(o)->on_nonfinite == NONFINITE_STOP)
        return fail(STATUS_NONFINITE, "step %" PRId64 ": %sgradient of %s is not finite", step, who, name);
    log_warn("step %" PRId64 ": %sgradient of %s is not finite; further ones are not reported", step, who,
             name);
    return STATUS_OK;
}

static bool is_to_report(const sync_context *c)
{
    bool stops = optimizer_get_options(c->optimizer)->on_nonfinite == NONFINITE_STOP,
         shards = c->params->shards != NULL;
    /* All ranks have the same average, so only rank 0 prints the warning. */
    if (!stops && c->rank != 0 && !shards) return false;
    return optimizer_reports_nonfinite(c->optimizer);
}

/* Reports a gradient that is not finite. If there are shards or stages, the rank that has the gradient
 * reports it. Otherwise rank 0 reports the gradient, or every rank if --on-nonfinite is "stop". */
static status report(sync_engine *e, const sync_step *step)
{
    const sync_context *c = &e->context;
    const char *name;
    piece_list owned = {0};
    bool is_stage = c->job_world && c->job_world != c->world, part = c->params->shards || is_stage;
    if (!is_to_report(c)) return STATUS_OK;
    const void *grads = sync_reduced_gradients(e, &owned);
    TRY(sync_find_nonfinite(c->optimizer, c->compute, c->params, grads, owned, &name));
    return name || !part ? sync_report_nonfinite(c->optimizer, step->index, SYNC_THIS_RANK, name) : STATUS_OK;
}

static const char *name_of_element(const param_set *set, int64_t element)
{
    int p = 0;
    while (p + 1 < set->model->param_count && set->pieces[p].offset + set->pieces[p].count <= element) p++;
    return set->model->params[p].name;
}

/* The next step may have overwritten the gradients, unless they are sharded. Therefore this function gets the
 * index of the first element that is not finite from the optimizer, which has stored the index during the
 * update. */
status sync_check_update(sync_engine *e, const sync_step *step)
{
    const sync_context *c = &e->context;
    if (!e->updated) return STATUS_OK;
    if (c->params->shards) return optimizer_found_nonfinite(c->optimizer) ? report(e, step) : STATUS_OK;
    int64_t element = optimizer_first_nonfinite(c->optimizer, step->index - step->skipped);
    if (element < 0 || !is_to_report(c)) return STATUS_OK;
    return sync_report_nonfinite(c->optimizer, step->index, SYNC_THIS_RANK,
                                 name_of_element(c->params, element));
}

/* ---- the update ------------------------------------------------------------------------------- */

bool sync_skips_nonfinite(const sync_context *c)
{
    return optimizer_get_options(c->optimizer)->on_nonfinite == NONFINITE_SKIP &&
           device_get_info(c->device)->real;
}

int sync_mark_update(int64_t index)
{
    return SYNC_MARK_UPDATE + 2 * (int)(index & 1);
}

status sync_begin_update(sync_engine *e, const sync_step *step)
{
    const sync_context *c = &e->context;
    e->update_begin_ns = device_now_ns(c->device);
    TRY(device_mark(lane_of(c), sync_mark_update(step->index)));
    ledger_enter(c->ledger, LEDGER_PHASE_OPTIMIZER_STEP);
    optimizer_begin_state(c->optimizer);
    return STATUS_OK;
}

bool sync_update_needs_norm(const sync_context *c)
{
    return optimizer_get_options(c->optimizer)->clip_norm > 0 || sync_skips_nonfinite(c);
}

status sync_end_update(sync_engine *e, const sync_step *step, bool skipped)
{
    const sync_context *c = &e->context;
    e->updated = e->updated || !skipped;
    TRY(device_mark(lane_of(c), sync_mark_update(step->index) + 1));
    trace_slice(c->trace, TRACE_OPTIMIZER, "update", TRACE_NO_INDEX, e->update_begin_ns,
                device_now_ns(c->device));
    bool now =
        !skipped && device_get_info(c->device)->host_addressable && optimizer_found_nonfinite(c->optimizer);
    return now ? report(e, step) : STATUS_OK;
}

/* Adds the gradient of each parameter only once. If several stages share a parameter, only the first of these
 * stages adds the gradient. */
status sync_default_norm(sync_engine *e)
{
    const sync_context *c = &e->context;
    const nn_model *m = c->params->model;
    for (int first = 0, end; first < m->param_count; first = end + 1) {
        for (end = first; end < m->param_count && !m->params[end].repeated; end++) {
        }
        if (end > first)
            TRY(optimizer_sum_squares(c->optimizer, c->compute, c->params->grads.data,
                                      param_set_pieces(c->params, first, end - first), &e->square_norm));
    }
    return STATUS_OK;
}

status sync_take_norm(sync_engine *e)
{
    e->square_norm = 0;
    return sync_update_needs_norm(&e->context) ? e->type->norm(e) : STATUS_OK;
}

/* If there is a bfloat16 copy of the parameters, updates the copy in the same pass over memory, so that the
 * next forward pass need not convert the parameters. */
status sync_default_update(sync_engine *e, const sync_step *step, double scale, bool skipped)
{
    const sync_context *c = &e->context;
    param_set *set = c->params;
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    int64_t update = step->index - step->skipped;
    if (!skipped && set->bf16_copy.data) {
        TRY(optimizer_update_bf16(c->optimizer, c->compute, set->params.data, set->bf16_copy.data,
                                  set->grads.data, all, update, step->learning_rate, scale));
        set->bf16_copy_kept = set->bf16_copy_current = true;
    } else if (!skipped) {
        TRY(optimizer_update(c->optimizer, c->compute, set->params.data, set->grads.data, all, update,
                             step->learning_rate, scale));
    }
    return sync_end_update(e, step, skipped);
}

status sync_update(sync_engine *e, const sync_step *step)
{
    optimizer *o = e->context.optimizer;
    double clip_norm = optimizer_get_options(o)->clip_norm;
    double scale = clip_norm > 0 ? optimizer_clip_scale(clip_norm, e->square_norm) : 1.0;
    bool skipped = sync_skips_nonfinite(&e->context) && !isfinite(e->square_norm);
    if (skipped) {
        optimizer_skip(o);
        TRY(report(e, step));
    }
    return e->type->update(e, step, scale, skipped);
}
