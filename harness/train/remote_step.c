/* A rank whose model has its second half in a remote stage (common/pipeline/remote.h). In each step the rank
 * sends the activations, waits for the output, computes the loss, sends the gradient of the output, and waits
 * for the gradient of the activations. The engine averages only the gradients of the first half. */
#include "common/memory/plan.h"
#include "harness/train/stages.h"

#include <stdlib.h>

static status check(const trainer *t)
{
    const trainer_config *c = &t->config;
    const sync_requirements *n = &t->needs;
    const nn_model *m = c->model;
    if (!trainer_has_values(t) || trainer_is_asynchronous(t))
        return fail(STATUS_CONFIG, "--remote-stage: expected --device cpu or reference, got %s", c->device);
    if (n->each_pass || n->whole_batch || n->one_loss || n->shards.stage != PARAM_SHARD_NONE)
        return fail(STATUS_CONFIG,
                    "--remote-stage: expected a policy whose ranks have all gradients, as ddp, got %s",
                    c->sync.policy);
    if (c->optimizer->clip_norm > 0)
        return fail(STATUS_CONFIG, "--remote-stage: expected no --clip-norm: no process has all gradients");
    if (c->optimizer->on_nonfinite == NONFINITE_SKIP)
        return fail(STATUS_CONFIG, "--remote-stage: expected --on-nonfinite stop or warn, got skip: each "
                                   "side updates only its half of the parameters");
    if (c->sizes[0] > 0)
        return fail(STATUS_CONFIG, "--remote-stage: expected batches of one size: add --drop-last");
    for (int p = 0; p < m->param_count; p++)
        if (m->params[p].stages & (m->params[p].stages - 1))
            return fail(STATUS_CONFIG,
                        "--remote-stage: expected a model whose halves share no parameter, got %s in both",
                        m->params[p].name);
    return STATUS_OK;
}

status trainer_remote_open(trainer *t)
{
    const nn_model *last = t->config.remote;
    if (!last) return STATUS_OK;
    TRY(check(t));
    t->remote = calloc(1, sizeof *t->remote);
    if (!t->remote) return fail(STATUS_SYSTEM, "no memory for a remote stage");
    int64_t size = dtype_size(device_get_info(t->device)->compute_type);
    int64_t bytes = t->config.batch * last->rows_per_sample * last->classes * size;
    TRY(trainer_allocate(t, LEDGER_OUTPUTS, bytes, &t->remote->output));
    TRY(trainer_allocate(t, LEDGER_OUTPUTS, bytes, &t->remote->gradient));
    ledger_acquire(&t->ledger, LEDGER_OUTPUTS, 2 * bytes, 2 * plan_align(bytes));
    t->exchange.all_outputs = t->remote->output.data;
    t->exchange.all_gradients = t->remote->gradient.data;
    return STATUS_OK;
}

status trainer_connect_remote(trainer *t, const remote_config *config, const char *url)
{
    return remote_stage_open(config, url, &t->remote->stage);
}

void trainer_remote_close(trainer *t)
{
    if (!t->remote) return;
    remote_stage_close(&t->remote->stage);
    device_free(t->device, &t->remote->output);
    device_free(t->device, &t->remote->gradient);
    free(t->remote);
}

static remote_tensor value_of(const trainer *t, int value)
{
    const nn_value *v = &t->current.slot->program->values[value];
    return (remote_tensor){nn_instance_value(t->current.slot->instance, value),
                           v->bytes / dtype_size(v->type), v->type};
}

static remote_tensor whole(const trainer *t, const device_memory *memory)
{
    const nn_model *last = t->config.remote;
    return (remote_tensor){memory->data, t->config.batch * last->rows_per_sample * last->classes,
                           device_get_info(t->device)->compute_type};
}

static void show(trainer *t, rank_operation operation)
{
    rank_slot_enter(t->config.sync.slot, operation, device_now_ns(t->device));
}

status trainer_remote_forward(trainer *t)
{
    TRY(device_stream_synchronize(t->stream));
    show(t, RANK_WAIT);
    TRY(remote_stage_forward(t->remote->stage, t->current.step.index, t->current.micro,
                             value_of(t, t->current.slot->program->output_value),
                             whole(t, &t->remote->output), t->engine->context.anatomy));
    show(t, RANK_LOSS);
    return STATUS_OK;
}

status trainer_remote_backward(trainer *t)
{
    const sync_step *s = &t->current.step;
    TRY(device_stream_synchronize(t->stream));
    show(t, RANK_WAIT);
    TRY(remote_stage_backward(
        t->remote->stage, s->index, t->current.micro, s->learning_rate, whole(t, &t->remote->gradient),
        value_of(t, t->current.slot->program->output_gradient_value), t->engine->context.anatomy));
    show(t, RANK_BACKWARD);
    return STATUS_OK;
}
