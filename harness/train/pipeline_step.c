/* A rank that has one stage of the model (common/nn/stages.h). Micro-batches pass through the stage in the
 * order of a schedule (common/pipeline/schedule.h). A micro-batch is live from the begin of its forward pass
 * to the end of its backward pass. Each live micro-batch has separate activations.
 *
 * The engine averages gradients over the replicas of the stage. For the engine, all micro-batches are one
 * step, which begins before the first forward pass and reduces in the last backward pass. The gradient of a
 * parameter that several stages have is first summed over these stages. */
#include "common/base/least.h"
#include "common/memory/plan.h"
#include "harness/train/stages.h"

#include <stdlib.h>

/* Returns the number of the present micro-batch's message, which counts from 1 and is the same in each
 * channel. */
static int64_t number_now(const trainer *t)
{
    return t->pipeline->before + t->current.micro + 1;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static status post(trainer *t, pipeline_channel channel, const trainer_program_slot *slot, int value)
{
    const nn_value *v = &slot->program->values[value];
    return pipeline_post(t->pipeline->messages, channel, nn_instance_value(slot->instance, value), v->type,
                         v->bytes / dtype_size(v->type));
}

static status await(trainer *t, pipeline_channel channel, int64_t number)
{
    return pipeline_await(t->pipeline->messages, channel, number, t->engine->context.anatomy);
}

/* Posts receives for the inputs of the step's micro-batches before `end`. Skips receives that are already
 * posted. */
static status ask_for_inputs(trainer *t, int64_t end)
{
    trainer_pipeline *p = t->pipeline;
    for (; p->asked < p->before + least(end, trainer_micro_batches(t)); p->asked++) {
        const trainer_program_slot *slot = t->lives[(p->asked - p->before) % t->live].slots;
        TRY(post(t, PIPELINE_INPUT, slot, slot->program->input_value));
    }
    return STATUS_OK;
}

/* Waits until the input gradient of the previous micro-batch in the same memory has been sent, and then waits
 * for the input. */
static status await_input(trainer *t)
{
    if (t->devices) return trainer_copy_input(t);
    if (!t->config.model->received) return STATUS_OK;
    TRY(ask_for_inputs(t, t->live));
    if (t->current.micro >= t->live) TRY(await(t, PIPELINE_INPUT_GRADIENT, number_now(t) - t->live));
    return await(t, PIPELINE_INPUT, t->pipeline->evaluated + number_now(t));
}

static status send_output(trainer *t)
{
    if (t->devices) return STATUS_OK; /* the next stage copies the output */
    TRY(device_stream_synchronize(t->stream));
    if (!t->config.model->sent) return STATUS_OK;
    TRY(post(t, PIPELINE_OUTPUT, t->current.slot, t->current.slot->program->output_value));
    return post(t, PIPELINE_OUTPUT_GRADIENT, t->current.slot,
                t->current.slot->program->output_gradient_value);
}

static status await_gradient(trainer *t)
{
    if (t->devices) return trainer_copy_gradient(t);
    return t->config.model->sent ? await(t, PIPELINE_OUTPUT_GRADIENT, number_now(t)) : STATUS_OK;
}

void trainer_hold_gradient(trainer *t)
{
    if (!t->config.model->sent) return;
    const nn_value *v = &t->current.slot->program->values[t->current.slot->program->output_gradient_value];
    ledger_acquire(&t->ledger, v->ledger_class, v->bytes, plan_align(v->bytes));
}

/* Calls sync_begin_forward() with `synchronize` set, before the last backward pass. Does nothing if the
 * step has one micro-batch, because the call at the begin of the step already set `synchronize`. */
static status begin_reduction(trainer *t)
{
    if (!trainer_is_last_micro_batch(t) || trainer_micro_batches(t) == 1) return STATUS_OK;
    return sync_begin_forward(t->engine, &t->current.step);
}

static status end_backward(trainer *t)
{
    if (t->devices) return STATUS_OK;
    TRY(device_stream_synchronize(t->stream));
    if (!t->config.model->received) return STATUS_OK;
    TRY(post(t, PIPELINE_INPUT_GRADIENT, t->current.slot, t->current.slot->program->input_gradient_value));
    return ask_for_inputs(t, t->current.micro + 1 + t->live);
}

static status share_gradients(trainer *t)
{
    if (t->devices) return trainer_sum_shared(t);
    pipeline *messages = t->pipeline->messages;
    const nn_model *m = t->config.model;
    for (int i = 0; i < m->param_count; i++)
        if (trainer_is_shared(&m->params[i])) TRY(pipeline_post_shared(messages, i));
    int64_t posted = pipeline_posted(messages, PIPELINE_SHARED);
    return posted > 0 ? await(t, PIPELINE_SHARED, posted) : STATUS_OK;
}

/* Adds the norms of the other stages to the engine's norm. */
static status add_norms(trainer *t)
{
    pipeline *messages = t->pipeline->messages;
    TRY(pipeline_post_norm(messages, &t->engine->square_norm));
    return await(t, PIPELINE_NORM, pipeline_posted(messages, PIPELINE_NORM));
}

/* ---- the step ----------------------------------------------------------------------------------- */

status trainer_stage_forward(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    trainer_begin_batch(t, index);
    TRY(trainer_load_batch(t, source, batch_step + t->current.micro));
    TRY(step_log_enter(&t->log, STEP_PHASE_BEGIN_FORWARD));
    TRY(await_input(t));
    if (t->current.micro == 0) TRY(sync_begin_forward(t->engine, &t->current.step));
    TRY(step_log_enter(&t->log, STEP_PHASE_FORWARD));
    TRY(trainer_run_pass(t, NN_FORWARD));
    TRY(trainer_prefetch_next(t));
    TRY(trainer_loss(t));
    TRY(step_log_enter(&t->log, STEP_PHASE_END_FORWARD));
    TRY(send_output(t));
    return trainer_return_batch(t, source, true);
}

status trainer_stage_backward(trainer *t)
{
    TRY(step_log_enter(&t->log, STEP_PHASE_SCATTER_GRADIENT));
    trainer_hold_gradient(t);
    TRY(step_log_enter(&t->log, STEP_PHASE_BACKWARD));
    TRY(await_gradient(t));
    TRY(begin_reduction(t));
    TRY(trainer_run_pass(t, NN_BACKWARD));
    TRY(trainer_prefetch_next(t));
    TRY(step_log_enter(&t->log, STEP_PHASE_REDUCE));
    return end_backward(t);
}

status trainer_stage_reduce(trainer *t)
{
    const nn_model *m = t->config.model;
    if (!trainer_is_last_micro_batch(t)) return STATUS_OK;
    TRY(share_gradients(t));
    for (int i = 0; i < m->param_count; i++)
        if (trainer_is_shared(&m->params[i])) TRY(sync_ready(t->engine, i));
    TRY(sync_reduce(t->engine, &t->current.step));
    if (!t->engine->updates) return STATUS_OK;
    TRY(sync_begin_update(t->engine, &t->current.step));
    return sync_take_norm(t->engine);
}

status trainer_stage_update(trainer *t, status (*add_norms_of_others)(trainer *t))
{
    if (!trainer_updates(t)) return STATUS_OK;
    if (sync_update_needs_norm(&t->engine->context)) {
        TRY(add_norms_of_others(t));
        TRY(sync_begin_update(t->engine, &t->current.step));
    }
    return sync_update(t->engine, &t->current.step);
}

/* Runs the passes of the micro-batches in the order of the schedule, e.g. F0 F1 B0 F2 B1 ... */
status trainer_run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    int step = trainer_current_step(t);
    for (int i = 0; i < 2 * trainer_micro_batches(t); i++) {
        pipeline_action a = pipeline_action_of(&t->config.place->shape, t->config.place->stage, i);
        if (a.backward) t->current = t->lives[a.batch % t->live].after_forward;
        t->current.micro = a.batch;
        t->current.scalars.accumulate = a.batch > 0;
        if (a.backward) {
            t->log.first_mark =
                trainer_current_mark(t, STEP_MARK_BEGIN); /* Other micro-batches ran in between. */
            TRY(trainer_stage_backward(t));
            TRY(trainer_stage_reduce(t));
            TRY(trainer_stage_update(t, add_norms));
            if (t->config.model->received && trainer_is_last_micro_batch(t))
                TRY(await(t, PIPELINE_INPUT_GRADIENT, number_now(t))); /* until it is sent */
            TRY(trainer_end_batch(t, source));
            TRY(trainer_report_backward(t, step, t->current.micro));
        } else {
            TRY(trainer_stage_forward(t, source, index, batch_step));
            trainer_count_batch(t);
            trainer_report_forward(t, step, t->current.micro);
        }
        trainer_current_live(t)->after_forward = t->current;
    }
    t->pipeline->before += trainer_micro_batches(t);
    return STATUS_OK;
}

/* ---- evaluation --------------------------------------------------------------------------------- */

static status exchange(trainer *t, pipeline_channel channel, int value)
{
    pipeline *messages = t->pipeline->messages;
    TRY(device_stream_synchronize(t->stream));
    TRY(post(t, channel, &t->evaluation, value));
    TRY(pipeline_await(messages, channel, pipeline_posted(messages, channel), NULL));
    return device_stream_synchronize(t->stream);
}

status trainer_receive_evaluated(trainer *t)
{
    if (!t->config.model->received) return STATUS_OK;
    if (t->devices) return trainer_copy_evaluated(t);
    t->pipeline->evaluated++;
    return exchange(t, PIPELINE_INPUT, t->evaluation.program->input_value);
}

status trainer_send_evaluated(trainer *t)
{
    if (!t->config.model->sent || t->devices) return STATUS_OK;
    return exchange(t, PIPELINE_OUTPUT, t->evaluation.program->output_value);
}

/* ---- open and close ----------------------------------------------------------------------------- */

static status check(const trainer *t)
{
    const trainer_config *c = &t->config;
    const sync_requirements *n = &t->needs;
    if (n->each_pass || n->whole_batch || n->one_loss || n->shards.stage != PARAM_SHARD_NONE)
        return fail(STATUS_CONFIG,
                    "--stages: expected a policy whose ranks have all gradients, as ddp, got %s",
                    c->sync.policy);
    if (c->sizes[0] > 0)
        return fail(STATUS_CONFIG, "--stages: expected batches of one size: add --drop-last");
    return STATUS_OK;
}

/* Allocates the memory of a live micro-batch after the first. */
static status open_live(trainer *t, trainer_live *l)
{
    const trainer_live *first = &t->lives[0];
    l->memory.workspace = first->memory.workspace;
    l->memory.workspace_bytes = first->memory.workspace_bytes;
    l->memory.activation_bytes = first->memory.activation_bytes;
    TRY(trainer_allocate(t, LEDGER_ACTIVATIONS, l->memory.activation_bytes, &l->memory.activations));
    TRY(device_allocate(t->device, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &l->memory.loss));
    TRY(trainer_open_tensors(t, DEVICE_MEMORY_PRIVATE, &l->tensors));
    l->slots[0] = (trainer_program_slot){.batch = first->slots[0].batch, .program = first->slots[0].program};
    TRY(nn_instance_open(t->device, t->stream, l->slots[0].program, t->params, &l->slots[0].instance));
    return trainer_bind(l, l->slots[0].instance);
}

status trainer_pipeline_open(trainer *t)
{
    if (!t->config.place) return STATUS_OK;
    TRY(check(t));
    for (int i = 1; i < t->live; i++) TRY(open_live(t, &t->lives[i]));
    if (t->config.place->devices) return trainer_devices_open(t);
    t->pipeline = calloc(1, sizeof *t->pipeline);
    if (!t->pipeline) return fail(STATUS_SYSTEM, "no memory for a stage");
    return pipeline_open(t->config.place, &t->config.sync, &t->pipeline->messages);
}

void trainer_pipeline_close(trainer *t)
{
    if (t->pipeline) pipeline_close(&t->pipeline->messages);
    free(t->pipeline);
    trainer_devices_close(t);
}
