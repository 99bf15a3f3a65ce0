/* --payload nccl: NCCL moves tensors between GPUs, as torch.nn.DataParallel does. Parameters and buffers are
 * broadcast in coalesced chunks. Gradients are reduced in place onto rank 0. Point-to-point calls move parts
 * of the batch, outputs, and gradients of outputs. ZeroMQ carries values that the hosts read: the
 * sizes of the parts, and values that a layer sums over the ranks.
 *
 * Each function of a step makes one call of the process group (common/process_group/process_group.h). The
 * call runs in stream order, and consists of several calls of NCCL. All ranks make the same calls of the
 * process group, but a rank adds only the sends and receives in which it takes part. All ranks take part in
 * broadcasts and reductions. A rank without samples ignores the parameters and adds zeros to the gradients.
 */
#include "common/device/sim/device_sim.h"
#include "common/trace/trace.h"
#include "ps/dataparallel/dataparallel.h"

#include <string.h>

enum { TAG_PARAMETERS = -1, TAG_BUFFERS = -2, TAG_GRADIENTS = -3, TAG_PART = -4 };

/* Names of the calls in the trace. */
static const char *const call_names[] = {
    [DP_CALL_REPLICATE] = "broadcast of parameters", [DP_CALL_REDUCE] = "reduce of gradients",
    [DP_CALL_INPUTS] = "scatter of inputs",          [DP_CALL_OUTPUTS] = "gather of outputs",
    [DP_CALL_GRADIENT] = "scatter of gradients",     [DP_CALL_START] = "start"};

static void ended(void *engine, const process_call *p, const process_times *t)
{
    const sync_context *c = context_of(engine);
    if (t->empty) return;
    anatomy_add_call(c->anatomy, t->work, t->began_ns, t->finished_ns);
    trace_slice(c->trace, TRACE_COMMUNICATION, call_names[p->kind], TRACE_NO_INDEX, t->began_ns,
                t->finished_ns);
}

static const process_group_ops ops = {.ended = ended};

status dp_nccl_begin(dp_engine *e, dp_call call)
{
    if (!e->calls) return STATUS_OK;
    return process_group_begin(e->calls, &(process_call){.group = e->ranks, .kind = (int)call});
}

status dp_nccl_end(dp_engine *e)
{
    process_work call;
    if (!e->calls) return STATUS_OK;
    TRY(process_group_end(e->calls, &call));
    return process_group_wait(e->calls, call, context_of(e)->anatomy);
}

void dp_nccl_end_step(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    if (e->calls) process_group_end_step(e->calls, base->context.anatomy);
}

/* ---- broadcasts and reductions ------------------------------------------------------------------ */

static status add_collective(dp_engine *e, collective_kind kind, int tag, void *arena, piece_list pieces)
{
    int64_t count = piece_list_elements(pieces);
    collective_buffer buffer = {arena, pieces};
    if (!e->calls) return dp_nccl_sim_run(e, kind, count * e->element);
    return process_group_add(e->calls, &(collective_call){.kind = kind,
                                                          .op = REDUCE_SUM,
                                                          .type = context_of(e)->params->type,
                                                          .tag = tag,
                                                          .count = count,
                                                          .in = buffer,
                                                          .out = buffer});
}

static status add_chunks(dp_engine *e, collective_kind kind, int tag, void *arena, const dp_chunks *chunks)
{
    for (int k = 0; k < chunks->count; k++) {
        const dp_chunk *chunk = &chunks->list[k];
        TRY(add_collective(e, kind, tag, arena,
                           param_set_pieces(context_of(e)->params, chunk->first, chunk->count)));
    }
    return STATUS_OK;
}

status dp_nccl_replicate(dp_engine *e)
{
    param_set *set = context_of(e)->params;
    piece_list buffers = {set->buffer_pieces, set->model->buffer_count};
    if (!dp_is_root(e)) param_set_forget_bf16_copy(set);
    TRY(dp_nccl_begin(e, DP_CALL_REPLICATE));
    TRY(add_chunks(e, COLLECTIVE_BROADCAST, TAG_PARAMETERS, set->params.data, &e->replicate));
    if (buffers.count > 0)
        TRY(add_collective(e, COLLECTIVE_BROADCAST, TAG_BUFFERS, set->buffers.data, buffers));
    return dp_nccl_end(e);
}

/* Divides all elements of the arena of gradients, including the padding. */
static status divide(dp_engine *e, double divisor)
{
    const param_set *set = context_of(e)->params;
    if (divisor == 1 || !e->calls) return STATUS_OK;
    return device_convert(context_of(e)->compute, set->grads.data, set->type, set->grads.data, set->type,
                          set->arena_elements, divisor);
}

status dp_nccl_reduce(dp_engine *e, const dp_sum *sum)
{
    const param_set *set = context_of(e)->params;
    bool contributes = context_of(e)->rank < e->contributors;
    if (!contributes && e->calls)
        TRY(device_clear(context_of(e)->compute, set->grads.data,
                         (size_t)(set->arena_elements * e->element)));
    if (contributes) TRY(divide(e, sum->before));
    TRY(dp_nccl_begin(e, DP_CALL_REDUCE));
    TRY(add_chunks(e, COLLECTIVE_REDUCE, TAG_GRADIENTS, set->grads.data, &e->reduce));
    TRY(dp_nccl_end(e));
    return dp_is_root(e) ? divide(e, sum->after) : STATUS_OK;
}

status dp_nccl_add(dp_engine *e, bool sends, int peer, void *data, int64_t bytes)
{
    return process_group_add(e->calls,
                             &(collective_call){.kind = sends ? COLLECTIVE_SEND : COLLECTIVE_RECEIVE,
                                                .type = DTYPE_U8,
                                                .root = peer,
                                                .tag = TAG_PART,
                                                .count = bytes,
                                                .in = {.base = data},
                                                .out = {.base = data}});
}

/* ---- open and close --------------------------------------------------------------------------- */

/* Makes calls of each kind and size, and calls between rank 0 and each other rank. The reason is that NCCL
 * may open connections during the first call. The calls broadcast the initial parameters. All other calls use
 * the arena of gradients as scratch memory, because no gradient has been computed yet. */
status dp_nccl_warm_up(dp_engine *e)
{
    dp_flow part = {.data = context_of(e)->params->grads.data, .each = 1};
    if (!e->calls || e->warm) return STATUS_OK;
    int world = context_of(e)->world;
    e->present = e->contributors = world;
    for (int r = 0; r < world; r++) e->parts[r] = (dp_part){.samples = 1};
    TRY(dp_nccl_replicate(e));
    TRY(dp_nccl_reduce(e, &(dp_sum){world, 1, 1}));
    TRY(dp_nccl_begin(e, DP_CALL_START));
    TRY(dp_add_parts(e, &part));
    part.to_root = true;
    TRY(dp_add_parts(e, &part));
    TRY(dp_nccl_end(e));
    memset(e->parts, 0, (size_t)world * sizeof *e->parts);
    e->present = e->contributors = 0;
    e->warm = true;
    return device_stream_synchronize(context_of(e)->compute);
}

status dp_choose_payload(dp_engine *e, const ps_options *options)
{
    const sync_context *c = context_of(e);
    const device_info *info = device_get_info(c->device);
    bool host = info->simulated ? sim_device_is_host(c->device) : info->host_addressable;
    char why[192];
    e->options = *options;
    e->threads = host ? (int)options->server_threads : 0;
    bool possible = !host && !c->share_gpu && c->world > 1 && !net_link_is_emulated(&c->link);
    if (options->payload == PS_PAYLOAD_AUTO && possible &&
        (info->simulated || collective_nccl_found(why, sizeof why)))
        e->options.payload = PS_PAYLOAD_NCCL;
    if (options->payload != PS_PAYLOAD_NCCL || info->plans || !host) return STATUS_OK;
    return fail(
        STATUS_CONFIG,
        "--payload: expected shm or zmq, or a device with GPUs, got nccl with --device %s: NCCL moves "
        "tensors of GPUs",
        info->simulated ? "sim on a profile of a processor" : info->name);
}

static status open_calls(dp_engine *e, const int *ranks)
{
    const sync_context *c = context_of(e);
    collective_config config = process_group_collectives(c, "dataparallel");
    config.bootstrap = e->member.nccl_id;
    process_group_config calls = {.ops = &ops,
                                  .context = e,
                                  .device = c->device,
                                  .compute = c->compute,
                                  .rank = c->rank,
                                  .stream_order = true,
                                  .queues = 1};
    TRY(process_group_open(&calls, &e->calls));
    TRY(collective_open("nccl", &config, &e->library));
    TRY(collective_group_open(e->library, "data", ranks, c->world, &e->ranks));
    return process_group_start(e->calls, e->library);
}

status dp_nccl_open(dp_engine *e)
{
    const sync_context *c = context_of(e);
    e->by_nccl = e->options.payload == PS_PAYLOAD_NCCL && c->world > 1;
    if (!e->by_nccl) return STATUS_OK;
    int *ranks = ps_allocate(&e->memory, c->world, sizeof *ranks);
    TRY(ps_memory_check(&e->memory, "an exchange"));
    for (int r = 0; r < c->world; r++) ranks[r] = r;
    if (!e->member.nccl) return dp_nccl_sim_open(e, ranks, &e->virtual_calls);
    anatomy_keep_steps(c->anatomy, ANATOMY_KEPT_BYTES);
    return open_calls(e, ranks);
}

void dp_nccl_close(dp_engine *e)
{
    dp_nccl_sim_close(&e->virtual_calls);
    process_group_stop(e->calls);
    collective_group_close(&e->ranks);
    collective_close(&e->library);
    process_group_close(&e->calls);
}

void dp_nccl_collect(const dp_engine *e, sync_counters *out)
{
    if (e->virtual_calls) dp_nccl_sim_collect(e->virtual_calls, out);
    if (e->library) process_group_counters(e->calls, out);
}
