/* One training step of a rank, from a batch to updated parameters. train_step() is the step, and the
 * functions above it are the parts. A step makes these calls for each micro-batch:
 *
 *      this file                       the same in PyTorch
 *      ------------------------------  -----------------------------------------------------------
 *      trainer_begin_batch             optimizer.zero_grad() first; no_sync() for all but the last
 *      trainer_load_batch              x, y = next(loader), and x.to(device)
 *      sync_begin_forward              DistributedDataParallel: broadcasts the buffers of the model
 *      trainer_run_pass(NN_FORWARD)    output = model(x)
 *      trainer_loss                    loss = criterion(output, y)
 *      trainer_run_pass(NN_BACKWARD)   loss.backward(); on_ready() is the hook on each gradient
 *      sync_reduce                     Work.wait() for the all-reduce of each bucket
 *      trainer_update                  clip_grad_norm_(), and optimizer.step()
 *      trainer_end_batch               loss.item()
 *
 * The engine (sync_...) averages the gradients: by ring all-reduce, with a parameter server, or not at all.
 * common/sync/engine.h describes each call. The table shows the ring. Other engines differ at the end:
 *
 *   parameter server   sync_reduce() only pushes the last gradients, and trainer_update() does nothing. The
 *                      server or the worker's agent runs the optimizer, and the next step's on_need() waits
 *                      for the new parameters.
 *   DataParallel       only rank 0 runs the optimizer.
 *
 * step_log_enter() records the begin of a phase for the times, the memory ledger and the status table.
 *
 * On a GPU whose engine only enqueues (trainer.runs_ahead), the host does not wait for the device within a
 * step. The step leaves marks on the compute stream and the loss in pinned memory. trainer_end_step() reads
 * both after the next step has been enqueued.
 *
 * pipeline_step.c and devices_step.c make the steps of split models from the same parts. If the second half
 * of the model is in a remote stage (remote_step.c), train_step() sends and receives between the passes. */
#include "harness/train/stages.h"

#include <string.h>

int64_t trainer_micro_batches(const trainer *t)
{
    return t->config.accumulate > 1 ? t->config.accumulate : 1;
}

static double *loss_sums(const trainer *t)
{
    return trainer_current_live(t)->memory.loss.data;
}

/* ---- batch ------------------------------------------------------------------------------------ */

static status find_slot(trainer *t, int64_t batch, trainer_program_slot **out)
{
    trainer_program_slot *slots = trainer_current_live(t)->slots;
    for (int i = 0; i < t->slot_count; i++) {
        if (slots[i].batch != batch) continue;
        *out = &slots[i];
        return STATUS_OK;
    }
    return fail(STATUS_INTERNAL, "a batch of %lld samples was not announced", (long long)batch);
}

/* ---- load ------------------------------------------------------------------------------------- */

/* Copies the loaded batch to the memory that programs read. The source is the copy that was prefetched to the
 * device if prefetching is on, else the batch on the host. */
static status copy_batch(trainer *t)
{
    sync_exchange *x = &t->exchange;
    bool loads = t->current.load > 0;
    x->loaded = x->samples = loads ? t->current.batch.count : 0;
    x->targets = loads ? t->current.batch.targets_counted : 0;
    t->current.step.samples = x->samples;
    t->current.step.targets = x->targets;
    if (t->data.prefetch.on && loads)
        TRY(trainer_prefetch_take(t));
    else if (x->loaded > 0)
        TRY(trainer_upload(t, &t->current.batch));
    t->current.scalars.rows = t->data.row_count;
    t->current.copied = t->data.prefetch.on && loads ? t->data.prefetch.number : 0;
    return STATUS_OK;
}

/* Chooses the program for the samples that the rank has loaded or rank 0 has scattered. */
static status choose_program(trainer *t)
{
    sync_exchange *x = &t->exchange;
    t->current.step.samples = x->samples;
    t->current.step.targets = x->targets;
    t->current.slot = NULL;
    if (x->samples == 0) return STATUS_OK;
    TRY(find_slot(t, x->samples, &t->current.slot));
    const nn_program *p = t->current.slot->program;
    x->output = nn_instance_value(t->current.slot->instance, p->output_value);
    x->output_gradient = nn_instance_value(t->current.slot->instance, p->output_gradient_value);
    if (x->loaded > 0) return STATUS_OK;
    trainer_hold_batch(t, x->samples * (x->input_bytes + (t->needs.one_loss ? 0 : x->target_bytes)));
    return STATUS_OK;
}

status trainer_load_batch(trainer *t, batch_source *source, int64_t batch_step)
{
    TRY(step_log_enter(&t->log, STEP_PHASE_LOAD));
    const sync_scatter *scatter = t->engine->type->scatter;
    int64_t batch = t->config.batch;
    t->current.load = scatter ? scatter->plan(t->engine, &t->current.step, batch) : batch;
    bool last = trainer_is_last_micro_batch(t) && t->current.step.index + 1 >= t->config.total_steps;
    if (t->current.load > 0) TRY(trainer_borrow_batch(t, source, batch_step, last));
    TRY(step_log_enter(&t->log, STEP_PHASE_COPY));
    TRY(copy_batch(t));
    TRY(step_log_enter(&t->log, STEP_PHASE_SCATTER));
    TRY(trainer_return_batch(t, source, false));
    if (scatter) TRY(scatter->inputs(t->engine, &t->current.step));
    TRY(choose_program(t));
    return trainer_prefetch_next(t);
}

/* ---- loss ------------------------------------------------------------------------------------- */

/* Launches the loss over the outputs of all ranks or of the remote stage. */
static status launch_one_loss(trainer *t)
{
    const sync_exchange *x = &t->exchange;
    void *operands[OP_MAX_OPERANDS] = {[LOSS_LOGITS] = x->all_outputs,
                                       [LOSS_TARGETS] = t->lives[0].tensors.target.data,
                                       [LOSS_DLOGITS] = x->all_gradients,
                                       [LOSS_SUMS] = loss_sums(t)};
    op_scalars scalars = {.rows = x->loaded * trainer_last_model(t)->rows_per_sample,
                          .loss_normalizer = t->current.scalars.loss_normalizer};
    return device_launch(t->stream, t->loss_kernel, operands, &scalars, t->lives[0].memory.workspace.data);
}

/* Computes the loss of this rank's outputs or, on rank 0 in DataParallel, of the outputs of all ranks. On a
 * CPU a loss that is not finite ends the step before the backward pass (--on-nonfinite stop). */
static status compute_loss(trainer *t)
{
    const sync_scatter *scatter = t->engine->type->scatter;
    int64_t targets = t->current.step.targets;
    t->current.loss_here = true;
    if (scatter) scatter->loss(t->engine, &t->current.step, &targets, &t->current.loss_here);
    double normalizer = targets > 0 ? (double)targets : 1;
    t->current.scalars.loss_normalizer =
        t->config.sum_loss ? 1.0 : normalizer * (double)trainer_micro_batches(t);
    t->current.loss_here =
        t->current.loss_here && !trainer_last_model(t)->sent && (t->current.slot || t->loss_kernel);
    if (!t->current.loss_here) return STATUS_OK;
    TRY(t->loss_kernel ? launch_one_loss(t) : trainer_run_pass(t, NN_LOSS));
    if (trainer_is_asynchronous(t)) return STATUS_OK; /* trainer_end_step() checks the loss */
    return trainer_check_loss(t, &t->current.step, loss_sums(t));
}

status trainer_loss(trainer *t)
{
    const sync_scatter *scatter = t->engine->type->scatter;
    TRY(step_log_enter(&t->log, STEP_PHASE_GATHER_OUTPUTS));
    TRY(sync_end_forward(t->engine, &t->current.step));
    if (scatter) TRY(scatter->gather_outputs(t->engine, &t->current.step));
    TRY(step_log_enter(&t->log, STEP_PHASE_LOSS));
    return compute_loss(t);
}

/* ---- the end of a micro-batch ----------------------------------------------------------------- */

/* Begins to copy the loss to the host, and keeps the values that trainer_end_step() needs. */
static status download_loss(trainer *t)
{
    pending_step *step = &t->pending[trainer_current_step(t)];
    int64_t batch = t->current.micro % TRAINER_KEPT_BATCHES;
    double *sums = step->losses[batch];
    sums[0] = sums[1] = 0;
    step->batches[batch] = (trainer_kept_batch){.copied = t->current.copied,
                                                .loss_here = t->current.loss_here,
                                                .loss_normalizer = t->current.scalars.loss_normalizer};
    if (!t->current.loss_here) return STATUS_OK;
    return device_download(t->stream, sums, loss_sums(t), DTYPE_F64, DTYPE_F64, 2);
}

status trainer_end_batch(trainer *t, batch_source *source)
{
    TRY(step_log_enter(&t->log, STEP_PHASE_DRAIN));
    if (!t->runs_ahead) TRY(device_stream_synchronize(t->stream));
    trainer_drop_batch(t);
    if (trainer_is_last_micro_batch(t)) TRY(step_log_enter(&t->log, STEP_PHASE_END));
    TRY(download_loss(t));
    if (t->runs_ahead)
        TRY(device_mark(t->stream, trainer_current_mark(t, STEP_MARK_LOSS)));
    else if (t->current.loss_here)
        TRY(device_stream_synchronize(t->stream));
    return trainer_return_batch(t, source, true);
}

/* In a pipeline the first stage counts the samples, and the last stage counts the targets. */
void trainer_count_batch(trainer *t)
{
    pending_step *f = &t->pending[trainer_current_step(t)];
    f->sums.samples += t->config.model->received ? 0 : t->current.step.samples;
    f->sums.targets += trainer_last_model(t)->sent ? 0 : t->current.step.targets;
    t->current.has_gradients = t->current.has_gradients || t->current.slot;
}

/* ---- calls from passes (nn_observer) ------------------------------------------------------------ */

/* Called before an operation first uses a parameter. The engine waits until the parameter is there. */
static status on_need(void *context, int param)
{
    trainer *t = context;
    return sync_need(t->engine, param);
}

/* Called after the last use of a parameter in a pass, if the engine moves parameters in and out of memory. */
static status on_release(void *context, int param)
{
    trainer *t = context;
    return t->engine->type->release(t->engine, param);
}

void trainer_keep_gradients(trainer *t, float *arena)
{
    t->kept = arena;
}

/* Called when a gradient is complete. The engine may begin to reduce the gradient at once, while the backward
 * pass goes on. Gradients of parameters that several stages have are ready later. */
static status on_ready(void *context, int param)
{
    trainer *t = context;
    if (trainer_is_shared(&t->config.model->params[param])) return STATUS_OK;
    piece p = t->params->pieces[param];
    if (t->kept && trainer_is_last_micro_batch(t))
        TRY(device_download(t->stream, t->kept + p.offset, param_set_gradient(t->params, param),
                            t->params->type, DTYPE_F32, p.count));
    return sync_ready(t->engine, param);
}

/* Sums the statistics of SyncBatchNorm. */
status trainer_group_sum(void *context, double *values, int count)
{
    trainer *t = context;
    return sync_group_sum(t->engine, values, count);
}

void trainer_begin_batch(trainer *t, int64_t index)
{
    pending_step *f = &t->pending[trainer_current_step(t)];
    if (t->current.micro == 0) {
        if (t->last_end_ns == 0) trainer_count_cpu(t, false);
        if (t->begun > t->ended) anatomy_lead(t->engine->context.anatomy);
        memset(&f->sums, 0, sizeof f->sums);
        t->current.has_gradients = false;
        if (!t->runs_ahead) t->phase_count = 0;
    }
    t->current.step = (sync_step){
        .index = index,
        .skipped = t->skipped,
        .synchronize = trainer_is_last_micro_batch(t),
        .learning_rate = optimizer_learning_rate(t->config.optimizer, index, t->config.total_steps)};
    /* Sharded gradients are freed after each micro-batch, so the next one must not accumulate. */
    t->current.scalars = (op_scalars){.accumulate = t->current.has_gradients &&
                                                    !param_shards_place_gradients(&t->needs.shards)};
    t->current.observer = (nn_observer){.context = t,
                                        .need = on_need,
                                        .ready = on_ready,
                                        .release = t->needs.each_pass ? on_release : NULL,
                                        .group_sum = trainer_group_sum};
    f->step = t->current.step;
    t->log.first_mark = trainer_current_mark(t, STEP_MARK_BEGIN);
    rank_slot_step(t->config.sync.slot, index, device_now_ns(t->device));
}

/* ---- the step --------------------------------------------------------------------------------- */

status trainer_report_batch(trainer *t, int step, int64_t micro)
{
    trainer_report_forward(t, step, micro);
    return trainer_report_backward(t, step, micro);
}

bool trainer_updates(const trainer *t)
{
    return t->engine->updates && trainer_is_last_micro_batch(t);
}

status trainer_update(trainer *t)
{
    if (!trainer_updates(t)) return STATUS_OK;
    TRY(sync_begin_update(t->engine, &t->current.step));
    TRY(sync_take_norm(t->engine));
    return sync_update(t->engine, &t->current.step);
}

static status train_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    for (t->current.micro = 0; t->current.micro < trainer_micro_batches(t); t->current.micro++) {
        trainer_begin_batch(t, index);
        const sync_step *step = &t->current.step;
        const sync_scatter *scatter = t->engine->type->scatter; /* NULL unless the engine is DataParallel */
        /* Load a batch and copy it to the device. In DataParallel, rank 0 scatters the batch after
         * loading. */
        TRY(trainer_load_batch(t, source, batch_step + t->current.micro));

        /* Forward pass. Calls on_need() and on_release(). */
        TRY(step_log_enter(&t->log, STEP_PHASE_BEGIN_FORWARD));
        TRY(sync_begin_forward(t->engine, step));
        TRY(step_log_enter(&t->log, STEP_PHASE_FORWARD));
        TRY(trainer_run_pass(t, NN_FORWARD));
        if (t->data.prefetch.on) TRY(trainer_prefetch_next(t));
        if (t->remote) TRY(trainer_remote_forward(t));
        TRY(trainer_loss(t));

        /* Backward pass. In DataParallel rank 0 first scatters the gradient of the outputs. Calls
         * on_ready(), so the engine reduces gradients during the pass. */
        TRY(step_log_enter(&t->log, STEP_PHASE_SCATTER_GRADIENT));
        if (scatter) TRY(scatter->output_gradient(t->engine, step));
        TRY(step_log_enter(&t->log, STEP_PHASE_END_FORWARD));
        trainer_hold_gradient(t);
        TRY(step_log_enter(&t->log, STEP_PHASE_BACKWARD));
        if (t->remote) TRY(trainer_remote_backward(t));
        TRY(trainer_run_pass(t, NN_BACKWARD));
        if (t->data.prefetch.on) TRY(trainer_prefetch_next(t));

        /* Wait for the averaged gradients, and run the optimizer, if the engine leaves this to the rank. */
        TRY(step_log_enter(&t->log, STEP_PHASE_REDUCE));
        TRY(sync_reduce(t->engine, step));
        TRY(trainer_update(t));
        TRY(trainer_end_batch(t, source));
        trainer_count_batch(t);
        if (!t->runs_ahead) TRY(trainer_report_batch(t, trainer_current_step(t), t->current.micro));
    }
    return STATUS_OK;
}

status trainer_begin_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    TRY((t->devices    ? trainer_run_devices
         : t->pipeline ? trainer_run_pipeline
                       : train_step)(t, source, index, batch_step));
    t->current.micro = 0;
    t->begun++;
    return STATUS_OK;
}

status trainer_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step, step_result *out)
{
    TRY(trainer_begin_step(t, source, index, batch_step));
    return trainer_end_step(t, out);
}

status trainer_end_step(trainer *t, step_result *out)
{
    int step = (int)(t->ended % TRAINER_DEPTH);
    if (t->runs_ahead) {
        int64_t batches = trainer_micro_batches(t);
        TRY(device_mark_wait(t->stream, trainer_mark_of(step, batches - 1, STEP_MARK_LOSS)));
        t->phase_count = 0;
        for (int64_t micro = 0; micro < batches; micro++) TRY(trainer_report_batch(t, step, micro));
    }
    TRY(sync_check_update(t->engine, &t->pending[step].step));
    trainer_report_step(t, step, out);
    t->ended++;
    return STATUS_OK;
}

int trainer_depth(const trainer *t)
{
    return t->runs_ahead ? TRAINER_DEPTH : 1;
}

int trainer_under_way(const trainer *t)
{
    return (int)(t->begun - t->ended);
}
