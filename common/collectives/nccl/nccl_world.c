/* Communicators, and the end of a world. NCCL's functions may never return. Each function that
 * communicates with other ranks is called by a separate thread, which is abandoned when the time limit is
 * over. */
#include "common/collectives/nccl/nccl_world.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

static void end_process(const nccl_world *w, const error_record *why)
{
    const collective_config *c = &w->base.config;
    if (!c->lost) return;
    c->lost(c->lost_context, why);
    _exit(status_exit_code(why->code));
}

void nccl_end(nccl_world *w, const error_record *why)
{
    const collective_config *c = &w->base.config;
    if (!nccl_fail(w, why)) return;
    if (c->lost) c->lost(c->lost_context, why);
    if (!nccl_comms_abort(w)) log_debug("NCCL's abort did not return");
    if (c->lost) _exit(status_exit_code(why->code));
}

/* ---- calls with a time limit ------------------------------------------------------------------- */

/* Arguments and result of a call in a separate thread. The last of the two threads to leave frees the
 * struct. */
typedef struct limited {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, left;
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

static void limited_free(limited *l)
{
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void *run_limited(void *argument)
{
    limited *l = argument;
    error_clear();
    status code = l->run(l);
    pthread_mutex_lock(&l->lock);
    l->code = code;
    if (code != STATUS_OK) error_copy(&l->error);
    l->done = true;
    bool left = l->left;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (left) limited_free(l);
    return NULL;
}

static limited *limited_new(const nccl_world *w, status (*run)(limited *l))
{
    limited *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->run = run;
    l->module = w->module;
    l->device = w->base.config.device;
    return l;
}

static bool start(limited *l)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, run_limited, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

static struct timespec time_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

/* Returns STATUS_OK if the call has ended; the caller then owns `l`. Returns STATUS_AGAIN if the call was
 * abandoned because the time is over or `canceled` returned true. */
static status wait_for(limited *l, int64_t deadline_ns, const collective_config *c)
{
    const int64_t look_ns = NS_PER_S / 10;
    pthread_mutex_lock(&l->lock);
    bool canceled = false;
    for (int64_t now = clock_now_ns(); !l->done && now < deadline_ns && !canceled; now = clock_now_ns()) {
        struct timespec until = time_of(deadline_ns - now < look_ns ? deadline_ns : now + look_ns);
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
        canceled = !l->done && c->canceled && c->canceled(c->canceled_context);
    }
    bool done = l->done;
    l->left = !done;
    pthread_mutex_unlock(&l->lock);
    return done ? STATUS_OK : STATUS_AGAIN;
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
    end_process(w, &why);
    return why.code;
}

status nccl_comm_make(nccl_world *w, nccl_comm *parent, int color, int key, nccl_comm **out)
{
    const collective_config *c = &w->base.config;
    const char *what = parent ? "ncclCommSplit" : "the start";
    limited *l = limited_new(w, make);
    *out = NULL;
    if (!l || w->comm_count == NCCL_MOST_GROUPS) {
        if (l) limited_free(l);
        return fail(STATUS_SYSTEM, "collectives nccl: no memory for a communicator");
    }
    l->parent = parent;
    l->color = color;
    l->key = key;
    l->rank = c->rank;
    l->world = c->world;
    l->share = c->share_gpu;
    memcpy(l->id, c->bootstrap, sizeof l->id);
    if (!start(l)) {
        limited_free(l);
        return fail(STATUS_SYSTEM, "collectives nccl: no thread for %s", what);
    }
    if (wait_for(l, collective_deadline(clock_now_ns(), c->connect_timeout_ns), c) != STATUS_OK)
        return too_late(w, what);
    status code = l->code == STATUS_OK ? STATUS_OK : error_adopt(&l->error);
    *out = l->comms[0];
    limited_free(l);
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
    limited *l = limited_new(w, run);
    if (!l) return false;
    pthread_mutex_lock(&w->lock);
    memcpy(l->comms, w->comms, sizeof l->comms);
    l->comm_count = w->comm_count;
    pthread_mutex_unlock(&w->lock);
    if (!start(l)) {
        limited_free(l);
        return false;
    }
    const collective_config never = {0};
    if (wait_for(l, clock_now_ns() + END_LIMIT_NS, &never) != STATUS_OK) return false;
    limited_free(l);
    return true;
}

bool nccl_comms_abort(nccl_world *w)
{
    return end_comms(w, abort_all);
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
