#include "common/sync/anatomy.h"

#include "common/sync/engine.h"
#include "common/sync/queue.h"

#include <stdlib.h>
#include <string.h>

/* Two marks per wait; parts of a step that are known only at the end of the next one. */
enum { MOST_WAITS = (SYNC_MARK_ENGINE - SYNC_MARK_WAITS) / 2, WAITS_PER_PARAM = 2, OTHER_WAITS = 64, SPANS = 1024 };

struct anatomy {
    device_stream *lane;
    trace *trace;
    int world;
    anatomy_wait *waits; /* [wait_capacity] */
    int wait_count, wait_capacity;
    bool waiting;

    sync_queue queue;    /* of spans, from the agent */
    anatomy_span *spans; /* [SPANS] in order, disjoint; of this step and the previous one */
    int span_count;
    anatomy_span previous; /* step */
    int64_t previous_ns;   /* communication in it that has been counted */
    int64_t *waited_ns;    /* [world] in the last step */
};

/* ---- the sweep -------------------------------------------------------------------------------- */

static void nearer(int64_t *next, int64_t at, int64_t edge)
{
    if (edge > at && edge < *next) *next = edge;
}

/* What is next to come, of each kind. */
typedef struct sweep {
    const anatomy_phase *phase, *last_phase;
    const anatomy_wait *wait, *waits_end;
    const anatomy_span *span, *spans_end;
} sweep;

static void pass(sweep *s, int64_t at)
{
    while (s->phase < s->last_phase && s->phase[1].begin_ns <= at) s->phase++;
    while (s->wait < s->waits_end && s->wait->time.end_ns <= at) s->wait++;
    while (s->span < s->spans_end && s->span->end_ns <= at) s->span++;
}

/* The first edge after `at`. */
static int64_t next_edge(const sweep *s, int64_t at, int64_t end)
{
    if (s->phase < s->last_phase) nearer(&end, at, s->phase[1].begin_ns);
    if (s->wait < s->waits_end) {
        nearer(&end, at, s->wait->time.begin_ns);
        nearer(&end, at, s->wait->time.end_ns);
        nearer(&end, at, s->wait->last.ns);
    }
    if (s->span < s->spans_end) {
        nearer(&end, at, s->span->begin_ns);
        nearer(&end, at, s->span->end_ns);
    }
    return end;
}

static step_part label(const sweep *s, int64_t at, bool in_progress)
{
    bool waits = s->wait < s->waits_end && s->wait->time.begin_ns <= at;
    if (!waits || s->phase->part == STEP_DATA) return s->phase->part;
    if (in_progress) return STEP_EXPOSED;
    return s->wait->last.rank != ANATOMY_NOBODY && at < s->wait->last.ns ? STEP_WAITING : STEP_OTHER;
}

static sweep begin_sweep(const anatomy_step *step)
{
    return (sweep){.phase = step->phases,
                   .last_phase = step->phases + step->phase_count - 1,
                   .wait = step->waits,
                   .waits_end = step->waits + step->wait_count,
                   .span = step->spans,
                   .spans_end = step->spans + step->span_count};
}

static bool is_in_progress(const sweep *s, int64_t at)
{
    return s->span < s->spans_end && s->span->begin_ns <= at;
}

void anatomy_sweep(const anatomy_step *step, int64_t *waited_ns, anatomy_figures *out)
{
    sweep s = begin_sweep(step);
    *out = (anatomy_figures){.waited_for = ANATOMY_NOBODY};
    for (int64_t at = step->begin_ns, next; at < step->end_ns; at = next) {
        pass(&s, at);
        next = next_edge(&s, at, step->end_ns);
        bool in_progress = is_in_progress(&s, at);
        step_part part = label(&s, at, in_progress);
        out->parts[part] += next - at;
        if (in_progress && part != STEP_EXPOSED) out->hidden_ns += next - at;
        if (part != STEP_WAITING) continue;
        int rank = s.wait->last.rank;
        waited_ns[rank] += next - at;
        if (out->waited_for == ANATOMY_NOBODY || waited_ns[rank] > waited_ns[out->waited_for]) out->waited_for = rank;
    }
}

/* The labels as slices of the trace. */
static void trace_parts(trace *t, const anatomy_step *step)
{
    static const char *const names[STEP_PARTS] = {"data",    "forward",   "backward", "exposed_communication",
                                                  "waiting", "optimizer", "other"};
    sweep s = begin_sweep(step);
    int64_t begin = step->begin_ns, at = step->begin_ns;
    step_part now = STEP_OTHER;
    for (int64_t next; at < step->end_ns; at = next) {
        pass(&s, at);
        next = next_edge(&s, at, step->end_ns);
        step_part part = label(&s, at, is_in_progress(&s, at));
        if (part == now) continue;
        if (at > begin) trace_slice(t, TRACE_PARTS, names[now], TRACE_NO_INDEX, begin, at);
        begin = at;
        now = part;
    }
    if (at > begin) trace_slice(t, TRACE_PARTS, names[now], TRACE_NO_INDEX, begin, at);
}

/* ---- spans ------------------------------------------------------------------------------------ */

/* Spans arrive nearly in order: from the end backward. */
static void insert(anatomy *a, anatomy_span span)
{
    int first = a->span_count;
    while (first > 0 && a->spans[first - 1].end_ns >= span.begin_ns) first--;
    int last = first;
    for (; last < a->span_count && a->spans[last].begin_ns <= span.end_ns; last++) {
        if (a->spans[last].begin_ns < span.begin_ns) span.begin_ns = a->spans[last].begin_ns;
        if (a->spans[last].end_ns > span.end_ns) span.end_ns = a->spans[last].end_ns;
    }
    if (last == first && a->span_count == SPANS) return; /* the gaps between so many do not matter any more */
    memmove(&a->spans[first + 1], &a->spans[last], (size_t)(a->span_count - last) * sizeof *a->spans);
    a->spans[first] = span;
    a->span_count += 1 - (last - first);
}

static int64_t covered(const anatomy *a, anatomy_span within)
{
    int64_t sum = 0;
    for (int i = 0; i < a->span_count; i++) {
        int64_t begin = a->spans[i].begin_ns, end = a->spans[i].end_ns;
        if (begin < within.begin_ns) begin = within.begin_ns;
        if (end > within.end_ns) end = within.end_ns;
        if (end > begin) sum += end - begin;
    }
    return sum;
}

/* Those that end before `ns` can change nothing any more. */
static void forget(anatomy *a, int64_t ns)
{
    int gone = 0;
    while (gone < a->span_count && a->spans[gone].end_ns <= ns) gone++;
    a->span_count -= gone;
    memmove(a->spans, a->spans + gone, (size_t)a->span_count * sizeof *a->spans);
}

void anatomy_add_span(anatomy *a, int64_t begin_ns, int64_t end_ns)
{
    if (a && end_ns > begin_ns) sync_queue_push(&a->queue, &(anatomy_span){begin_ns, end_ns});
}

/* ---- waits ------------------------------------------------------------------------------------ */

static int mark_of(int wait)
{
    return SYNC_MARK_WAITS + 2 * wait;
}

status anatomy_begin_wait(anatomy *a)
{
    if (!a || a->waiting || a->wait_count == a->wait_capacity) return STATUS_OK;
    TRY(device_mark(a->lane, mark_of(a->wait_count)));
    a->waiting = true;
    return STATUS_OK;
}

status anatomy_end_wait(anatomy *a, int *number)
{
    *number = -1;
    if (!a || !a->waiting) return STATUS_OK;
    TRY(device_mark(a->lane, mark_of(a->wait_count) + 1));
    a->waiting = false;
    *number = a->wait_count++;
    a->waits[*number].last = (anatomy_sent){0, ANATOMY_NOBODY};
    return STATUS_OK;
}

void anatomy_name_wait(anatomy *a, int number, anatomy_sent last)
{
    if (number >= 0) a->waits[number].last = last;
}

anatomy_span anatomy_wait_time(anatomy *a, int number)
{
    if (number < 0) return (anatomy_span){0, 0};
    return (anatomy_span){device_mark_ns(a->lane, mark_of(number)), device_mark_ns(a->lane, mark_of(number) + 1)};
}

/* ---- steps ------------------------------------------------------------------------------------ */

void anatomy_end_step(anatomy *a, anatomy_span now, const anatomy_phase *phases, int phase_count, anatomy_figures *out)
{
    anatomy_span span;
    while (sync_queue_pop(&a->queue, &span)) insert(a, span);
    for (int i = 0; i < a->wait_count; i++) {
        anatomy_span time = a->waits[i].time = anatomy_wait_time(a, i);
        trace_slice(a->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, time.begin_ns, time.end_ns);
    }
    memset(a->waited_ns, 0, (size_t)a->world * sizeof *a->waited_ns);
    anatomy_step step = {.begin_ns = now.begin_ns,
                         .end_ns = now.end_ns,
                         .phases = phases,
                         .waits = a->waits,
                         .spans = a->spans,
                         .phase_count = phase_count,
                         .wait_count = a->wait_count,
                         .span_count = a->span_count};
    anatomy_sweep(&step, a->waited_ns, out);
    if (trace_is_on(a->trace)) trace_parts(a->trace, &step);
    out->hidden_ns += covered(a, a->previous) - a->previous_ns;
    a->previous = now;
    a->previous_ns = covered(a, now);
    a->wait_count = 0;
    forget(a, now.begin_ns);
}

const int64_t *anatomy_waited(const anatomy *a)
{
    return a->waited_ns;
}

/* ---- open and close --------------------------------------------------------------------------- */

status anatomy_open(device_stream *lane, trace *trace, int params, int world, anatomy **out)
{
    *out = NULL;
    anatomy *a = calloc(1, sizeof *a);
    int waits = WAITS_PER_PARAM * params + OTHER_WAITS;
    if (!a) return fail(STATUS_SYSTEM, "no memory to record steps");
    a->lane = lane;
    a->trace = trace;
    a->world = world;
    a->wait_capacity = waits < MOST_WAITS ? waits : MOST_WAITS;
    a->waits = calloc((size_t)a->wait_capacity, sizeof *a->waits);
    a->spans = calloc(SPANS, sizeof *a->spans);
    a->waited_ns = calloc((size_t)world, sizeof *a->waited_ns);
    status rc = STATUS_OK;
    if (!a->waits || !a->spans || !a->waited_ns) rc = fail(STATUS_SYSTEM, "no memory to record steps");
    if (rc == STATUS_OK) rc = sync_queue_init(&a->queue, (uint32_t)(4 * params + SPANS), sizeof(anatomy_span));
    if (rc != STATUS_OK) anatomy_close(&a);
    *out = a;
    return rc;
}

void anatomy_close(anatomy **pointer)
{
    anatomy *a = *pointer;
    if (!a) return;
    sync_queue_deinit(&a->queue);
    free(a->waits);
    free(a->spans);
    free(a->waited_ns);
    free(a);
    *pointer = NULL;
}
