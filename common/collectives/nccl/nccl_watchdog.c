/* The watchdog: a thread that checks the calls in flight ten times per second and writes them to the rank's
 * status slot. The watchdog ends the world if NCCL reports an error or a call makes no progress. */
#include "common/collectives/nccl/nccl_world.h"

#include "common/base/text.h"
#include "common/net/status_table.h"

#include <inttypes.h>
#include <string.h>

static const int64_t PERIOD_NS = NS_PER_S / 10;

/* The numbers of the last calls that have been enqueued, started and completed, as far as the watchdog has
 * seen. */
typedef struct sight {
    uint64_t enqueued, started, completed;
    int64_t changed_ns;
    collective_call call; /* The call with number completed + 1, if it has been enqueued. */
} sight;

static void copy_numbers(nccl_world *w, sight *now, device_stream **stream, int64_t *entered_ns)
{
    const collective_queue *q = &w->base.enqueued;
    pthread_mutex_lock(&w->lock);
    if (now->completed < q->completed) now->completed = q->completed;
    if (now->started < now->completed) now->started = now->completed;
    now->enqueued = q->posted;
    *stream = w->stream;
    *entered_ns = w->entered ? w->entered_ns : 0;
    pthread_mutex_unlock(&w->lock);
}

static void copy_call(nccl_world *w, sight *now)
{
    pthread_mutex_lock(&w->lock);
    if (now->completed < now->enqueued)
        now->call = collective_queued_at(&w->base.enqueued, now->completed + 1)->call;
    pthread_mutex_unlock(&w->lock);
}

/* Advances `started` and `completed` to the last marks that the GPU has passed. A mark is reused after its
 * call is completed, and a reused mark counts as not passed. The next copy_numbers() corrects the numbers. */
static void follow_stream(sight *now, device_stream *stream)
{
    while (now->completed < now->enqueued && device_mark_passed(stream, nccl_end_mark(now->completed + 1)))
        now->completed++;
    if (now->started < now->completed) now->started = now->completed;
    while (now->started < now->enqueued && device_mark_passed(stream, nccl_begin_mark(now->started + 1)))
        now->started++;
}

#define SHOWN(kind, operation) [COLLECTIVE_##kind] = RANK_##operation
static const rank_operation operations[COLLECTIVE_KIND_COUNT] = {SHOWN(ALL_REDUCE, ALL_REDUCE),
                                                                 SHOWN(REDUCE, REDUCE),
                                                                 SHOWN(BROADCAST, BROADCAST),
                                                                 SHOWN(ALL_GATHER, ALL_GATHER),
                                                                 SHOWN(REDUCE_SCATTER, REDUCE_SCATTER),
                                                                 SHOWN(SEND, PUSH),
                                                                 SHOWN(RECEIVE, PULL),
                                                                 SHOWN(BARRIER, ALL_REDUCE)};
#undef SHOWN

static void show(const nccl_world *w, const sight *now, bool in_flight)
{
    rank_slot *slot = w->base.config.slot;
    if (!slot) return;
    rank_slot_collectives(slot, (uint32_t)now->enqueued, (uint32_t)now->started, (uint32_t)now->completed);
    if (in_flight)
        rank_slot_agent(slot, operations[now->call.kind], now->call.tag >= 0 ? now->call.tag : RANK_NO_BUCKET,
                        now->changed_ns);
    else
        rank_slot_agent(slot, RANK_START, RANK_NO_BUCKET, now->changed_ns);
}

static status stalled(const nccl_world *w, const sight *now, const char *where)
{
    char call[128], limit[32];
    return fail(STATUS_PEER,
                "%s (call %" PRIu64 "): no progress for %s %s; NCCL does not report which rank it waits for",
                collective_call_format(&now->call, call, sizeof call), now->completed + 1,
                text_format_duration(limit, sizeof limit, (double)w->base.config.stall_timeout_ns), where);
}

static status ask_nccl(nccl_world *w)
{
    nccl_comm *comms[NCCL_MOST_GROUPS];
    pthread_mutex_lock(&w->lock);
    int count = w->ended ? 0 : w->comm_count;
    memcpy(comms, w->comms, sizeof comms);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < count; i++) TRY(w->module->state(comms[i]));
    return STATUS_OK;
}

/* A call can be late only after it has started on the GPU. Before that the call waits for this rank's own
 * computation, not for other ranks. */
static status look(nccl_world *w, sight *seen)
{
    sight now = *seen;
    device_stream *stream;
    int64_t entered_ns, time_ns = clock_now_ns(), limit_ns = w->base.config.stall_timeout_ns;
    copy_numbers(w, &now, &stream, &entered_ns);
    if (stream) follow_stream(&now, stream);
    now.enqueued += entered_ns > 0;
    copy_call(w, &now);
    bool moved =
        now.enqueued != seen->enqueued || now.started != seen->started || now.completed != seen->completed;
    if (moved) now.changed_ns = time_ns;
    if (moved) show(w, &now, now.completed < now.enqueued);
    *seen = now;
    TRY(ask_nccl(w));
    if (entered_ns > 0 && time_ns - entered_ns > limit_ns) return stalled(w, &now, "while NCCL connects");
    bool in_progress = now.completed < now.started;
    int64_t others_ns = status_table_others_ns(w->base.config.table, w->base.config.slot);
    return in_progress && time_ns - now.changed_ns > limit_ns && time_ns - others_ns > limit_ns
               ? stalled(w, &now, "on the GPU")
               : STATUS_OK;
}

static bool sleep_until_next(nccl_world *w)
{
    /* Only nccl_watchdog_close() rings this doorbell. */
    doorbell_sleep(&w->base.bell, 0, clock_now_ns() + PERIOD_NS);
    pthread_mutex_lock(&w->lock);
    bool goes_on = !w->stopping && !w->ended;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void *watch(void *argument)
{
    nccl_world *w = argument;
    sight seen = {.changed_ns = clock_now_ns()};
    doorbell_enter(&w->base.bell);
    while (sleep_until_next(w)) {
        if (look(w, &seen) == STATUS_OK) continue;
        error_record why;
        error_copy(&why);
        nccl_end(w, &why);
        break;
    }
    doorbell_leave(&w->base.bell);
    return NULL;
}

status nccl_watchdog_open(nccl_world *w)
{
    if (!nccl_start_thread(watch, w, &w->watchdog))
        return fail(STATUS_SYSTEM, "no thread for NCCL's watchdog");
    pthread_setname_np(w->watchdog, "nccl-watchdog");
    w->has_watchdog = true;
    return STATUS_OK;
}

void nccl_watchdog_close(nccl_world *w)
{
    if (!w->has_watchdog) return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_mutex_unlock(&w->lock);
    doorbell_ring(&w->base.bell);
    pthread_join(w->watchdog, NULL);
    w->has_watchdog = false;
}
