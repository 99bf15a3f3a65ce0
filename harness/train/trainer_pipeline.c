/* A rank that has one stage of the model (common/nn/stages.h). Micro-batches pass through the stage in the
 * order of a schedule (common/pipeline/schedule.h). Each live micro-batch has separate activations: its
 * forward pass has begun, and its backward pass has not ended.
 *
 * The engine averages gradients over the replicas of the stage. For the engine, all micro-batches are one
 * step, which begins before the first forward pass and reduces in the last backward pass. The gradient of a
 * parameter that several stages have is first summed over these stages. */
#include "common/memory/plan.h"
#include "harness/train/trainer_impl.h"

#include <stdlib.h>

static const pipeline_place *place_of(const trainer *t)
{
    return t->config.place;
}

static int64_t batches(const trainer *t)
{
    return trainer_micro_batches(t);
}

static bool is_last(const trainer *t)
{
    return t->now.micro + 1 >= batches(t);
}

/* Returns the message number of the present micro-batch, from 1, in each channel. */
static int64_t number_now(const trainer *t)
{
    return t->pipeline.before + t->now.micro + 1;
}

static trainer_live *live_of(const trainer *t, int64_t micro)
{
    return &t->pipeline.lives[micro % t->pipeline.live];
}

static bool is_shared(const nn_param *p)
{
    return (p->stages & (p->stages - 1)) != 0;
}

/* ---- the present micro-batch -------------------------------------------------------------------- */

trainer_program_slot *trainer_slot_now(const trainer *t)
{
    return &live_of(t, t->now.micro)->slot;
}

double *trainer_loss_now(const trainer *t)
{
    return live_of(t, t->now.micro)->memory.loss.data;
}

const trainer_tensors *trainer_tensors_now(const trainer *t)
{
    return &live_of(t, t->now.micro)->tensors;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static status post_value(trainer *t, pipeline_channel channel, const trainer_program_slot *slot, int value)
{
    const nn_value *v = &slot->program->values[value];
    return pipeline_post(t->pipeline.messages, channel, nn_instance_value(slot->instance, value), v->type,
                         v->bytes / dtype_size(v->type));
}

static status post(trainer *t, pipeline_channel channel, int64_t micro, int value)
{
    return post_value(t, channel, &live_of(t, micro)->slot, value);
}

/* Posts receives for the inputs of the step's micro-batches before `end`, if not yet posted. */
static status ask_for_inputs(trainer *t, int64_t end)
{
    trainer_pipeline *p = &t->pipeline;
    for (; p->asked < p->before + (end < batches(t) ? end : batches(t)); p->asked++)
        TRY(post(t, PIPELINE_INPUT, p->asked - p->before, p->lives[0].slot.program->input_value));
    return STATUS_OK;
}

/* Waits for the input, after the input gradient of the previous micro-batch in the same memory has been
 * sent. */
static status await_input(trainer *t)
{
    if (trainer_drives_devices(t)) return trainer_copy_input(t);
    if (!t->config.model->received) return STATUS_OK;
    trainer_pipeline *p = &t->pipeline;
    TRY(ask_for_inputs(t, p->live));
    if (t->now.micro >= p->live)
        TRY(pipeline_await(p->messages, PIPELINE_INPUT_GRADIENT, number_now(t) - p->live,
                           t->engine->context.anatomy));
    return pipeline_await(p->messages, PIPELINE_INPUT, p->evaluated + number_now(t),
                          t->engine->context.anatomy);
}

static status send_output(trainer *t)
{
    if (trainer_drives_devices(t)) return STATUS_OK; /* the next stage copies the output */
    TRY(device_stream_synchronize(t->stream));
    if (!t->config.model->sent) return STATUS_OK;
    TRY(post(t, PIPELINE_OUTPUT, t->now.micro, t->now.slot->program->output_value));
    return post(t, PIPELINE_OUTPUT_GRADIENT, t->now.micro, t->now.slot->program->output_gradient_value);
}

static status await_gradient(trainer *t)
{
    if (trainer_drives_devices(t)) return trainer_copy_gradient(t);
    if (!t->config.model->sent) return STATUS_OK;
    return pipeline_await(t->pipeline.messages, PIPELINE_OUTPUT_GRADIENT, number_now(t),
                          t->engine->context.anatomy);
}

void trainer_hold_gradient(trainer *t)
{
    if (!t->config.model->sent) return;
    const nn_value *v = &t->now.slot->program->values[t->now.slot->program->output_gradient_value];
    ledger_acquire(&t->ledger, v->ledger_class, v->bytes, plan_align(v->bytes));
}

/* Calls sync_begin_forward() with `synchronize` set, before the last backward pass. Does nothing if the
 * step has one micro-batch, because the call at the begin of the step already set `synchronize`. */
static status begin_reduction(trainer *t)
{
    if (!is_last(t) || batches(t) == 1) return STATUS_OK;
    return sync_begin_forward(t->engine, &t->now.step);
}

static status end_backward(trainer *t)
{
    if (trainer_drives_devices(t)) return STATUS_OK;
    TRY(device_stream_synchronize(t->stream));
    if (!t->config.model->received) return STATUS_OK;
    TRY(post(t, PIPELINE_INPUT_GRADIENT, t->now.micro, t->now.slot->program->input_gradient_value));
    return ask_for_inputs(t, t->now.micro + 1 + t->pipeline.live);
}

static status share_gradients(trainer *t)
{
    if (!is_last(t)) return STATUS_OK;
    if (trainer_drives_devices(t)) return trainer_sum_shared(t);
    pipeline *messages = t->pipeline.messages;
    const nn_model *m = t->config.model;
    for (int i = 0; i < m->param_count; i++)
        if (is_shared(&m->params[i])) TRY(pipeline_post_shared(messages, i));
    int64_t posted = pipeline_posted(messages, PIPELINE_SHARED);
    return posted > 0 ? pipeline_await(messages, PIPELINE_SHARED, posted, t->engine->context.anatomy)
                      : STATUS_OK;
}

bool trainer_defers_ready(const trainer *t, int param)
{
    return is_shared(&t->config.model->params[param]);
}

static status ready_shared(trainer *t)
{
    if (!is_last(t)) return STATUS_OK;
    const nn_model *m = t->config.model;
    for (int i = 0; i < m->param_count; i++)
        if (is_shared(&m->params[i])) TRY(sync_ready(t->engine, i));
    return STATUS_OK;
}

/* Adds the norms of the other stages to the engine's norm. */
static status add_norms(trainer *t)
{
    pipeline *messages = t->pipeline.messages;
    TRY(pipeline_post_norm(messages, &t->engine->square_norm));
    return pipeline_await(messages, PIPELINE_NORM, pipeline_posted(messages, PIPELINE_NORM),
                          t->engine->context.anatomy);
}

/* Waits at the end of the step until the last input gradient has been sent. */
static status await_sends(trainer *t)
{
    if (!t->config.model->received || !is_last(t) || trainer_drives_devices(t)) return STATUS_OK;
    return pipeline_await(t->pipeline.messages, PIPELINE_INPUT_GRADIENT, number_now(t),
                          t->engine->context.anatomy);
}

/* ---- the step ----------------------------------------------------------------------------------- */

status trainer_stage_forward(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    trainer_begin_batch(t, index);
    TRY(trainer_load_batch(t, source, batch_step + t->now.micro));
    TRY(step_log_enter(&t->log, STEP_PHASE_BEGIN_FORWARD));
    TRY(await_input(t));
    if (t->now.micro == 0) TRY(sync_begin_forward(t->engine, &t->now.step));
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
    TRY(share_gradients(t));
    TRY(ready_shared(t));
    if (!is_last(t)) return STATUS_OK;
    TRY(sync_reduce(t->engine, &t->now.step));
    if (!t->engine->updates) return STATUS_OK;
    TRY(sync_begin_update(t->engine, &t->now.step));
    return sync_take_norm(t->engine);
}

status trainer_stage_update(trainer *t, status (*add_norms_of_others)(trainer *t))
{
    if (!trainer_updates(t)) return STATUS_OK;
    if (sync_update_needs_norm(t->engine)) {
        TRY(add_norms_of_others(t));
        TRY(sync_begin_update(t->engine, &t->now.step));
    }
    return sync_update(t->engine, &t->now.step);
}

/* Runs the passes of the micro-batches in the order of the schedule, e.g. F0 F1 B0 F2 B1 ... */
status trainer_run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    int flight = trainer_flight_now(t);
    for (int i = 0; i < 2 * batches(t); i++) {
        pipeline_action a = pipeline_action_of(&place_of(t)->shape, place_of(t)->stage, i);
        if (a.backward) t->now = live_of(t, a.batch)->now;
        t->now.micro = a.batch;
        t->now.scalars.accumulate = a.batch > 0;
        if (a.backward) {
            t->log.first_mark =
                trainer_mark_now(t, STEP_MARK_BEGIN); /* Other micro-batches ran in between. */
            TRY(trainer_stage_backward(t));
            TRY(trainer_stage_reduce(t));
            TRY(trainer_stage_update(t, add_norms));
            TRY(await_sends(t));
            TRY(trainer_end_batch(t, source));
            TRY(trainer_report_backward(t, flight, t->now.micro));
        } else {
            TRY(trainer_stage_forward(t, source, index, batch_step));
            trainer_count_batch(t);
            trainer_report_forward(t, flight, t->now.micro);
        }
        live_of(t, t->now.micro)->now = t->now;
    }
    t->pipeline.before += batches(t);
    return STATUS_OK;
}

/* ---- evaluation --------------------------------------------------------------------------------- */

static status exchange(trainer *t, pipeline_channel channel, int value)
{
    pipeline *messages = t->pipeline.messages;
    TRY(device_stream_synchronize(t->stream));
    TRY(post_value(t, channel, &t->programs.evaluation, value));
    TRY(pipeline_await(messages, channel, pipeline_posted(messages, channel), NULL));
    return device_stream_synchronize(t->stream);
}

status trainer_receive_evaluated(trainer *t)
{
    if (!t->config.model->received) return STATUS_OK;
    if (trainer_drives_devices(t)) return trainer_copy_evaluated(t);
    t->pipeline.evaluated++;
    return exchange(t, PIPELINE_INPUT, t->programs.evaluation.program->input_value);
}

status trainer_send_evaluated(trainer *t)
{
    if (!t->config.model->sent || trainer_drives_devices(t)) return STATUS_OK;
    return exchange(t, PIPELINE_OUTPUT, t->programs.evaluation.program->output_value);
}

void trainer_end_evaluation(trainer *t)
{
    if (t->pipeline.messages) pipeline_skip(t->pipeline.messages);
}

/* ---- open and close ----------------------------------------------------------------------------- */

static status check(const trainer *t)
{
    const trainer_config *c = &t->config;
    const sync_requirements *n = &t->needs;
    if (n->each_pass || n->whole_batch || n->one_loss || n->shards.stage != PARAM_SHARD_NONE)
        return fail(STATUS_CONFIG,
                    "--stages: expected a policy whose ranks have all gradients, as ddp, got %s", c->policy);
    if (c->sizes[0] > 0)
        return fail(STATUS_CONFIG, "--stages: expected batches of one size: add --drop-last");
    return STATUS_OK;
}

/* Allocates the memory of a live micro-batch. The first live micro-batch uses the memory of the trainer. */
static status open_live(trainer *t, trainer_live *l)
{
    const nn_memory *shared = &t->programs.memory;
    l->memory = *shared;
    l->memory.activations.data = l->memory.loss.data = NULL;
    TRY(ledger_blame(LEDGER_ACTIVATIONS,
                     device_allocate(t->device, DEVICE_MEMORY_PRIVATE, (size_t)shared->activation_bytes,
                                     &l->memory.activations)));
    TRY(device_allocate(t->device, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &l->memory.loss));
    TRY(trainer_open_tensors(t, DEVICE_MEMORY_PRIVATE, &l->tensors));
    l->slot =
        (trainer_program_slot){.batch = t->programs.slots[0].batch, .program = t->programs.slots[0].program};
    TRY(nn_instance_open(t->device, t->stream, l->slot.program, t->params, &l->slot.instance));
    nn_bindings bindings = {.memory = &l->memory,
                            .input = l->tensors.input.data,
                            .target = l->tensors.target.data,
                            .index = l->tensors.index.data};
    return nn_instance_bind(l->slot.instance, &bindings);
}

status trainer_pipeline_open(trainer *t)
{
    const trainer_config *c = &t->config;
    trainer_pipeline *p = &t->pipeline;
    if (!c->place) return STATUS_OK;
    TRY(check(t));
    p->live = pipeline_live(&c->place->shape, c->place->stage);
    p->lives = calloc((size_t)p->live, sizeof *p->lives);
    if (!p->lives) return fail(STATUS_SYSTEM, "no memory for a stage");
    for (int i = 0; i < p->live; i++)
        p->lives[i] = (trainer_live){.memory = {.activations.fd = -1, .loss.fd = -1},
                                     .tensors = {.input.fd = -1, .target.fd = -1, .index.fd = -1}};
    p->lives[0] = (trainer_live){
        .memory = t->programs.memory, .tensors = t->data.tensors, .slot = t->programs.slots[0]};
    for (int i = 1; i < p->live; i++) TRY(open_live(t, &p->lives[i]));
    if (trainer_drives_devices(t)) return trainer_devices_open(t);
    pipeline_config config = {.place = *c->place,
                              .job_token = c->job_token,
                              .device = t->device,
                              .compute = t->stream,
                              .params = t->params,
                              .slot = c->slot,
                              .table = c->table,
                              .stall_timeout_ns = c->stall_timeout_ns,
                              .connect_timeout_ns = c->connect_timeout_ns,
                              .canceled = c->canceled,
                              .canceled_context = c->canceled_context,
                              .link = c->link,
                              .trace = c->trace};
    return pipeline_open(&config, &p->messages);
}

void trainer_pipeline_close(trainer *t)
{
    trainer_pipeline *p = &t->pipeline;
    pipeline_close(&p->messages);
    trainer_devices_close(t);
    for (int i = 1; i < p->live && p->lives; i++) {
        trainer_live *l = &p->lives[i];
        nn_instance_close(&l->slot.instance);
        device_free(t->device, &l->memory.activations);
        device_free(t->device, &l->memory.loss);
        trainer_close_tensors(t, &l->tensors);
    }
    free(p->lives);
    p->lives = NULL;
}
