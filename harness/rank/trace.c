#include "harness/rank/rank.h"

#include "common/base/log.h"
#include "harness/options/engines.h"

#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_STEPS = 10,
    TIMELINE_STEPS = 5, /* steps recorded without --trace; the results keep one of them */
    /* Room for the events of a bucket or key: its transfer, its waits and its flow. */
    EVENTS_PER_PARAMETER = 8,
    EVENTS_PER_STEP = 100,
    MOST_EVENTS = 1 << 20,
};

status rank_trace_open(const run_config *c, const nn_model *model, int64_t kernels, bool warns,
                       rank_trace *out)
{
    *out = (rank_trace){.begin = c->trace_begin,
                        .end = c->trace_end,
                        .to_file = c->run.trace != NULL,
                        .processes = run_config_devices(c) > 1 ? (int)c->run.gpus : 0};
    int64_t a_step =
        EVENTS_PER_STEP + EVENTS_PER_PARAMETER * (int64_t)model->param_count + (out->to_file ? kernels : 0);
    int64_t steps = out->end > 0 ? out->end - out->begin : out->to_file ? DEFAULT_STEPS : TIMELINE_STEPS;
    if (warns && steps > MOST_EVENTS / a_step)
        log_warn(
            "--trace-steps: expected at most %lld steps of this model, got %lld: the trace has room for %d "
            "events per rank, of the first steps",
            (long long)(MOST_EVENTS / a_step), (long long)steps, MOST_EVENTS);
    return trace_open(steps < MOST_EVENTS / a_step ? steps * a_step : MOST_EVENTS, &out->recorder);
}

status rank_trace_check(const run_config *c, int64_t first, int64_t end, bool warns)
{
    if (c->trace_end == 0 || (c->trace_begin < end && c->trace_end > first)) return STATUS_OK;
    status rc =
        fail(STATUS_USAGE, "--trace-steps: expected steps from %lld to %lld, which the job runs, got %s",
             (long long)first, (long long)end - 1, c->run.trace_steps);
    if (c->run.mode != ENGINE_BOTH && !c->run.isolated) return rc;
    if (warns) log_warn("%s", error_message());
    error_clear();
    return STATUS_OK;
}

void rank_trace_choose(rank_trace *t, int64_t first_measured)
{
    if (t->end > 0) return;
    t->begin = first_measured;
    t->end = first_measured + (t->to_file ? DEFAULT_STEPS : TIMELINE_STEPS);
}

void rank_trace_begin_step(rank_trace *t, int64_t step)
{
    trace_switch(t->recorder, step >= t->begin && step < t->end);
}

void rank_trace_end_step(rank_trace *rank, const step_result *r, const ledger *l)
{
    trace *t = rank->recorder;
    if (!trace_is_on(t)) return;
    trace_slice(t, TRACE_COMPUTE, "step", r->index, r->begin_ns, r->end_ns);
    trace_slice(t, TRACE_COMPUTE, "finish", TRACE_NO_INDEX, r->backward_end_ns, r->end_ns);
    trace_memory(t, r->forward_begin_ns, l->phase_end_classes[LEDGER_PHASE_SCATTER]);
    trace_memory(t, r->forward_end_ns, l->phase_end_classes[LEDGER_PHASE_LOSS]);
    trace_memory(t, r->backward_end_ns, l->phase_end_classes[LEDGER_PHASE_BACKWARD]);
    int64_t now[LEDGER_CLASS_COUNT];
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) now[c] = l->classes[c].current;
    trace_memory(t, r->end_ns, now);
    trace_switch(t, false);
}

/* ---- one step for the results ------------------------------------------------------------------- */

static json_t *on_clock(const clock_alignment *clock, int64_t ns)
{
    return record_seconds(clock_on_rank_0(clock, ns));
}

/* Returns the time of a point in the flow of a bucket or key, or null if there is none. The points stand near
 * entry `i` in the trace. */
static json_t *flow_point(const trace *t, int64_t i, int64_t id, trace_flow_point point,
                          const clock_alignment *clock)
{
    enum { NEAR = 32 };
    trace_entry e;
    for (int64_t end = i + NEAR; i < end && trace_read(t, i, &e); i++)
        if (e.kind == TRACE_FLOW && e.id == id && e.point == point) return on_clock(clock, e.begin_ns);
    return json_null();
}

/* Converts the entry if it is the transfer of a bucket, the transfer of a key, or a call without buckets.
 * Returns NULL for other entries. */
static json_t *message_to_json(const trace *t, int64_t i, const trace_entry *e, const clock_alignment *clock)
{
    bool aside = strcmp(e->name, "push and pull") == 0; /* this entry spans the transfers of all keys */
    bool whole =
        e->kind == TRACE_SLICE && e->track == TRACE_COMMUNICATION && e->index == TRACE_NO_INDEX && !aside;
    bool single = e->kind == TRACE_ASYNC && e->index != TRACE_NO_INDEX;
    if (!whole && !single) return NULL;
    json_t *index = e->index == TRACE_NO_INDEX ? json_null() : json_integer(e->index), *none = json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "name", e->name, "index", index, "ready_s",
                     single ? flow_point(t, i, e->id, TRACE_FLOW_BEGIN, clock) : none, "launched_s",
                     on_clock(clock, e->begin_ns), "started_s",
                     single ? flow_point(t, i, e->id, TRACE_FLOW_STEP, clock) : none, "finished_s",
                     on_clock(clock, e->end_ns), "taken_s",
                     single ? flow_point(t, i, e->id, TRACE_FLOW_END, clock) : none);
}

/* Returns the entries that are at least partly in [begin_ns, end_ns). */
static json_t *step_to_json(const trace *t, int64_t step, int64_t begin_ns, int64_t end_ns,
                            const clock_alignment *clock)
{
    json_t *parts = json_array(), *messages = json_array();
    trace_entry e;
    for (int64_t i = 0; trace_read(t, i, &e); i++) {
        if (e.kind == TRACE_MEMORY || e.begin_ns >= end_ns || e.end_ns <= begin_ns) continue;
        if (e.kind == TRACE_SLICE && e.track == TRACE_PARTS)
            json_array_append_new(parts,
                                  json_pack("{s:s, s:o, s:o}", "part", e.name, "begin_s",
                                            on_clock(clock, e.begin_ns), "end_s", on_clock(clock, e.end_ns)));
        json_t *message = message_to_json(t, i, &e, clock);
        if (message) json_array_append_new(messages, message);
    }
    return json_pack("{s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)step, "begin_s",
                     on_clock(clock, begin_ns), "end_s", on_clock(clock, end_ns), "parts", parts, "messages",
                     messages);
}

void rank_trace_to_json(const rank_trace *t, const record *r, const clock_alignment *clock, json_t *rank)
{
    json_t *steps = json_array();
    for (int64_t i = 0; i < r->kept && json_array_size(steps) < TIMELINE_STEPS; i++) {
        int64_t end_ns = r->steps[i].end_ns, begin_ns = end_ns - r->steps[i].times.total;
        if (r->steps[i].index < t->begin || r->steps[i].index >= t->end) continue;
        json_array_append_new(steps, step_to_json(t->recorder, r->steps[i].index, begin_ns, end_ns, clock));
    }
    json_object_set_new(rank, "timeline", steps);
}

/* ---- the file of --trace -------------------------------------------------------------------------- */

void rank_trace_write(const rank_trace *t, int job, int number, text_buffer *out)
{
    char name[48];
    if (trace_dropped(t->recorder) > 0)
        log_warn("the trace has no room for %lld events: --trace-steps chooses fewer steps",
                 (long long)trace_dropped(t->recorder));
    if (t->processes)
        snprintf(name, sizeof name, "%s rank %d device %d", job_name(job), number % t->processes,
                 number / t->processes);
    else
        snprintf(name, sizeof name, "%s rank %d", job_name(job), number);
    trace_write(t->recorder, job * TRACE_MOST_RANKS + number + 1, name, out);
}
