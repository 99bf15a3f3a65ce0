/* Collectives through NCCL, on device memory and on a stream of the device. The world's rank enqueues and
 * polls; it never waits for the GPU: calls of a group are enqueued one after another as the communicator
 * accepts them, and a fence after each is reached when it is done. */
#include "ring/collectives/nccl/collective_nccl.h"

#include "common/base/text.h"
#include "common/device/cuda/cuda_module.h"
#include "ring/collectives/collective_impl.h"
#include "ring/collectives/nccl/nccl_module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCRATCH_BYTES = 256 };

typedef struct nccl_world {
    collective_world base;
    const nccl_module *module;
    nccl_comm *comm;
    device_stream *stream; /* borrowed */
    device_memory scratch; /* of barriers */
} nccl_world;

typedef struct nccl_group {
    collective_group base;
    nccl_comm *comm;
    device_fence *done; /* call N is done */
    uint64_t launched;
    bool enqueuing; /* the communicator still works on call number launched + 1 */
} nccl_group;

/* ---- the module ------------------------------------------------------------------------------- */

static status find_module(const nccl_module **out)
{
    TRY(cuda_module_find(NCCL_MODULE_SYMBOL, (const void **)out));
    if (*out && (*out)->version == NCCL_MODULE_VERSION) return STATUS_OK;
    return fail(STATUS_UNAVAILABLE,
                "collectives nccl: this program was built without NCCL's headers; take --collective shm or auto");
}

bool collective_nccl_found(char *text, size_t size)
{
    const nccl_module *module;
    if (find_module(&module) == STATUS_OK) return module->available(text, size);
    snprintf(text, size, "%s", error_message());
    error_clear();
    return false;
}

status collective_nccl_bootstrap(char out[COLLECTIVE_BOOTSTRAP_BYTES])
{
    const nccl_module *module;
    static_assert((int)COLLECTIVE_BOOTSTRAP_BYTES == (int)NCCL_ID_BYTES, "an id is what is passed on");
    TRY(find_module(&module));
    return module->make_id(out);
}

/* ---- worlds ----------------------------------------------------------------------------------- */

/* Waits until an operation on a communicator is done; only during set-up. */
static status wait_until_idle(nccl_world *w, nccl_comm *comm, const char *what)
{
    const collective_config *c = &w->base.config;
    int64_t deadline = collective_deadline(clock_now_ns(), c->connect_timeout_ns);
    bool done = false;
    for (;;) {
        TRY(w->module->state(comm, &done));
        if (done) return STATUS_OK;
        if (c->canceled && c->canceled(c->canceled_context)) return fail(STATUS_STOPPED, "%s: stopped", what);
        char limit[32];
        if (clock_now_ns() > deadline)
            return fail(
                STATUS_PEER, "collectives nccl: %s: rank %d has waited for %s; NCCL does not report for whom",
                what, c->rank, text_format_duration(limit, sizeof limit, (double)c->connect_timeout_ns));
        usleep(1000);
    }
}

static status nccl_open(collective_world *world)
{
    nccl_world *w = (nccl_world *)world;
    const collective_config *c = &world->config;
    if (!c->device || !c->stream || !c->bootstrap)
        return fail(STATUS_CONFIG,
                    "collectives nccl: expected --device cuda, got a device without GPU memory");
    w->stream = c->stream;
    TRY(find_module(&w->module));
    /* NCCL reads it when a communicator is made: of all its algorithms only this one is left. */
    if (c->algorithm == COLLECTIVE_ALGORITHM_RING && setenv("NCCL_ALGO", "Ring", 1) != 0)
        return fail_errno(STATUS_SYSTEM, "collectives nccl: NCCL_ALGO");
    TRY(device_allocate(c->device, DEVICE_MEMORY_PRIVATE, SCRATCH_BYTES, &w->scratch));
    status rc = w->module->open(w->stream, c->bootstrap, c->rank, c->world, c->share_gpu, &w->comm);
    if (rc == STATUS_OK) rc = wait_until_idle(w, w->comm, "the start");
    if (rc != STATUS_OK && w->comm)
        w->module->abort(w->comm); /* one that has not started cannot be destroyed */
    return rc;
}

static void nccl_close(collective_world *world)
{
    nccl_world *w = (nccl_world *)world;
    if (w->module) w->module->close(&w->comm);
    if (w->scratch.data) device_free(world->config.device, &w->scratch);
}

static void nccl_group_close(collective_group *group)
{
    nccl_group *g = (nccl_group *)group;
    nccl_world *w = (nccl_world *)group->world;
    if (g->comm != w->comm) w->module->close(&g->comm);
    device_fence_close(&g->done);
}

/* A group of the whole world is the world's communicator; smaller ones are split off. ncclCommSplit is called
 * by all ranks of the world: such groups are opened as a partition of it, every rank in one of them. */
static status open_comm(nccl_world *w, nccl_group *g, const int *ranks)
{
    if (g->base.size == w->base.config.world) {
        g->comm = w->comm;
        return STATUS_OK;
    }
    TRY(w->module->split(w->comm, ranks[0], g->base.rank, &g->comm));
    status rc = wait_until_idle(w, g->comm, "ncclCommSplit");
    if (rc != STATUS_OK) w->module->abort(g->comm);
    return rc;
}

static status nccl_group_open(collective_group *group, const int *ranks)
{
    nccl_group *g = (nccl_group *)group;
    TRY(device_fence_open(group->world->config.device, &g->done));
    return open_comm((nccl_world *)group->world, g, ranks);
}

/* ---- a call as one or several operations of NCCL, which run as a group ------------------------- */

static char *element(const collective_buffer *b, dtype type, int64_t i)
{
    return b->base ? (char *)b->base + i * dtype_size(type) : NULL;
}

/* A part over the elements from `in_at` of `in` and `out_at` of `out`, both without pieces. */
static status add(const nccl_group *g, const collective_call *call, nccl_kind kind, int peer, int64_t count,
                  int64_t in_at, int64_t out_at)
{
    nccl_part part = {.kind = kind,
                      .op = call->op,
                      .type = call->type,
                      .peer = peer,
                      .count = count,
                      .in = element(&call->in, call->type, in_at),
                      .out = element(&call->out, call->type, out_at)};
    return count > 0 ? ((nccl_world *)g->base.world)->module->add(g->comm, &part) : STATUS_OK;
}

/* The same elements of both buffers: a part for each piece, where there are pieces. */
static status add_whole(const nccl_group *g, const collective_call *call, nccl_kind kind)
{
    const piece_list *list = &call->out.pieces;
    if (call->in.pieces.pieces != list->pieces)
        return fail(STATUS_INTERNAL, "collectives nccl: `in` and `out` lie in different pieces");
    if (!list->pieces) return add(g, call, kind, call->root, call->count, 0, 0);
    for (int i = 0; i < list->count; i++)
        TRY(add(g, call, kind, call->root, list->pieces[i].count, list->pieces[i].offset,
                list->pieces[i].offset));
    return STATUS_OK;
}

/* Parts may be of different sizes, so a gather is a broadcast from each rank, a scatter of a reduction a
 * reduction to each. A single part is at its buffer's base. */
static status add_parts(const nccl_group *g, const collective_call *call)
{
    int n = g->base.size, me = g->base.rank;
    int64_t mine = collective_part_count(call->count, n, me);
    for (int r = 0; r < n; r++) {
        int64_t at = collective_part_begin(call->count, n, r),
                count = collective_part_count(call->count, n, r);
        switch (call->kind) {
        case COLLECTIVE_ALL_GATHER:
            TRY(add(g, call, NCCL_BROADCAST, r, count, 0, at));
            break;
        case COLLECTIVE_REDUCE_SCATTER:
            TRY(add(g, call, NCCL_REDUCE, r, count, at, 0));
            break;
        case COLLECTIVE_GATHER:
            if (me == call->root) TRY(add(g, call, NCCL_RECEIVE, r, count, 0, at));
            if (r == call->root) TRY(add(g, call, NCCL_SEND, r, mine, 0, 0));
            break;
        case COLLECTIVE_SCATTER:
            if (me == call->root) TRY(add(g, call, NCCL_SEND, r, count, at, 0));
            if (r == call->root) TRY(add(g, call, NCCL_RECEIVE, r, mine, 0, 0));
            break;
        default: /* all_to_all */
            TRY(add(g, call, NCCL_SEND, r, count, at, 0));
            TRY(add(g, call, NCCL_RECEIVE, r, mine, 0, r * mine));
            break;
        }
    }
    return STATUS_OK;
}

static status add_call(const nccl_group *g, const collective_call *call)
{
    collective_call barrier = {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_I32, .count = 1};
    switch (call->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return add_whole(g, call, NCCL_ALL_REDUCE);
    case COLLECTIVE_REDUCE:
        return add_whole(g, call, NCCL_REDUCE);
    case COLLECTIVE_BROADCAST:
        return add_whole(g, call, NCCL_BROADCAST);
    case COLLECTIVE_SEND:
        return add(g, call, NCCL_SEND, call->root, call->count, 0, 0);
    case COLLECTIVE_RECEIVE:
        return add(g, call, NCCL_RECEIVE, call->root, call->count, 0, 0);
    case COLLECTIVE_BARRIER:
        barrier.in.base = barrier.out.base = ((nccl_world *)g->base.world)->scratch.data;
        return add_whole(g, &barrier, NCCL_ALL_REDUCE);
    default:
        return add_parts(g, call);
    }
}

/* ---- progress --------------------------------------------------------------------------------- */

/* Marks on the stream: slot 0 restarts the stream's clock, then two slots per call. */
static int mark_of(uint64_t number)
{
    return 2 + 2 * (int)(number % COLLECTIVE_QUEUE);
}

static status begin(nccl_world *w, nccl_group *g, collective_queue *q, int64_t now_ns)
{
    uint64_t number = g->launched + 1;
    if (g->launched == q->completed) {
        q->since_ns = now_ns;
        TRY(device_mark(w->stream, 0));
    }
    TRY(device_mark(w->stream, mark_of(number)));
    g->enqueuing = true;
    TRY(w->module->begin(g->comm));
    status rc = add_call(g, &collective_queued_at(q, number)->call);
    status ended = w->module->end(g->comm);
    return rc != STATUS_OK ? rc : ended;
}

/* Mean: a true division of this rank's result by n. */
static status divide(nccl_world *w, nccl_group *g, const collective_call *call)
{
    bool mean = call->op == REDUCE_MEAN && collective_reduces(call->kind);
    if (!mean || (call->kind == COLLECTIVE_REDUCE && call->root != g->base.rank)) return STATUS_OK;
    const piece_list *pieces = &call->out.pieces;
    piece whole = {0, collective_out_extent(call, g->base.size, g->base.rank).count};
    const piece *list = pieces->pieces ? pieces->pieces : &whole;
    for (int i = 0; i < (pieces->pieces ? pieces->count : 1); i++) {
        char *at = (char *)call->out.base + list[i].offset * dtype_size(call->type);
        TRY(device_convert(w->stream, at, call->type, at, call->type, list[i].count, g->base.size));
    }
    return STATUS_OK;
}

/* NCCL has enqueued the call: a mark and a fence after it on the stream record its end. */
static status end_enqueuing(nccl_world *w, nccl_group *g, collective_queue *q)
{
    uint64_t number = g->launched + 1;
    TRY(divide(w, g, &collective_queued_at(q, number)->call));
    TRY(device_mark(w->stream, mark_of(number) + 1));
    TRY(device_stream_signal(w->stream, g->done, number));
    g->launched = number;
    g->enqueuing = false;
    return STATUS_OK;
}

static int64_t payload(const collective_call *call)
{
    return call->count * dtype_size(call->type);
}

static void complete(nccl_world *w, nccl_group *g, collective_queue *queue, int64_t now_ns)
{
    collective_queued *q = collective_queued_at(queue, ++queue->completed);
    q->times.started_ns = device_mark_ns(w->stream, mark_of(queue->completed));
    q->times.finished_ns = device_mark_ns(w->stream, mark_of(queue->completed) + 1);
    queue->since_ns = now_ns;
    /* A ring's share; NCCL does not report what it has sent. */
    int64_t bytes = g->base.size > 1 ? 2 * payload(&q->call) * (g->base.size - 1) / g->base.size : 0;
    if (q->call.kind != COLLECTIVE_ALL_REDUCE) bytes /= 2;
    w->base.traffic.bytes_sent += bytes;
    w->base.traffic.bytes_received += bytes;
    w->base.traffic.messages_sent++;
    w->base.traffic.messages_received++;
}

static status advance(collective_queue *q, int64_t now_ns, bool *worked)
{
    nccl_group *g = (nccl_group *)q->group;
    nccl_world *w = (nccl_world *)g->base.world;
    bool free = false;
    TRY(w->module->state(g->comm, &free));
    if (g->enqueuing && free) {
        TRY(end_enqueuing(w, g, q));
        *worked = true;
    }
    while (free && !g->enqueuing && g->launched < q->posted) {
        *worked = true;
        TRY(begin(w, g, q, now_ns));
        TRY(w->module->state(g->comm, &free));
        if (free) TRY(end_enqueuing(w, g, q));
    }
    for (; q->completed < g->launched && device_fence_reached(g->done, q->completed + 1); *worked = true)
        complete(w, g, q, now_ns);
    return STATUS_OK;
}

static status nccl_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    return collective_poll(world, "NCCL", advance, now_ns, deadline_ns, worked);
}

/* Kernels that wait for a rank that is gone would never end: the communicators are ended with them. */
static void nccl_abort(collective_world *world, const error_record *why)
{
    nccl_world *w = (nccl_world *)world;
    (void)why;
    for (collective_group *g = world->groups; g; g = g->next)
        if (((nccl_group *)g)->comm != w->comm) w->module->abort(((nccl_group *)g)->comm);
    w->module->abort(w->comm);
}

const collective_type collective_nccl = {
    .name = "nccl",
    .algorithms = COLLECTIVE_HAS(LIBRARY) | COLLECTIVE_HAS(RING),
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(nccl_world),
    .group_bytes = sizeof(nccl_group),
    .queue_bytes = sizeof(collective_queue),
    .open = nccl_open,
    .close = nccl_close,
    .group_open = nccl_group_open,
    .group_close = nccl_group_close,
    .post = collective_default_post,
    .progress = nccl_progress,
    .wait = collective_poll_wait,
    .wake = collective_poll_wake,
    .abort = nccl_abort,
};
