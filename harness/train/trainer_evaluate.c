/* Evaluation: runs the forward pass over every batch of a source, between steps.
 *
 * In a pipeline, a stage computes the next batch while the stage after it computes the present one, and the
 * last stage sums the losses. Stages on devices of one rank take turns. */
#include "harness/train/trainer_impl.h"

#include "common/base/clock.h"

static status add_sums(trainer *t, const batch_view *b, evaluation_sums *out)
{
    double sums[2];
    const double *found = nn_instance_loss_sums(t->programs.evaluation.instance);
    TRY(device_download(t->stream, sums, found, DTYPE_F64, DTYPE_F64, 2));
    TRY(device_stream_synchronize(t->stream));
    out->loss += sums[0];
    out->correct += sums[1];
    out->targets += (double)b->targets_counted;
    return STATUS_OK;
}

static status evaluate_batch(trainer *t, const batch_view *b, evaluation_sums *out)
{
    const nn_program *p = t->programs.evaluation.program;
    op_scalars scalars = {.loss_normalizer = 1.0};
    TRY(trainer_upload(t, b));
    TRY(trainer_receive_evaluated(t));
    scalars.rows = p->masked ? t->data.row_count : b->count * p->model->rows_per_sample;
    TRY(nn_run(t->programs.evaluation.instance, NN_FORWARD, NN_LOSS, &t->now.observer, &scalars, &t->ledger));
    TRY(trainer_send_evaluated(t));
    if (!t->config.model->sent) TRY(add_sums(t, b, out));
    trainer_drop_batch(t);
    return STATUS_OK;
}

static status evaluate_next(trainer *t, batch_source *source, int64_t step, evaluation_sums *out)
{
    batch_view b;
    TRY(batch_source_next(source, step, &b));
    status rc = evaluate_batch(t, &b, out);
    for (int s = 1; s < t->devices.count && rc == STATUS_OK; s++)
        rc = evaluate_batch(t->devices.stages[s], &b, out);
    batch_source_return(source, &b);
    return rc;
}

/* Exchanges the messages of a batch without computing it. Other stages of the replica may still wait for
 * these messages, because they stop at a later batch. */
static status pass_on(trainer *t)
{
    TRY(trainer_receive_evaluated(t));
    return trainer_send_evaluated(t);
}

static status no_param(void *context, int param)
{
    (void)context;
    (void)param;
    return STATUS_OK;
}

static status begin(trainer *t)
{
    TRY(trainer_prefetch_flush(t));
    TRY(step_log_enter(&t->log, STEP_PHASE_EVALUATE));
    device_stream_slow_down(t->stream, 1); /* --slow stretches training, not what only measures it. */
    TRY(sync_gather_parameters(t->engine));
    if (param_set_gathers(t->params)) /* binds the memory of the gathered parameters */
        TRY(nn_instance_bind(t->programs.evaluation.instance, &t->programs.bindings));
    t->now.observer =
        (nn_observer){.context = t, .need = no_param, .ready = no_param, .group_sum = trainer_group_sum};
    return STATUS_OK;
}

static void end(trainer *t)
{
    device_stream_slow_down(t->stream, t->slowdown);
    ledger_enter(&t->ledger, LEDGER_PHASE_AFTER);
}

status trainer_evaluate(trainer *t, batch_source *source, evaluation_stop stop, evaluation_sums *out)
{
    *out = (evaluation_sums){0};
    TRY(begin(t));
    for (int s = 1; s < t->devices.count; s++) TRY(begin(t->devices.stages[s]));
    for (int64_t step = 0; step < source->steps_per_epoch; step++) {
        out->stopped = out->stopped || (stop.function && stop.function(stop.context));
        TRY(out->stopped ? pass_on(t) : evaluate_next(t, source, step, out));
        rank_slot_touch(t->config.slot, clock_now_ns());
    }
    trainer_end_evaluation(t);
    end(t);
    for (int s = 1; s < t->devices.count; s++) end(t->devices.stages[s]);
    return STATUS_OK;
}
