/* Makes communicators, and ends a world. A function of NCCL may never return. Therefore each function that
 * communicates with other ranks is called in a separate thread. When the time limit has passed, this thread
 * is abandoned. */
#include "common/collectives/nccl/nccl_world.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t END_LIMIT_NS = 10 * NS_PER_S;

/* ---- failure ---------------------------------------------------------------------------------- */

status nccl_check(nccl_world *w)
{
    return atomic_load_explicit(&w->failed, memory_order_acquire) ? error_adopt(&w->failure) : STATUS_OK;
}

bool nccl_fail(nccl_world *w, const error_record *why)
{
    pthread_mutex_lock(&w->lock);
    bool first = !w->ended;
    w->ended = true;
    if (first) w->failure = *why;
    pthread_mutex_unlock(&w->lock);
    if (!first) return false;
    atomic_store_explicit(&w->failed, true, memory_order_release);
    device_fail(w->base.config.device, why);
    return true;
}

/* ---- calls with a time limit ------------------------------------------------------------------- */

/* Arguments and result of a call in a separate thread. The thread that uses the struct last frees it. */
typedef struct limited {
    atomic_bool left; /* Set when the first of the two threads no longer uses the struct. */
    status (*run)(struct limited *l);
    const nccl_module *module;
    device *device;
    nccl_comm *comms[NCCL_MOST_GROUPS];
    int comm_count;
    nccl_comm *parent;
    char id[NCCL_ID_BYTES];
    int rank, world, color, key;
    bool share;
    status code;
    error_record error;
} limited;

static void *run_limited(void *argument)
{
    limited *l = argument;
    error_clear();
    l->code = l->run(l);
    if (l->code != STATUS_OK) error_copy(&l->error);
    if (atomic_exchange(&l->left, true)) free(l);
    return NULL;
}

bool nccl_start_thread(void *(*run)(void *argument), void *argument, pthread_t *out)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(out, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Runs a call. Returns STATUS_OK if the call has ended. The caller then frees `l`. Returns STATUS_AGAIN if
 * the call was abandoned because the time is over or `canceled` returned true, and STATUS_SYSTEM if no thread
 * could be started. */
static status run_until(limited *l, int64_t deadline_ns, const collective_config *c)
{
    enum { LOOKS_PER_QUESTION = 100 };
    pthread_t thread;
    bool canceled = false;
    if (!nccl_start_thread(run_limited, l, &thread)) {
        free(l);
        return fail(STATUS_SYSTEM, "collectives nccl: no thread for a call");
    }
    pthread_detach(thread);
    for (int i = 1; !atomic_load(&l->left) && clock_now_ns() < deadline_ns && !canceled; i++) {
        clock_sleep_ns(NS_PER_MS);
        canceled = i % LOOKS_PER_QUESTION == 0 && c->canceled && c->canceled(c->canceled_context);
    }
    return atomic_exchange(&l->left, true) ? STATUS_OK : STATUS_AGAIN;
}

/* ---- made ------------------------------------------------------------------------------------- */

static status make(limited *l)
{
    if (l->parent) return l->module->split(l->parent, l->color, l->key, &l->comms[0]);
    return l->module->open(l->device, l->id, l->rank, l->world, l->share, &l->comms[0]);
}

static status too_late(nccl_world *w, const char *what)
{
    const collective_config *c = &w->base.config;
    char limit[32];
    error_record why;
    if (c->canceled && c->canceled(c->canceled_context))
        return fail(STATUS_STOPPED, "collectives nccl: %s: stopped", what);
    fail(STATUS_PEER, "collectives nccl: %s: rank %d has waited for %s; NCCL does not report for which rank",
         what, c->rank, text_format_duration(limit, sizeof limit, (double)c->connect_timeout_ns));
    error_copy(&why);
    nccl_fail(w, &why);
    if (c->lost) {
        c->lost(c->lost_context, &why);
        _exit(status_exit_code(why.code));
    }
    return why.code;
}

status nccl_comm_make(nccl_world *w, nccl_comm *parent, int color, int key, nccl_comm **out)
{
    const collective_config *c = &w->base.config;
    limited *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l || w->comm_count == NCCL_MOST_GROUPS) {
        free(l);
        return fail(STATUS_SYSTEM, "collectives nccl: no memory for a communicator");
    }
    *l = (limited){.run = make,
                   .module = w->module,
                   .device = c->device,
                   .parent = parent,
                   .color = color,
                   .key = key,
                   .rank = c->rank,
                   .world = c->world,
                   .share = c->share_gpu};
    memcpy(l->id, c->bootstrap, sizeof l->id);
    status rc = run_until(l, collective_deadline(clock_now_ns(), c->connect_timeout_ns), c);
    if (rc == STATUS_AGAIN) return too_late(w, parent ? "ncclCommSplit" : "the start");
    TRY(rc);
    status code = l->code == STATUS_OK ? STATUS_OK : error_adopt(&l->error);
    *out = l->comms[0];
    free(l);
    if (!*out) return code;
    pthread_mutex_lock(&w->lock);
    w->comms[w->comm_count++] = *out; /* a communicator must be closed even if it has failed */
    pthread_mutex_unlock(&w->lock);
    return code;
}

/* ---- ended ------------------------------------------------------------------------------------ */

static status abort_all(limited *l)
{
    for (int i = l->comm_count - 1; i >= 0; i--) l->module->abort(l->comms[i]);
    return STATUS_OK;
}

static status close_all(limited *l)
{
    for (int i = l->comm_count - 1; i >= 0; i--) l->module->close(&l->comms[i]);
    return STATUS_OK;
}

/* Returns false if `run` did not end in time. */
static bool end_comms(nccl_world *w, status (*run)(limited *l))
{
    const collective_config never = {0};
    limited *l = calloc(1, sizeof *l);
    if (!l) return false;
    l->run = run;
    l->module = w->module;
    pthread_mutex_lock(&w->lock);
    memcpy(l->comms, w->comms, sizeof l->comms);
    l->comm_count = w->comm_count;
    pthread_mutex_unlock(&w->lock);
    if (run_until(l, clock_now_ns() + END_LIMIT_NS, &never) != STATUS_OK) return false;
    free(l);
    return true;
}

void nccl_end(nccl_world *w, const error_record *why)
{
    const collective_config *c = &w->base.config;
    if (!nccl_fail(w, why)) return;
    if (c->lost) c->lost(c->lost_context, why);
    if (!end_comms(w, abort_all)) log_debug("NCCL's abort did not return");
    if (c->lost) _exit(status_exit_code(why->code));
}

void nccl_comms_close(nccl_world *w)
{
    bool failed = atomic_load_explicit(&w->failed, memory_order_acquire);
    bool idle = w->base.enqueued.completed == w->base.enqueued.posted;
    if (w->comm_count == 0) return;
    bool ended = (!failed && idle) || end_comms(w, abort_all);
    if (ended) ended = end_comms(w, close_all);
    w->comm_count = 0;
    if (ended) return;
    log_warn("rank %d: NCCL's end did not return", w->base.config.rank);
    if (w->base.config.lost) _exit(status_exit_code(failed ? w->failure.code : STATUS_PEER));
}
