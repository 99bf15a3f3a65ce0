#include "harness/workload/torch/trace.h"

#include <stdlib.h>

enum { MOST_COLLECTIVES = 20000, MOST_STEPS = 1000 };

/* ---- gradients --------------------------------------------------------------------------------------- */

static status add_gradient(torch_step *s, const torch_event *e, int64_t sequence)
{
    s->accumulations++;
    if (e->elements <= 0) return STATUS_OK;
    if (s->gradient_count == TORCH_MOST_PARAMETERS)
        return fail(STATUS_DATA, "expected at most %d gradients per step", TORCH_MOST_PARAMETERS);
    TRY(torch_reserve((void **)&s->gradients, s->gradient_count, &s->gradient_capacity,
                      sizeof *s->gradients));
    s->gradients[s->gradient_count++] = (torch_gradient){*e, s->forward_ns, s->forward_ns, sequence, -1};
    return STATUS_OK;
}

/* Finds the passes and the gradients. Each micro-batch has a backward pass. All but the last count as parts
 * of the forward pass, since no gradient may be reduced before the last pass. Passes of another optimizer do
 * too, but if the parameters are known, their gradients are kept. */
static status find_passes(const torch_trace *t, torch_step *s, int first, int end, int32_t thread)
{
    int64_t node = -1, computed = INT64_MIN;
    bool forward = true, begun = false, updated = false;
    s->backward_end_ns = INT64_MIN;
    for (int i = first; i < end; i++) {
        const torch_event *e = &t->events[i];
        bool model = e->kind == TORCH_MODEL || (e->kind == TORCH_OP && e->thread == thread);
        bool backward = e->kind == TORCH_NODE || e->kind == TORCH_ACCUMULATE;
        if ((model || backward) && !begun) s->forward_ns = e->begin_ns;
        begun = begun || model || backward;
        forward = forward || (model && e->begin_ns >= s->backward_end_ns);
        updated = updated || e->kind == TORCH_OPTIMIZER_STEP;
        if (e->kind == TORCH_GRADIENT && s->micro_batches > 0) TRY(add_gradient(s, e, node));
        if (e->kind == TORCH_OP && e->begin_ns < s->backward_end_ns && e->begin_ns >= computed) {
            computed = e->end_ns;
            s->recomputed_ns += e->end_ns - e->begin_ns;
        }
        if (!backward) continue;
        if (forward) {
            s->backward_ns = e->begin_ns;
            if (!updated || !t->description) s->gradient_count = s->accumulations = 0;
            s->micro_batches = updated ? 1 : s->micro_batches + 1;
            updated = false;
            TRY(torch_pairs_add(&s->passes, e->begin_ns, 0));
        }
        forward = false;
        if (e->kind == TORCH_NODE) node = e->id;
        if (e->end_ns > s->backward_end_ns) s->backward_end_ns = e->end_ns;
        s->passes.list[s->passes.count - 1].value = s->backward_end_ns;
    }
    return STATUS_OK;
}

/* Sets the time at which the forward pass first uses each parameter. The operation has the sequence number of
 * the node that computed the gradient. Operations without a node carry the number of the next node, so the
 * last operation with the number is the one. */
static status find_uses(const torch_trace *t, torch_step *s, int first, int end, torch_pairs *operations,
                        torch_pairs *calls)
{
    int64_t call_end = INT64_MIN;
    for (int i = first; i < end && t->events[i].begin_ns < s->backward_ns; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind != TORCH_OP) continue;
        TRY(torch_pairs_add(operations, e->id, e->begin_ns));
        if (e->begin_ns < call_end) continue;
        call_end = e->end_ns;
        TRY(torch_pairs_add(calls, e->begin_ns, 0));
    }
    torch_pairs_sort(operations);
    for (int i = 0; i < s->gradient_count; i++) {
        torch_gradient *g = &s->gradients[i];
        int until = torch_count_until(operations->list, operations->count, sizeof(torch_pair), g->sequence);
        if (until == 0 || operations->list[until - 1].key != g->sequence) continue;
        g->used_ns = operations->list[until - 1].value;
        g->call_ns =
            calls->list[torch_count_until(calls->list, calls->count, sizeof(torch_pair), g->used_ns) - 1].key;
    }
    return STATUS_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------- */

/* Fills in the fields that an event within the call knows better. */
static void refine(torch_collective *c, const torch_event *e)
{
    bool typed = e->kind == TORCH_COMMS || e->elements == c->call.elements; /* a list has no type */
    if (e->elements > 0 && (c->call.elements <= 0 || typed)) {
        c->call.elements = e->elements;
        c->call.element_bytes = e->element_bytes;
    }
    if (e->group > 0) c->call.group = e->group;
}

static void set_times(torch_collective *c, const torch_event *e)
{
    refine(c, e);
    if (c->end_ns == 0) c->begin_ns = e->begin_ns;
    c->end_ns = e->end_ns;
}

/* Gives Gloo's work to the first collective of this kind without a time. Gloo's reduce-scatter is an
 * all-reduce. */
static void add_work(torch_step *s, const torch_event *e)
{
    for (int i = 0; i < s->collective_count; i++) {
        torch_collective *c = &s->collectives[i];
        bool scatter = c->call.collective == TORCH_REDUCE_SCATTER && e->collective == TORCH_ALL_REDUCE;
        if (c->end_ns > 0 || (c->call.collective != e->collective && !scatter)) continue;
        set_times(c, e);
        return;
    }
}

/* Finds the collectives. If a hook of DDP or FSDP calls a collective, the collective reduces gradients. */
static status find_collectives(const torch_trace *t, torch_step *s, int first, int end)
{
    torch_collective *last = NULL;
    int64_t hook_end = INT64_MIN;
    for (int i = first; i < end; i++) {
        const torch_event *e = &t->events[i];
        bool within = last && e->thread == last->call.thread && e->begin_ns < last->call.end_ns;
        if (within && (e->kind == TORCH_COMMS || e->kind == TORCH_BACKEND)) refine(last, e);
        if (!within && e->kind == TORCH_BACKEND && !t->has_gpu) add_work(s, e);
        bool hook = e->kind == TORCH_ACCUMULATE || e->kind == TORCH_SHARDING;
        if (hook && e->end_ns > hook_end) hook_end = e->end_ns;
        if (within || e->kind != TORCH_CALL) continue;
        if (s->collective_count == MOST_COLLECTIVES)
            return fail(STATUS_DATA, "expected at most %d collectives per step", MOST_COLLECTIVES);
        TRY(torch_reserve((void **)&s->collectives, s->collective_count, &s->collective_capacity,
                          sizeof *last));
        last = &s->collectives[s->collective_count++];
        *last = (torch_collective){.call = *e};
        if (e->begin_ns < hook_end &&
            (e->collective == TORCH_ALL_REDUCE || e->collective == TORCH_REDUCE_SCATTER))
            last->micro_batch =
                torch_count_until(s->passes.list, s->passes.count, sizeof(torch_pair), e->begin_ns);
    }
    for (int i = 0; i < t->count && last; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind != TORCH_COMMUNICATION_KERNEL || e->host_ns >= s->host_end_ns) continue;
        int until = torch_count_until(s->collectives, s->collective_count, sizeof *last, e->host_ns);
        if (until > 0) set_times(&s->collectives[until - 1], e); /* the last call before the launch */
    }
    return STATUS_OK;
}

/* Replaces gradients without shapes by the reductions, each of which is ready when it is called. */
static status take_reductions(torch_step *s)
{
    int accumulations = s->accumulations;
    for (int i = 0; i < s->collective_count && accumulations > 0; i++) {
        torch_event e = s->collectives[i].call;
        if (e.collective != TORCH_ALL_REDUCE || e.begin_ns < s->backward_ns ||
            e.begin_ns > s->backward_end_ns)
            continue;
        e.end_ns = e.begin_ns;
        TRY(add_gradient(s, &e, -1));
    }
    s->accumulations = accumulations;
    return STATUS_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------- */

static status add_range(torch_step *s, workload_part part, int64_t begin, int64_t end)
{
    if (begin < s->host_begin_ns) begin = s->host_begin_ns;
    if (end > s->host_end_ns) end = s->host_end_ns;
    return begin < end ? torch_pairs_add(&s->parts[part], begin, end) : STATUS_OK;
}

/* Sorts the ranges and joins those that overlap. */
static void join_ranges(torch_pairs *r)
{
    int kept = 0;
    torch_pairs_sort(r);
    for (int i = 0; i < r->count; i++) {
        torch_pair *last = &r->list[kept - (kept > 0)], next = r->list[i];
        if (kept == 0 || next.key > last->value)
            r->list[kept++] = next;
        else if (next.value > last->value)
            last->value = next.value;
    }
    r->count = kept;
}

/* Finds the times of the parts on the host. Without a GPU, the thread itself copies gradients and waits for
 * collectives. DDP broadcasts buffers before the first operation, and waits after the last gradient of a pass
 * until it has copied the last bucket. */
static status find_parts(const torch_trace *t, torch_step *s, int first, int end)
{
    int64_t copied = s->backward_end_ns, optimizer = INT64_MAX, operation = INT64_MAX;
    bool broadcast = false;
    for (int i = first; i < end; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind == TORCH_LOADER) TRY(add_range(s, WORKLOAD_DATA, e->begin_ns, e->end_ns));
        if (e->kind == TORCH_OPTIMIZER || e->kind == TORCH_OPTIMIZER_STEP) {
            /* If step() calls a function that runs passes, the update follows the last of them. */
            int passes = torch_count_until(s->passes.list, s->passes.count, sizeof(torch_pair), e->end_ns);
            const torch_pair *pass = &s->passes.list[passes - (passes > 0)];
            bool closure = pass->key > e->begin_ns && pass->key < e->end_ns;
            TRY(add_range(s, WORKLOAD_OPTIMIZER, closure ? pass->value : e->begin_ns, e->end_ns));
        }
        if (e->kind == TORCH_OPTIMIZER_STEP && e->begin_ns >= s->backward_end_ns && e->begin_ns < optimizer)
            optimizer = e->begin_ns;
        if (t->has_gpu) continue;
        if (e->kind == TORCH_REDUCER || e->kind == TORCH_SHARDING)
            TRY(add_range(s, WORKLOAD_COMMUNICATION, e->begin_ns, e->end_ns));
        if (e->kind == TORCH_REDUCER && e->end_ns > copied) copied = e->end_ns;
        int pass = torch_count_until(s->passes.list, s->passes.count, sizeof(torch_pair), e->begin_ns) - 1;
        if (e->kind == TORCH_REDUCER && pass >= 0 && e->begin_ns >= s->passes.list[pass].value)
            TRY(add_range(s, WORKLOAD_COMMUNICATION, s->passes.list[pass].value, e->end_ns));
        if (e->kind == TORCH_OP && e->begin_ns < operation) operation = e->begin_ns;
        broadcast =
            broadcast || (e->kind == TORCH_CALL && e->begin_ns >= s->forward_ns && operation == INT64_MAX);
    }
    if (broadcast && operation < s->backward_ns)
        TRY(add_range(s, WORKLOAD_COMMUNICATION, s->forward_ns, operation));
    if (!t->has_gpu && copied == s->backward_end_ns && s->collective_count > 0 && optimizer < INT64_MAX)
        copied = optimizer;
    TRY(add_range(s, WORKLOAD_COMMUNICATION, s->backward_end_ns, copied));
    if (optimizer < INT64_MAX) TRY(add_range(s, WORKLOAD_OPTIMIZER, copied, optimizer)); /* e.g. the norm */
    TRY(add_range(s, WORKLOAD_DATA, s->host_begin_ns, s->forward_ns));
    TRY(add_range(s, WORKLOAD_FORWARD, s->forward_ns, s->backward_ns));
    TRY(add_range(s, WORKLOAD_BACKWARD, s->backward_ns, s->backward_end_ns));
    for (int part = 0; part < WORKLOAD_PARTS; part++) join_ranges(&s->parts[part]);
    return STATUS_OK;
}

/* Sets the step's times on the GPU. */
static void find_device_times(const torch_trace *t, torch_step *s, const torch_step *previous)
{
    s->begin_ns = INT64_MAX;
    s->end_ns = INT64_MIN;
    for (int i = 0; i < t->count; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind != TORCH_KERNEL || e->host_ns < s->host_begin_ns || e->host_ns >= s->host_end_ns)
            continue;
        if (e->begin_ns < s->begin_ns) s->begin_ns = e->begin_ns;
        if (e->end_ns > s->end_ns) s->end_ns = e->end_ns;
    }
    if (previous && previous->number + 1 == s->number && previous->end_ns < s->end_ns)
        s->begin_ns = previous->end_ns;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static status fill_step(const torch_trace *t, torch_step *s, int32_t thread, const torch_step *previous)
{
    torch_pairs operations = {0}, calls = {0};
    int first = torch_count_until(t->events, t->count, sizeof *t->events, s->host_begin_ns - 1);
    int end = torch_count_until(t->events, t->count, sizeof *t->events, s->host_end_ns - 1);
    TRY(find_passes(t, s, first, end, thread));
    if (s->micro_batches == 0) return STATUS_OK;
    status rc = find_uses(t, s, first, end, &operations, &calls);
    free(operations.list);
    free(calls.list);
    TRY(rc);
    TRY(find_collectives(t, s, first, end));
    if (s->gradient_count == 0) TRY(take_reductions(s));
    TRY(find_parts(t, s, first, end));
    s->begin_ns = s->host_begin_ns;
    s->end_ns = s->host_end_ns;
    if (t->has_gpu) find_device_times(t, s, previous);
    return STATUS_OK;
}

static void free_step(torch_step *s)
{
    free(s->gradients);
    free(s->collectives);
    free(s->slices);
    free(s->computation.list);
    free(s->passes.list);
    for (int part = 0; part < WORKLOAD_PARTS; part++) free(s->parts[part].list);
}

/* Adds the step unless it has no backward pass. */
static status add_step(const torch_trace *t, const torch_event *e, torch_step **steps, int *count,
                       int *capacity)
{
    if (*count == MOST_STEPS) return fail(STATUS_DATA, "expected at most %d steps; record fewer", MOST_STEPS);
    TRY(torch_reserve((void **)steps, *count, capacity, sizeof **steps));
    torch_step *s = &(*steps)[(*count)++];
    *s = (torch_step){.number = e->id, .host_begin_ns = e->begin_ns, .host_end_ns = e->end_ns};
    TRY(fill_step(t, s, e->thread, *count > 1 ? s - 1 : NULL));
    if (s->micro_batches > 0 && s->end_ns > s->begin_ns) return STATUS_OK;
    free_step(s);
    (*count)--;
    return STATUS_OK;
}

status torch_find_steps(const torch_trace *t, torch_step **out, int *count)
{
    int capacity = 0, steps = 0, optimizer_steps = 0;
    torch_event file = {.begin_ns = INT64_MAX, .end_ns = INT64_MIN}; /* all events of the host as one step */
    *out = NULL;
    *count = 0;
    for (int i = 0; i < t->count; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind == TORCH_STEP) TRY(add_step(t, e, out, count, &capacity));
        steps += e->kind == TORCH_STEP;
        optimizer_steps += e->kind == TORCH_OPTIMIZER_STEP;
        if (e->kind == TORCH_OPTIMIZER_STEP) file.thread = e->thread;
        if (e->kind < TORCH_LAUNCH && e->begin_ns < file.begin_ns) file.begin_ns = e->begin_ns;
        if (e->kind < TORCH_LAUNCH && e->end_ns > file.end_ns) file.end_ns = e->end_ns;
    }
    if (steps == 0 && optimizer_steps != 1 && file.begin_ns < INT64_MAX)
        return fail(STATUS_DATA,
                    "expected schedule= and a call of prof.step() after each optimizer.step(); got %d "
                    "optimizer steps",
                    optimizer_steps);
    if (steps == 0 && optimizer_steps == 1) TRY(add_step(t, &file, out, count, &capacity));
    if (*count > 0) return STATUS_OK;
    return fail(STATUS_DATA, "expected a step with a backward pass; record ProfilerActivity.CPU");
}

void torch_steps_free(torch_step **steps, int count)
{
    for (int i = 0; i < count; i++) free_step(&(*steps)[i]);
    free(*steps);
    *steps = NULL;
}

status torch_typical_step(const torch_trace *t, torch_step *steps, int count, torch_step **out)
{
    torch_pairs times = {0};
    status rc = STATUS_OK;
    int first = t->has_gpu && count > 1; /* a GPU's first step lacks its beginning */
    for (int i = first; i < count && rc == STATUS_OK; i++)
        rc = torch_pairs_add(&times, steps[i].end_ns - steps[i].begin_ns, i);
    torch_pairs_sort(&times);
    /* If two steps are in the middle, both are equally near to the median. */
    if (rc == STATUS_OK) *out = &steps[times.list[(times.count - 1) / 2].value];
    free(times.list);
    return rc;
}
