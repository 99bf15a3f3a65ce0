/* Evaluation: runs the forward pass over every batch of a source, between steps.
 *
 * In a pipeline, a stage computes the next batch while the stage after it computes the present one, and the
 * last stage sums the losses. Stages on devices of one rank take turns. */
#include "harness/train/stages.h"

#include "common/base/clock.h"

static status add_sums(trainer *t, const batch_view *b, evaluation_sums *out)
{
    double sums[2];
    const double *found = nn_instance_loss_sums(t->evaluation.instance);
    TRY(device_download(t->stream, sums, found, DTYPE_F64, DTYPE_F64, 2));
    TRY(device_stream_synchronize(t->stream));
    out->loss += sums[0];
    out->correct += sums[1];
    out->targets += (double)b->targets_counted;
    return STATUS_OK;
}

static status evaluate_batch(trainer *t, const batch_view *b, evaluation_sums *out)
{
    const nn_program *p = t->evaluation.program;
    op_scalars scalars = {.loss_normalizer = 1.0};
    TRY(trainer_upload(t, b));
    TRY(trainer_receive_evaluated(t));
    /* Targets that are values cannot mark the padding, so the loss leaves out its rows. */
    scalars.rows = p->masked ? t->data.row_count : (b->count - b->padding) * p->model->rows_per_sample;
    TRY(nn_run(t->evaluation.instance, NN_FORWARD, NN_LOSS, &t->current.observer, &scalars, &t->ledger));
    TRY(trainer_send_evaluated(t));
    if (!t->config.model->sent && b->targets_counted > 0) TRY(add_sums(t, b, out));
    trainer_drop_batch(t);
    return STATUS_OK;
}

/* Returns number `s` of the trainers that this rank drives, or NULL after the last one. */
static trainer *driven(trainer *t, int s)
{
    if (!t->devices) return s == 0 ? t : NULL;
    return s < t->devices->count ? t->devices->stages[s] : NULL;
}

static status evaluate_next(trainer *t, batch_source *source, int64_t step, evaluation_sums *out)
{
    batch_view b;
    TRY(batch_source_next(source, step, &b));
    status rc = STATUS_OK;
    for (int s = 0; driven(t, s) && rc == STATUS_OK; s++) rc = evaluate_batch(driven(t, s), &b, out);
    batch_source_return(source, &b);
    return rc;
}

/* Exchanges the messages of a batch without computing the batch. Other stages of the replica may stop at a
 * later batch, and until then they wait for these messages. */
static status pass_on(trainer *t)
{
    TRY(trainer_receive_evaluated(t));
    return trainer_send_evaluated(t);
}

static status begin(trainer *t)
{
    TRY(trainer_prefetch_flush(t));
    TRY(step_log_enter(&t->log, STEP_PHASE_EVALUATE));
    device_stream_slow_down(t->stream, 1); /* --slow slows only training. */
    TRY(sync_gather_parameters(t->engine));
    if (param_set_gathers(t->params)) /* binds the memory of the gathered parameters */
        TRY(trainer_bind(&t->lives[0], t->evaluation.instance));
    t->current.observer = (nn_observer){.context = t, .group_sum = trainer_group_sum};
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
    for (int s = 0; driven(t, s); s++) TRY(begin(driven(t, s)));
    for (int64_t step = 0; step < source->steps_per_epoch; step++) {
        out->stopped = out->stopped || (stop.function && stop.function(stop.context));
        TRY(out->stopped ? pass_on(t) : evaluate_next(t, source, step, out));
        rank_slot_touch(t->config.sync.slot, clock_now_ns());
    }
    if (t->pipeline) pipeline_skip(t->pipeline->messages);
    for (int s = 0; driven(t, s); s++) end(driven(t, s));
    return STATUS_OK;
}
