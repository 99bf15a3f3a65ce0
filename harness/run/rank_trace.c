#include "harness/run/rank.h"

#include "common/base/log.h"
#include "harness/run/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_STEPS = 10,
    EVENTS_PER_PARAMETER = 8, /* as a bucket or key of its own: transfer, waits, flow */
    EVENTS_PER_STEP = 100,
    MOST_EVENTS = 1 << 20,
};

status rank_trace_open(const run_config *c, const nn_model *model, int64_t kernels, rank_trace *out)
{
    *out = (rank_trace){.begin = c->trace_begin, .end = c->trace_end};
    if (!c->run.trace) return STATUS_OK;
    int64_t a_step = EVENTS_PER_STEP + EVENTS_PER_PARAMETER * (int64_t)model->param_count + kernels;
    int64_t steps = out->end > 0 ? out->end - out->begin : DEFAULT_STEPS;
    return trace_open(steps < MOST_EVENTS / a_step ? steps * a_step : MOST_EVENTS, &out->recorder);
}

void rank_trace_choose(rank_trace *t, int64_t first_measured)
{
    if (t->end > 0) return;
    t->begin = first_measured;
    t->end = first_measured + DEFAULT_STEPS;
}

void rank_trace_close(rank_trace *t)
{
    trace_close(&t->recorder);
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

static status join(const rendezvous_blob *blobs, int world, char **text)
{
    size_t bytes = 1, at = 0;
    for (int r = 0; r < world; r++) bytes += blobs[r].bytes;
    *text = malloc(bytes);
    if (!*text) return fail(STATUS_SYSTEM, "no memory for a trace of %zu bytes", bytes);
    for (int r = 0; r < world; r++) {
        memcpy(*text + at, blobs[r].data, blobs[r].bytes);
        at += blobs[r].bytes;
    }
    (*text)[at] = '\0';
    return STATUS_OK;
}

void rank_trace_write(const rank_trace *t, int job, int rank, text_buffer *out)
{
    char name[48];
    if (trace_dropped(t->recorder) > 0)
        log_warn("the trace has no room for %lld events: --trace-steps chooses fewer steps",
                 (long long)trace_dropped(t->recorder));
    snprintf(name, sizeof name, "%s rank %d", job_name(job), rank);
    trace_write(t->recorder, job * TRACE_MOST_RANKS + rank + 1, name, out);
}

status rank_trace_gather(rank_trace *t, rendezvous *r, int job, int rank, int64_t deadline_ns, int world,
                         char **text)
{
    text_buffer events = {0};
    *text = NULL;
    if (!t->recorder) return STATUS_OK;
    rank_trace_write(t, job, rank, &events);
    rendezvous_blob *blobs = calloc((size_t)world, sizeof *blobs);
    status rc = STATUS_OK;
    if (events.out_of_memory || !blobs)
        rc = fail(STATUS_SYSTEM, "no memory for a trace");
    else if (events.length > RENDEZVOUS_BLOB_MAX)
        rc = fail(STATUS_CONFIG,
                  "--trace-steps: expected a trace of at most %d bytes per rank, got %zu: trace fewer steps",
                  RENDEZVOUS_BLOB_MAX, events.length);
    if (rc == STATUS_OK)
        rc = rendezvous_allgather(r, "trace", events.data, events.length, deadline_ns, blobs);
    if (rc == STATUS_OK && rank == 0) rc = join(blobs, world, text);
    free(blobs);
    text_free(&events);
    return rc;
}
