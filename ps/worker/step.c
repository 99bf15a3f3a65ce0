/* The functions of a step, which the compute thread calls. They post events for the agent and wait on
 * fences. */
#include "ps/engine_impl.h"
#include "ps/worker/worker.h"

static ps_worker *worker_of(sync_engine *e)
{
    return ((ps_engine *)e)->worker;
}

/* Wakes the agent. If the device only plans memory, there is no agent. */
static void wake(ps_worker *w)
{
    if (w->shared.port.agent) sync_agent_wake(w->shared.port.agent);
}

static status post(ps_worker *w, worker_event kind, int index, int64_t value)
{
    if (!w->shared.port.agent) return STATUS_OK;
    sync_event event = {.kind = kind, .index = index, .value = value};
    if (!sync_queue_push(&w->shared.events, &event))
        return fail(STATUS_INTERNAL, "parameter server: the queue of %u events is full",
                    w->shared.events.capacity);
    return STATUS_OK;
}

/* Makes the compute stream wait for the fence. `last` points to a description of the message that was waited
 * for, which the agent writes before the fence is reached. `last` is NULL if the wait does not depend on
 * other ranks. */
static status wait_for(ps_worker *w, device_fence *fence, uint64_t value, const anatomy_sent *last)
{
    const sync_context *c = w->context;
    int number;
    if (device_fence_reached(fence, value)) return STATUS_OK;
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(device_stream_wait(c->compute, fence, value));
    TRY(anatomy_end_wait(c->anatomy, &number));
    if (last) anatomy_name_wait(c->anatomy, number, *last);
    return STATUS_OK;
}

static status wait_for_param(ps_worker *w, int param)
{
    return wait_for(w, w->shared.arrived[param], w->compute.pulls, &w->shared.params_last[param]);
}

static bool pulls_with_push(const ps_worker *w)
{
    return w->policy->consistency == PS_SYNC;
}

/* Requests the parameters and buffers with which `iteration` begins. */
static status post_pull(ps_worker *w, uint32_t flags, uint64_t pull, int64_t iteration)
{
    w->shared.pull_iteration = iteration;
    TRY(post(w, WORKER_PULL, (int)flags, (int64_t)pull));
    wake(w);
    return STATUS_OK;
}

/* Posts the first pull, which also initializes the servers. */
static status pull_first(ps_worker *w)
{
    if (w->shared.gives_buffers) {
        w->compute.packs++;
        TRY(post(w, WORKER_BUFFERS, 0, 0));
    }
    return post_pull(w, PS_PULL_FIRST | PS_PULL_KEYS | PS_PULL_BUFFERS, ++w->compute.pulls, 0);
}

static status begin_iteration(ps_worker *w, const sync_step *step)
{
    w->compute.begun = true;
    w->shared.iterations[w->compute.iteration % 2] =
        (ps_update_step){step->index - step->skipped, step->learning_rate};
    for (int i = 0; i < w->plan->param_count; i++) w->compute.pushed[i] = false;
    if (w->compute.pulls == 0) return pull_first(w);
    if (pulls_with_push(w)) return STATUS_OK;
    return post_pull(w, PS_PULL_KEYS | PS_PULL_BUFFERS, ++w->compute.pulls, w->compute.iteration);
}

/* Makes the buffers ready for a forward pass. Rank 0 waits until the agent has packed the buffers, because
 * the pass changes them. Other ranks wait for rank 0's buffers, and copy them to the arena. */
static status wait_for_buffers(ps_worker *w)
{
    if (w->shared.gives_buffers) return wait_for(w, w->shared.packed, w->compute.packs, NULL);
    if (!w->shared.takes_buffers) return STATUS_OK;
    TRY(wait_for(w, w->shared.buffers_arrived, w->compute.pulls, &w->shared.buffers_last));
    if (w->compute.unpacked == w->compute.pulls) return STATUS_OK;
    w->compute.unpacked = w->compute.pulls;
    worker_copy_buffers(w->context->params, w->shared.packed_buffers, false);
    return STATUS_OK;
}

/* Sets the gradients of a rank without samples to zero. Before that, waits for all parameters, because a
 * server may read the gradients of the previous iteration until the parameters have arrived. */
static status clear_gradients(ps_worker *w)
{
    for (int i = 0; i < w->plan->param_count; i++) TRY(wait_for_param(w, i));
    const param_set *set = w->context->params;
    if (!ps_has_bytes(w->context->device)) return STATUS_OK;
    TRY(device_clear(w->context->compute, set->grads.data,
                     (size_t)(set->arena_elements * w->shared.element)));
    return device_stream_synchronize(w->context->compute);
}

static status push(ps_worker *w, int param)
{
    w->compute.pushed[param] = true;
    return post(w, WORKER_PUSH, param, w->compute.iteration);
}

/* ---- the step ---------------------------------------------------------------------------------- */

status ps_worker_begin_forward(sync_engine *e, const sync_step *step)
{
    ps_worker *w = worker_of(e);
    w->compute.synchronize = step->synchronize;
    w->compute.has_data = (w->compute.has_data && w->compute.begun) || step->samples > 0;
    if (!w->compute.begun) TRY(begin_iteration(w, step));
    return wait_for_buffers(w);
}

status ps_worker_need(sync_engine *e, int param)
{
    return wait_for_param(worker_of(e), param);
}

status ps_worker_end_forward(sync_engine *e, const sync_step *step)
{
    ps_worker *w = worker_of(e);
    if (!step->synchronize) return STATUS_OK;
    if (w->shared.gives_buffers) {
        w->compute.packs++;
        TRY(post(w, WORKER_BUFFERS, 0, w->compute.iteration + 1));
        wake(w);
    } else if (w->shared.takes_buffers && pulls_with_push(w)) {
        TRY(post_pull(w, PS_PULL_BUFFERS, w->compute.pulls + 1, w->compute.iteration + 1));
    }
    return STATUS_OK;
}

status ps_worker_ready(sync_engine *e, int param)
{
    ps_worker *w = worker_of(e);
    const ps_plan *plan = w->plan;
    if (!w->compute.synchronize || plan->push_count[param] == 0) return STATUS_OK;
    for (int i = 0; i < plan->push_count[param]; i++)
        TRY(push(w, plan->pushable[plan->push_first[param] + i]));
    wake(w);
    return STATUS_OK;
}

status ps_worker_finish(ps_worker *w, const sync_step *step)
{
    if (!step->synchronize) return STATUS_OK;
    if (!w->compute.has_data) TRY(clear_gradients(w));
    for (int i = 0; i < w->plan->param_count; i++) {
        if (w->compute.pushed[i]) continue;
        TRY(wait_for_param(w, i)); /* The forward pass has not waited for unused parameters. */
        TRY(push(w, i));
    }
    wake(w);
    w->compute.iteration++;
    w->compute.begun = false;
    if (pulls_with_push(w)) w->compute.pulls++;
    return STATUS_OK;
}

static status wait_for_pull(ps_worker *w)
{
    for (int i = 0; i < w->plan->param_count; i++) TRY(wait_for_param(w, i));
    return wait_for_buffers(w);
}

/* Waits until this rank has the parameters after all updates. All ranks must request the flush. Under async,
 * the other ranks may end before this rank has begun its first step. Then this rank makes its first pull
 * here. */
status ps_worker_flush(sync_engine *e)
{
    ps_worker *w = worker_of(e);
    if (w->compute.pulls == 0) TRY(pull_first(w));
    if (!pulls_with_push(w)) {
        TRY(wait_for_pull(w));
        TRY(post_pull(w, PS_PULL_FLUSH, ++w->compute.pulls, w->compute.iteration));
    }
    return wait_for_pull(w);
}

status ps_worker_group_sum(sync_engine *e, double *values, int count)
{
    ps_worker *w = worker_of(e);
    if (w->context->world == 1) return STATUS_OK;
    if (count > w->plan->largest_sum)
        return fail(STATUS_INTERNAL, "a sum over the ranks of %d values; %d were announced", count,
                    w->plan->largest_sum);
    w->shared.sum_values = values;
    TRY(post(w, WORKER_SUM, count, (int64_t)++w->compute.summed));
    wake(w);
    return wait_for(w, w->shared.summed, w->compute.summed, &w->shared.sum_last);
}
