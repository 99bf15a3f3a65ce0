#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum trace_kind { TRACE_SLICE, TRACE_ASYNC, TRACE_FLOW, TRACE_MEMORY } trace_kind;

typedef struct trace_event {
    trace_kind kind;
    int32_t track; /* of slices and flows */
    const char *name;
    int64_t index, id, begin_ns, end_ns; /* flows: index is the point; memory: end_ns is bytes */
} trace_event;

struct trace {
    trace_event *events;
    int64_t capacity;
    atomic_bool on;
    _Atomic int64_t count; /* recorded, including those beyond the capacity */
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

int64_t trace_dropped(const trace *t)
{
    int64_t count = t ? atomic_load_explicit(&t->count, memory_order_relaxed) : 0;
    return t && count > t->capacity ? count - t->capacity : 0;
}

/* Each writer reserves its own slots. The reader starts after the recorded work has ended. */
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

/* ---- as JSON: times in microseconds, with three decimals for the nanoseconds --------------------- */

static const char *const track_names[TRACE_TRACKS] = {
#define TRACK_NAME(name, text) [TRACE_##name] = text,
    TRACE_TRACK_LIST(TRACK_NAME)
#undef TRACK_NAME
};

/* "1234.567" */
static const char *microseconds(int64_t ns, char *buffer, size_t size)
{
    snprintf(buffer, size, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
    return buffer;
}

static const char *name_of(const trace_event *e, char *buffer, size_t size)
{
    if (e->index == TRACE_NO_INDEX)
        snprintf(buffer, size, "%s", e->name);
    else
        snprintf(buffer, size, "%s %" PRId64, e->name, e->index);
    return buffer;
}

static void write_slice(const trace_event *e, int process, text_buffer *out)
{
    char name[64], begin[32], length[32];
    int64_t ns = e->end_ns > e->begin_ns ? e->end_ns - e->begin_ns : 0;
    text_append(out,
                "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%s,\"dur\":%s},\n",
                name_of(e, name, sizeof name), track_names[e->track], process, e->track + 1,
                microseconds(e->begin_ns, begin, sizeof begin), microseconds(ns, length, sizeof length));
}

static void write_async(const trace_event *e, int process, text_buffer *out)
{
    char name[64], at[32];
    name_of(e, name, sizeof name);
    for (int end = 0; end < 2; end++)
        text_append(out,
                    "{\"ph\":\"%s\",\"name\":\"%s\",\"cat\":\"in flight\",\"id2\":{\"local\":\"%" PRId64
                    "\"},\"pid\":%d,\"tid\":%d,\"ts\":%s},\n",
                    end ? "e" : "b", name, e->id, process, TRACE_COMMUNICATION + 1,
                    microseconds(end ? e->end_ns : e->begin_ns, at, sizeof at));
}

static void write_flow(const trace_event *e, int process, text_buffer *out)
{
    static const char *const phases[] = {
        [TRACE_FLOW_BEGIN] = "s", [TRACE_FLOW_STEP] = "t", [TRACE_FLOW_END] = "f"};
    char at[32];
    text_append(out,
                "{\"ph\":\"%s\",\"bp\":\"e\",\"name\":\"gradient\",\"cat\":\"gradient\",\"id\":\"%d.%" PRId64
                "\",\"pid\":%d,\"tid\":%d,\"ts\":%s},\n",
                phases[e->index], process, e->id, process, e->track + 1,
                microseconds(e->begin_ns, at, sizeof at));
}

/* One counter with a series per class: the events of one moment are adjacent. */
static int64_t write_memory(const trace *t, int64_t first, int64_t count, int process, text_buffer *out)
{
    char at[32];
    int64_t i = first;
    text_append(out, "{\"ph\":\"C\",\"name\":\"memory\",\"pid\":%d,\"ts\":%s,\"args\":{", process,
                microseconds(t->events[first].begin_ns, at, sizeof at));
    for (; i < count && i < first + LEDGER_CLASS_COUNT; i++)
        text_append(out, "%s\"%s\":%" PRId64, i > first ? "," : "", t->events[i].name, t->events[i].end_ns);
    text_append(out, "}},\n");
    return i;
}

static void write_names(int process, const char *name, text_buffer *out)
{
    text_append(out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n",
                process, name);
    text_append(out,
                "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
                process, process);
    for (int k = 0; k < TRACE_TRACKS; k++) {
        text_append(
            out,
            "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n",
            process, k + 1, track_names[k]);
        text_append(out,
                    "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_"
                    "index\":%d}},\n",
                    process, k + 1, k);
    }
}

void trace_write(const trace *t, int process, const char *name, text_buffer *out)
{
    if (!t) return;
    int64_t count = atomic_load_explicit(&t->count, memory_order_acquire);
    if (count > t->capacity) count = t->capacity;
    write_names(process, name, out);
    for (int64_t i = 0; i < count;) {
        const trace_event *e = &t->events[i++];
        switch (e->kind) {
        case TRACE_SLICE:
            write_slice(e, process, out);
            break;
        case TRACE_ASYNC:
            write_async(e, process, out);
            break;
        case TRACE_FLOW:
            write_flow(e, process, out);
            break;
        case TRACE_MEMORY:
            i = write_memory(t, i - 1, count, process, out);
            break;
        }
    }
}
