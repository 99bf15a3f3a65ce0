#include "common/sync/staged.h"

#include "common/sync/staging.h"

#include <stdlib.h>
#include <string.h>

/* The item of the handover that represents the buffers. Every other item is the index of a parameter whose
 * gradient is copied to the host. */
enum { ITEM_BUFFERS = -1 };

typedef struct sync_staged {
    sync_engine *engine;
    sync_context gpu; /* context of the GPU */
    device *host;
    device_stream *host_stream;
    param_set *params;    /* arenas on the host */
    optimizer *optimizer; /* NULL if the engine updates the GPU's parameters */
    sync_staging compute,
        copies;             /* streams of the GPU; gradients and buffers are copied to the host on `copies` */
    device_fence *computed; /* fence whose value is the number of items that have been computed */
    sync_handover arrived;
    bool *uploaded; /* [param_count] whether the parameter has been copied to the GPU in this step */
    double *sums;   /* [sum_capacity] host copy of the values that a layer sums over the ranks */
    int sum_capacity;
    sync_step step;
} sync_staged;

/* ---- copies ----------------------------------------------------------------------------------- */

typedef enum direction { UP, DOWN } direction;

static status copy(const sync_staged *g, const sync_staging *on, direction way, const device_memory *device,
                   const device_memory *host, piece p)
{
    int64_t size = dtype_size(g->params->type), at = p.offset * size, bytes = p.count * size;
    if (bytes == 0) return STATUS_OK;
    if (way == UP) return sync_copy_up(on, (char *)device->data + at, (char *)host->data + at, bytes);
    return sync_copy_down(on, (char *)host->data + at, (char *)device->data + at, bytes);
}

static status copy_buffers(const sync_staged *g, const sync_staging *on, direction way)
{
    return copy(g, on, way, &g->gpu.params->buffers, &g->params->buffers,
                (piece){0, g->params->buffer_elements});
}

/* Copies everything that a checkpoint or an evaluation reads or writes. */
static status copy_all(const sync_staged *g, direction way)
{
    piece all = {0, g->params->arena_elements};
    int states = g->optimizer ? optimizer_state_count(optimizer_get_options(g->optimizer)) : 0;
    TRY(copy(g, &g->compute, way, &g->gpu.params->params, &g->params->params, all));
    TRY(copy_buffers(g, &g->compute, way));
    for (int i = 0; i < states; i++)
        TRY(copy(g, &g->compute, way, optimizer_state(g->gpu.optimizer, i), optimizer_state(g->optimizer, i),
                 all));
    return sync_staging_end(&g->compute);
}

/* Launches the copy of `item` to the host. The copy waits for the work that the compute stream has
 * received so far, but the compute stream does not wait for the copy. */
static status bring_down(sync_staged *g, int item)
{
    uint64_t number = g->arrived.added + 1;
    TRY(device_stream_signal(g->compute.stream, g->computed, number));
    TRY(device_stream_wait(g->copies.stream, g->computed, number));
    if (item == ITEM_BUFFERS)
        TRY(copy_buffers(g, &g->copies, DOWN));
    else
        TRY(copy(g, &g->copies, DOWN, &g->gpu.params->grads, &g->params->grads, g->params->pieces[item]));
    return sync_handover_add(&g->arrived, item);
}

/* Calls the engine's function for an item that has been copied to the host. */
static status take_item(void *context, int item)
{
    const sync_staged *g = context;
    if (item == ITEM_BUFFERS) return g->engine->type->end_forward(g->engine, &g->step);
    return g->engine->type->ready(g->engine, item);
}

/* ---- open and close --------------------------------------------------------------------------- */

static status open_arenas(sync_staged *g, const sync_requirements *needs, int threads)
{
    const sync_context *c = &g->gpu;
    const nn_model *m = c->params->model;
    device_config config = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = threads};
    param_set_config arenas = {.param_kind = needs->param_kind,
                               .grad_kind = needs->grad_kind,
                               .buffer_kind = needs->buffer_kind,
                               .gradients = true};
    TRY(device_open(&config, &g->host));
    TRY(device_stream_open(g->host, DEVICE_STREAM_COMPUTE, &g->host_stream));
    TRY(param_set_open(g->host, m, c->program, &arenas, &g->params));
    if (g->params->arena_elements != c->params->arena_elements || g->params->type != c->params->type)
        return fail(STATUS_INTERNAL, "the staged copy of %s on the host has another shape", m->name);
    if (needs->updates_on_gpu) return STATUS_OK;
    return optimizer_open(g->host, optimizer_get_options(c->optimizer), g->params->type,
                          g->params->arena_elements, c->params->logical_bytes / dtype_size(c->params->type),
                          c->ledger, &g->optimizer);
}

static status pin_arenas(const sync_staged *g, bool pin)
{
    const device_memory *arenas[] = {&g->params->params, &g->params->grads, &g->params->buffers};
    for (int i = 0; i < 3; i++) {
        if (!arenas[i]->data) continue;
        if (pin)
            TRY(device_pin(g->gpu.device, arenas[i]->data, arenas[i]->bytes));
        else
            device_unpin(g->gpu.device, arenas[i]->data);
    }
    return STATUS_OK;
}

static status open_traffic(sync_staged *g)
{
    const sync_context *c = &g->gpu;
    int params = g->params->model->param_count;
    g->sum_capacity = nn_program_largest_sum(c->program);
    g->uploaded = calloc((size_t)params + 1, sizeof *g->uploaded);
    g->sums = calloc((size_t)g->sum_capacity + 1, sizeof *g->sums);
    if (!g->uploaded || !g->sums) return fail(STATUS_SYSTEM, "no memory for an engine's staged copy");
    g->compute = sync_staging_on(c->device, c->compute);
    TRY(device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &g->copies.stream));
    g->copies = sync_staging_on(c->device, g->copies.stream);
    TRY(device_fence_open(c->device, &g->computed));
    TRY(sync_handover_open(&g->copies, params + 2, take_item, g, &g->arrived));
    return pin_arenas(g, true);
}

void sync_staged_close(sync_staged *g)
{
    optimizer_close(&g->optimizer);
    if (g->arrived.items) pin_arenas(g, false);
    param_set_close(&g->params);
    device_stream_close(&g->host_stream);
    device_close(&g->host);
    device_fence_close(&g->computed);
    sync_handover_close(&g->arrived);
    device_stream_close(&g->copies.stream);
    free(g->uploaded);
    free(g->sums);
    free(g);
}

status sync_staged_open(const sync_context *context, const sync_engine_type *type,
                        const sync_requirements *needs, int threads, sync_engine **out)
{
    *out = NULL;
    if (needs->shards.stage != PARAM_SHARD_NONE)
        return fail(STATUS_CONFIG,
                    "policy %s: expected --collective nccl with a GPU whose memory the host cannot reach",
                    context->policy);
    if (needs->whole_batch || needs->one_loss)
        return fail(STATUS_CONFIG,
                    "policy %s of engine %s: expected a device whose memory the host can read, got "
                    "%s; use another policy (ps=sync)",
                    context->policy, type->name, device_get_info(context->device)->name);
    sync_staged *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for an engine");
    g->gpu = *context;
    status rc;
    TRY_GOTO(rc, open_arenas(g, needs, threads), failed);
    TRY_GOTO(rc, open_traffic(g), failed);
    sync_context inner = *context;
    inner.device = g->host;
    inner.compute = g->host_stream;
    inner.params = g->params;
    inner.optimizer = g->optimizer ? g->optimizer : context->optimizer;
    inner.gpu = &g->gpu;
    TRY_GOTO(rc, sync_open(type, &inner, out), failed);
    (*out)->staged = g;
    g->engine = *out;
    return STATUS_OK;
failed:
    sync_staged_close(g);
    return rc;
}

/* ---- calls of engine.c, for an engine on a staged copy ------------------------------------------ */

void sync_staged_stop(sync_staged *g)
{
    device_stream_synchronize(g->copies.stream);
}

status sync_staged_connect(const sync_staged *g)
{
    return copy_all(g, DOWN);
}

status sync_staged_begin_forward(sync_staged *g, const sync_step *step)
{
    g->step = *step;
    memset(g->uploaded, 0, (size_t)g->params->model->param_count * sizeof *g->uploaded);
    return copy_buffers(g, &g->compute, UP);
}

status sync_staged_need(sync_staged *g, int param)
{
    if (g->uploaded[param]) return STATUS_OK;
    g->uploaded[param] = true;
    return copy(g, &g->compute, UP, &g->gpu.params->params, &g->params->params, g->params->pieces[param]);
}

/* Copies the buffers to the host before the engine's end_forward(), which may send the buffers of rank 0.
 * Gradients are copied after the buffers. */
status sync_staged_end_forward(sync_staged *g, const sync_step *step)
{
    if (g->params->buffer_elements == 0) return g->engine->type->end_forward(g->engine, step);
    g->step = *step;
    return bring_down(g, ITEM_BUFFERS);
}

status sync_staged_ready(sync_staged *g, int param)
{
    return g->step.synchronize ? bring_down(g, param) : g->engine->type->ready(g->engine, param);
}

status sync_staged_reduce(sync_staged *g)
{
    return sync_handover_end(&g->arrived);
}

status sync_staged_flush(const sync_staged *g)
{
    return copy_all(g, UP);
}

status sync_staged_group_sum(sync_staged *g, double *values, int count)
{
    int64_t bytes = count * (int64_t)sizeof *values;
    if (count > g->sum_capacity)
        return fail(STATUS_INTERNAL, "a sum over the ranks of %d values; %d were announced", count,
                    g->sum_capacity);
    TRY(sync_copy_down(&g->compute, g->sums, values, bytes));
    TRY(sync_staging_end(&g->compute));
    TRY(g->engine->type->group_sum(g->engine, g->sums, count));
    return sync_copy_up(&g->compute, values, g->sums, bytes);
}
