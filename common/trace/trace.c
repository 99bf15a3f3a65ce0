#include "common/trace/trace_impl.h"

#include <stdlib.h>

status trace_open(int64_t capacity, trace **out)
{
    trace *t = calloc(1, sizeof *t);
    if (t) t->events = calloc((size_t)capacity + 1, sizeof *t->events);
    *out = t;
    if (t && t->events) {
        t->capacity = capacity;
        return STATUS_OK;
    }
    trace_close(out);
    return fail(STATUS_SYSTEM, "no memory for a trace of %lld events", (long long)capacity);
}

void trace_close(trace **t)
{
    if (*t) free((*t)->events);
    free(*t);
    *t = NULL;
}

void trace_switch(trace *t, bool on)
{
    if (t) atomic_store_explicit(&t->on, on, memory_order_relaxed);
}

bool trace_is_on(const trace *t)
{
    return t && atomic_load_explicit(&t->on, memory_order_relaxed);
}

int64_t trace_dropped(const trace *t)
{
    int64_t count = t ? atomic_load_explicit(&t->count, memory_order_relaxed) : 0;
    return t && count > t->capacity ? count - t->capacity : 0;
}

/* Places of writers do not overlap; whoever reads the events has waited for what they tell of. */
static void add(trace *t, const trace_event *events, int count)
{
    if (!trace_is_on(t)) return;
    int64_t at = atomic_fetch_add_explicit(&t->count, count, memory_order_relaxed);
    for (int i = 0; i < count && at + i < t->capacity; i++) t->events[at + i] = events[i];
}

void trace_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                 int64_t end_ns)
{
    add(t, &(trace_event){TRACE_SLICE, (int32_t)track, name, index, 0, begin_ns, end_ns}, 1);
}

void trace_async(trace *t, const char *name, int64_t index, int64_t id, int64_t begin_ns, int64_t end_ns)
{
    add(t, &(trace_event){TRACE_ASYNC, 0, name, index, id, begin_ns, end_ns}, 1);
}

void trace_flow(trace *t, trace_flow_point point, trace_track track, int64_t id, int64_t ns)
{
    add(t, &(trace_event){TRACE_FLOW, (int32_t)track, NULL, (int64_t)point, id, ns, ns}, 1);
}

void trace_memory(trace *t, int64_t ns, const int64_t bytes[LEDGER_CLASS_COUNT])
{
    trace_event events[LEDGER_CLASS_COUNT];
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        events[c] = (trace_event){TRACE_MEMORY, 0, ledger_class_name((ledger_class)c), 0, 0, ns, bytes[c]};
    add(t, events, LEDGER_CLASS_COUNT);
}
