/* Passes of a step that are recorded once and launched as a whole (--cuda-graph). The first time a pass runs as
 * always, so that libraries settle what they choose lazily; the second time it is recorded; from then on the
 * record is launched while the scalars are those it was made with, and else the pass runs as always. */
#include "harness/train/trainer_impl.h"

static bool same_scalars(const op_scalars *a, const op_scalars *b)
{
    return a->rows == b->rows && a->loss_normalizer == b->loss_normalizer && a->accumulate == b->accumulate;
}

static status run(trainer *t, int end)
{
    return nn_instance_run(t->slot->instance, &t->cursor, end, &t->observer, &t->scalars, &t->ledger);
}

/* The host's part of the operations goes on: the ledger moves, the engine is told. */
static status replay(trainer *t, trainer_record *r, int end)
{
    t->observer.recorded = true;
    status rc = run(t, end);
    t->observer.recorded = false;
    TRY(rc);
    return device_graph_launch(t->stream, r->graph);
}

static status record(trainer *t, trainer_record *r, int end)
{
    TRY(device_capture_begin(t->stream));
    status rc = run(t, end), ended = device_capture_end(t->stream, &r->graph);
    TRY(rc);
    TRY(ended);
    r->scalars = t->scalars;
    return device_graph_launch(t->stream, r->graph);
}

status trainer_run_pass(trainer *t, trainer_pass pass, int end)
{
    if (!t->config.cuda_graph) return run(t, end);
    trainer_record *r = &t->slot->records[t->scalars.accumulate][pass];
    if (r->graph) return same_scalars(&r->scalars, &t->scalars) ? replay(t, r, end) : run(t, end);
    if (r->seen) return record(t, r, end);
    r->seen = true;
    return run(t, end);
}

void trainer_close_records(trainer_program_slot *slot)
{
    for (int a = 0; a < 2; a++)
        for (int pass = 0; pass < TRAINER_PASSES; pass++) device_graph_close(&slot->records[a][pass].graph);
}
