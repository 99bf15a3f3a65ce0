#include "common/base/clock.h"
#include "ring/collectives/shm/shm_internal.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SPIN_ROUNDS = 200,        /* checks before the first yield if every thread has a processor: some 10 us */
    CROWDED_SPIN_ROUNDS = 20, /* and if not: the rank that we wait for may need this processor */
    YIELD_NS = 100000,        /* then it sleeps */
    SLEEP_NS = 100000000,     /* the longest sleep without checking the peers */
};

static int processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set);
}

/* ---- open and close --------------------------------------------------------------------------- */

static status exchange(shm_world *w)
{
    const collective_config *c = &w->base.config;
    shm_segment own[1 + COLLECTIVE_MAX_WINDOWS] = {w->bell_segment};
    char name[64];
    for (int i = 0; i < w->window_count; i++)
        own[1 + i] = (shm_segment){w->windows[i].fd, w->windows[i].data, w->windows[i].bytes};
    snprintf(name, sizeof name, "ring world %s", c->name);
    shm_exchange_options options = {
        .name = name,
        .token = c->job_token,
        .rank = c->rank,
        .world = c->world,
        .own = own,
        .count = 1 + w->window_count,
        .deadline_ns = collective_deadline(clock_now_ns(), c->connect_timeout_ns),
        .canceled = c->canceled,
        .context = c->canceled_context,
    };
    return shm_exchange(&options, w->peers);
}

static void watch_processes(shm_world *w)
{
    for (int r = 0; r < w->base.config.world; r++) {
        pid_t pid = atomic_load_explicit(&w->bells[r]->pid, memory_order_acquire);
        if (pid != getpid()) w->death_fds[r] = (int)syscall(SYS_pidfd_open, pid, 0);
    }
}

status shm_world_open(const collective_config *config, shm_choice choose, collective_world **out)
{
    if (config->world < 1 || config->world > SHM_MAX_RANKS)
        return fail(STATUS_CONFIG, "collectives over shared memory: expected 1 to %d ranks, got %d", SHM_MAX_RANKS,
                    config->world);
    if (config->window_count > COLLECTIVE_MAX_WINDOWS)
        return fail(STATUS_INTERNAL, "collectives over shared memory: %d windows", config->window_count);
    shm_world *w = calloc(1, sizeof *w);
    if (!w) return fail(STATUS_SYSTEM, "no memory for collectives");
    w->base.config = *config;
    w->adapter.link = config->link;
    w->choose = choose;
    w->window_count = config->window_count;
    for (int i = 0; i < config->window_count; i++) w->windows[i] = config->windows[i];
    for (int r = 0; r < SHM_MAX_RANKS; r++) w->death_fds[r] = -1;
    w->spins = config->world * config->threads_per_rank <= processors();
    status rc = STATUS_OK;
    size_t segments = (size_t)config->world * (size_t)(1 + config->window_count);
    w->peers = calloc(segments, sizeof *w->peers);
    if (!w->peers) {
        rc = fail(STATUS_SYSTEM, "no memory for collectives");
        goto failed;
    }
    TRY_GOTO(rc, shm_create("ring bell", sizeof(shm_bell), &w->bell_segment), failed);
    shm_bell *own = w->bell_segment.data;
    atomic_store_explicit(&own->pid, getpid(), memory_order_release);
    TRY_GOTO(rc, exchange(w), failed);
    for (int r = 0; r < config->world; r++)
        w->bells[r] = r == config->rank ? own : w->peers[r * (1 + w->window_count)].data;
    watch_processes(w);
    *out = &w->base;
    return STATUS_OK;
failed:
    shm_world_close(&w->base);
    return rc;
}

void shm_world_close(collective_world *world)
{
    shm_world *w = (shm_world *)world;
    int count = world->config.world * (1 + w->window_count);
    for (int i = 0; w->peers && i < count; i++) shm_close(&w->peers[i]);
    for (int r = 0; r < SHM_MAX_RANKS; r++)
        if (w->death_fds[r] >= 0) close(w->death_fds[r]);
    shm_close(&w->bell_segment);
    free(w->peers);
    free(w);
}

/* ---- bells ------------------------------------------------------------------------------------ */

void shm_ring_bell(shm_world *world, int rank)
{
    doorbell *bell = &world->bells[rank]->bell;
    if (doorbell_has_sleepers(bell)) doorbell_ring(bell);
}

void shm_world_wake(collective_world *world)
{
    doorbell_ring(&((shm_world *)world)->bells[world->config.rank]->bell);
}

/* Whether there is something to do: a wake-up since the last progress, or a step that a call waits for. A world without
 * calls waits only for a wake-up. */
static bool something_happened(shm_world *w, bool *idle)
{
    *idle = true;
    if (doorbell_rings(&w->bells[w->base.config.rank]->bell) != w->seen) return true;
    for (shm_queue *q = w->queues; q; q = q->next) {
        if (q->completed == q->posted) continue;
        if (q->charged && q->due_ns > 0) continue; /* only its time is to be waited for */
        *idle = false;
        if (shm_queue_may_advance(q)) return true;
    }
    return false;
}

static void sleep_on_bell(shm_world *w, int64_t deadline_ns)
{
    doorbell *own = &w->bells[w->base.config.rank]->bell;
    bool idle;
    doorbell_enter(own);
    if (!something_happened(w, &idle)) {
        int64_t check_ns = clock_now_ns() + SLEEP_NS;
        doorbell_sleep(own, w->seen, deadline_ns < check_ns ? deadline_ns : check_ns);
    }
    doorbell_leave(own);
}

void shm_world_wait(collective_world *world, int64_t deadline_ns)
{
    shm_world *w = (shm_world *)world;
    bool idle;
    int spins = w->spins ? SPIN_ROUNDS : CROWDED_SPIN_ROUNDS;
    for (int i = 0; i < spins; i++) {
        if (something_happened(w, &idle)) return;
        if (idle) break;
        __builtin_ia32_pause();
    }
    for (int64_t until = clock_now_ns() + YIELD_NS; !idle && clock_now_ns() < until;) {
        if (something_happened(w, &idle)) return;
        sched_yield();
    }
    sleep_on_bell(w, deadline_ns);
}

/* ---- peers ------------------------------------------------------------------------------------ */

void shm_world_abort(collective_world *world, const error_record *why)
{
    shm_world *w = (shm_world *)world;
    shm_bell *own = w->bells[world->config.rank];
    own->code = (int32_t)why->code;
    snprintf(own->message, sizeof own->message, "%s", why->message);
    atomic_store_explicit(&own->gave_up, true, memory_order_release);
    for (int r = 0; r < world->config.world; r++)
        if (r != world->config.rank) doorbell_ring(&w->bells[r]->bell);
}

static bool is_dead(const shm_world *w, int rank)
{
    if (w->death_fds[rank] < 0) return false;
    struct pollfd fd = {.fd = w->death_fds[rank], .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static status peer_gave_up(const shm_bell *bell, int rank)
{
    int code = bell->code > STATUS_OK && bell->code < STATUS_COUNT ? bell->code : STATUS_PEER;
    return fail((status)code, "rank %d gave up: %.*s", rank, (int)sizeof bell->message - 1, bell->message);
}

status shm_check_peers(shm_world *w, shm_queue *q)
{
    for (int m = 0; m < q->size; m++) {
        if (!(q->unmet >> m & 1)) continue;
        int rank = q->members[m].rank;
        shm_bell *bell = w->bells[rank];
        bool gave_up = atomic_load_explicit(&bell->gave_up, memory_order_acquire);
        if (!gave_up && !is_dead(w, rank)) continue;
        if (shm_queue_may_advance(q)) return STATUS_OK; /* it had finished its part before */
        if (!(q->unmet >> m & 1)) continue;
        if (gave_up) return peer_gave_up(bell, rank);
        char text[128];
        return fail(STATUS_PEER, "rank %d (process %d) is gone; rank %d waits for it in %s", rank,
                    atomic_load_explicit(&bell->pid, memory_order_relaxed), w->base.config.rank,
                    collective_call_format(q->call, text, sizeof text));
    }
    return STATUS_OK;
}
