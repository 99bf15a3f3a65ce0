/* Opens a trainer: device, programs, parameters, memory, engine. */
#include "harness/train/trainer.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/sync/staged.h"
#include "common/sync/straggler.h"
#include "harness/train/stages.h"

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
                                .world = c->sync.world};
    slot->batch = batch;
    for (int i = 0; c->twin && i < c->twin->slot_count && !slot->program; i++)
        slot->program = nn_program_share(c->twin->lives[0].slots[i].program, c->model, &config);
    if (c->twin && !slot->program)
        slot->program = nn_program_share(c->twin->evaluation.program, c->model, &config);
    return slot->program ? STATUS_OK : nn_program_compile(c->model, &config, &slot->program);
}

static status compile_programs(trainer *t)
{
    const trainer_config *c = &t->config;
    trainer_program_slot *slots = t->lives[0].slots;
    TRY(compile_slot(t, c->batch, NN_TRAIN, &slots[t->slot_count++]));
    for (int i = 0; i < TRAINER_MAX_SIZES && c->sizes[i]; i++)
        TRY(compile_slot(t, c->sizes[i], NN_TRAIN, &slots[t->slot_count++]));
    return compile_slot(t, c->batch, NN_EVALUATE, &t->evaluation);
}

static void need_workspace(trainer *t, size_t bytes)
{
    nn_memory *m = &t->lives[0].memory;
    if ((int64_t)bytes > m->workspace_bytes) m->workspace_bytes = (int64_t)bytes;
}

static status open_instance(trainer *t, trainer_program_slot *slot)
{
    nn_memory *m = &t->lives[0].memory;
    TRY(nn_instance_open(t->device, t->stream, slot->program, t->params, &slot->instance));
    if (slot->program->activation_bytes > m->activation_bytes)
        m->activation_bytes = slot->program->activation_bytes;
    need_workspace(t, nn_instance_workspace(slot->instance));
    return STATUS_OK;
}

/* Prepares the loss over the outputs of all ranks or of the remote stage, if this rank computes that loss. */
static status open_loss(trainer *t)
{
    const nn_model *m = trainer_last_model(t);
    if (!t->config.remote && (!t->needs.one_loss || t->config.sync.rank != 0)) return STATUS_OK;
    op_desc op = {.kind = m->loss == NN_LOSS_MSE ? OP_mean_squared_error : OP_cross_entropy,
                  .type = device_get_info(t->device)->compute_type,
                  .bf16 = device_get_info(t->device)->bf16,
                  .u.loss = {.rows = trainer_largest_batch(t) * m->rows_per_sample,
                             .classes = m->classes,
                             .gradient = true}};
    TRY(device_prepare(t->device, &op, NULL, &t->loss_kernel));
    need_workspace(t, device_kernel_workspace(t->loss_kernel));
    return STATUS_OK;
}

status trainer_allocate(trainer *t, ledger_class class, int64_t bytes, device_memory *out)
{
    return ledger_blame(class, device_allocate(t->device, DEVICE_MEMORY_PRIVATE, (size_t)bytes, out));
}

/* On a GPU, allocates pinned memory for the losses, because the GPU writes the losses after the call that
 * begins the copy. */
static status open_losses(trainer *t)
{
    bool gpu = trainer_is_asynchronous(t);
    if (gpu)
        TRY(device_allocate(t->device, DEVICE_MEMORY_STAGING, TRAINER_DEPTH * sizeof t->pending[0].own,
                            &t->losses));
    for (int i = 0; i < TRAINER_DEPTH; i++)
        t->pending[i].losses =
            gpu ? (double(*)[2])t->losses.data + i * TRAINER_KEPT_BATCHES : t->pending[i].own;
    return STATUS_OK;
}

static status open_memory(trainer *t)
{
    nn_memory *m = &t->lives[0].memory;
    TRY(trainer_allocate(t, LEDGER_ACTIVATIONS, m->activation_bytes, &m->activations));
    TRY(trainer_allocate(t, LEDGER_WORKSPACE, m->workspace_bytes, &m->workspace));
    TRY(trainer_allocate(t, LEDGER_OUTPUTS, 2 * sizeof(double), &m->loss));
    TRY(open_losses(t));
    TRY(trainer_open_tensors(t, t->needs.batch_kind, &t->lives[0].tensors));
    TRY(trainer_prefetch_open(t));
    if (t->lives[0].slots[0].program->masked) {
        size_t bytes = t->lives[0].tensors.index.bytes;
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
    trainer_live *l = &t->lives[0];
    for (int i = 0; i < t->slot_count; i++) TRY(open_instance(t, &l->slots[i]));
    TRY(open_instance(t, &t->evaluation));
    TRY(open_loss(t));
    TRY(open_memory(t));
    for (int i = 0; i < t->slot_count; i++) TRY(trainer_bind(l, l->slots[i].instance));
    return param_set_gathers(t->params) ? STATUS_OK : trainer_bind(l, t->evaluation.instance);
}

status trainer_bind(trainer_live *l, nn_instance *instance)
{
    nn_bindings bindings = {.memory = &l->memory,
                            .input = l->tensors.input.data,
                            .target = l->tensors.target.data,
                            .index = l->tensors.index.data};
    return nn_instance_bind(instance, &bindings);
}

static void describe_batch(trainer *t)
{
    const nn_model *m = t->config.model, *last = trainer_last_model(t);
    const device_info *info = device_get_info(t->device);
    bool tokens = m->input_kind == NN_INPUT_TOKENS, values = m->loss == NN_LOSS_MSE;
    int64_t outputs = m->rows_per_sample * m->classes;
    sync_exchange *x = &t->exchange;
    t->data.input_sample = m->received ? 0 : shape_elements(m->layers[0].sample);
    t->data.input_type = tokens ? DTYPE_I32 : info->compute_type;
    x->input = &t->lives[0].tensors.input;
    x->target = &t->lives[0].tensors.target;
    x->target_type = values ? info->compute_type : DTYPE_I32;
    x->targets_each = last->sent ? 0 : last->rows_per_sample * (values ? last->classes : 1);
    x->input_bytes = t->data.input_sample * dtype_size(t->data.input_type);
    x->target_bytes = x->targets_each * dtype_size(x->target_type);
    x->output_bytes = outputs * dtype_size(info->bf16 ? DTYPE_BF16 : info->compute_type);
    x->loss_output_bytes = outputs * dtype_size(info->compute_type);
}

static void hold_parameters(trainer *t)
{
    const param_set *set = t->params;
    bool cut = param_set_sharding(set) == PARAM_SHARD_ALL;
    int64_t size = dtype_size(set->sent), type_size = dtype_size(set->type);
    int64_t logical = cut ? set->shards->own_elements : set->model->parameter_elements;
    int64_t reserved = cut ? set->shards->elements : set->arena_elements;
    ledger_acquire(&t->ledger, t->needs.param_class, logical * size + set->buffer_bytes,
                   reserved * size + set->buffer_elements * type_size);
    if (param_set_is_mixed(set))
        ledger_acquire(&t->ledger, LEDGER_OPTIMIZER, set->shards->own_elements * type_size,
                       set->shards->elements * type_size);
    if (set->bf16_copy.data)
        ledger_acquire(&t->ledger, LEDGER_PARAMETERS, set->model->parameter_elements * dtype_size(DTYPE_BF16),
                       set->arena_elements * dtype_size(DTYPE_BF16));
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
    if (config.shards.ranks > 0) config.shards.rank = c->sync.rank % config.shards.ranks;
    TRY(param_set_open(t->device, c->model, t->lives[0].slots[0].program, &config, &t->params));
    hold_parameters(t);
    const param_shards *shards = t->params->shards;
    int64_t elements = shards ? shards->elements : t->params->arena_elements;
    int64_t logical = shards ? shards->own_elements : c->model->parameter_elements;
    bool idle = t->needs.optimizer_ranks > 0 && c->sync.rank >= t->needs.optimizer_ranks;
    return (idle ? optimizer_open_idle : optimizer_open)(t->device, c->optimizer, t->params->type, elements,
                                                         logical, &t->ledger, &t->optimizer);
}

static status refuse_graph(const trainer_config *c, const char *why)
{
    return fail(STATUS_CONFIG, "--cuda-graph: expected none, ps=dp or ring with NCCL, got %s=%s: %s",
                c->engine->name, c->sync.policy, why);
}

static status open_engine(trainer *t)
{
    const trainer_config *c = &t->config;
    sync_context context = c->sync;
    context.job_world = c->sync.world;
    if (c->place) {
        context.first = c->place->stage * c->place->replicas;
        context.job_world *= c->place->shape.stages;
        context.job_token += (uint64_t)c->place->stage; /* one token per stage */
    }
    if (c->remote) context.job_world++; /* counts the remote stage, too */
    bool either = t->needs.reach == SYNC_REACH_EITHER && !c->sync.share_gpu;
    if (c->cuda_graph && t->needs.unrecorded) return refuse_graph(c, t->needs.unrecorded);
    if (!trainer_is_asynchronous(t) || t->needs.reach == SYNC_REACH_DEVICE || either) {
        status rc = sync_open(c->engine, &context, &t->engine);
        if (rc != STATUS_UNAVAILABLE || !either) return rc;
        log_warn("%s: the engine %s works on host memory", error_message(), c->engine->name);
        error_clear();
    }
    if (c->cuda_graph) return refuse_graph(c, "the engine works on host memory, in the middle of a pass");
    return sync_staged_open(&context, c->engine, &t->needs, c->threads, &t->engine);
}

static int job_rank(const trainer_config *c)
{
    return c->place ? pipeline_rank(c->place, c->place->stage) : c->sync.rank;
}

static status open_all(trainer *t)
{
    trainer_config *c = &t->config;
    int rank = job_rank(c), world = c->place ? c->sync.world * c->place->shape.stages : c->sync.world;
    device_config device = {.name = c->device,
                            .rank = rank,
                            .world = world,
                            .local_rank = c->local_rank,
                            .threads = c->threads,
                            .simulation = c->simulation,
                            .precision = c->precision,
                            .share_gpu = c->sync.share_gpu,
                            .benchmark = c->benchmark};
    TRY(device_open(&device, &t->device));
    TRY(device_stream_open(t->device, DEVICE_STREAM_COMPUTE, &t->stream));
    int slow =
        c->place && c->place->devices ? c->sync.rank : rank; /* --slow applies to all devices of the rank */
    TRY(straggler_factor(c->slow, slow, INT32_MAX, &t->slowdown));
    if (t->slowdown > 1) device_stream_slow_down(t->stream, t->slowdown);
    t->log = (step_log){.compute = t->stream,
                        .device = t->device,
                        .ledger = &t->ledger,
                        .slot = c->sync.slot,
                        .separates = c->separate_phases,
                        .counts = !trainer_has_values(t)};
    TRY(c->engine->requirements(c->sync.options, c->sync.policy, c->sync.world, &t->needs));
    t->needs.shards.accumulates = t->needs.shards.mixed && c->accumulate > 1;
    describe_batch(t);
    TRY(compile_programs(t));
    TRY(open_params(t));
    TRY(open_instances(t));
    t->exchange.largest = trainer_largest_batch(t);
    t->exchange.ahead_bytes = t->data.prefetch.on ? trainer_batch_bytes(t, t->exchange.largest) : 0;
    c->sync.device = t->device;
    c->sync.compute = t->stream;
    c->sync.params = t->params;
    c->sync.program = t->lives[0].slots[0].program;
    c->sync.optimizer = t->optimizer;
    c->sync.ledger = &t->ledger;
    c->sync.exchange = &t->exchange;
    c->sync.micro_batches = (int)trainer_micro_batches(t);
    TRY(open_engine(t));
    /* A slowed stream (--slow) waits for each operation, so the host cannot run ahead. */
    t->runs_ahead = t->engine->enqueues && !c->separate_phases && t->slowdown == 1 &&
                    trainer_micro_batches(t) <= TRAINER_KEPT_BATCHES;
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
    t->live = config->place ? pipeline_live(&config->place->shape, config->place->stage) : 1;
    t->lives = calloc((size_t)t->live, sizeof *t->lives);
    status rc = t->phases && t->lives ? open_all(t) : fail(STATUS_SYSTEM, "no memory for a rank");
    if (rc == STATUS_SYSTEM && t->device && !device_get_info(t->device)->host_addressable) describe_memory(t);
    if (config->refused) *config->refused = t->device && device_has_refused(t->device);
    if (rc != STATUS_OK) trainer_close(&t);
    *out = t;
    return rc;
}
