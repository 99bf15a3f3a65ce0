#include "harness/train/trainer.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/device/sim/device_sim.h"
#include "common/memory/plan.h"
#include "common/sync/staged.h"
#include "common/sync/straggler.h"
#include "harness/train/trainer_impl.h"

#include <stdio.h>
#include <stdlib.h>

static status compile_slot(trainer *t, int64_t batch, nn_mode mode, trainer_program_slot *slot)
{
    const trainer_config *c = &t->config;
    /* If rank 0 loads the batches of all ranks, the other ranks have no list of rows with targets. */
    nn_program_config config = {.batch = batch,
                                .mode = mode,
                                .type = device_get_info(t->device)->compute_type,
                                .bf16 = device_get_info(t->device)->bf16,
                                .masked_loss = c->masked_loss && !t->needs.whole_batch,
                                .external_loss = t->needs.one_loss && mode == NN_TRAIN,
                                .world = c->world};
    slot->batch = batch;
    return nn_program_compile(c->model, &config, &slot->program);
}

static status compile_programs(trainer *t)
{
    const trainer_config *c = &t->config;
    TRY(compile_slot(t, c->batch, NN_TRAIN, &t->programs.slots[t->programs.slot_count++]));
    for (int i = 0; i < TRAINER_MAX_SIZES && c->sizes[i]; i++)
        TRY(compile_slot(t, c->sizes[i], NN_TRAIN, &t->programs.slots[t->programs.slot_count++]));
    return compile_slot(t, c->batch, NN_EVALUATE, &t->programs.evaluation);
}

static status open_instance(trainer *t, trainer_program_slot *slot)
{
    TRY(nn_instance_open(t->device, t->stream, slot->program, t->params, &slot->instance));
    int64_t workspace = (int64_t)nn_instance_workspace(slot->instance);
    if (slot->program->activation_bytes > t->programs.memory.activation_bytes)
        t->programs.memory.activation_bytes = slot->program->activation_bytes;
    if (workspace > t->programs.memory.workspace_bytes) t->programs.memory.workspace_bytes = workspace;
    return STATUS_OK;
}

/* Prepares the loss over the outputs of all ranks or of the remote stage, if this rank computes that loss. */
static status open_loss(trainer *t)
{
    const nn_model *m = trainer_last_model(t);
    if (!t->config.remote && (!t->needs.one_loss || t->config.rank != 0)) return STATUS_OK;
    op_desc op = {.kind = m->loss == NN_LOSS_MSE ? OP_mean_squared_error : OP_cross_entropy,
                  .type = device_get_info(t->device)->compute_type,
                  .bf16 = device_get_info(t->device)->bf16,
                  .u.loss = {.rows = trainer_largest_batch(t) * m->rows_per_sample,
                             .classes = m->classes,
                             .gradient = true}};
    TRY(device_prepare(t->device, &op, NULL, &t->programs.loss_kernel));
    int64_t workspace = (int64_t)device_kernel_workspace(t->programs.loss_kernel);
    if (workspace > t->programs.memory.workspace_bytes) t->programs.memory.workspace_bytes = workspace;
    return STATUS_OK;
}

static status allocate(trainer *t, ledger_class class, device_memory_kind kind, int64_t bytes,
                       device_memory *out)
{
    return ledger_blame(class, device_allocate(t->device, kind, (size_t)bytes, out));
}

/* Allocates pinned memory for the losses on a GPU, which writes them after the call that begins the copy. */
static status open_losses(trainer *t)
{
    const device_info *info = device_get_info(t->device);
    bool gpu = info->real && !info->host_addressable;
    if (gpu)
        TRY(device_allocate(t->device, DEVICE_MEMORY_STAGING, TRAINER_DEPTH * sizeof t->flights[0].own,
                            &t->losses));
    for (int i = 0; i < TRAINER_DEPTH; i++)
        t->flights[i].losses =
            gpu ? (double(*)[2])t->losses.data + i * TRAINER_KEPT_BATCHES : t->flights[i].own;
    return STATUS_OK;
}

static status open_memory(trainer *t)
{
    nn_memory *m = &t->programs.memory;
    TRY(allocate(t, LEDGER_ACTIVATIONS, DEVICE_MEMORY_PRIVATE, m->activation_bytes, &m->activations));
    TRY(allocate(t, LEDGER_WORKSPACE, DEVICE_MEMORY_PRIVATE, m->workspace_bytes, &m->workspace));
    TRY(allocate(t, LEDGER_OUTPUTS, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &t->programs.memory.loss));
    TRY(open_losses(t));
    TRY(trainer_open_tensors(t, t->needs.batch_kind, &t->data.tensors));
    TRY(trainer_prefetch_open(t));
    if (t->programs.slots[0].program->masked) {
        size_t bytes = t->data.tensors.index.bytes;
        t->data.rows = calloc(1, bytes);
        t->data.row_targets = calloc(1, bytes);
        if (!t->data.rows || !t->data.row_targets)
            return fail(STATUS_SYSTEM, "no memory for the targets of a batch");
    }
    ledger_acquire(&t->ledger, LEDGER_WORKSPACE, m->workspace_bytes, m->workspace_bytes);
    return STATUS_OK;
}

static status open_instances(trainer *t)
{
    for (int i = 0; i < t->programs.slot_count; i++) TRY(open_instance(t, &t->programs.slots[i]));
    TRY(open_instance(t, &t->programs.evaluation));
    TRY(open_loss(t));
    TRY(open_memory(t));
    nn_bindings bindings = {.memory = &t->programs.memory,
                            .input = t->data.tensors.input.data,
                            .target = t->data.tensors.target.data,
                            .index = t->data.tensors.index.data};
    for (int i = 0; i < t->programs.slot_count; i++)
        TRY(nn_instance_bind(t->programs.slots[i].instance, &bindings));
    t->programs.bindings = bindings;
    return param_set_gathers(t->params) ? STATUS_OK
                                        : nn_instance_bind(t->programs.evaluation.instance, &bindings);
}

static void describe_batch(trainer *t)
{
    const nn_model *m = t->config.model, *last = trainer_last_model(t);
    dtype compute = device_get_info(t->device)->compute_type;
    bool tokens = m->input_kind == NN_INPUT_TOKENS, values = m->loss == NN_LOSS_MSE;
    t->data.input_sample = m->received ? 0 : shape_elements(m->layers[0].sample);
    t->data.target_sample = last->sent ? 0 : last->rows_per_sample * (values ? last->classes : 1);
    t->data.input_type = tokens ? DTYPE_I32 : compute;
    t->data.target_type = values ? compute : DTYPE_I32;
}

static void describe_exchange(trainer *t)
{
    const nn_model *m = t->config.model;
    const device_info *info = device_get_info(t->device);
    int64_t outputs = m->rows_per_sample * m->classes, largest = trainer_largest_batch(t);
    t->exchange =
        (sync_exchange){.input = &t->data.tensors.input,
                        .target = &t->data.tensors.target,
                        .input_bytes = t->data.input_sample * dtype_size(t->data.input_type),
                        .target_bytes = t->data.target_sample * dtype_size(t->data.target_type),
                        .output_bytes = outputs * dtype_size(info->bf16 ? DTYPE_BF16 : info->compute_type),
                        .loss_output_bytes = outputs * dtype_size(info->compute_type),
                        .ahead_bytes = t->data.prefetch.on ? trainer_batch_bytes(t, largest) : 0,
                        .target_type = t->data.target_type,
                        .targets_each = t->data.target_sample,
                        .largest = largest};
}

static void hold_parameters(trainer *t)
{
    const param_set *set = t->params;
    bool cut = param_set_sharding(set) == PARAM_SHARD_ALL;
    int64_t size = dtype_size(set->sent), wide = dtype_size(set->type);
    int64_t logical = cut ? set->shards->own_elements : set->model->parameter_elements;
    int64_t reserved = cut ? set->shards->elements : set->arena_elements;
    ledger_acquire(&t->ledger, t->needs.param_class, logical * size + set->buffer_bytes,
                   reserved * size + set->buffer_elements * wide);
    if (param_set_is_mixed(set))
        ledger_acquire(&t->ledger, LEDGER_OPTIMIZER, set->shards->own_elements * wide,
                       set->shards->elements * wide);
}

static status open_params(trainer *t)
{
    const trainer_config *c = &t->config;
    param_set_config config = {.param_kind = t->needs.param_kind,
                               .grad_kind = t->needs.grad_kind,
                               .buffer_kind = t->needs.buffer_kind,
                               .gradients = true,
                               .bf16_copy = true,
                               .shards = t->needs.shards};
    if (config.shards.ranks > 0) config.shards.rank = c->rank % config.shards.ranks;
    TRY(param_set_open(t->device, c->model, t->programs.slots[0].program, &config, &t->params));
    hold_parameters(t);
    if (param_set_has_bf16_copy(t->params))
        ledger_acquire(&t->ledger, LEDGER_PARAMETERS, param_set_bf16_copy_bytes(t->params),
                       (int64_t)param_set_bf16_copy_reserved(t->params));
    const param_shards *shards = t->params->shards;
    int64_t elements = shards ? shards->elements : t->params->arena_elements;
    int64_t logical = shards ? shards->own_elements : c->model->parameter_elements;
    bool idle = t->needs.optimizer_ranks > 0 && c->rank >= t->needs.optimizer_ranks;
    return (idle ? optimizer_open_idle : optimizer_open)(t->device, c->optimizer, t->params->type, elements,
                                                         logical, &t->ledger, &t->optimizer);
}

static status refuse_graph(const trainer_config *c, const char *why)
{
    return fail(STATUS_CONFIG, "--cuda-graph: expected none, ps=dp or ring with NCCL, got %s=%s: %s",
                c->engine->name, c->policy, why);
}

static status open_engine(trainer *t)
{
    const trainer_config *c = &t->config;
    sync_context context = {.rank = c->rank,
                            .world = c->world,
                            .first = c->place ? c->place->stage * c->place->replicas : 0,
                            .job_world = c->place    ? c->world * c->place->shape.stages
                                         : c->remote ? c->world + 1 /* the remote stage, too */
                                                     : c->world,
                            .job_token = c->job_token +
                                         (c->place ? (uint64_t)c->place->stage : 0), /* one token per stage */
                            .device = t->device,
                            .compute = t->stream,
                            .params = t->params,
                            .program = t->programs.slots[0].program,
                            .optimizer = t->optimizer,
                            .ledger = &t->ledger,
                            .exchange = &t->exchange,
                            .slot = c->slot,
                            .table = c->table,
                            .options = c->engine_options,
                            .policy = c->policy,
                            .stall_timeout_ns = c->stall_timeout_ns,
                            .connect_timeout_ns = c->connect_timeout_ns,
                            .share_gpu = c->share_gpu,
                            .inline_progress = c->inline_progress,
                            .divide = c->divide,
                            .micro_batches = (int)trainer_micro_batches(t),
                            .link = c->link,
                            .recorder = c->cuda_graph ? &t->programs.recorder.base : NULL,
                            .trace = c->trace,
                            .hub = c->hub,
                            .lost = c->lost,
                            .lost_context = c->lost_context,
                            .canceled = c->canceled,
                            .canceled_context = c->canceled_context};
    const device_info *info = device_get_info(t->device);
    bool either = t->needs.reach == SYNC_REACH_EITHER && !c->share_gpu;
    if (c->cuda_graph && t->needs.unrecorded) return refuse_graph(c, t->needs.unrecorded);
    if (info->host_addressable || !info->real || t->needs.reach == SYNC_REACH_DEVICE || either) {
        status rc = sync_open(c->engine, &context, &t->engine);
        if (rc != STATUS_UNAVAILABLE || !either) return rc;
        log_warn("%s: the engine %s works on host memory", error_message(), c->engine->name);
        error_clear();
    }
    if (c->cuda_graph) return refuse_graph(c, "the engine works on host memory, in the middle of a pass");
    return sync_staged_open(&context, c->engine, &t->needs, c->threads, &t->engine);
}

/* Returns true if the host may enqueue the next step before the device has ended this one. A slowed stream
 * (--slow) waits for each operation, so the host cannot run ahead. */
static bool may_run_ahead(const trainer *t)
{
    const device_info *info = device_get_info(t->device);
    bool enqueues = info->real && !info->host_addressable && t->engine->enqueues;
    return enqueues && !t->config.separate_phases && t->slowdown == 1 &&
           trainer_micro_batches(t) <= TRAINER_KEPT_BATCHES;
}

static int job_rank(const trainer_config *c)
{
    return c->place ? pipeline_rank(c->place, c->place->stage) : c->rank;
}

static status open_all(trainer *t)
{
    const trainer_config *c = &t->config;
    int rank = job_rank(c), world = c->place ? c->world * c->place->shape.stages : c->world;
    device_config device = {.name = c->device,
                            .rank = rank,
                            .world = world,
                            .local_rank = c->local_rank,
                            .threads = c->threads,
                            .simulation = c->simulation,
                            .precision = c->precision,
                            .share_gpu = c->share_gpu,
                            .benchmark = c->benchmark};
    TRY(device_open(&device, &t->device));
    TRY(device_stream_open(t->device, DEVICE_STREAM_COMPUTE, &t->stream));
    int slow = c->place && c->place->devices ? c->rank : rank; /* --slow applies to all devices of the rank */
    TRY(straggler_factor(c->slow, slow, INT32_MAX, &t->slowdown));
    if (t->slowdown > 1) device_stream_slow_down(t->stream, t->slowdown);
    t->log = (step_log){.compute = t->stream,
                        .device = t->device,
                        .ledger = &t->ledger,
                        .slot = c->slot,
                        .separates = c->separate_phases,
                        .counts = !device_get_info(t->device)->real};
    TRY(c->engine->requirements(c->engine_options, c->policy, c->world, &t->needs));
    t->needs.shards.accumulates = t->needs.shards.mixed && c->accumulate > 1;
    describe_batch(t);
    TRY(compile_programs(t));
    TRY(open_params(t));
    TRY(open_instances(t));
    describe_exchange(t);
    trainer_recorder_init(t);
    TRY(open_engine(t));
    t->runs_ahead = may_run_ahead(t);
    TRY(trainer_remote_open(t));
    return trainer_pipeline_open(t);
}

/* Adds the rank and the contents of its ledger to the device's out-of-memory error. */
static void describe_memory(const trainer *t)
{
    char table[512] = "", size[32];
    size_t length = 0;
    for (int c = 0; c < LEDGER_CLASS_COUNT && length < sizeof table; c++) {
        int64_t bytes = t->ledger.classes[c].current;
        if (bytes == 0) continue;
        length += (size_t)snprintf(table + length, sizeof table - length, "%s%s %s", length ? ", " : "",
                                   ledger_class_name((ledger_class)c),
                                   text_format_bytes(size, sizeof size, (double)bytes));
    }
    error_context("rank %d, which holds %s", job_rank(&t->config), length ? table : "nothing yet");
}

status trainer_open(const trainer_config *config, trainer **out)
{
    *out = NULL;
    trainer *t = calloc(1, sizeof *t);
    if (!t) return fail(STATUS_SYSTEM, "no memory for a rank");
    t->config = *config;
    size_t batches = (size_t)trainer_micro_batches(t);
    t->phases = calloc(PHASES_OF_BATCH * batches + PHASES_OF_STEP, sizeof *t->phases);
    trainer_tensors none = {.input.fd = -1, .target.fd = -1, .index.fd = -1};
    t->programs.memory.activations.fd = t->programs.memory.workspace.fd = t->programs.memory.loss.fd =
        t->losses.fd = -1;
    t->remote.output.fd = t->remote.gradient.fd = -1;
    t->data.tensors = t->data.prefetch.tensors = none;
    t->devices.arrived.fd = -1;
    status rc = t->phases ? open_all(t) : fail(STATUS_SYSTEM, "no memory for a rank");
    if (rc == STATUS_SYSTEM && t->device && !device_get_info(t->device)->host_addressable) describe_memory(t);
    if (config->refused) *config->refused = t->device && device_has_refused(t->device);
    if (rc != STATUS_OK) trainer_close(&t);
    *out = t;
    return rc;
}

static void close_slot(trainer_program_slot *slot)
{
    trainer_close_records(slot);
    nn_instance_close(&slot->instance);
    nn_program_free(&slot->program);
}

status trainer_connect(trainer *t, const sync_blob *handshakes)
{
    const pipeline_place *place = t->config.place;
    if (!place || place->devices) return sync_connect(t->engine, handshakes);
    TRY(sync_connect(t->engine, handshakes + place->stage * place->replicas));
    return pipeline_connect(t->pipeline.messages);
}

void trainer_counters(const trainer *t, sync_counters *out)
{
    sync_read_counters(t->engine, out);
    if (t->pipeline.messages) pipeline_counters(t->pipeline.messages, out);
    if (t->remote.stage) remote_stage_counters(t->remote.stage, out);
}

void trainer_leave(trainer *t)
{
    sync_close(&t->engine);
}

void trainer_pin(trainer *t, void *data, size_t bytes)
{
    if (t->data.pinned_count == TRAINER_MAX_BUFFERS || device_get_info(t->device)->host_addressable) return;
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
    for (int i = 0; i < t->programs.slot_count; i++) close_slot(&t->programs.slots[i]);
    close_slot(&t->programs.evaluation);
    if (t->programs.loss_kernel) device_release(&t->programs.loss_kernel);
    optimizer_close(&t->optimizer);
    param_set_close(&t->params);
    if (t->device) {
        device_free(t->device, &t->programs.memory.activations);
        device_free(t->device, &t->programs.memory.workspace);
        device_free(t->device, &t->programs.memory.loss);
        device_free(t->device, &t->losses);
        trainer_close_tensors(t, &t->data.tensors);
    }
    device_stream_close(&t->stream);
    device_close(&t->device);
    free(t->data.rows);
    free(t->data.row_targets);
    free(t->phases);
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

bool trainer_is_inline(const trainer *t)
{
    return t->config.inline_progress;
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
    return t->programs.slots[0].program;
}
