/* Runs the passes of a step, and records each pass once (--cuda-graph).
 *
 * In the first step a pass runs without a record, so that libraries can choose algorithms and the ring can
 * form its buckets. In a later step the pass is recorded. From then on the record is launched if the
 * scalars are equal to the recorded scalars. */
#include "harness/train/trainer_impl.h"

static status run(trainer *t, nn_pass pass)
{
    return nn_run(t->current.slot->instance, pass, pass, &t->current.observer, &t->current.scalars,
                  &t->ledger);
}

static bool same_scalars(const op_scalars *a, const op_scalars *b)
{
    return a->rows == b->rows && a->loss_normalizer == b->loss_normalizer && a->accumulate == b->accumulate;
}

status trainer_run_pass(trainer *t, nn_pass pass)
{
    if (!t->current.slot) return STATUS_OK;
    if (!t->config.cuda_graph) return run(t, pass);
    trainer_record *r =
        &t->current.slot->records[t->current.scalars.accumulate][t->current.step.synchronize][pass];
    /* If updates write the bfloat16 copies of parameters, a recorded pass does not write the copies. Outdated
     * copies are therefore written here. */
    if (r->seen && pass == NN_FORWARD) TRY(param_set_refresh_bf16_copy(t->params, t->stream));
    if (!r->seen) r->first_step = t->current.step.index;
    r->seen = true;
    if (!r->record && r->first_step == t->current.step.index) return run(t, pass);
    if (!r->record) r->scalars = t->current.scalars;
    if (!same_scalars(&r->scalars, &t->current.scalars)) return run(t, pass);
    TRY(device_record_begin(t->stream, &r->record));
    status rc = run(t, pass);
    status ended = device_record_end(t->stream); /* also after a failure */
    return rc != STATUS_OK ? rc : ended;
}

void trainer_close_records(trainer_program_slot *slot)
{
    for (int accumulates = 0; accumulates < 2; accumulates++)
        for (int synchronizes = 0; synchronizes < 2; synchronizes++)
            for (int pass = 0; pass < NN_PASSES; pass++)
                device_record_close(&slot->records[accumulates][synchronizes][pass].record);
}
