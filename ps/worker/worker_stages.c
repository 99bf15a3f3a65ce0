/* A worker's stages: what the compute thread does. It posts events and waits on fences. */
#include "ps/compute.h"
#include "ps/worker/worker_impl.h"

#include <string.h>

static status post(ps_worker *w, worker_event kind, int index, int64_t value)
{
    sync_event event = {.kind = kind, .index = index, .value = value};
    if (!event_queue_post(&w->events, event))
        return fail(STATUS_INTERNAL, "parameter server: the queue of %u events is full", w->events.capacity);
    return STATUS_OK;
}

/* Counts how long the compute stream waits; may be left with STATUS_AGAIN and entered again. */
static status wait_for(ps_worker *w, device_fence *fence, uint64_t value)
{
    const sync_context *c = worker_context(w);
    if (device_fence_reached(fence, value)) return STATUS_OK;
    if (!w->wait_begin_ns) w->wait_begin_ns = device_now_ns(c->device);
    status rc = w->gpu ? sync_host_wait(c->compute, fence, value) : device_stream_wait(c->compute, fence, value);
    if (rc == STATUS_AGAIN) return rc;
    int64_t end_ns = device_now_ns(c->device);
    trace_slice(c->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, w->wait_begin_ns, end_ns);
    w->exposed_ns += end_ns - w->wait_begin_ns;
    w->wait_begin_ns = 0;
    return rc;
}

static bool pulls_ahead(const ps_worker *w)
{
    return w->c.policy->consistency == PS_SYNC; /* with every push */
}

/* Asks for what `round` begins with. */
static status ask(ps_worker *w, uint32_t flags, uint64_t pull, int64_t round)
{
    w->pull_round = round;
    TRY(post(w, WORKER_PULL, (int)flags, (int64_t)pull));
    sync_agent_wake(w->agent);
    return STATUS_OK;
}

/* The first pull, which also says what the run starts from. */
static status ask_first(ps_worker *w)
{
    if (w->gpu) TRY(device_stream_synchronize(worker_context(w)->compute));
    if (w->gives_buffers) {
        w->packs++;
        TRY(post(w, WORKER_BUFFERS, 0, 0));
    }
    return ask(w, PS_PULL_FIRST | PS_PULL_KEYS | PS_PULL_BUFFERS, ++w->pulls, 0);
}

static status begin_round(ps_worker *w, const sync_step *step)
{
    w->begun = true;
    w->rounds[w->round % 2] = (worker_round){step->index - step->skipped, step->learning_rate};
    for (int i = 0; i < w->c.plan->param_count; i++) w->pushed[i] = false;
    if (w->pulls == 0) return ask_first(w);
    if (pulls_ahead(w)) return STATUS_OK;
    return ask(w, PS_PULL_KEYS | PS_PULL_BUFFERS, ++w->pulls, w->round);
}

/* Rank 0's must have been copied away before they change. The others' stay what their own forward pass
 * has made of them until here, though rank 0's have come long ago. */
static status wait_for_buffers(ps_worker *w)
{
    const param_set *set = worker_context(w)->params;
    if (w->gives_buffers) return wait_for(w, w->packed, w->packs);
    if (!w->takes_buffers) return STATUS_OK;
    TRY(wait_for(w, w->buffers, w->pulls));
    if (w->unpacked == w->pulls) return STATUS_OK;
    w->unpacked = w->pulls;
    if (w->gpu) return worker_gpu_unpack_buffers(w);
    const char *from = w->staging;
    for (int i = 0; i < set->model->buffer_count; i++) {
        size_t bytes = (size_t)set->buffer_pieces[i].count * w->element;
        ps_copy(worker_context(w)->device, (char *)set->buffers.data + set->buffer_pieces[i].offset * (int64_t)w->element,
                from, bytes);
        from += bytes;
    }
    return STATUS_OK;
}

/* A rank without samples takes part with gradients of zero. What it pushed in the round before may still be read
 * until that round's parameters are here; no forward pass has waited for them. */
static status clear_gradients(ps_worker *w)
{
    for (int i = 0; i < w->c.plan->param_count; i++) TRY(ps_worker_need(w, i));
    const param_set *set = worker_context(w)->params;
    if (!ps_has_bytes(worker_context(w)->device)) return STATUS_OK;
    if (w->gpu) return worker_gpu_clear(w);
    memset(set->grads.data, 0, (size_t)set->arena_elements * w->element);
    return STATUS_OK;
}

status ps_worker_begin_forward(ps_worker *w, const sync_step *step)
{
    if (!w->entered) {
        w->synchronize = step->synchronize;
        w->has_data = (w->has_data && w->begun) || step->samples > 0;
        if (!w->begun) TRY(begin_round(w, step));
        w->entered = true;
    }
    TRY(wait_for_buffers(w));
    w->entered = false;
    return STATUS_OK;
}

status ps_worker_need(ps_worker *w, int param)
{
    return wait_for(w, w->arrived[param], w->pulls);
}

status worker_post_buffers(ps_worker *w)
{
    TRY(post(w, WORKER_BUFFERS, 0, w->round + 1));
    sync_agent_wake(w->agent);
    return STATUS_OK;
}

status ps_worker_end_forward(ps_worker *w, const sync_step *step)
{
    if (!step->synchronize) return STATUS_OK;
    if (w->gives_buffers) {
        w->packs++;
        TRY(w->gpu ? worker_gpu_pack(w) : worker_post_buffers(w));
    } else if (w->takes_buffers && pulls_ahead(w)) {
        TRY(ask(w, PS_PULL_BUFFERS, w->pulls + 1, w->round + 1));
    }
    return STATUS_OK;
}

static status push(ps_worker *w, int param)
{
    w->pushed[param] = true;
    return post(w, WORKER_PUSH, param, w->round);
}

status worker_post_gradient(ps_worker *w, int param)
{
    const ps_plan *plan = w->c.plan;
    for (int i = 0; i < plan->push_count[param]; i++) TRY(push(w, plan->pushable[plan->push_first[param] + i]));
    sync_agent_wake(w->agent);
    return STATUS_OK;
}

status ps_worker_ready(ps_worker *w, int param)
{
    if (!w->synchronize || w->c.plan->push_count[param] == 0) return STATUS_OK;
    return w->gpu ? worker_gpu_ready(w, param) : worker_post_gradient(w, param);
}

status ps_worker_finish(ps_worker *w, const sync_step *step)
{
    if (!step->synchronize) return STATUS_OK;
    if (w->gpu) TRY(worker_gpu_finish(w));
    if (!w->has_data) TRY(clear_gradients(w));
    for (int i = 0; i < w->c.plan->param_count; i++) {
        if (w->pushed[i]) continue;
        TRY(ps_worker_need(w, i)); /* the forward pass may have done without it */
        TRY(push(w, i));
    }
    sync_agent_wake(w->agent);
    w->round++;
    w->begun = false;
    if (pulls_ahead(w)) w->pulls++;
    return STATUS_OK;
}

status ps_worker_flush(ps_worker *w)
{
    if (!w->entered) {
        if (w->pulls == 0) {
            TRY(ask_first(w));
        } else if (!pulls_ahead(w)) {
            TRY(ask(w, PS_PULL_FLUSH, ++w->pulls, w->round));
        }
        w->entered = true;
    }
    for (int i = 0; i < w->c.plan->param_count; i++) TRY(wait_for(w, w->arrived[i], w->pulls));
    TRY(wait_for_buffers(w));
    w->entered = false;
    return STATUS_OK;
}

status ps_worker_group_sum(ps_worker *w, double *values, int count)
{
    if (!w->entered) {
        if (w->gpu) TRY(worker_gpu_take_sums(w, values, count));
        w->sum_values = w->gpu ? w->gpu->sums : values;
        TRY(post(w, WORKER_SUM, count, (int64_t)++w->sums));
        sync_agent_wake(w->agent);
        w->entered = true;
    }
    TRY(wait_for(w, w->summed, w->sums));
    w->entered = false;
    return w->gpu ? worker_gpu_give_sums(w, values, count) : STATUS_OK;
}

void ps_worker_collect_times(ps_worker *w, sync_counters *out)
{
    out->exposed_ns += w->exposed_ns;
    w->exposed_ns = 0;
    out->total_ns += atomic_exchange_explicit(&w->total_ns, 0, memory_order_relaxed);
    int64_t update_ns = atomic_exchange_explicit(&w->update_ns, 0, memory_order_relaxed);
    out->optimizer_ns += update_ns;
    out->optimizer_aside_ns += update_ns;
}

int64_t ps_worker_updates_skipped(const ps_worker *w)
{
    int64_t by_servers = atomic_load_explicit(&w->skipped, memory_order_relaxed);
    int64_t here = optimizer_skipped(worker_context(w)->optimizer);
    return by_servers > here ? by_servers : here;
}

void ps_worker_report(const ps_worker *w, ps_report *out)
{
    *out = w->report;
    out->mean = w->report.reads > 0 ? w->late_total / (double)w->report.reads : 0;
}
