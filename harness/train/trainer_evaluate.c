/* Evaluation: the forward pass over every batch of a source, between steps. */
#include "harness/train/trainer_impl.h"

#include "common/base/clock.h"

static status evaluate_batch(trainer *t, const batch_view *b, evaluation_sums *out)
{
    const nn_program *p = t->programs.evaluation.program;
    op_scalars scalars = {.loss_normalizer = 1.0};
    nn_cursor cursor = {0};
    double sums[2];
    TRY(trainer_upload(t, b));
    scalars.rows = p->masked ? t->data.row_count : b->count * p->model->rows_per_sample;
    TRY(nn_instance_run(t->programs.evaluation.instance, &cursor, p->op_count, &t->now.observer, &scalars, &t->ledger));
    const double *found = nn_instance_loss_sums(t->programs.evaluation.instance);
    TRY(device_download(t->stream, sums, found, DTYPE_F64, DTYPE_F64, 2));
    TRY(device_stream_synchronize(t->stream));
    trainer_drop_batch(t);
    out->loss += sums[0];
    out->correct += sums[1];
    out->targets += (double)b->targets_counted;
    return STATUS_OK;
}

static status no_param(void *context, int param)
{
    (void)context;
    (void)param;
    return STATUS_OK;
}

status trainer_evaluate(trainer *t, batch_source *source, evaluation_stop stop, evaluation_sums *out)
{
    *out = (evaluation_sums){0};
    TRY(trainer_prefetch_flush(t));
    ledger_enter(&t->ledger, LEDGER_PHASE_EVALUATE);
    TRY(sync_gather_parameters(t->engine));
    if (param_set_gathers(t->params)) /* whole parameters are in memory of their own */
        TRY(nn_instance_bind(t->programs.evaluation.instance, &t->programs.bindings));
    t->now.observer = (nn_observer){.context = t, .need = no_param, .ready = no_param, .group_sum = trainer_group_sum};
    rank_slot_enter(t->config.slot, RANK_EVALUATE, device_now_ns(t->device));
    for (int64_t step = 0; step < source->steps_per_epoch; step++) {
        batch_view b;
        out->stopped = stop.function && stop.function(stop.context);
        if (out->stopped) break;
        TRY(batch_source_next(source, step, &b));
        status rc = evaluate_batch(t, &b, out);
        batch_source_return(source, &b);
        TRY(rc);
        rank_slot_touch(t->config.slot, clock_now_ns());
    }
    ledger_enter(&t->ledger, LEDGER_PHASE_AFTER);
    return STATUS_OK;
}
