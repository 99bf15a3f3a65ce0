/* Collectives through NCCL, on device memory. The rank's compute thread enqueues a call on a stream, between
 * two marks. The thread waits only while NCCL connects. nccl_world.h lists the other files. */
#include "common/collectives/nccl/collective_nccl.h"

#include "common/collectives/nccl/nccl_world.h"
#include "common/device/cuda/cuda_module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { SCRATCH_BYTES = 256 };

/* ---- the module ------------------------------------------------------------------------------- */

static status find_module(const nccl_module **out)
{
    TRY(cuda_module_find(NCCL_MODULE_SYMBOL, (const void **)out));
    if (*out && (*out)->version == NCCL_MODULE_VERSION) return STATUS_OK;
    return fail(
        STATUS_UNAVAILABLE,
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

void collective_bootstrap_write(const char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES], text_buffer *out)
{
    for (int i = 0; i < COLLECTIVE_BOOTSTRAP_BYTES; i++)
        text_append(out, "%02x", (unsigned char)bootstrap[i]);
}

bool collective_bootstrap_read(const char *hex, char out[COLLECTIVE_BOOTSTRAP_BYTES])
{
    for (int i = 0; i < COLLECTIVE_BOOTSTRAP_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
        out[i] = (char)byte;
    }
    return true;
}

/* ---- worlds ----------------------------------------------------------------------------------- */

static void complete_calls(nccl_world *w)
{
    collective_queue *q = &w->base.enqueued;
    while (q->completed < q->posted && device_mark_passed(w->stream, nccl_end_mark(q->completed + 1))) {
        uint64_t number = q->completed + 1;
        int64_t began_ns = device_mark_ns(w->stream, nccl_begin_mark(number));
        collective_queued_at(q, number)->times =
            (collective_times){.started_ns = began_ns,
                               .began_ns = began_ns,
                               .finished_ns = device_mark_ns(w->stream, nccl_end_mark(number)),
                               .last_rank = -1,
                               .algorithm = w->base.config.algorithm};
        pthread_mutex_lock(&w->lock);
        q->completed = number;
        pthread_mutex_unlock(&w->lock);
    }
}

static status nccl_open(collective_world *world)
{
    nccl_world *w = (nccl_world *)world;
    const collective_config *c = &world->config;
    nccl_comm *comm;
    pthread_mutex_init(&w->lock, NULL);
    world->enqueued.capacity = COLLECTIVE_ENQUEUED;
    world->enqueued.calls = calloc(COLLECTIVE_ENQUEUED, sizeof *world->enqueued.calls);
    if (!world->enqueued.calls) return fail(STATUS_SYSTEM, "no memory for collectives");
    if (!c->device || !c->bootstrap)
        return fail(STATUS_CONFIG,
                    "collectives nccl: expected --device cuda, got a device without GPU memory");
    TRY(find_module(&w->module));
    /* NCCL reads NCCL_ALGO when it makes a communicator, and then uses only this algorithm. */
    if (c->algorithm == COLLECTIVE_ALGORITHM_RING && setenv("NCCL_ALGO", "Ring", 1) != 0)
        return fail_errno(STATUS_SYSTEM, "collectives nccl: NCCL_ALGO");
    TRY(device_allocate(c->device, DEVICE_MEMORY_PRIVATE, SCRATCH_BYTES, &w->scratch));
    TRY(nccl_comm_make(w, NULL, 0, 0, &comm));
    return nccl_watchdog_open(w);
}

static void nccl_close(collective_world *world)
{
    nccl_world *w = (nccl_world *)world;
    nccl_watchdog_close(w);
    if (w->stream) complete_calls(w);
    nccl_comms_close(w);
    if (w->scratch.data) device_free(world->config.device, &w->scratch);
    free(world->enqueued.calls);
    pthread_mutex_destroy(&w->lock);
}

/* A group of the whole world uses the communicator of the world. For a smaller group, this function splits
 * that communicator. All ranks of the world must call ncclCommSplit, so smaller groups are opened as a
 * partition of the world. */
static status nccl_group_open(collective_group *group)
{
    nccl_group *g = (nccl_group *)group;
    nccl_world *w = (nccl_world *)group->world;
    g->comm = w->comms[0];
    if (group->size == group->world->config.world) return STATUS_OK;
    return nccl_comm_make(w, w->comms[0], group->ranks[0], group->rank, &g->comm);
}

/* ---- a call as one or several operations of NCCL, which run as a group ------------------------- */

static char *element(const collective_buffer *b, dtype type, int64_t i)
{
    return b->base ? (char *)b->base + i * dtype_size(type) : NULL;
}

/* Adds an operation on `count` elements, from element in_at of `in` and element out_at of `out`. Both buffers
 * are contiguous. */
static status add(const nccl_group *g, const collective_call *call, device_stream *s, nccl_kind kind,
                  int peer, int64_t count, int64_t in_at, int64_t out_at)
{
    nccl_part part = {.kind = kind,
                      .op = call->op,
                      .type = call->type,
                      .peer = peer,
                      .count = count,
                      .in = element(&call->in, call->type, in_at),
                      .out = element(&call->out, call->type, out_at)};
    return count > 0 ? ((nccl_world *)g->base.world)->module->add(g->comm, s, &part) : STATUS_OK;
}

/* Adds one operation per piece. The buffers `in` and `out` of the call must have the same pieces. */
static status add_whole(const nccl_group *g, const collective_call *call, device_stream *s, nccl_kind kind)
{
    const piece_list *list = &call->out.pieces;
    if (call->in.pieces.pieces != list->pieces)
        return fail(STATUS_INTERNAL, "collectives nccl: `in` and `out` lie in different pieces");
    if (!list->pieces) return add(g, call, s, kind, call->root, call->count, 0, 0);
    for (int i = 0; i < list->count; i++)
        TRY(add(g, call, s, kind, call->root, list->pieces[i].count, list->pieces[i].offset,
                list->pieces[i].offset));
    return STATUS_OK;
}

/* Adds operations between a contiguous part and elements [begin, begin + count) of the whole buffer, which
 * may have pieces. */
static status add_part(const nccl_group *g, const collective_call *call, device_stream *s, nccl_kind kind,
                       int peer, int64_t begin, int64_t count)
{
    bool gather = call->kind == COLLECTIVE_ALL_GATHER;
    const piece_list *whole = gather ? &call->out.pieces : &call->in.pieces;
    const piece all = {0, call->count}, *pieces = whole->pieces ? whole->pieces : &all;
    int64_t at = 0, end = begin + count;
    for (int i = 0; i < (whole->pieces ? whole->count : 1); at += pieces[i++].count) {
        int64_t from = at > begin ? at : begin, to = at + pieces[i].count < end ? at + pieces[i].count : end;
        int64_t in_whole = pieces[i].offset + from - at, in_part = from - begin;
        if (from < to)
            TRY(add(g, call, s, kind, peer, to - from, gather ? in_part : in_whole,
                    gather ? in_whole : in_part));
    }
    return STATUS_OK;
}

/* Parts may differ in size, so an all-gather is a broadcast from each rank, and a reduce-scatter is a
 * reduction to each rank. If a buffer holds a single part, the part starts at the buffer's base. */
static status add_parts(const nccl_group *g, const collective_call *call, device_stream *s)
{
    int n = g->base.size;
    nccl_kind kind = call->kind == COLLECTIVE_ALL_GATHER ? NCCL_BROADCAST : NCCL_REDUCE;
    for (int r = 0; r < n; r++)
        TRY(add_part(g, call, s, kind, r, collective_part_begin(call->count, n, r),
                     collective_part_count(call->count, n, r)));
    return STATUS_OK;
}

static status add_call(const nccl_group *g, const collective_call *call, device_stream *s)
{
    collective_call barrier = {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_I32, .count = 1};
    switch (call->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return add_whole(g, call, s, NCCL_ALL_REDUCE);
    case COLLECTIVE_REDUCE:
        return add_whole(g, call, s, NCCL_REDUCE);
    case COLLECTIVE_BROADCAST:
        return add_whole(g, call, s, NCCL_BROADCAST);
    case COLLECTIVE_SEND:
        return add(g, call, s, NCCL_SEND, call->root, call->count, 0, 0);
    case COLLECTIVE_RECEIVE:
        return add(g, call, s, NCCL_RECEIVE, call->root, call->count, 0, 0);
    case COLLECTIVE_BARRIER:
        barrier.in.base = barrier.out.base = ((nccl_world *)g->base.world)->scratch.data;
        return add_whole(g, &barrier, s, NCCL_ALL_REDUCE);
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
        return add_parts(g, call, s);
    default:
        return fail(STATUS_UNAVAILABLE, "collectives nccl: no %s", collective_kind_name(call->kind));
    }
}

/* ---- enqueued --------------------------------------------------------------------------------- */

static status divide(const nccl_group *g, const collective_call *call, device_stream *s)
{
    bool mean = call->op == REDUCE_MEAN && collective_reduces(call->kind);
    if (!mean || (call->kind == COLLECTIVE_REDUCE && call->root != g->base.rank)) return STATUS_OK;
    const piece_list *pieces = &call->out.pieces;
    piece whole = {0, collective_out_extent(call, g->base.size, g->base.rank).count};
    const piece *list = pieces->pieces ? pieces->pieces : &whole;
    for (int i = 0; i < (pieces->pieces ? pieces->count : 1); i++) {
        char *at = (char *)call->out.base + list[i].offset * dtype_size(call->type);
        TRY(device_convert(s, at, call->type, at, call->type, list[i].count, g->base.size));
    }
    return STATUS_OK;
}

/* Counts the bytes of a ring. NCCL does not report the bytes that it has sent. */
static void count_traffic(nccl_world *w, int size, const collective_call *call)
{
    int64_t bytes = size > 1 ? 2 * collective_bytes(call) * (size - 1) / size : 0;
    if (call->kind != COLLECTIVE_ALL_REDUCE) bytes /= 2;
    if (collective_is_pair(call->kind)) bytes = collective_bytes(call);
    collective_count_call(&w->base, call->kind, bytes, 1);
}

/* Registers the call for the watchdog before NCCL is called. */
static status enter(nccl_world *w, const collective_call *call, device_stream *s)
{
    collective_queue *q = &w->base.enqueued;
    if (q->posted - q->completed == COLLECTIVE_ENQUEUED) {
        TRY(device_mark_wait(s, nccl_end_mark(q->completed + 1)));
        complete_calls(w);
    }
    TRY(nccl_check(w));
    pthread_mutex_lock(&w->lock);
    *collective_queued_at(q, q->posted + 1) = (collective_queued){.call = *call};
    w->stream = s;
    w->entered = !w->ended;
    w->entered_ns = clock_now_ns();
    pthread_mutex_unlock(&w->lock);
    return nccl_check(w);
}

static status launch(nccl_world *w, nccl_group *g, const collective_call *call, device_stream *s)
{
    uint64_t number = w->base.enqueued.posted + 1;
    if (w->entered_ns - w->anchored_ns > NS_PER_S) {
        w->anchored_ns = w->entered_ns;
        TRY(device_mark(s, 0));
    }
    TRY(device_mark(s, nccl_begin_mark(number)));
    TRY(w->module->begin(g->comm));
    status rc = add_call(g, call, s), ended = w->module->end(g->comm);
    TRY(rc);
    TRY(ended);
    TRY(divide(g, call, s));
    return device_mark(s, nccl_end_mark(number));
}

/* If a call fails, part of it may be in flight, so the world fails too. */
static status nccl_enqueue(collective_group *group, const collective_call *call, device_stream *s)
{
    nccl_world *w = (nccl_world *)group->world;
    TRY(enter(w, call, s));
    status rc = launch(w, (nccl_group *)group, call, s);
    pthread_mutex_lock(&w->lock);
    w->entered = false;
    if (rc == STATUS_OK) w->base.enqueued.posted++;
    pthread_mutex_unlock(&w->lock);
    if (rc == STATUS_OK) {
        count_traffic(w, group->size, call);
        return STATUS_OK;
    }
    error_record why;
    error_copy(&why);
    if (nccl_fail(w, &why)) return rc;
    error_clear(); /* The call failed because the watchdog aborted it. */
    return nccl_check(w);
}

static status nccl_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    nccl_world *w = (nccl_world *)world;
    (void)now_ns, (void)deadline_ns, (void)worked;
    TRY(nccl_check(w));
    complete_calls(w);
    return STATUS_OK;
}

static void nccl_abort(collective_world *world, const error_record *why)
{
    nccl_fail((nccl_world *)world, why);
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
    .enqueue = nccl_enqueue,
    .progress = nccl_progress,
    .abort = nccl_abort,
};
