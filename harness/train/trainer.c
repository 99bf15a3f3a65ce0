#include "harness/train/stages.h"

#include "common/base/log.h"

#include <stdlib.h>

/* The first live micro-batch owns the programs and the workspace. */
static void close_live(trainer *t, trainer_live *l)
{
    for (int i = 0; i < t->slot_count; i++) {
        trainer_close_records(&l->slots[i]);
        nn_instance_close(&l->slots[i].instance);
        if (l == t->lives) nn_program_free(&l->slots[i].program);
    }
    device_free(t->device, &l->memory.activations);
    if (l == t->lives) device_free(t->device, &l->memory.workspace);
    device_free(t->device, &l->memory.loss);
    trainer_close_tensors(t, &l->tensors);
}

status trainer_connect(trainer *t, const sync_blob *handshakes)
{
    const pipeline_place *place = t->config.place;
    if (!place || place->devices) return sync_connect(t->engine, handshakes);
    TRY(sync_connect(t->engine, handshakes + place->stage * place->replicas));
    return pipeline_connect(t->pipeline->messages);
}

void trainer_counters(const trainer *t, sync_counters *out)
{
    sync_read_counters(t->engine, out);
    if (t->pipeline) pipeline_counters(t->pipeline->messages, out);
    if (t->remote) remote_stage_counters(t->remote->stage, out);
}

void trainer_leave(trainer *t)
{
    sync_close(&t->engine);
}

void trainer_pin(trainer *t, void *data, size_t bytes)
{
    if (t->data.pinned_count == TRAINER_MAX_BUFFERS) return;
    if (device_pin(t->device, data, bytes) == STATUS_OK) {
        t->data.pinned[t->data.pinned_count++] = data;
        return;
    }
    log_warn("batches stay in ordinary memory: %s", error_message());
    error_clear();
}

void trainer_close(trainer **pointer)
{
    trainer *t = *pointer;
    if (!t) return;
    trainer_leave(t);
    trainer_prefetch_close(t);
    trainer_pipeline_close(t);
    trainer_remote_close(t);
    for (int i = 0; i < t->data.pinned_count; i++) device_unpin(t->device, t->data.pinned[i]);
    for (int i = t->live - 1; t->lives && i >= 0; i--) close_live(t, &t->lives[i]);
    nn_instance_close(&t->evaluation.instance);
    nn_program_free(&t->evaluation.program);
    device_release(&t->loss_kernel);
    optimizer_close(&t->optimizer);
    param_set_close(&t->params);
    device_free(t->device, &t->losses);
    device_stream_close(&t->stream);
    device_close(&t->device);
    free(t->data.rows);
    free(t->data.row_targets);
    free(t->phases);
    free(t->lives);
    free(t);
    *pointer = NULL;
}

void trainer_set_total_steps(trainer *t, int64_t total_steps)
{
    t->config.total_steps = total_steps;
}

void trainer_set_skipped(trainer *t, int64_t updates)
{
    t->skipped = updates;
}

int64_t trainer_skipped(const trainer *t)
{
    sync_counters now;
    sync_read_counters(t->engine, &now);
    return t->skipped + now.updates_skipped;
}

bool trainer_has_one_loss(const trainer *t)
{
    return t->needs.one_loss;
}

double trainer_slowdown(const trainer *t)
{
    return t->slowdown;
}

device *trainer_device(trainer *t)
{
    return t->device;
}

device_stream *trainer_stream(trainer *t)
{
    return t->stream;
}

param_set *trainer_params(trainer *t)
{
    return t->params;
}

ledger *trainer_ledger(trainer *t)
{
    return &t->ledger;
}

sync_engine *trainer_engine(trainer *t)
{
    return t->engine;
}

optimizer *trainer_optimizer(trainer *t)
{
    return t->optimizer;
}

const step_log *trainer_log(const trainer *t)
{
    return &t->log;
}

const nn_program *trainer_program(const trainer *t)
{
    return t->lives[0].slots[0].program;
}
