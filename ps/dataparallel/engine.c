/* Opens and closes the engine of `dp`, and lists its functions. */
#include "ps/dataparallel/dataparallel.h"

#include "common/base/least.h"
#include "common/device/sim/device_sim.h"
#include "common/sync/engine.h"
#include "ps/engine_impl.h"
#include "ps/ps.h"

#include <stdlib.h>

sync_requirements ps_dp_requirements(const ps_options *o, const ps_policy *p)
{
    bool exchanged = o->payload != PS_PAYLOAD_ZMQ && o->payload != PS_PAYLOAD_NCCL;
    device_memory_kind kind = exchanged ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE;
    return (sync_requirements){.reach = SYNC_REACH_DEVICE,
                               .param_kind = kind,
                               .grad_kind = kind,
                               .buffer_kind = DEVICE_MEMORY_PRIVATE,
                               .batch_kind = kind,
                               .param_class = LEDGER_PARAMETERS,
                               .shares_buffers = true,
                               .whole_batch = true,
                               .one_loss = p->loss == PS_DP_LOSS_DEVICE0,
                               .alike_from = 1,
                               .optimizer_ranks = 1};
}

/* ---- open ------------------------------------------------------------------------------------- */

/* Removes the parameters from the ledger on every rank except rank 0. The other ranks have no parameters
 * between steps: every forward pass begins with a new replica. */
static void count_owned_params(const dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    int64_t reserved = (set->arena_elements + set->buffer_elements) * e->element;
    if (!dp_is_root(e))
        ledger_release(c->ledger, LEDGER_PARAMETERS, set->logical_bytes + set->buffer_bytes, reserved);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Returns the size per sample of the key and value tensors of all attention layers, in bytes. */
static int64_t cache_bytes(const nn_program *program)
{
    int64_t bytes = 0;
    for (int i = 0; i < program->op_count; i++) {
        const op_desc *op = &program->ops[i].desc;
        const attention_attributes *a = &op->u.attention;
        if (op->kind == OP_attention_forward)
            bytes += 2 * a->sequence * a->heads * a->width * (int64_t)dtype_size(op->type);
    }
    return bytes;
}

/* Returns the number of bytes per sample that a replica returns in addition to its loss. Returns 0 except in
 * virtual time (simulation_config.gathered). */
static int64_t returned_bytes(device *d, const nn_program *program, int64_t output_bytes)
{
    const simulation *s = sim_device_simulation(d);
    if (!s || s->config.gathered == SIM_GATHERS_LOSSES) return 0;
    return output_bytes + (s->config.gathered == SIM_GATHERS_CACHES ? cache_bytes(program) : 0);
}

static int64_t largest_frame(const dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const sync_exchange *x = c->exchange;
    int64_t part = x->largest, bytes = c->params->buffer_bytes;
    for (int i = 0; i < c->params->model->param_count; i++)
        bytes = greatest(bytes, c->params->pieces[i].count * e->element);
    const int64_t others[] = {part * x->input_bytes, part * x->target_bytes,
                              part * greatest(x->output_bytes, e->returned),
                              e->largest_sum * (int64_t)sizeof(double)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) bytes = greatest(bytes, others[i]);
    return bytes;
}

/* Returns the memory that other ranks map for a tensor, or NULL if there is none. */
static const device_memory *exported(const dp_engine *e, dp_tensor tensor, const device_memory *memory)
{
    if (e->copies.separate && e->options.payload != PS_PAYLOAD_NCCL) memory = &e->buffers[tensor];
    return memory->data ? memory : NULL;
}

static status open_hub(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    int peers = dp_is_root(e) ? c->world - 1 : 1;
    dp_hub hub = {.context = c,
                  .most_transfers = larger(larger(e->replicate.count + 1, e->reduce.count), 3) * peers,
                  .keys = e->reduce.count,
                  .threads = e->threads,
                  .landing = e->landing.data,
                  .only_control = e->options.payload == PS_PAYLOAD_NCCL};
    TRY(dp_hub_open(&hub, &e->hub));
    e->member = (ps_member){
        .context = c,
        .options = &e->options,
        .policy = &e->policy,
        .servers = 1,
        .nccl = e->options.payload == PS_PAYLOAD_NCCL && c->world > 1 && ps_has_bytes(c->device),
        .frames = larger(larger(e->replicate.most_pieces, e->reduce.most_pieces),
                         larger(set->model->buffer_count, 1)),
        .frame_bytes = largest_frame(e),
        .exported = {exported(e, DP_TENSOR_PARAMS, &set->params), exported(e, DP_TENSOR_GRADS, &set->grads),
                     exported(e, DP_TENSOR_INPUT, c->exchange->input),
                     exported(e, DP_TENSOR_TARGET, c->exchange->target),
                     exported(e, DP_TENSOR_OUTPUTS, &e->outputs)},
        .export_count = PS_SEGMENTS};
    if (device_get_info(c->device)->plans) return STATUS_OK;
    if (e->member.frames > MESSAGE_FRAMES_MAX)
        return fail(STATUS_CONFIG, "policy dp: expected at most %d tensors in a chunk, got %d",
                    MESSAGE_FRAMES_MAX, e->member.frames);
    transport_options options;
    TRY(ps_transport_options(&e->member, c->rank, &options));
    options.device_memory = true; /* messages move data from device to device */
    TRY(ps_port_open(&e->hub->port, &options, c->world, e->hub->held_capacity + hub.most_transfers,
                     PS_NO_PEER, 0));
    return dp_is_root(e) ? ps_listen(&e->member, 0, &e->hub->port) : STATUS_OK;
}

static status open_parts(dp_engine *e)
{
    const sync_context *c = &e->base.context;
    if (!c->exchange)
        return fail(STATUS_INTERNAL, "policy dp: expected an exchange in the context, got none");
    TRY(ps_policy_resolve(c->policy, c->options, c->world, &e->policy));
    TRY(dp_choose_payload(e, c->options));
    if (c->divide != SHARED_DIVIDE_POLICY && dp_one_loss(e))
        return fail(STATUS_CONFIG,
                    "--divide: expected policy, or --dp-loss replica, got %s with ps=dp: one loss over the "
                    "whole batch leaves "
                    "nothing to divide",
                    c->divide == SHARED_DIVIDE_BEFORE ? "before" : "after");
    e->policy.divide_before = c->divide == SHARED_DIVIDE_BEFORE;
    e->returned = returned_bytes(c->device, c->program, c->exchange->output_bytes);
    if (e->returned > 0 && dp_one_loss(e))
        return fail(
            STATUS_CONFIG,
            "--dp-gather: expected --dp-loss replica, got device0, which gathers outputs in any case");
    e->largest_sum = nn_program_largest_sum(c->program);
    TRY(dp_chunks_make(c->params, false, e->policy.replicate_bytes, &e->memory, &e->replicate));
    TRY(dp_chunks_make(c->params, true, e->policy.reduce_bytes, &e->memory, &e->reduce));
    TRY(dp_open_memory(e));
    return open_hub(e);
}

status ps_dp_open(const sync_context *context, sync_engine **out)
{
    dp_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for an engine");
    e->base = (sync_engine){.type = &sync_ps_dp, .context = *context, .updates = context->rank == 0};
    e->element = dtype_size(context->params->type);
    status rc = open_parts(e);
    if (rc == STATUS_OK) {
        count_owned_params(e);
        *out = &e->base;
    } else {
        sync_ps_dp.close(&e->base);
    }
    return rc;
}

/* Pins or unpins the shared memory that this rank's GPU copies from or to. Rank 0 pins the gradients of the
 * other ranks. The other ranks pin all shared memory of rank 0. */
static status pin_segments(dp_engine *e, bool pin)
{
    device *d = e->base.context.device;
    if (!e->copies.separate) return STATUS_OK;
    if (!dp_is_root(e)) return ps_pin_segments(&e->member, d, 0, PS_SEGMENTS, 1, pin);
    return ps_pin_segments(&e->member, d, PS_SEGMENTS + PS_SEGMENT_GRADS, e->base.context.world * PS_SEGMENTS,
                           PS_SEGMENTS, pin);
}

static void dp_close(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    dp_hub_close(&e->hub);
    dp_nccl_close(e); /* NCCL's calls read memory that is freed next, so NCCL is closed first. */
    pin_segments(e, false);
    ps_leave(&e->member);
    dp_close_memory(e);
    free(e);
}

/* ---- connect ---------------------------------------------------------------------------------- */

static status dp_connect(sync_engine *base, const sync_blob *handshakes)
{
    dp_engine *e = dp_engine_of(base);
    if (device_get_info(base->context.device)->plans) return STATUS_OK;
    TRY(ps_join(&e->member, handshakes));
    TRY(dp_nccl_open(e));
    TRY(pin_segments(e, true));
    e->hub->port.ahead_ns = base->context.clock_ahead_ns;
    if (!dp_is_root(e)) TRY(ps_connect_port(&e->member, &e->hub->port, 0, &e->hub->url));
    return dp_hub_start(e->hub);
}

/* ---- results and figures ----------------------------------------------------------------------- */

static const void *dp_reduced_gradients(sync_engine *base, piece_list *owned)
{
    const dp_engine *e = dp_engine_of(base);
    const param_set *set = base->context.params;
    *owned = (piece_list){NULL, 0};
    if (!dp_is_root(e)) return NULL;
    *owned = param_set_pieces(set, 0, set->model->param_count);
    return set->grads.data;
}

static void dp_counters(sync_engine *base, sync_counters *out)
{
    const dp_engine *e = dp_engine_of(base);
    *out = (sync_counters){.updates_skipped = optimizer_skipped(base->context.optimizer)};
    ps_port_collect(&e->hub->port, out);
    dp_nccl_collect(e, out);
}

bool ps_dp_read_sizes(sync_engine *base, ps_dp_sizes *out)
{
    if (base->type != &sync_ps_dp || base->context.world < 2 || base->context.rank != 0) return false;
    const dp_engine *e = dp_engine_of(base);
    const sync_context *c = &base->context;
    const sync_exchange *x = c->exchange;
    int64_t other = e->parts[1].samples, sent = x->input_bytes + (dp_one_loss(e) ? 0 : x->target_bytes);
    *out = (ps_dp_sizes){.parameters = c->params->logical_bytes,
                         .kept = e->policy.keep_grads ? c->params->logical_bytes : 0,
                         .state = optimizer_state_count(optimizer_get_options(c->optimizer)) *
                                  c->params->logical_bytes,
                         .outputs = dp_one_loss(e) ? e->loaded * x->output_bytes : 0,
                         .loss_outputs = dp_one_loss(e) ? e->loaded * x->loss_output_bytes : 0,
                         .other_output = dp_one_loss(e) ? other * x->output_bytes : 0,
                         .buffers = c->params->buffer_bytes,
                         .batch = e->loaded * (x->input_bytes + x->target_bytes) - other * sent,
                         .ahead = x->ahead_bytes,
                         .lean = dp_lean(e)};
    return other > 0;
}

static const sync_scatter scatter = {.plan = dp_plan_batch,
                                     .inputs = dp_scatter_inputs,
                                     .gather_outputs = dp_gather_outputs,
                                     .loss = dp_loss,
                                     .output_gradient = dp_scatter_output_gradient};

const sync_engine_type sync_ps_dp = {
    .name = "ps",
    .handshake = ps_handshake,
    .connect = dp_connect,
    .close = dp_close,
    .begin_forward = dp_begin_forward,
    .need = sync_default_param,
    .release = sync_default_param,
    .end_forward = sync_default_call,
    .ready = dp_ready,
    .reduce = dp_reduce,
    .norm = sync_default_norm,
    .update = sync_default_update,
    .flush = dp_flush,
    .gather_parameters = sync_default_flush,
    .group_sum = dp_group_sum,
    .reduced_gradients = dp_reduced_gradients,
    .end_step = dp_nccl_end_step,
    .counters = dp_counters,
    .scatter = &scatter,
};
