#include "common/trace/trace.h"

#include "common/base/least.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct trace {
    trace_entry *events;
    int64_t capacity;
    atomic_bool on;
    _Atomic int64_t count; /* number of events so far, including events for which there was no room */
};

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

static int64_t recorded(const trace *t)
{
    return least(atomic_load_explicit(&t->count, memory_order_acquire), t->capacity);
}

int64_t trace_dropped(const trace *t)
{
    return t ? atomic_load_explicit(&t->count, memory_order_acquire) - recorded(t) : 0;
}

/* Reserves slots and writes events into them. The slots are read only after the recorded work has ended. */
static void add_always(trace *t, const trace_entry *events, int count)
{
    int64_t at = atomic_fetch_add_explicit(&t->count, count, memory_order_relaxed);
    for (int i = 0; i < count && at + i < t->capacity; i++) t->events[at + i] = events[i];
}

static void add(trace *t, const trace_entry *events, int count)
{
    if (trace_is_on(t)) add_always(t, events, count);
}

void trace_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                 int64_t end_ns)
{
    add(t, &(trace_entry){TRACE_SLICE, track, 0, name, index, 0, begin_ns, end_ns}, 1);
}

void trace_late_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                      int64_t end_ns)
{
    if (t) add_always(t, &(trace_entry){TRACE_SLICE, track, 0, name, index, 0, begin_ns, end_ns}, 1);
}

void trace_async(trace *t, const char *name, int64_t index, int64_t id, int64_t begin_ns, int64_t end_ns)
{
    add(t, &(trace_entry){TRACE_ASYNC, TRACE_COMMUNICATION, 0, name, index, id, begin_ns, end_ns}, 1);
}

void trace_flow(trace *t, trace_flow_point point, trace_track track, int64_t id, int64_t ns)
{
    add(t, &(trace_entry){TRACE_FLOW, track, point, "gradient", TRACE_NO_INDEX, id, ns, 0}, 1);
}

void trace_memory(trace *t, int64_t ns, const int64_t bytes[LEDGER_CLASS_COUNT])
{
    trace_entry events[LEDGER_CLASS_COUNT];
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        events[c] = (trace_entry){.kind = TRACE_MEMORY,
                                  .name = ledger_class_name((ledger_class)c),
                                  .begin_ns = ns,
                                  .end_ns = bytes[c]};
    add(t, events, LEDGER_CLASS_COUNT);
}

bool trace_read(const trace *t, int64_t i, trace_entry *out)
{
    if (!t || i >= recorded(t)) return false;
    *out = t->events[i];
    return true;
}

/* ---- as JSON ------------------------------------------------------------------------------------ */

static const char *const track_names[TRACE_TRACKS] = {
#define TRACK_NAME(name, text) [TRACE_##name] = text,
    TRACE_TRACK_LIST(TRACK_NAME)
#undef TRACK_NAME
};

static const char flow_phases[] = {[TRACE_FLOW_BEGIN] = 's', [TRACE_FLOW_STEP] = 't', [TRACE_FLOW_END] = 'f'};

/* Appends the fields that are common to all events. Times are in microseconds with three decimals. */
static void begin_event(char phase, const char *name, int track, int process, int64_t ns, text_buffer *out)
{
    text_append(out, "{\"ph\":\"%c\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d", phase,
                name, process, track + 1, ns / 1000, (int)(ns % 1000));
}

/* Writes the event or events that begin at entry i. Returns the index of the next entry. */
static int64_t write_event(const trace *t, int64_t i, int64_t count, int process, text_buffer *out)
{
    const trace_entry *e = &t->events[i++];
    char name[64];
    if (e->index == TRACE_NO_INDEX)
        snprintf(name, sizeof name, "%s", e->name);
    else
        snprintf(name, sizeof name, "%s %" PRId64, e->name, e->index);
    int64_t ns = e->end_ns > e->begin_ns ? e->end_ns - e->begin_ns : 0;
    switch (e->kind) {
    case TRACE_SLICE:
        begin_event('X', name, e->track, process, e->begin_ns, out);
        text_append(out, ",\"cat\":\"%s\",\"dur\":%" PRId64 ".%03d},\n", track_names[e->track], ns / 1000,
                    (int)(ns % 1000));
        break;
    case TRACE_ASYNC:
        for (int end = 0; end < 2; end++) {
            begin_event(end ? 'e' : 'b', name, e->track, process, end ? e->end_ns : e->begin_ns, out);
            text_append(out, ",\"cat\":\"in flight\",\"id2\":{\"local\":\"%" PRId64 "\"}},\n", e->id);
        }
        break;
    case TRACE_FLOW:
        begin_event(flow_phases[e->point], name, e->track, process, e->begin_ns, out);
        text_append(out, ",\"cat\":\"gradient\",\"bp\":\"e\",\"id\":\"%d.%" PRId64 "\"},\n", process, e->id);
        break;
    case TRACE_MEMORY: /* A counter has one series per class. The entries of all classes for the same time are
                          adjacent. */
        begin_event('C', "memory", e->track, process, e->begin_ns, out);
        text_append(out, ",\"args\":{\"%s\":%" PRId64, e->name, e->end_ns);
        for (int c = 1; c < LEDGER_CLASS_COUNT && i < count; c++, i++)
            text_append(out, ",\"%s\":%" PRId64, t->events[i].name, t->events[i].end_ns);
        text_append(out, "}},\n");
        break;
    }
    return i;
}

void trace_write_name(int process, int thread, const char *name, int place, text_buffer *out)
{
    const char *what = thread ? "thread" : "process", *begin = "{\"ph\":\"M\",\"name\":\"";
    text_append(out, "%s%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", begin, what, process,
                thread, name);
    text_append(out, "%s%s_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}},\n", begin, what,
                process, thread, place);
}

static bool has_slices(const trace *t, int64_t count, trace_track track)
{
    for (int64_t i = 0; i < count; i++)
        if (t->events[i].kind == TRACE_SLICE && t->events[i].track == track) return true;
    return false;
}

void trace_write(const trace *t, int process, const char *name, text_buffer *out)
{
    if (!t) return;
    int64_t count = recorded(t);
    trace_write_name(process, 0, name, process, out);
    for (int k = 0; k < TRACE_TRACKS; k++)
        if (k < TRACE_COMPUTE_STREAM || has_slices(t, count, (trace_track)k))
            trace_write_name(process, k + 1, track_names[k], k, out);
    for (int64_t i = 0; i < count;) i = write_event(t, i, count, process, out);
}
