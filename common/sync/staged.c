#include "common/sync/staged.h"

#include "common/sync/staging.h"

#include <stdlib.h>
#include <string.h>

enum { ITEM_BUFFERS = -1 }; /* of what comes down; others are parameters, whose gradients do */

typedef struct staged_engine {
    sync_engine base; /* the context is the device's */
    sync_engine *inner;
    device *host;
    device_stream *host_stream, *copies; /* the mirror's; gradients on their way down */
    param_set *mirror;
    optimizer *optimizer; /* NULL: the device's own serves */
    device_fence *computed; /* gradients: the compute stream has come to so many */
    sync_handover arrived;  /* gradients and buffers on their way down */
    bool *uploaded;         /* [param_count] in this step */
    double *sums;           /* [sum_capacity] a layer's sums over the ranks */
    int sum_capacity;
    sync_step step;
} staged_engine;

static staged_engine *staged_of(sync_engine *e)
{
    return (staged_engine *)e;
}

static int param_count(const staged_engine *e)
{
    return e->mirror->model->param_count;
}

/* ---- copies ----------------------------------------------------------------------------------- */

static char *at(const param_set *set, const device_memory *arena, piece p)
{
    return (char *)arena->data + p.offset * dtype_size(set->type);
}

static status up(staged_engine *e, device_memory *to, const device_memory *from, piece p)
{
    const sync_context *c = &e->base.context;
    return device_upload(c->compute, at(c->params, to, p), at(e->mirror, from, p), c->params->type, c->params->type,
                         p.count);
}

static status down(staged_engine *e, device_stream *s, device_memory *to, const device_memory *from, piece p)
{
    const param_set *set = e->base.context.params;
    return device_download(s, at(e->mirror, to, p), at(set, from, p), set->type, set->type, p.count);
}

static piece all_params(const staged_engine *e)
{
    return (piece){0, e->mirror->arena_elements};
}

static piece all_buffers(const staged_engine *e)
{
    return (piece){0, e->mirror->buffer_elements};
}

static bool has_buffers(const staged_engine *e)
{
    return e->mirror->buffer_elements > 0;
}

static int states(const staged_engine *e)
{
    return e->optimizer ? optimizer_state_count(optimizer_get_options(e->optimizer)) : 0;
}

/* Everything that a checkpoint or an evaluation reads, or that one has brought. */
static status all_up(staged_engine *e)
{
    const sync_context *c = &e->base.context;
    TRY(up(e, &c->params->params, &e->mirror->params, all_params(e)));
    if (has_buffers(e)) TRY(up(e, &c->params->buffers, &e->mirror->buffers, all_buffers(e)));
    for (int i = 0; i < states(e); i++)
        TRY(up(e, optimizer_state(c->optimizer, i), optimizer_state(e->optimizer, i), all_params(e)));
    return device_stream_synchronize(c->compute);
}

static status all_down(staged_engine *e)
{
    const sync_context *c = &e->base.context;
    TRY(down(e, c->compute, &e->mirror->params, &c->params->params, all_params(e)));
    if (has_buffers(e)) TRY(down(e, c->compute, &e->mirror->buffers, &c->params->buffers, all_buffers(e)));
    for (int i = 0; i < states(e); i++)
        TRY(down(e, c->compute, optimizer_state(e->optimizer, i), optimizer_state(c->optimizer, i), all_params(e)));
    return device_stream_synchronize(c->compute);
}

/* ---- life ------------------------------------------------------------------------------------- */

static status pin(staged_engine *e, const device_memory *memory)
{
    return memory->data ? device_pin(e->base.context.device, memory->data, memory->bytes) : STATUS_OK;
}

static void unpin(staged_engine *e, const device_memory *memory)
{
    if (memory->data) device_unpin(e->base.context.device, memory->data);
}

static status open_mirror(staged_engine *e, const sync_requirements *needs, int threads)
{
    const sync_context *c = &e->base.context;
    const nn_model *m = c->params->model;
    device_config config = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = threads};
    param_set_config arenas = {.param_kind = needs->param_kind,
                               .grad_kind = needs->grad_kind,
                               .buffer_kind = needs->buffer_kind,
                               .gradients = true};
    TRY(device_open(&config, &e->host));
    TRY(device_stream_open(e->host, DEVICE_STREAM_COMPUTE, &e->host_stream));
    TRY(param_set_open(e->host, m, c->program, &arenas, &e->mirror));
    if (e->mirror->arena_elements != c->params->arena_elements || e->mirror->type != c->params->type)
        return fail(STATUS_INTERNAL, "the mirror of %s on the host has another shape", m->name);
    if (needs->updates_in_front) return STATUS_OK;
    return optimizer_open(e->host, optimizer_get_options(c->optimizer), e->mirror->type, e->mirror->arena_elements,
                          c->params->logical_bytes / dtype_size(c->params->type), c->ledger, &e->optimizer);
}

static status open_traffic(staged_engine *e)
{
    const sync_context *c = &e->base.context;
    size_t params = (size_t)param_count(e) + 1;
    for (int i = 0; i < c->program->op_count; i++)
        if (c->program->ops[i].group_reduce > e->sum_capacity) e->sum_capacity = c->program->ops[i].group_reduce;
    e->uploaded = calloc(params, sizeof *e->uploaded);
    e->sums = calloc((size_t)e->sum_capacity + 1, sizeof *e->sums);
    if (!e->uploaded || !e->sums) return fail(STATUS_SYSTEM, "no memory for an engine's mirror");
    TRY(device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &e->copies));
    TRY(device_fence_open(c->device, &e->computed));
    TRY(sync_handover_open(c->device, param_count(e) + 2, &e->arrived));
    TRY(pin(e, &e->mirror->params));
    TRY(pin(e, &e->mirror->grads));
    return pin(e, &e->mirror->buffers);
}

static void staged_close(sync_engine *base)
{
    staged_engine *e = staged_of(base);
    if (e->copies) device_stream_synchronize(e->copies);
    if (e->inner) e->inner->type->close(e->inner);
    optimizer_close(&e->optimizer);
    if (e->mirror && e->arrived.fence) {
        unpin(e, &e->mirror->params);
        unpin(e, &e->mirror->grads);
        unpin(e, &e->mirror->buffers);
    }
    param_set_close(&e->mirror);
    device_stream_close(&e->host_stream);
    device_close(&e->host);
    device_fence_close(&e->computed);
    sync_handover_close(&e->arrived);
    device_stream_close(&e->copies);
    free(e->uploaded);
    free(e->sums);
    free(e);
}

static status staged_handshake(sync_engine *base, sync_blob *out)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->handshake(inner, out);
}

static status staged_connect(sync_engine *base, const sync_blob *handshakes)
{
    staged_engine *e = staged_of(base);
    TRY(all_down(e));
    return e->inner->type->connect(e->inner, handshakes);
}

/* ---- stages ----------------------------------------------------------------------------------- */

static status staged_plan_batch(sync_engine *base, const sync_step *step, int64_t batch, sync_batch *out)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->plan_batch(inner, step, batch, out);
}

static status staged_scatter_inputs(sync_engine *base, const sync_step *step)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->scatter_inputs(inner, step);
}

static status staged_begin_forward(sync_engine *base, const sync_step *step)
{
    staged_engine *e = staged_of(base);
    e->step = *step;
    memset(e->uploaded, 0, (size_t)param_count(e) * sizeof *e->uploaded);
    TRY(e->inner->type->begin_forward(e->inner, step));
    return has_buffers(e) ? up(e, &base->context.params->buffers, &e->mirror->buffers, all_buffers(e)) : STATUS_OK;
}

static status staged_need(sync_engine *base, int param)
{
    staged_engine *e = staged_of(base);
    TRY(e->inner->type->need(e->inner, param));
    if (e->uploaded[param]) return STATUS_OK;
    e->uploaded[param] = true;
    return up(e, &base->context.params->params, &e->mirror->params, e->mirror->pieces[param]);
}

static status staged_loss(sync_engine *base, const sync_step *step, double *normalizer, bool *here)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->loss(inner, step, normalizer, here);
}

static status staged_scatter_output_gradient(sync_engine *base, const sync_step *step)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->scatter_output_gradient(inner, step);
}

static status take_item(staged_engine *e, int item)
{
    if (item == ITEM_BUFFERS) return e->inner->type->place_outputs(e->inner, &e->step);
    return e->inner->type->ready(e->inner, item);
}

/* Hands over what is down by now. */
static status tell(staged_engine *e)
{
    int item;
    while (sync_handover_pop(&e->arrived, &item)) TRY(take_item(e, item));
    return STATUS_OK;
}

/* Copies to the host what the compute stream has done by then, while the stream goes on. */
static status bring_down(staged_engine *e, int item, device_memory *to, const device_memory *from, piece p)
{
    uint64_t number = e->arrived.added + 1;
    TRY(device_stream_signal(e->base.context.compute, e->computed, number));
    TRY(device_stream_wait(e->copies, e->computed, number));
    TRY(down(e, e->copies, to, from, p));
    TRY(sync_handover_add(&e->arrived, e->copies, item));
    return tell(e);
}

/* Engines send rank 0's buffers when they are told of the outputs: they are down then, as this forward pass has left
 * them, and before any gradient. */
static status staged_place_outputs(sync_engine *base, const sync_step *step)
{
    staged_engine *e = staged_of(base);
    e->step = *step;
    if (!has_buffers(e)) return e->inner->type->place_outputs(e->inner, step);
    return bring_down(e, ITEM_BUFFERS, &e->mirror->buffers, &base->context.params->buffers, all_buffers(e));
}

static status staged_ready(sync_engine *base, int param)
{
    staged_engine *e = staged_of(base);
    if (!e->step.synchronize) return e->inner->type->ready(e->inner, param);
    return bring_down(e, param, &e->mirror->grads, &base->context.params->grads, e->mirror->pieces[param]);
}

/* Everything is handed over as it comes down. */
static status tell_all(staged_engine *e)
{
    int item;
    bool found;
    TRY(sync_handover_await(&e->arrived, e->copies, &item, &found));
    while (found) {
        TRY(take_item(e, item));
        TRY(sync_handover_await(&e->arrived, e->copies, &item, &found));
    }
    return STATUS_OK;
}

static status staged_finish(sync_engine *base, const sync_step *step)
{
    staged_engine *e = staged_of(base);
    TRY(tell_all(e));
    return e->inner->type->finish(e->inner, step);
}

static status staged_flush(sync_engine *base)
{
    staged_engine *e = staged_of(base);
    TRY(e->inner->type->flush(e->inner));
    return all_up(e);
}

static status staged_group_sum(sync_engine *base, double *values, int count)
{
    staged_engine *e = staged_of(base);
    device_stream *s = base->context.compute;
    if (count > e->sum_capacity)
        return fail(STATUS_INTERNAL, "a sum over the ranks of %d values; %d were announced", count, e->sum_capacity);
    TRY(device_download(s, e->sums, values, DTYPE_F64, DTYPE_F64, count));
    TRY(device_stream_synchronize(s));
    TRY(e->inner->type->group_sum(e->inner, e->sums, count));
    return device_upload(s, values, e->sums, DTYPE_F64, DTYPE_F64, count);
}

static const void *staged_reduced_gradients(sync_engine *base, piece_list *owned)
{
    sync_engine *inner = staged_of(base)->inner;
    return inner->type->reduced_gradients(inner, owned);
}

static void staged_counters(sync_engine *base, sync_counters *out)
{
    sync_engine *inner = staged_of(base)->inner;
    inner->type->counters(inner, out);
}

/* ---- open ------------------------------------------------------------------------------------- */

static status no_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    (void)options, (void)policy, (void)world, (void)out;
    return fail(STATUS_INTERNAL, "the requirements are those of the engine behind the mirror");
}

static status no_open(const sync_context *context, sync_engine **out)
{
    (void)context, (void)out;
    return fail(STATUS_INTERNAL, "a mirror is opened with the engine that works on it");
}

static const sync_engine_type sync_staged = {
    .name = "staged",
    .requirements = no_requirements,
    .open = no_open,
    .handshake = staged_handshake,
    .connect = staged_connect,
    .close = staged_close,
    .plan_batch = staged_plan_batch,
    .scatter_inputs = staged_scatter_inputs,
    .begin_forward = staged_begin_forward,
    .need = staged_need,
    .place_outputs = staged_place_outputs,
    .loss = staged_loss,
    .scatter_output_gradient = staged_scatter_output_gradient,
    .ready = staged_ready,
    .finish = staged_finish,
    .flush = staged_flush,
    .group_sum = staged_group_sum,
    .reduced_gradients = staged_reduced_gradients,
    .counters = staged_counters,
};

status sync_staged_open(const sync_context *context, const sync_engine_type *type, const sync_requirements *needs,
                        int threads, sync_engine **out)
{
    *out = NULL;
    if (needs->whole_batch || needs->one_loss)
        return fail(STATUS_CONFIG,
                    "policy %s of engine %s: expected a device whose memory the host can read, got "
                    "%s; use another policy (ps=sync)",
                    context->policy, type->name, device_get_info(context->device)->name);
    staged_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for an engine");
    e->base = (sync_engine){.type = &sync_staged, .context = *context};
    status rc;
    TRY_GOTO(rc, open_mirror(e, needs, threads), failed);
    TRY_GOTO(rc, open_traffic(e), failed);
    sync_context inner = *context;
    inner.device = e->host;
    inner.compute = e->host_stream;
    inner.params = e->mirror;
    inner.optimizer = e->optimizer ? e->optimizer : context->optimizer;
    inner.front = &e->base.context;
    inner.recorder = NULL; /* what is recorded is the device's */
    TRY_GOTO(rc, type->open(&inner, &e->inner), failed);
    *out = &e->base;
    return STATUS_OK;
failed:
    staged_close(&e->base);
    return rc;
}

sync_engine *sync_staged_inner(sync_engine *e)
{
    return e->type == &sync_staged ? staged_of(e)->inner : e;
}
