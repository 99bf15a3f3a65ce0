/* Records each pass of a step once, and then launches the recorded pass (--cuda-graph).
 *
 * In the first step a pass runs without a record, so that libraries can choose algorithms and the ring can
 * form its buckets. In a later step the pass is recorded. From then on the record is launched if the
 * scalars are equal to the recorded scalars. Recording stops while the engine launches a bucket, so a
 * record has one graph for each stretch of the pass between two calls of the engine. */
#include "harness/train/trainer_impl.h"

#include <stdlib.h>

static bool same_scalars(const op_scalars *a, const op_scalars *b)
{
    return a->rows == b->rows && a->loss_normalizer == b->loss_normalizer && a->accumulate == b->accumulate;
}

/* ---- stretches -------------------------------------------------------------------------------- */

static status add_graph(trainer_record *r, device_graph *graph)
{
    if (r->count == r->capacity) {
        int capacity = 2 * r->capacity + 4;
        device_graph **more = realloc(r->graphs, (size_t)capacity * sizeof *more);
        if (!more) {
            device_graph_close(&graph);
            return fail(STATUS_SYSTEM, "no memory for the record of a pass");
        }
        r->graphs = more;
        r->capacity = capacity;
    }
    r->graphs[r->count++] = graph;
    return STATUS_OK;
}

/* Ends a stretch: launches its recorded graph, or ends the recording and launches the new graph. */
static status leave(sync_recorder *base)
{
    trainer_recorder *r = (trainer_recorder *)base;
    device_graph *graph = NULL;
    if (!r->record || !r->within) return STATUS_OK;
    r->within = false;
    if (base->replays) {
        base->replays = false;
        if (r->at == r->record->count)
            return fail(STATUS_INTERNAL, "a recorded pass has more stretches than its record");
        return device_graph_launch(r->stream, r->record->graphs[r->at++]);
    }
    TRY(device_capture_end(r->stream, &graph));
    TRY(add_graph(r->record, graph));
    return device_graph_launch(r->stream, graph);
}

static status enter(sync_recorder *base)
{
    trainer_recorder *r = (trainer_recorder *)base;
    if (!r->record) return STATUS_OK;
    base->replays = r->replaying;
    if (!r->replaying) TRY(device_capture_begin(r->stream));
    r->within = true;
    return STATUS_OK;
}

void trainer_recorder_init(trainer *t)
{
    t->programs.recorder = (trainer_recorder){.base = {.leave = leave, .enter = enter}, .stream = t->stream};
}

/* ---- passes ----------------------------------------------------------------------------------- */

static status run(trainer *t, nn_pass pass)
{
    return nn_run(t->now.slot->instance, pass, pass, &t->now.observer, &t->now.scalars, &t->ledger);
}

/* Runs a pass and records it, or launches its record. Ends the recording of the stream even on failure. */
static status run_recorded(trainer *t, trainer_record *r, bool replaying, nn_pass pass)
{
    trainer_recorder *recorder = &t->programs.recorder;
    recorder->record = r;
    recorder->replaying = t->now.observer.recorded = replaying;
    recorder->at = 0;
    status rc = enter(&recorder->base);
    if (rc == STATUS_OK) rc = run(t, pass);
    status ended = leave(&recorder->base);
    recorder->record = NULL;
    t->now.observer.recorded = false;
    TRY(rc);
    TRY(ended);
    if (replaying && recorder->at < r->count)
        return fail(STATUS_INTERNAL, "a recorded pass has %d stretches, its record %d", recorder->at,
                    r->count);
    return STATUS_OK;
}

status trainer_run_pass(trainer *t, nn_pass pass)
{
    if (!t->now.slot) return STATUS_OK;
    if (!t->config.cuda_graph) return run(t, pass);
    trainer_record *r = &t->now.slot->records[t->now.scalars.accumulate][t->now.step.synchronize][pass];
    /* If updates write the bfloat16 copies of parameters, a record does not make the copies. Outdated copies
     * are made here. */
    if (r->seen && pass == NN_FORWARD) TRY(param_set_refresh_bf16_copy(t->params, t->stream));
    if (r->count > 0)
        return same_scalars(&r->scalars, &t->now.scalars) ? run_recorded(t, r, true, pass) : run(t, pass);
    if (!r->seen) r->first_step = t->now.step.index;
    r->seen = true;
    if (r->first_step == t->now.step.index) return run(t, pass);
    r->scalars = t->now.scalars;
    return run_recorded(t, r, false, pass);
}

static void close_record(trainer_record *r)
{
    for (int i = 0; i < r->count; i++) device_graph_close(&r->graphs[i]);
    free(r->graphs);
}

void trainer_close_records(trainer_program_slot *slot)
{
    for (int accumulates = 0; accumulates < 2; accumulates++)
        for (int synchronizes = 0; synchronizes < 2; synchronizes++)
            for (int pass = 0; pass < NN_PASSES; pass++)
                close_record(&slot->records[accumulates][synchronizes][pass]);
}
