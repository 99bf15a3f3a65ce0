/* The sweep over a step, which labels every instant. */
#include "common/sync/anatomy.h"

static const char *const part_names[STEP_PARTS] = {
    "data", "forward", "backward", "exposed_communication", "waiting", "optimizer", "other"};

/* The position of the sweep. [begin_ns, end_ns) is an interval of the step in which no phase, wait or span
 * begins or ends. The pointers point to the phase, the wait and the span that contain the interval or follow
 * it. */
typedef struct sweep {
    int64_t begin_ns, end_ns;
    const anatomy_phase *phase, *last_phase;
    const anatomy_wait *wait, *waits_end;
    const anatomy_span *span, *spans_end;
} sweep;

static void nearer(sweep *s, int64_t edge)
{
    if (edge > s->begin_ns && edge < s->end_ns) s->end_ns = edge;
}

/* Moves to the interval that begins at `begin_ns`, in a step that ends at `end_ns`. */
static void move(sweep *s, int64_t begin_ns, int64_t end_ns)
{
    s->begin_ns = begin_ns;
    s->end_ns = end_ns;
    while (s->phase < s->last_phase && s->phase[1].begin_ns <= begin_ns) s->phase++;
    while (s->wait < s->waits_end && s->wait->time.end_ns <= begin_ns) s->wait++;
    while (s->span < s->spans_end && s->span->end_ns <= begin_ns) s->span++;
    if (s->phase < s->last_phase) nearer(s, s->phase[1].begin_ns);
    if (s->wait < s->waits_end) {
        nearer(s, s->wait->time.begin_ns);
        nearer(s, s->wait->time.end_ns);
        nearer(s, s->wait->last.ns);
        nearer(s, s->wait->last.ready_ns);
    }
    if (s->span < s->spans_end) {
        nearer(s, s->span->begin_ns);
        nearer(s, s->span->end_ns);
    }
}

static step_part label(const sweep *s, bool in_progress)
{
    bool waits = s->wait < s->waits_end && s->wait->time.begin_ns <= s->begin_ns;
    if (!waits || s->phase->part == STEP_DATA) return s->phase->part;
    bool other = s->wait->last.rank >= 0;
    if (other && s->begin_ns < s->wait->last.ready_ns) return STEP_WAITING;
    if (in_progress) return STEP_EXPOSED;
    return other && s->begin_ns < s->wait->last.ns ? STEP_WAITING : STEP_OTHER;
}

static void wait_for(int rank, int64_t ns, int64_t *waited_ns, anatomy_figures *out)
{
    waited_ns[rank] += ns;
    if (out->waited_for == ANATOMY_NOBODY || waited_ns[rank] > waited_ns[out->waited_for])
        out->waited_for = rank;
}

void anatomy_sweep(const anatomy_step *step, int64_t *waited_ns, anatomy_figures *out)
{
    sweep s = {.end_ns = step->begin_ns,
               .phase = step->phases,
               .last_phase = step->phases + step->phase_count - 1,
               .wait = step->waits,
               .waits_end = step->waits + step->wait_count,
               .span = step->spans,
               .spans_end = step->spans + step->span_count};
    int64_t since_ns = step->begin_ns; /* Time at which the part `traced` begins in the trace. */
    step_part traced = STEP_OTHER;
    *out = (anatomy_figures){.waited_for = ANATOMY_NOBODY};
    while (s.end_ns < step->end_ns) {
        move(&s, s.end_ns, step->end_ns);
        int64_t ns = s.end_ns - s.begin_ns;
        bool in_progress = s.span < s.spans_end && s.span->begin_ns <= s.begin_ns;
        step_part part = label(&s, in_progress);
        out->parts[part] += ns;
        if (in_progress && part == STEP_WAITING)
            out->hidden_waiting_ns += ns;
        else if (in_progress && part != STEP_EXPOSED)
            out->hidden_computing_ns += ns;
        if (part == STEP_WAITING) wait_for(s.wait->last.rank, ns, waited_ns, out);
        if (part == traced) continue;
        if (s.begin_ns > since_ns)
            trace_slice(step->trace, TRACE_PARTS, part_names[traced], TRACE_NO_INDEX, since_ns, s.begin_ns);
        since_ns = s.begin_ns;
        traced = part;
    }
    if (s.end_ns > since_ns)
        trace_slice(step->trace, TRACE_PARTS, part_names[traced], TRACE_NO_INDEX, since_ns, s.end_ns);
}
