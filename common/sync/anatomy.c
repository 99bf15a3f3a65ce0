#include "common/sync/anatomy.h"

#include "common/base/least.h"
#include "common/sync/engine.h"
#include "common/sync/queue.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Capacities. Each wait needs two marks, and the waits of two steps share the range of marks. */
enum {
    MOST_WAITS = (SYNC_MARK_ENGINE - SYNC_MARK_WAITS) / 2,
    WAITS_PER_PARAM = 2,
    OTHER_WAITS = 64,
    SPANS = 1024,
    MOST_BATCHES = 64
};

/* An interval in which a transfer, a sum or a call was in progress. */
typedef struct call_span {
    anatomy_span time;
    uint64_t call; /* number of the call if its start on other ranks is not known yet, else 0 */
} call_span;

/* A kept step. The fields `phases`, `waits` and `spans` say how many entries of the other lists of
 * anatomy.kept belong to this step. */
typedef struct kept_step {
    int64_t number; /* index of the step among all steps */
    anatomy_span time;
    int phases, waits, spans;
    bool lost; /* true if waits or spans were dropped */
} kept_step;

typedef struct kept_list {
    char *data;
    size_t count, capacity; /* in bytes */
} kept_list;

/* The waits of a step. */
typedef struct wait_list {
    anatomy_wait *waits; /* [wait_capacity] */
    int count;
} wait_list;

struct anatomy {
    device_stream *lane;
    trace *trace;
    int world;
    /* The waits of the step that ends next are in lists[kind]. If `leads` is true, the waits of the following
     * step are in the other list. The lowest bit of a wait's number is the index of the list that contains
     * the wait. */
    wait_list lists[2];
    int wait_capacity; /* largest number of waits in both lists together */
    int kind;
    bool waiting, leads;

    sync_queue queue; /* entries are call_spans; the thread that communicates pushes them */
    /* [span_capacity] Spans of this step and of the previous step, in order of time. They do not overlap. */
    anatomy_span *spans;
    int span_count, span_capacity;
    anatomy_span previous; /* the previous step */
    int64_t previous_ns;   /* ns of communication in `previous` that have been counted */
    int64_t *waited_ns;    /* [world] time that the last step waited for each rank */
    _Atomic int64_t lost;  /* number of waits and spans that have been dropped so far */
    int64_t lost_before,
        lost_at_end; /* `lost` at the start of the step that ends next, and at the end of the previous step */

    struct {
        /* `passes` is true while steps are not to be kept. `full` is true when there is no room for another
         * step. */
        bool passes, full;
        int64_t ended;      /* number of steps that have ended */
        size_t bytes, most; /* bytes in use and their limit, which is 0 if no steps are kept */
        /* lists of kept_step, anatomy_phase, anatomy_wait and call_span */
        kept_list steps, phases, waits, calls;
    } kept;
};

/* ---- spans ------------------------------------------------------------------------------------ */

static void lose(anatomy *a)
{
    atomic_fetch_add_explicit(&a->lost, 1, memory_order_relaxed);
}

/* Inserts a span, and merges it with spans that overlap or touch it. Most spans belong at the end of the
 * list. */
static void insert(anatomy *a, anatomy_span span)
{
    int first = a->span_count;
    while (first > 0 && a->spans[first - 1].end_ns >= span.begin_ns) first--;
    int last = first;
    for (; last < a->span_count && a->spans[last].begin_ns <= span.end_ns; last++) {
        span.begin_ns = least(span.begin_ns, a->spans[last].begin_ns);
        span.end_ns = greatest(span.end_ns, a->spans[last].end_ns);
    }
    if (last == first && a->span_count == a->span_capacity) {
        lose(a);
        return;
    }
    memmove(&a->spans[first + 1], &a->spans[last], (size_t)(a->span_count - last) * sizeof *a->spans);
    a->spans[first] = span;
    a->span_count += 1 - (last - first);
}

static int64_t covered(const anatomy *a, anatomy_span within)
{
    int64_t sum = 0;
    for (int i = 0; i < a->span_count; i++) {
        int64_t begin = greatest(a->spans[i].begin_ns, within.begin_ns);
        sum += greatest(0, least(a->spans[i].end_ns, within.end_ns) - begin);
    }
    return sum;
}

/* Drops the spans that end before `ns`. No later sweep needs these spans. */
static void forget(anatomy *a, int64_t ns)
{
    int gone = 0;
    while (gone < a->span_count && a->spans[gone].end_ns <= ns) gone++;
    a->span_count -= gone;
    memmove(a->spans, a->spans + gone, (size_t)a->span_count * sizeof *a->spans);
}

void anatomy_add_span(anatomy *a, int64_t begin_ns, int64_t end_ns)
{
    anatomy_add_call(a, 0, begin_ns, end_ns);
}

void anatomy_insert_span(anatomy *a, int64_t begin_ns, int64_t end_ns)
{
    if (a && end_ns > begin_ns) insert(a, (anatomy_span){begin_ns, end_ns});
}

void anatomy_add_call(anatomy *a, uint64_t number, int64_t begin_ns, int64_t end_ns)
{
    if (a && end_ns > begin_ns && !sync_queue_push(&a->queue, &(call_span){{begin_ns, end_ns}, number}))
        lose(a);
}

/* ---- waits ------------------------------------------------------------------------------------ */

/* Returns the first of the two marks of a wait. All waits of a step have even numbers, and all waits of the
 * next step have odd numbers. The marks of waits with even numbers ascend from SYNC_MARK_WAITS. The marks of
 * waits with odd numbers descend from SYNC_MARK_ENGINE. */
static int mark_of(int number)
{
    int wait = 2 * (number / 2);
    return number % 2 == 0 ? SYNC_MARK_WAITS + wait : SYNC_MARK_ENGINE - 2 - wait;
}

bool anatomy_ends(const anatomy *a, int number)
{
    return number % 2 == a->kind;
}

/* Returns the list to which new waits are added. */
static int list_now(const anatomy *a)
{
    return a->leads ? !a->kind : a->kind;
}

static int next_number(const anatomy *a)
{
    return 2 * a->lists[list_now(a)].count + list_now(a);
}

status anatomy_begin_wait(anatomy *a)
{
    if (!a || a->waiting) return STATUS_OK;
    if (a->lists[0].count + a->lists[1].count == a->wait_capacity) {
        lose(a);
        return STATUS_OK;
    }
    TRY(device_mark(a->lane, mark_of(next_number(a))));
    a->waiting = true;
    return STATUS_OK;
}

status anatomy_end_wait(anatomy *a, int *number)
{
    *number = -1;
    if (!a || !a->waiting) return STATUS_OK;
    TRY(device_mark(a->lane, mark_of(next_number(a)) + 1));
    a->waiting = false;
    *number = next_number(a);
    a->lists[list_now(a)].count++;
    anatomy_name_wait(a, *number, (anatomy_sent){.rank = ANATOMY_NOBODY});
    return STATUS_OK;
}

void anatomy_name_wait(anatomy *a, int number, anatomy_sent last)
{
    if (number >= 0) a->lists[number % 2].waits[number / 2].last = last;
}

anatomy_span anatomy_wait_time(const anatomy *a, int number)
{
    if (number < 0) return (anatomy_span){0, 0};
    return (anatomy_span){device_mark_ns(a->lane, mark_of(number)),
                          device_mark_ns(a->lane, mark_of(number) + 1)};
}

/* ---- steps ------------------------------------------------------------------------------------ */

void anatomy_lead(anatomy *a)
{
    a->leads = true;
}

static void keep(anatomy *a, kept_list *list, const void *items, size_t bytes)
{
    if (a->kept.passes || a->kept.full) return;
    size_t capacity = list->capacity ? list->capacity : 4096;
    while (capacity < list->count + bytes) capacity *= 2;
    bool fits = a->kept.bytes + bytes <= a->kept.most;
    char *grown = fits && capacity > list->capacity ? realloc(list->data, capacity) : list->data;
    a->kept.full = !fits || !grown;
    if (a->kept.full) return;
    list->data = grown;
    a->kept.bytes += bytes;
    list->capacity = capacity;
    memcpy(list->data + list->count, items, bytes);
    list->count += bytes;
}

/* Labels the step from its phases, its waits, and all spans that are known. */
static void sweep_step(anatomy *a, anatomy_span now, const anatomy_phase *phases, int phase_count,
                       anatomy_figures *out)
{
    memset(a->waited_ns, 0, (size_t)a->world * sizeof *a->waited_ns);
    anatomy_step step = {.begin_ns = now.begin_ns,
                         .end_ns = now.end_ns,
                         .phases = phases,
                         .waits = a->lists[a->kind].waits,
                         .spans = a->spans,
                         .phase_count = phase_count,
                         .wait_count = a->lists[a->kind].count,
                         .span_count = a->span_count,
                         .trace = a->trace};
    anatomy_sweep(&step, a->waited_ns, out);
    int64_t lost = atomic_load_explicit(&a->lost, memory_order_relaxed);
    out->lost = lost - a->lost_before;
    /* Some lost records may belong to the next step, if the next step has begun. */
    a->lost_before = a->leads ? a->lost_at_end : lost;
    a->lost_at_end = lost;
    out->hidden_computing_ns += covered(a, a->previous) - a->previous_ns;
    a->previous = now;
    a->previous_ns = covered(a, now);
    a->lists[a->kind].count = 0;
    a->kind = list_now(a);
    a->leads = false;
    forget(a, now.begin_ns);
}

void anatomy_end_step(anatomy *a, anatomy_span now, const anatomy_phase *phases, int phase_count,
                      anatomy_figures *out)
{
    wait_list *list = &a->lists[a->kind];
    kept_step step = {.number = a->kept.ended++, .time = now, .phases = phase_count, .waits = list->count};
    call_span span;
    for (; sync_queue_pop(&a->queue, &span); step.spans++) {
        insert(a, span.time);
        keep(a, &a->kept.calls, &span, sizeof span);
    }
    for (int i = 0; i < list->count; i++) {
        anatomy_span time = list->waits[i].time = anatomy_wait_time(a, 2 * i + a->kind);
        trace_slice(a->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, time.begin_ns, time.end_ns);
    }
    keep(a, &a->kept.phases, phases, (size_t)phase_count * sizeof *phases);
    keep(a, &a->kept.waits, list->waits, (size_t)list->count * sizeof *list->waits);
    sweep_step(a, now, phases, phase_count, out);
    step.lost = out->lost > 0;
    /* The step is added last, so that it is kept only if all its phases, waits and calls have been kept. */
    keep(a, &a->kept.steps, &step, sizeof step);
}

const int64_t *anatomy_waited(const anatomy *a)
{
    return a->waited_ns;
}

/* ---- calls whose start on other ranks is known after the run ---------------------------------- */

void anatomy_keep_steps(anatomy *a, size_t most_bytes)
{
    if (a) a->kept.most = most_bytes;
}

bool anatomy_keeps_steps(const anatomy *a)
{
    return a && a->kept.most > 0;
}

void anatomy_keep_next(anatomy *a, bool keep)
{
    if (a) a->kept.passes = !keep;
}

int anatomy_by_number(const void *a, const void *b)
{
    uint64_t x = ((const anatomy_call *)a)->number, y = ((const anatomy_call *)b)->number;
    return (x > y) - (x < y);
}

status anatomy_calls(const anatomy *a, anatomy_call **calls, int64_t *count)
{
    const call_span *spans = (const call_span *)a->kept.calls.data;
    size_t kept = a->kept.calls.count / sizeof *spans;
    *count = 0;
    *calls = calloc(kept + 1, sizeof **calls);
    if (!*calls) return fail(STATUS_SYSTEM, "no memory for the calls of a run");
    for (size_t i = 0; i < kept; i++)
        if (spans[i].call)
            (*calls)[(*count)++] = (anatomy_call){spans[i].call, {.ns = spans[i].time.begin_ns}};
    qsort(*calls, (size_t)*count, sizeof **calls, anatomy_by_number);
    return STATUS_OK;
}

/* Returns the call with the given number, or NULL if a rank has not kept the call. */
static const anatomy_call *find_call(const anatomy_call *calls, int64_t count, uint64_t number)
{
    const anatomy_call key = {.number = number};
    return bsearch(&key, calls, (size_t)count, sizeof *calls, anatomy_by_number);
}

void anatomy_sweep_again(anatomy *a, const anatomy_call *last, int64_t count, anatomy_swept *swept,
                         void *context)
{
    const kept_step *steps = (const kept_step *)a->kept.steps.data;
    const anatomy_phase *phases = (const anatomy_phase *)a->kept.phases.data;
    const anatomy_wait *waits = (const anatomy_wait *)a->kept.waits.data;
    const call_span *calls = (const call_span *)a->kept.calls.data;
    wait_list *list = &a->lists[a->kind];
    a->span_count = 0;
    list->count = 0; /* Waits that were recorded after the end of the last step are dropped. */
    a->previous = (anatomy_span){0, 0};
    a->previous_ns = 0;
    for (int64_t i = 0; i < (int64_t)(a->kept.steps.count / sizeof *steps); i++) {
        const kept_step *step = &steps[i];
        anatomy_figures figures;
        for (int s = 0; s < step->spans; s++, calls++) {
            anatomy_span span = calls->time;
            const anatomy_call *call = find_call(last, count, calls->call);
            /* If the clocks of the ranks differ much, the new begin may be after the end of the span. */
            if (call && call->begin.rank != ANATOMY_NOBODY && call->begin.ns > span.begin_ns)
                span.begin_ns = call->begin.ns;
            if (span.end_ns > span.begin_ns) insert(a, span);
        }
        for (; list->count < step->waits; list->count++) {
            anatomy_wait *w = &list->waits[list->count];
            *w = *waits++;
            const anatomy_call *call = find_call(last, count, (uint64_t)w->last.ns);
            if (w->last.rank == ANATOMY_CALL && call) w->last = call->begin;
        }
        sweep_step(a, step->time, phases, step->phases, &figures);
        figures.lost += step->lost;
        phases += step->phases;
        swept(context, step->number, &figures, a->waited_ns);
    }
}

/* ---- open and close --------------------------------------------------------------------------- */

status anatomy_open(device_stream *lane, trace *trace, int params, int batches, int world, anatomy **out)
{
    *out = NULL;
    anatomy *a = calloc(1, sizeof *a);
    int many = batches < 1 ? 1 : batches < MOST_BATCHES ? batches : MOST_BATCHES;
    int waits = (WAITS_PER_PARAM * params + OTHER_WAITS) * many;
    if (!a) return fail(STATUS_SYSTEM, "no memory to record steps");
    a->lane = lane;
    a->trace = trace;
    a->world = world;
    a->wait_capacity = waits < MOST_WAITS ? waits : MOST_WAITS;
    for (int i = 0; i < 2; i++)
        a->lists[i].waits = calloc((size_t)a->wait_capacity, sizeof *a->lists[i].waits);
    a->span_capacity = SPANS * many;
    a->spans = calloc((size_t)a->span_capacity, sizeof *a->spans);
    a->waited_ns = calloc((size_t)world, sizeof *a->waited_ns);
    bool enough = a->lists[0].waits && a->lists[1].waits && a->spans && a->waited_ns;
    status rc = enough
                    ? sync_queue_init(&a->queue, (uint32_t)((4 * params + SPANS) * many), sizeof(call_span))
                    : fail(STATUS_SYSTEM, "no memory to record steps");
    if (rc != STATUS_OK) anatomy_close(&a);
    *out = a;
    return rc;
}

void anatomy_close(anatomy **pointer)
{
    anatomy *a = *pointer;
    if (!a) return;
    sync_queue_deinit(&a->queue);
    free(a->lists[0].waits);
    free(a->lists[1].waits);
    free(a->spans);
    free(a->waited_ns);
    free(a->kept.steps.data);
    free(a->kept.phases.data);
    free(a->kept.waits.data);
    free(a->kept.calls.data);
    free(a);
    *pointer = NULL;
}
