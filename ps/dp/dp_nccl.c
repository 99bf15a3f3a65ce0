/* --payload nccl: tensors go from the memory of GPUs to the memory of GPUs by NCCL's calls, as
 * torch.nn.DataParallel moves them: parameters and buffers are broadcast in coalesced chunks, gradients are
 * reduced onto rank 0 in place, parts of the batch, outputs and their gradients are sent. ZeroMQ carries what
 * the hosts must know: the sizes of the parts, sums of layers.
 *
 * A job is the calls of one stage. The compute thread enqueues it on the communication stream, after a mark
 * of the compute stream, which waits for a mark after the job; no other thread takes part. All ranks make the
 * same jobs, so that a job's number is the same on all of them, with the calls that concern them. Broadcasts
 * and reductions concern all: a rank without samples receives parameters that it does not use, and adds
 * zeros. */
#include "common/collectives/collective.h"
#include "common/device/sim/device_sim.h"
#include "common/trace/trace.h"
#include "ps/dp/dp_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    AHEAD = 256,                   /* jobs in flight */
    READY_MARK = SYNC_MARK_ENGINE, /* of the compute stream, and the following: of each job in flight */
    END_MARK = COLLECTIVE_MARKS,   /* of the communication stream, and the following: the same */
    TAG_PARAMETERS = -1,
    TAG_BUFFERS = -2,
    TAG_GRADIENTS = -3,
    TAG_PART = -4, /* no buckets */
};
_Static_assert(READY_MARK + AHEAD <= DEVICE_MARKS && END_MARK + AHEAD <= DEVICE_MARKS,
               "a mark for each job in flight");

typedef struct dp_job {
    const char *name;
    int calls;
    collective_ticket first; /* of its calls */
} dp_job;

struct dp_nccl {
    struct dp_nccl_sim *sim; /* virtual time; else NULL, and: */
    collective_world *world;
    collective_group *group; /* all ranks */
    device_stream *stream;
    bool warm;                  /* calls of all kinds have been made */
    uint64_t posted, accounted; /* jobs */
    dp_job jobs[AHEAD];         /* by number */
};

static int ready_mark(uint64_t number)
{
    return READY_MARK + (int)(number % AHEAD);
}

static int end_mark(uint64_t number)
{
    return END_MARK + (int)(number % AHEAD);
}

/* ---- jobs ------------------------------------------------------------------------------------- */

static void account_job(dp_engine *e, uint64_t number, const dp_job *job)
{
    dp_nccl *n = e->nccl;
    const sync_context *c = context_of(e);
    if (job->calls == 0) return;
    collective_times first = collective_get_times(n->group, job->first);
    int64_t end_ns = device_mark_ns(n->stream, end_mark(number));
    anatomy_add_call(c->anatomy, number, first.began_ns, end_ns);
    trace_slice(c->trace, TRACE_COMMUNICATION, job->name, TRACE_NO_INDEX, first.began_ns, end_ns);
}

/* Reads the times of jobs that are done. */
static void account(dp_engine *e)
{
    dp_nccl *n = e->nccl;
    int64_t deadline_ns;
    bool worked;
    while (n->accounted < n->posted && device_mark_passed(n->stream, end_mark(n->accounted + 1)) &&
           collective_progress(n->world, device_now_ns(context_of(e)->device), &deadline_ns, &worked) ==
               STATUS_OK) {
        uint64_t number = ++n->accounted;
        account_job(e, number, &n->jobs[number % AHEAD]);
    }
}

static status begin_job(dp_engine *e, const char *name)
{
    dp_nccl *n = e->nccl;
    device_stream *compute = context_of(e)->compute;
    if (n->sim) return STATUS_OK;
    if (n->posted - n->accounted == AHEAD) {
        TRY(device_mark_wait(n->stream, end_mark(n->accounted + 1)));
        account(e);
    }
    uint64_t number = ++n->posted;
    n->jobs[number % AHEAD] = (dp_job){.name = name};
    TRY(device_mark(compute, ready_mark(number)));
    return device_stream_wait_mark(n->stream, compute, ready_mark(number));
}

static status add_call(dp_engine *e, const collective_call *call)
{
    dp_nccl *n = e->nccl;
    dp_job *job = &n->jobs[n->posted % AHEAD];
    collective_ticket ticket;
    TRY(collective_enqueue(n->group, call, n->stream, &ticket));
    if (job->calls++ == 0) job->first = ticket;
    return STATUS_OK;
}

/* The compute stream waits for the job; for whom, the begins of all ranks say after the run. */
static status end_job(dp_engine *e)
{
    dp_nccl *n = e->nccl;
    const sync_context *c = context_of(e);
    int wait;
    if (n->sim) return STATUS_OK;
    TRY(device_mark(n->stream, end_mark(n->posted)));
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(device_stream_wait_mark(c->compute, n->stream, end_mark(n->posted)));
    TRY(anatomy_end_wait(c->anatomy, &wait));
    if (n->jobs[n->posted % AHEAD].calls > 0)
        anatomy_name_wait(c->anatomy, wait, (anatomy_sent){.ns = (int64_t)n->posted, .rank = ANATOMY_CALL});
    return STATUS_OK;
}

void dp_nccl_end_step(sync_engine *base)
{
    dp_engine *e = dp_engine_of(base);
    if (e->nccl && !e->nccl->sim) account(e);
}

/* ---- broadcasts and reductions ------------------------------------------------------------------ */

static status add_collective(dp_engine *e, collective_kind kind, int tag, void *arena, piece_list pieces)
{
    int64_t count = piece_list_elements(pieces);
    collective_buffer buffer = {arena, pieces};
    if (e->nccl->sim) return dp_nccl_sim_run(e, e->nccl->sim, kind, count * (int64_t)e->element);
    return add_call(e, &(collective_call){.kind = kind,
                                          .op = REDUCE_SUM,
                                          .type = context_of(e)->params->type,
                                          .tag = tag,
                                          .count = count,
                                          .in = buffer,
                                          .out = buffer});
}

static piece_list chunk_pieces(const dp_engine *e, const dp_chunk *chunk)
{
    return (piece_list){context_of(e)->params->pieces + chunk->first, chunk->count};
}

status dp_nccl_replicate(dp_engine *e)
{
    param_set *set = context_of(e)->params;
    piece_list buffers = {set->buffer_pieces, set->model->buffer_count};
    if (!dp_is_root(e)) param_set_forget_bf16_copy(set);
    TRY(begin_job(e, "broadcast of parameters"));
    for (int k = 0; k < e->replicate.count; k++)
        TRY(add_collective(e, COLLECTIVE_BROADCAST, TAG_PARAMETERS, set->params.data,
                           chunk_pieces(e, &e->replicate.list[k])));
    if (buffers.count > 0)
        TRY(add_collective(e, COLLECTIVE_BROADCAST, TAG_BUFFERS, set->buffers.data, buffers));
    return end_job(e);
}

/* Of all gradients; between parameters as well. */
static status divide(dp_engine *e, double divisor)
{
    const param_set *set = context_of(e)->params;
    if (divisor == 1 || e->nccl->sim) return STATUS_OK;
    return device_convert(context_of(e)->compute, set->grads.data, set->type, set->grads.data, set->type,
                          set->arena_elements, divisor);
}

status dp_nccl_reduce(dp_engine *e, double before, double after)
{
    const param_set *set = context_of(e)->params;
    bool contributes = context_of(e)->rank < e->contributors;
    if (!contributes && !e->nccl->sim)
        TRY(device_clear(context_of(e)->compute, set->grads.data, (size_t)set->arena_elements * e->element));
    if (contributes) TRY(divide(e, before));
    TRY(begin_job(e, "reduce of gradients"));
    for (int k = 0; k < e->reduce.count; k++)
        TRY(add_collective(e, COLLECTIVE_REDUCE, TAG_GRADIENTS, set->grads.data,
                           chunk_pieces(e, &e->reduce.list[k])));
    TRY(end_job(e));
    return dp_is_root(e) ? divide(e, after) : STATUS_OK;
}

/* ---- parts of the batch and of the outputs ------------------------------------------------------ */

bool dp_nccl_sends(const dp_engine *e)
{
    return e->nccl && !e->nccl->sim;
}

/* A part between rank 0 and the rank whose part it is: on rank 0 of all of them, at `each` bytes per sample
 * of `whole`. */
static status add_parts(dp_engine *e, bool from_root, void *whole, void *own, int64_t each)
{
    int me = context_of(e)->rank;
    for (int r = 1; r < e->present; r++) {
        const dp_part *p = &e->parts[r];
        if ((!dp_is_root(e) && r != me) || p->samples == 0) continue;
        char *at = dp_is_root(e) ? (char *)whole + p->first * each : own;
        collective_kind kind = dp_is_root(e) == from_root ? COLLECTIVE_SEND : COLLECTIVE_RECEIVE;
        TRY(add_call(e, &(collective_call){.kind = kind,
                                           .type = DTYPE_U8,
                                           .root = dp_is_root(e) ? r : 0,
                                           .tag = TAG_PART,
                                           .count = p->samples * each,
                                           .in = {.base = at},
                                           .out = {.base = at}}));
    }
    return STATUS_OK;
}

status dp_nccl_scatter_batch(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    TRY(begin_job(e, "scatter of inputs"));
    TRY(add_parts(e, true, x->input->data, x->input->data, x->input_bytes));
    if (!dp_one_loss(e)) TRY(add_parts(e, true, x->target->data, x->target->data, x->target_bytes));
    return end_job(e);
}

status dp_nccl_gather_outputs(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    TRY(begin_job(e, "gather of outputs"));
    TRY(add_parts(e, false, x->all_outputs, x->output, x->output_bytes));
    return end_job(e);
}

status dp_nccl_scatter_gradient(dp_engine *e)
{
    const sync_exchange *x = context_of(e)->exchange;
    TRY(begin_job(e, "scatter of gradients"));
    TRY(add_parts(e, true, x->all_gradients, x->output_gradient, x->output_bytes));
    return end_job(e);
}

/* NCCL may connect at the first call of a kind, size or pair: it does so here, with the parameters that rank
 * 0 starts from and gradients that are yet to be computed. */
status dp_nccl_warm_up(dp_engine *e)
{
    if (!e->nccl || e->nccl->sim || e->nccl->warm) return STATUS_OK;
    char *scratch = context_of(e)->params->grads.data;
    int world = context_of(e)->world;
    e->present = e->contributors = world;
    for (int r = 0; r < world; r++) e->parts[r] = (dp_part){.samples = 1};
    TRY(dp_nccl_replicate(e));
    TRY(dp_nccl_reduce(e, 1, 1));
    TRY(begin_job(e, "start"));
    TRY(add_parts(e, true, scratch, scratch, 1));
    TRY(add_parts(e, false, scratch, scratch, 1));
    TRY(end_job(e));
    memset(e->parts, 0, (size_t)world * sizeof *e->parts);
    e->present = e->contributors = 0;
    e->nccl->warm = true;
    return device_stream_synchronize(context_of(e)->compute);
}

/* ---- open and close --------------------------------------------------------------------------- */

status dp_choose_payload(dp_engine *e, const ps_options *options)
{
    const sync_context *c = context_of(e);
    const device_info *info = device_get_info(c->device);
    bool host = info->simulated ? sim_device_is_host(c->device) : info->host_addressable;
    char why[192];
    e->resolved = *options;
    e->options = &e->resolved;
    if (options->payload == PS_PAYLOAD_AUTO && info->real && !host && !c->share_gpu && c->world > 1 &&
        !net_link_is_emulated(&c->link) && collective_nccl_found(why, sizeof why))
        e->resolved.payload = PS_PAYLOAD_NCCL;
    if (options->payload != PS_PAYLOAD_NCCL || info->plans || !host) return STATUS_OK;
    return fail(
        STATUS_CONFIG,
        "--payload: expected shm or zmq, or a device with GPUs, got nccl with --device %s: NCCL moves "
        "tensors of GPUs",
        info->simulated ? "sim on a profile of a processor" : info->name);
}

static status open_world(dp_engine *e)
{
    const sync_context *c = context_of(e);
    dp_nccl *n = e->nccl;
    int *all = calloc((size_t)c->world, sizeof *all);
    if (!all) return fail(STATUS_SYSTEM, "no memory for an exchange");
    for (int r = 0; r < c->world; r++) all[r] = r;
    collective_config config = {
        .rank = c->rank,
        .world = c->world,
        .job_token = c->job_token,
        .name = "dataparallel",
        .device = c->device,
        .slot = c->slot,
        .table = c->table,
        .lost = c->lost,
        .lost_context = c->lost_context,
        .canceled = c->canceled,
        .canceled_context = c->canceled_context,
        .bootstrap = e->member.nccl_id,
        .share_gpu = c->share_gpu,
        .stall_timeout_ns = c->stall_timeout_ns,
        .connect_timeout_ns = c->connect_timeout_ns > 0 ? c->connect_timeout_ns : c->stall_timeout_ns,
    };
    status rc = device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &n->stream);
    if (rc == STATUS_OK) rc = collective_open("nccl", &config, &n->world);
    if (rc == STATUS_OK) rc = collective_group_open(n->world, "data", all, c->world, &n->group);
    free(all);
    return rc;
}

status dp_nccl_open(dp_engine *e)
{
    const sync_context *c = context_of(e);
    if (e->options->payload != PS_PAYLOAD_NCCL || c->world < 2) return STATUS_OK;
    e->nccl = calloc(1, sizeof *e->nccl);
    if (!e->nccl) return fail(STATUS_SYSTEM, "no memory for an exchange");
    if (device_get_info(c->device)->simulated) return dp_nccl_sim_open(e, &e->nccl->sim);
    anatomy_keep_steps(c->anatomy, ANATOMY_KEPT_BYTES);
    return open_world(e);
}

void dp_nccl_close(dp_engine *e)
{
    dp_nccl *n = e->nccl;
    if (!n) return;
    dp_nccl_sim_close(&n->sim);
    collective_group_close(&n->group);
    collective_close(&n->world);
    device_stream_close(&n->stream);
    free(n);
    e->nccl = NULL;
}

void dp_nccl_collect(const dp_engine *e, sync_counters *out)
{
    collective_traffic t = {0};
    if (!e->nccl) return;
    if (e->nccl->sim)
        t = dp_nccl_sim_traffic(e->nccl->sim);
    else if (e->nccl->world)
        t = collective_get_traffic(e->nccl->world);
    out->bytes_sent += t.bytes_sent;
    out->bytes_received += t.bytes_received;
    out->messages_sent += t.messages_sent;
    out->messages_received += t.messages_received;
}
